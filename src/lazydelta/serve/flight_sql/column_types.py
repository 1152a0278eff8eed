"""Types as clients of ODBC and JDBC know them: the list of all, and of each column its name, digits and what it can do.

Arrow's types alone do not tell a client how a type is called here nor how a literal of it is written. The list is asked
for by itself; columns carry their part as metadata of the table's schema, under the keys of the specification.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from lazydelta.serve.flight_sql.sql_guard import CATALOG, SCHEMA

__all__ = ["XDBC_SCHEMA", "with_type_names", "xdbc_types"]

XDBC_SCHEMA = pa.schema(
    [
        pa.field("type_name", pa.string(), nullable=False),
        pa.field("data_type", pa.int32(), nullable=False),
        pa.field("column_size", pa.int32()),
        pa.field("literal_prefix", pa.string()),
        pa.field("literal_suffix", pa.string()),
        pa.field("create_params", pa.list_(pa.field("item", pa.string(), nullable=False))),
        pa.field("nullable", pa.int32(), nullable=False),
        pa.field("case_sensitive", pa.bool_(), nullable=False),
        pa.field("searchable", pa.int32(), nullable=False),
        pa.field("unsigned_attribute", pa.bool_()),
        pa.field("fixed_prec_scale", pa.bool_(), nullable=False),
        pa.field("auto_increment", pa.bool_()),
        pa.field("local_type_name", pa.string()),
        pa.field("minimum_scale", pa.int32()),
        pa.field("maximum_scale", pa.int32()),
        pa.field("sql_data_type", pa.int32(), nullable=False),
        pa.field("datetime_subcode", pa.int32()),
        pa.field("num_prec_radix", pa.int32()),
        pa.field("interval_precision", pa.int32()),
    ]
)
_NULLABLE = 1
_IN_EVERY_CONDITION = 3
# Of moments X/Open has one number for all, and a second one for which of them it is.
_DATETIME = 9


class _Type(NamedTuple):
    """A type: its name, X/Open's number, its digits, bits or characters, and what else there is to say of it."""

    name: str
    number: int
    size: int | None
    quote: str | None = None
    radix: int | None = None
    scales: tuple[int, int] | None = None
    moment: int | None = None
    parameters: tuple[str, ...] | None = None


_TYPES = (
    _Type("BOOLEAN", -7, 1),
    _Type("TINYINT", -6, 3, radix=10),
    _Type("BIGINT", -5, 19, radix=10),
    _Type("BLOB", -3, None, quote="'"),
    _Type("DECIMAL", 3, 38, radix=10, scales=(0, 38), parameters=("precision", "scale")),
    _Type("INTEGER", 4, 10, radix=10),
    _Type("SMALLINT", 5, 5, radix=10),
    _Type("FLOAT", 7, 24, radix=2),
    _Type("DOUBLE", 8, 53, radix=2),
    _Type("VARCHAR", 12, None, quote="'"),
    _Type("DATE", 91, 10, quote="'", moment=1),
    _Type("TIME", 92, 15, quote="'", scales=(6, 6), moment=2),
    _Type("TIMESTAMP", 93, 26, quote="'", scales=(6, 6), moment=3),
    _Type("TIMESTAMP WITH TIME ZONE", 93, 32, quote="'", scales=(6, 6), moment=5),
)
_KNOWN = {each.name: each for each in _TYPES}
_ARROW = (
    (pa.types.is_boolean, "BOOLEAN"),
    (pa.types.is_int8, "TINYINT"),
    (pa.types.is_int16, "SMALLINT"),
    (pa.types.is_int32, "INTEGER"),
    (pa.types.is_int64, "BIGINT"),
    (pa.types.is_float32, "FLOAT"),
    (pa.types.is_float64, "DOUBLE"),
    (pa.types.is_decimal, "DECIMAL"),
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), "VARCHAR"),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), "BLOB"),
    (pa.types.is_date, "DATE"),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, "TIMESTAMP WITH TIME ZONE"),
    (pa.types.is_timestamp, "TIMESTAMP"),
    (lambda kind: pa.types.is_list(kind) or pa.types.is_large_list(kind), "LIST"),
    (pa.types.is_map, "MAP"),
    (pa.types.is_struct, "STRUCT"),
)


def xdbc_types(asked: int | None) -> pa.Table:
    """Return the types of the server's SQL, or those of one number of X/Open's."""
    rows = [
        {
            "type_name": each.name,
            "data_type": each.number,
            "column_size": each.size,
            "literal_prefix": each.quote,
            "literal_suffix": each.quote,
            "create_params": None if each.parameters is None else list(each.parameters),
            "nullable": _NULLABLE,
            "case_sensitive": each.name == "VARCHAR",
            "searchable": _IN_EVERY_CONDITION,
            "unsigned_attribute": None if each.radix is None else False,
            "fixed_prec_scale": False,
            "auto_increment": False,
            "local_type_name": each.name,
            "minimum_scale": None if each.scales is None else each.scales[0],
            "maximum_scale": None if each.scales is None else each.scales[1],
            "sql_data_type": each.number if each.moment is None else _DATETIME,
            "datetime_subcode": each.moment,
            "num_prec_radix": each.radix,
        }
        for each in _TYPES
        if asked is None or asked == each.number
    ]
    return pa.Table.from_pylist(rows, schema=XDBC_SCHEMA)


def with_type_names(schema: pa.Schema, table: str) -> pa.Schema:
    """Return the columns of a table with what clients want to know of each as its metadata."""
    return pa.schema([field.with_metadata(_told(field, table)) for field in schema], schema.metadata)


def _told(field: pa.Field, table: str) -> dict[str | bytes, str | bytes]:
    name = next((name for test, name in _ARROW if test(field.type)), str(field.type).upper())
    told = {
        "CATALOG_NAME": CATALOG,
        "SCHEMA_NAME": SCHEMA,
        "TABLE_NAME": table,
        "TYPE_NAME": name,
        "IS_AUTO_INCREMENT": "0",
        "IS_CASE_SENSITIVE": "1" if name == "VARCHAR" else "0",
        "IS_READ_ONLY": "1",
        "IS_SEARCHABLE": "1",
    }
    if pa.types.is_decimal(field.type):
        told |= {"PRECISION": str(field.type.precision), "SCALE": str(field.type.scale)}
    elif (known := _KNOWN.get(name)) is not None and known.size is not None:
        told["PRECISION"] = str(known.size)
        if known.scales is not None:
            told["SCALE"] = str(known.scales[1])
    return {**(field.metadata or {}), **{f"ARROW:FLIGHT:SQL:{key}": value for key, value in told.items()}}

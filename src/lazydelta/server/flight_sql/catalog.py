"""Metadata commands of Flight SQL: catalogs, schemas, tables with their columns, keys and types.

There is one catalog with one schema. It lists only the tables that the client may read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.errors import LazyDeltaError
from lazydelta.server.flight_sql.guard import CATALOG, MOST_TEXT, SCHEMA
from lazydelta.server.flight_sql.statement import TablesOfServer

__all__ = ["CATALOG_COMMANDS", "catalog_answer", "catalog_schema", "sql_info", "with_type_names"]


# Types for ODBC and JDBC clients: the list of types, and the name, precision and capabilities of each column.
#
# Arrow types alone do not give a client the SQL name of a type or the syntax of its literals. A separate command
# returns the list. Columns carry their part as metadata of the schema, under the keys of the specification.


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
# X/Open has one code for all datetime types, and a subcode for each.
_DATETIME = 9


class _Type(NamedTuple):
    """A type: its name, X/Open code, size in digits, bits or characters, and further properties."""

    name: str
    number: int
    size: int | None
    quote: str | None = None
    radix: int | None = None
    scales: tuple[int, int] | None = None
    timestamp: int | None = None
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
    _Type("DATE", 91, 10, quote="'", timestamp=1),
    _Type("TIME", 92, 15, quote="'", scales=(6, 6), timestamp=2),
    _Type("TIMESTAMP", 93, 26, quote="'", scales=(6, 6), timestamp=3),
    _Type("TIMESTAMP WITH TIME ZONE", 93, 32, quote="'", scales=(6, 6), timestamp=5),
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
    (pa.types.is_time, "TIME"),
    (lambda kind: pa.types.is_duration(kind) or pa.types.is_interval(kind), "INTERVAL"),
    (pa.types.is_uint8, "UTINYINT"),
    (pa.types.is_uint16, "USMALLINT"),
    (pa.types.is_uint32, "UINTEGER"),
    (pa.types.is_uint64, "UBIGINT"),
    (lambda kind: pa.types.is_list(kind) or pa.types.is_large_list(kind), "LIST"),
    (pa.types.is_map, "MAP"),
    (pa.types.is_struct, "STRUCT"),
)


def xdbc_types(asked: int | None) -> pa.Table:
    """Return the SQL types of the server, or those with one X/Open code."""
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
            "sql_data_type": each.number if each.timestamp is None else _DATETIME,
            "datetime_subcode": each.timestamp,
            "num_prec_radix": each.radix,
        }
        for each in _TYPES
        if asked is None or asked == each.number
    ]
    return pa.Table.from_pylist(rows, schema=XDBC_SCHEMA)


def with_type_names(schema: pa.Schema, table: str | None = None) -> pa.Schema:
    """Return the columns of a table or result with the metadata that clients expect for each."""
    return pa.schema([field.with_metadata(_told(field, table)) for field in schema], schema.metadata)


def _told(field: pa.Field, table: str | None) -> dict[str | bytes, str | bytes]:
    name = next((name for test, name in _ARROW if test(field.type)), str(field.type).upper())
    of_table = {} if table is None else {"CATALOG_NAME": CATALOG, "SCHEMA_NAME": SCHEMA, "TABLE_NAME": table}
    told = {
        **of_table,
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


# Facts about the server and its SQL dialect, by the numbers of the specification.


_INT_LISTS = pa.map_(pa.int32(), pa.list_(pa.int32()))
_MEMBERS = [
    pa.field("string_value", pa.string()),
    pa.field("bool_value", pa.bool_()),
    pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()),
    pa.field("string_list", pa.list_(pa.string())),
    pa.field("int32_to_int32_list_map", _INT_LISTS),
]
SQL_INFO_SCHEMA = pa.schema(
    [
        pa.field("info_name", pa.uint32(), nullable=False),
        pa.field("value", pa.dense_union(_MEMBERS), nullable=False),
    ]
)

_STRING, _BOOL, _BIGINT, _INT32, _LIST, _MAP = range(6)
_CASE_INSENSITIVE = 1
_NULLS_AT_END = 3
_NONE = 0
_FULL_OUTER_JOINS = 4
_EVERY_SUBQUERY = 15
_BOTH_UNIONS = 3
_UNRELATED_GROUP_BY = 3
_KEYWORDS = ["ANTI", "ASOF", "DESCRIBE", "EXCLUDE", "PIVOT", "POSITIONAL", "QUALIFY", "SEMI", "SUMMARIZE", "UNPIVOT"]
_NUMERIC = ["ABS", "CEIL", "EXP", "FLOOR", "LN", "LOG", "MOD", "PI", "POWER", "ROUND", "SIGN", "SQRT"]
_TEXT = ["CONCAT", "LEFT", "LENGTH", "LOWER", "LTRIM", "REPLACE", "RIGHT", "RTRIM", "SUBSTRING", "TRIM", "UPPER"]
_TIME = ["CURRENT_DATE", "DATE_DIFF", "DATE_PART", "DATE_TRUNC", "EXTRACT", "NOW", "STRFTIME", "TIME_BUCKET"]


def _facts() -> dict[int, tuple[int, Any]]:
    from importlib.metadata import version  # noqa: PLC0415 - used once per connection

    return {
        0: (_STRING, "lazydelta"),
        1: (_STRING, version("lazydelta")),
        2: (_STRING, pa.__version__),
        3: (_BOOL, True),  # read-only
        4: (_BOOL, True),  # SQL
        5: (_BOOL, False),  # Substrait
        8: (_INT32, _NONE),  # transactions
        9: (_BOOL, True),  # cancellation
        10: (_BOOL, False),  # bulk ingestion
        500: (_BOOL, False),  # DDL of catalogs, schemas, tables
        501: (_BOOL, False),
        502: (_BOOL, False),
        503: (_BIGINT, _CASE_INSENSITIVE),
        504: (_STRING, '"'),
        505: (_BIGINT, _CASE_INSENSITIVE),
        506: (_BOOL, True),  # every table can be read
        507: (_BIGINT, _NULLS_AT_END),
        508: (_LIST, _KEYWORDS),
        509: (_LIST, _NUMERIC),
        510: (_LIST, _TEXT),
        511: (_LIST, []),
        512: (_LIST, _TIME),
        513: (_STRING, "\\"),
        514: (_STRING, ""),
        515: (_BOOL, True),  # column aliases
        516: (_BOOL, True),  # NULL || 'a' is null
        517: (_MAP, {}),
        518: (_BOOL, True),  # table aliases, which may differ from the table names
        519: (_BOOL, False),
        520: (_BOOL, True),  # expressions in ORDER BY, also of columns that are not selected
        521: (_BOOL, True),
        522: (_INT32, _UNRELATED_GROUP_BY),
        523: (_BOOL, True),  # LIKE … ESCAPE
        524: (_BOOL, True),
        525: (_INT32, 7),  # core and extended grammar
        526: (_INT32, 1),  # ANSI 92 entry level
        527: (_BOOL, False),
        528: (_INT32, _FULL_OUTER_JOINS),
        529: (_STRING, "schema"),
        530: (_STRING, "procedure"),
        531: (_STRING, "catalog"),
        532: (_BOOL, True),  # the catalog comes first in a qualified name
        533: (_INT32, _NONE),
        534: (_INT32, _NONE),
        535: (_INT32, _NONE),
        536: (_BOOL, False),
        537: (_BOOL, False),
        538: (_INT32, _EVERY_SUBQUERY),
        539: (_BOOL, True),
        540: (_INT32, _BOTH_UNIONS),
        **dict.fromkeys(range(541, 556), (_BIGINT, 0)),  # lengths and counts without a limit
        556: (_BOOL, False),  # the maximum row size does not include blobs
        557: (_BIGINT, MOST_TEXT),  # the maximum statement length
        **dict.fromkeys(range(558, 562), (_BIGINT, 0)),
        562: (_BIGINT, _NONE),
        563: (_BOOL, False),  # transactions, in any form
        564: (_INT32, _NONE),
        565: (_BOOL, False),
        566: (_BOOL, False),
        567: (_INT32, 1),  # results are forward-only
        568: (_INT32, _NONE),
        569: (_INT32, _NONE),
        570: (_INT32, _NONE),
        571: (_INT32, _NONE),
        572: (_BOOL, False),
        573: (_BOOL, False),
        574: (_BOOL, False),
        575: (_BOOL, False),
        576: (_BOOL, False),
    }


def sql_info(asked: list[int]) -> pa.Table:
    """Return the facts for the given numbers, or all facts if none are given."""
    facts = _facts()
    chosen = [number for number in (asked or facts) if number in facts]
    members: list[list[Any]] = [[] for _ in _MEMBERS]
    codes, offsets = [], []
    for number in chosen:
        code, value = facts[number]
        codes.append(code)
        offsets.append(len(members[code]))
        members[code].append(list(value.items()) if code == _MAP else value)
    value = pa.UnionArray.from_dense(
        pa.array(codes, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(values, field.type) for values, field in zip(members, _MEMBERS, strict=True)],
        [field.name for field in _MEMBERS],
    )
    return pa.Table.from_arrays(
        [pa.array(chosen, pa.uint32()), value.cast(SQL_INFO_SCHEMA[1].type)], schema=SQL_INFO_SCHEMA
    )


_log = logging.getLogger(__name__)
_TABLE = "TABLE"

_CATALOGS = pa.schema([pa.field("catalog_name", pa.string(), nullable=False)])
_SCHEMAS = pa.schema([pa.field("catalog_name", pa.string()), pa.field("db_schema_name", pa.string(), nullable=False)])
_TABLES = pa.schema(
    [
        pa.field("catalog_name", pa.string()),
        pa.field("db_schema_name", pa.string()),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("table_type", pa.string(), nullable=False),
    ]
)
_TABLES_WITH_SCHEMA = _TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
_TABLE_TYPES = pa.schema([pa.field("table_type", pa.string(), nullable=False)])
_PRIMARY_KEYS = pa.schema(
    [
        pa.field("catalog_name", pa.string()),
        pa.field("db_schema_name", pa.string()),
        pa.field("table_name", pa.string(), nullable=False),
        pa.field("column_name", pa.string(), nullable=False),
        pa.field("key_name", pa.string()),
        pa.field("key_sequence", pa.int32(), nullable=False),
    ]
)
_FOREIGN_KEYS = pa.schema(
    [
        *(
            field
            for side in ("pk", "fk")
            for field in (
                pa.field(f"{side}_catalog_name", pa.string()),
                pa.field(f"{side}_db_schema_name", pa.string()),
                pa.field(f"{side}_table_name", pa.string(), nullable=False),
                pa.field(f"{side}_column_name", pa.string(), nullable=False),
            )
        ),
        pa.field("key_sequence", pa.int32(), nullable=False),
        pa.field("fk_key_name", pa.string()),
        pa.field("pk_key_name", pa.string()),
        pa.field("update_rule", pa.uint8(), nullable=False),
        pa.field("delete_rule", pa.uint8(), nullable=False),
    ]
)


def _catalogs(_command: Any, _tables: TablesOfServer, _identity: Hashable) -> pa.Table:
    return _of(_CATALOGS, [{"catalog_name": CATALOG}])


def _schemas(command: Any, _tables: TablesOfServer, _identity: Hashable) -> pa.Table:
    shown = _is_here(command) and _matches(command, "db_schema_filter_pattern", SCHEMA)
    return _of(_SCHEMAS, [{"catalog_name": CATALOG, "db_schema_name": SCHEMA}] if shown else [])


def _listed(command: Any, tables: TablesOfServer, identity: Hashable) -> pa.Table:
    schema = _tables_schema(command)
    wanted = _is_here(command) and _matches(command, "db_schema_filter_pattern", SCHEMA)
    if not wanted or (command.table_types and _TABLE not in command.table_types):
        return _of(schema, [])
    rows: list[dict[str, Any]] = []
    for name in sorted(tables.names_for(identity)):
        if not _matches(command, "table_name_filter_pattern", name):
            continue
        row: dict[str, Any] = {
            "catalog_name": CATALOG,
            "db_schema_name": SCHEMA,
            "table_name": name,
            "table_type": _TABLE,
        }
        if command.include_schema:
            row["table_schema"] = _columns(tables, name, identity).serialize().to_pybytes()
        rows.append(row)
    return _of(schema, rows)


def _columns(tables: TablesOfServer, name: str, identity: Hashable) -> pa.Schema:
    try:
        return with_type_names(tables.open(name, identity).schema().to_arrow(), name)
    except LazyDeltaError as error:
        # A table that cannot be read must not hide the others. A query on it reports the reason.
        _log.warning("The columns of the table %r are not shown: %s", name, error)
        return pa.schema([])


def _table_types(_command: Any, _tables: TablesOfServer, _identity: Hashable) -> pa.Table:
    return _of(_TABLE_TYPES, [{"table_type": _TABLE}])


def _tables_schema(command: Any) -> pa.Schema:
    return _TABLES_WITH_SCHEMA if command.include_schema else _TABLES


def _no(schema: pa.Schema) -> Callable[[Any, TablesOfServer, Hashable], pa.Table]:
    return lambda *_: _of(schema, [])


_Answer = Callable[[Any, TablesOfServer, Hashable], pa.Table]
CATALOG_COMMANDS: dict[str, tuple[pa.Schema | Callable[[Any], pa.Schema], _Answer]] = {
    "CommandGetCatalogs": (_CATALOGS, _catalogs),
    "CommandGetDbSchemas": (_SCHEMAS, _schemas),
    "CommandGetTables": (_tables_schema, _listed),
    "CommandGetTableTypes": (_TABLE_TYPES, _table_types),
    "CommandGetPrimaryKeys": (_PRIMARY_KEYS, _no(_PRIMARY_KEYS)),
    "CommandGetExportedKeys": (_FOREIGN_KEYS, _no(_FOREIGN_KEYS)),
    "CommandGetImportedKeys": (_FOREIGN_KEYS, _no(_FOREIGN_KEYS)),
    "CommandGetCrossReference": (_FOREIGN_KEYS, _no(_FOREIGN_KEYS)),
    "CommandGetSqlInfo": (SQL_INFO_SCHEMA, lambda command, *_: sql_info(list(command.info))),
    "CommandGetXdbcTypeInfo": (
        XDBC_SCHEMA,
        lambda command, *_: xdbc_types(command.data_type if command.HasField("data_type") else None),
    ),
}
"""The schema and the result function of each metadata command."""


def catalog_schema(name: str, command: Any) -> pa.Schema:
    """Return the schema of a command's result."""
    schema = CATALOG_COMMANDS[name][0]
    return schema(command) if callable(schema) else schema


def catalog_answer(name: str, command: Any, tables: TablesOfServer, identity: Hashable) -> pa.Table:
    """Return the result of a metadata command."""
    return CATALOG_COMMANDS[name][1](command, tables, identity)


def _of(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def _is_here(command: Any) -> bool:
    # Absent means any. Empty means objects without a catalog, and there are none.
    return not command.HasField("catalog") or command.catalog == CATALOG


def _matches(command: Any, field: str, name: str) -> bool:
    if not command.HasField(field):
        return True
    return bool(pc.match_like(pa.array([name]), getattr(command, field))[0].as_py())

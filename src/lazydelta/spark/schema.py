"""The table's schema as a Spark schema, and rows in the Arrow form that Spark expects of a data source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from lazydelta.errors import OptionError, UnsupportedFeatureError
from lazydelta.protocol.schema import Array, DataType, Decimal, Field, Map, Struct, TableSchema, Variant

__all__ = ["arrow_form", "chosen_fields", "in_form", "spark_schema"]

_PRIMITIVE: dict[str, type[spark.DataType]] = {
    "string": spark.StringType,
    "long": spark.LongType,
    "integer": spark.IntegerType,
    "short": spark.ShortType,
    "byte": spark.ByteType,
    "float": spark.FloatType,
    "double": spark.DoubleType,
    "boolean": spark.BooleanType,
    "binary": spark.BinaryType,
    "date": spark.DateType,
    "timestamp": spark.TimestampType,
    "timestamp_ntz": spark.TimestampNTZType,
    "void": spark.NullType,
}


def spark_schema(fields: Iterable[Field]) -> spark.StructType:
    """Return fields of a table as a Spark schema.

    All fields are nullable: files of other writers may violate a table's NOT NULL, and Spark would rely on it.
    """
    return spark.StructType([spark.StructField(each.name, _spark_type(each.type)) for each in fields])


def _spark_type(kind: DataType) -> spark.DataType:
    match kind:
        case Decimal(precision, scale):
            return spark.DecimalType(precision, scale)
        case Array(element, _):
            return spark.ArrayType(_spark_type(element))
        case Map(key, value, _):
            return spark.MapType(_spark_type(key), _spark_type(value))
        case Struct(fields):
            return spark_schema(fields)
        case Variant():
            return spark.VariantType()
        case _:
            return _PRIMITIVE[kind.name]()


def chosen_fields(table: TableSchema, schema: spark.StructType) -> tuple[Field, ...]:
    """Return the table fields that a Spark schema names. Their types must match the table's."""
    found = tuple(table.field(each.name) for each in schema.fields)
    for asked, field in zip(schema.fields, found, strict=True):
        kind, own = asked.dataType.simpleString(), _spark_type(field.type).simpleString()
        if kind.lower() != own.lower():
            message = f"The schema that was given has {asked.name!r} as {kind}, and in the table it is {own}"
            raise OptionError(message, hint="a schema selects columns; cast the result to change types")
    return found


def arrow_form(schema: spark.StructType) -> pa.Schema:
    """Return the Arrow schema that Spark compares batches with. Variants have none."""
    for each in schema.fields:
        if "variant" in each.dataType.simpleString():
            message = f"Column {each.name!r} is a variant, which a Python data source cannot return to Spark"
            hint = "choose other columns with option('columns', …), or use lazydelta.spark.read"
            raise UnsupportedFeatureError(message, hint=hint)
    # PySpark 4.1 has no such parameter, and its timestamps are in UTC.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def in_form(batches: Iterable[pa.RecordBatch], form: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches in Spark's form: with the names of the schema, and all fields nullable."""
    for batch in batches:
        yield batch if batch.schema.equals(form) else _formed(batch.columns, form)


def _formed(columns: Sequence[pa.Array], form: pa.Schema) -> pa.RecordBatch:
    arrays = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(columns, form, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=form)

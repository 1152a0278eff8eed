"""``read`` and ``attach``: tables as DataFrames and views whose files are found while Spark plans each query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from operator import and_, or_
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as spark_types

from lazydelta.errors import OptionError, PredicateError
from lazydelta.predicates import Predicate, Where, parse_predicate, tree
from lazydelta.predicates.tree import And, Opaque, Or, WithExpression, leaves
from lazydelta.protocol.schema import Array, Column, DataType, Field, Map, Primitive, Struct
from lazydelta.protocol.time import has_plain_year, timestamp_text
from lazydelta.protocol.values import is_float
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.spark.file_index import DELETED_ROWS, DeltaFileIndex, SparkInternals, TableFiles, hadoop_path, why_not
from lazydelta.spark.read_options import pinned_version, split_version
from lazydelta.spark.schema import spark_schema
from lazydelta.spark.session import active_session

__all__ = ["attach", "read"]


def read(  # noqa: PLR0913 - all but the first two are keyword-only
    spark: SparkSession,
    uri: str,
    *,
    where: Where = None,
    columns: Sequence[str] | None = None,
    version: int | str | datetime | None = None,
    timestamp: str | datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    by_spark: bool | None = None,
) -> DataFrame:
    """Return a table as a DataFrame. Each query on it lists only the files that may match its own filters.

    Spark's Parquet reader reads the files. Filters, columns, joins and caches work as for any table of Spark's. The
    version is pinned when the DataFrame is made; ``REFRESH TABLE`` moves a view over it to the newest version.

    Where the session has no file index (Spark Connect, clusters that lock their JVM) and for tables that Spark's
    reader does not read, rows come through ``format("lazydelta")``: ``explain`` shows ``FileScan parquet`` with
    ``lazydelta:/version=…`` or ``BatchScan lazydelta``.

    Args:
        spark: The session.
        uri: The table; ``uri@v12`` is its version 12.
        where: A condition for all queries, in any form that `DeltaTable.rows` takes.
        columns: The columns to return.
        version: A version to read, by number or timestamp, instead of the newest.
        timestamp: A timestamp whose version to read.
        storage_options: Credentials for the log.
        options: Options of the table, as for `DeltaTable`.
        by_spark: Whether Spark may open the files. It does so with Hadoop's credentials, not with
            ``storage_options``. By default it may for local tables, and for remote ones if Hadoop knows their scheme
            and no ``storage_options`` are given.

    Example:
        >>> read(spark, "demo").where("timestamp > now() - interval 1 hour").count()  # doctest: +SKIP

    """
    uri, suffix = split_version(uri)
    given = [each for each in (version, timestamp, suffix) if each is not None]
    if len(given) > 1:
        raise OptionError(f"A version is given more than once: {given}", hint="pass only one of them")
    asked = given[0] if given else None
    handle = TableHandle.open(uri, storage_options, options)
    snapshot = pinned_version(handle, asked.isoformat() if isinstance(asked, datetime) else asked)
    predicate = parse_predicate(where, snapshot.schema)
    fields = _top_level(snapshot, columns)
    condition = None if predicate is None else spark_condition(predicate)
    reason = "its condition has no equivalent in Spark" if predicate is not None and condition is None else None
    reason = reason or _why_by_source(spark, snapshot, by_spark=by_spark, has_options=bool(storage_options))
    if reason is None:
        files = TableFiles(snapshot, pinned=asked is not None, where=predicate)
        found = _indexed(spark, files)
    else:
        text = None if predicate is None else _text_of(predicate, where, snapshot)
        found = _by_source(spark, snapshot, text, storage_options or {}, options or {})
    if condition is not None:
        found = found.where(condition)
    return found if columns is None else found.select(*(_quoted(each.name) for each in fields))


def attach(
    spark: SparkSession,
    *,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    by_spark: bool | None = None,
    **tables: str,
) -> None:
    """Make temporary views of tables, each named by its keyword. Each query lists only the files that it needs.

    ``REFRESH TABLE name`` moves a view to the newest version.

    Example:
        >>> attach(spark, events="demo")  # doctest: +SKIP
        >>> spark.sql("SELECT count(*) FROM events WHERE timestamp > now() - interval 1 hour")  # doctest: +SKIP

    """
    frames = {
        name: read(spark, uri, storage_options=storage_options, options=options, by_spark=by_spark)
        for name, uri in tables.items()
    }
    for name, frame in frames.items():
        frame.createOrReplaceTempView(_quoted(name))


def _indexed(spark: SparkSession, files: TableFiles) -> DataFrame:
    """Return a DataFrame over a file index: stored names below, the table's names and order above."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame  # noqa: PLC0415 - Connect has no such module

    schema = files.snapshot.schema
    partitions = [_stored(each) for each in schema.fields if each.name in schema.partition_columns]
    partitions.sort(key=lambda each: schema.physical_partition_columns.index(each.name))
    if files.has_vectors:
        partitions.append(spark_types.StructField(DELETED_ROWS, spark_types.BinaryType()))
    data = [_stored(each) for each in schema.fields if each.name not in schema.partition_columns]
    internals = SparkInternals.of(spark)
    index = DeltaFileIndex(internals, files, spark_types.StructType(partitions))
    found: DataFrame = ClassicFrame(internals.relation(spark, index, spark_types.StructType(data)), spark)
    if files.has_vectors:
        found = found.where(internals.is_live())
    return found.select(*(_presented(each) for each in schema.fields))


def _stored(field: Field) -> spark_types.StructField:
    """Return a field as files have it, under its physical names."""
    return spark_types.StructField(field.physical_name, spark_schema([_renamed(field)]).fields[0].dataType)


def _renamed(field: Field) -> Field:
    return Field(field.physical_name, _physical(field.type), field.nullable, field.physical_name)


def _physical(kind: DataType) -> DataType:
    match kind:
        case Struct(fields):
            return Struct(tuple(_renamed(each) for each in fields))
        case Array(element, contains_null):
            return Array(_physical(element), contains_null)
        case Map(key, value, contains_null):
            return Map(_physical(key), _physical(value), contains_null)
    return kind


def _presented(field: Field) -> SparkColumn:
    """Return a stored column under the table's names. A cast renames the fields of structs by their position."""
    column = F.col(_quoted(field.physical_name))
    if _physical(field.type) != field.type:
        column = column.cast(spark_schema([field]).fields[0].dataType)
    return column if field.physical_name == field.name else column.alias(field.name)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _why_by_source(spark: SparkSession, snapshot: Snapshot, *, by_spark: bool | None, has_options: bool) -> str | None:
    """Return why the data source has to read this table, or None if Spark's own reader does."""
    schema, store = snapshot.schema, snapshot.store
    if by_spark is False:
        return "by_spark is False"
    if schema.column_mapping == "id":
        return "the table finds its columns by Parquet field id"
    if any(_has_void(each.type) for each in schema.fields):
        return "Spark's Parquet reader has no void columns"
    if store.is_remote and has_options and by_spark is None:
        return "Hadoop does not have the credentials in storage_options"
    reason = why_not(spark)
    if reason is None and store.is_remote:
        scheme = hadoop_path(store.place("")).partition(":")[0]
        jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no public API for it
        hadoop = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        try:
            jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, hadoop)
        except Py4JError:
            reason = f"Hadoop has no file system for {scheme}://"
    if reason is not None and by_spark:
        raise OptionError(f"Spark cannot read {store.uri} directly: {reason}", hint="omit by_spark")
    return reason


def _has_void(kind: DataType) -> bool:
    match kind:
        case Struct(fields):
            return any(_has_void(each.type) for each in fields)
        case Array(element, _):
            return _has_void(element)
        case Map(key, value, _):
            return _has_void(key) or _has_void(value)
    return kind == Primitive("void")


def _by_source(
    spark: SparkSession,
    snapshot: Snapshot,
    where: str | None,
    storage_options: Mapping[str, str],
    options: Mapping[str, Any],
) -> DataFrame:
    """Return the same version, read through ``format("lazydelta")``."""
    given: dict[str, Any] = {f"storage.{key}": value for key, value in storage_options.items()}
    given |= {key: str(value).lower() for key, value in options.items() if key.startswith("delta.")}
    given["versionAsOf"] = snapshot.version
    if where is not None:
        given["where"] = where
    with active_session(spark):
        return spark.read.format("lazydelta").options(**given).load(snapshot.uri)


# Translate a predicate into a Spark condition that holds for the same rows.


_CAST = {pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint", pa.float32(): "float"}


def spark_condition(predicate: tree.Predicate) -> SparkColumn | None:
    """Return the condition, or None if Spark has no equivalent."""
    match predicate:
        case tree.And(parts) | tree.Or(parts):
            found = [spark_condition(part) for part in parts]
            known = [each for each in found if each is not None]
            if len(known) < len(found):
                return None
            return reduce(and_ if isinstance(predicate, tree.And) else or_, known)
        case tree.Not(part):
            positive = spark_condition(part)
            return None if positive is None else ~positive
        case tree.Constant(value):
            return F.lit(value is True)
        case tree.Compare():
            return _compared(predicate)
        case tree.In(column, values, negated):
            literals = [_literal(value) for value in values]
            chosen = [each for each in literals if each is not None]
            if len(chosen) < len(literals):
                return None
            member = _named(column).isin(chosen)
            return ~member if negated else member
        case tree.IsNull(column, negated):
            return _named(column).isNotNull() if negated else _named(column).isNull()
        case tree.IsNan(column, negated):
            # Spark's isnan is false for null; in lazydelta's predicates it is null.
            named = _named(column)
            return named.isNotNull() & (~F.isnan(named) if negated else F.isnan(named))
        case tree.Prefix(column, prefix, negated):
            starts = _named(column).startswith(prefix)
            return ~starts if negated else starts
    return None


def _compared(node: tree.Compare) -> SparkColumn | None:
    column, value = _named(node.column), _literal(node.value)
    if value is None:
        return None
    match node.op:
        case "=":
            return column == value
        case "!=":
            return column != value
        case "<":
            return column < value
        case "<=":
            return column <= value
    found = column > value if node.op == ">" else column >= value
    if is_float(node.column.type) and node.nan is tree.NanOrder.UNORDERED:
        return found & ~F.isnan(column)  # in Spark, NaN is larger than any other value
    return found


def _named(column: Column) -> SparkColumn:
    return F.col(".".join(map(_quoted, column.path)))


def _literal(value: pa.Scalar) -> SparkColumn | None:
    kind = value.type
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            return F.timestamp_micros(F.lit(value.value).cast("bigint"))
        text = timestamp_text(value.value, "us") if has_plain_year(value.value, "us") else None
        return None if text is None else F.lit(text).cast("timestamp_ntz")
    if pa.types.is_date(kind):
        return F.date_from_unix_date(F.lit(value.value).cast("int"))
    if pa.types.is_decimal(kind):
        return F.lit(str(value.as_py())).cast(f"decimal({kind.precision},{kind.scale})")
    if pa.types.is_binary(kind):
        return F.unhex(F.lit(value.as_py().hex()))
    plain = F.lit(value.as_py())
    return plain.cast(_CAST[kind]) if kind in _CAST else plain


def _text_of(predicate: Predicate, where: Where, snapshot: Snapshot) -> str:
    """Return a predicate as an SQL string for the source's options, with ``now()`` and the like evaluated."""
    text = str(predicate)
    whole = not _is_rewritten(predicate) and not any(isinstance(each, Opaque) for each in leaves(predicate))
    try:
        if whole and str(parse_predicate(text, snapshot.schema)) == text:
            return text
    except PredicateError:
        pass
    if isinstance(where, str):
        return where
    raise OptionError(f"This condition cannot be sent to Spark's tasks: {text}", hint="write it as SQL text")


def _is_rewritten(predicate: Predicate) -> bool:
    """Return whether rows are filtered by a PyArrow expression that the tree covers only in part."""
    match predicate:
        case WithExpression():
            return True
        case And(parts) | Or(parts):
            return any(_is_rewritten(part) for part in parts)
    return False


def _top_level(snapshot: Snapshot, columns: Sequence[str] | None) -> tuple[Field, ...]:
    if columns is None:
        return snapshot.schema.fields
    if isinstance(columns, str):
        raise OptionError("columns is a list of names, not a string", hint=f"write [{columns!r}]")
    return tuple(snapshot.schema.field(name) for name in columns)

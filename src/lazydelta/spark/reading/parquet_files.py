"""``read``: discovered files handed to Spark's own Parquet reader, and what it cannot read to the data source.

Spark's reader is vectorised, takes the columns that a query needs and leaves out row groups; all it lacks is the log.
So the files are discovered here, in the driver, and it gets their names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lazydelta.errors import OptionError, PredicateError
from lazydelta.handle import TableHandle
from lazydelta.log.snapshot import Snapshot
from lazydelta.pruning import Predicate, Where, parse_predicate
from lazydelta.pruning.tree import And, Opaque, Or, WithExpression, leaves
from lazydelta.row_scan.row_request import RowRequest
from lazydelta.row_scan.row_scanner import RowScanner
from lazydelta.spark.reading.plain_files import PlainFiles
from lazydelta.spark.reading.read_options import pinned_version
from lazydelta.spark.reading.spark_condition import spark_condition
from lazydelta.spark.reading.spark_schema import spark_schema
from lazydelta.spark.session import active_session
from lazydelta.types.schema import Field

__all__ = ["read"]

_LISTING_TASKS = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_MOST_LISTING_TASKS = 32
_LISTING = threading.Lock()


def read(
    spark: SparkSession,
    uri: str,
    *,
    where: Where = None,
    columns: Sequence[str] | None = None,
    version: int | str | datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    by_spark: bool | None = None,
) -> DataFrame:
    """Return the rows of a version as a DataFrame, read by Spark's own Parquet reader as far as the table allows.

    ``where`` leaves out files now and rows later; it is any predicate that `DeltaTable.rows` takes. The names of the
    files that may match are held by this process and by Spark: give a ``where`` for tables of millions of files. Files
    with deletion vectors, with mapped or widened columns and the like come through ``format("lazydelta")``.

    ``by_spark`` says whether Spark may open files: it does so with Hadoop's credentials, not with
    ``storage_options``. Without it, that is so for tables on a disk.
    """
    handle = TableHandle.open(uri, storage_options, options)
    asked = version.isoformat() if isinstance(version, datetime) else version
    snapshot = pinned_version(handle, asked)
    predicate = parse_predicate(where, snapshot.schema)
    fields = _top_level(snapshot, columns)
    condition = None if predicate is None else spark_condition(predicate)
    text = None if predicate is None else _text_of(predicate, where, snapshot)
    by_spark = not handle.store.is_remote if by_spark is None else by_spark
    plain = PlainFiles.of(snapshot)
    source = _Source(spark, handle, snapshot, text, storage_options or {}, options or {})
    with active_session(spark):
        if not by_spark or not plain.is_plain_table or (predicate is not None and condition is None):
            found = source.frame()
        else:
            names, others = _divided(handle, snapshot, predicate, plain)
            found = _files(spark, handle, snapshot, names)
            if others:
                found = found.unionByName(source.frame("others")) if names else source.frame("others")
        if condition is not None:
            found = found.where(condition)
        return found.select(*(f"`{each.name.replace('`', '``')}`" for each in fields))


def _files(spark: SparkSession, handle: TableHandle, snapshot: Snapshot, names: list[str]) -> DataFrame:
    """Return the rows of plain files, by Spark's own reader."""
    schema = spark_schema(snapshot.schema.fields)
    if not names:
        return spark.createDataFrame([], schema)
    root = _hadoop(handle.store.place("").rstrip("/"))
    with _listed_by_few_tasks(spark):
        return spark.read.schema(schema).option("basePath", root).parquet(*names)


@contextmanager
def _listed_by_few_tasks(spark: SparkSession) -> Iterator[None]:
    """Let Spark look at named files by few tasks: it would run one for each, which takes longer than all the rest."""
    with _LISTING:  # two that overlap would each restore what the other one set
        before = str(spark.conf.get(_LISTING_TASKS))
        try:
            spark.conf.set(_LISTING_TASKS, min(int(before), _MOST_LISTING_TASKS))
        except PySparkException:  # some platforms let nobody change settings: it is slower there, and right
            yield
            return
        try:
            yield
        finally:
            spark.conf.set(_LISTING_TASKS, before)


def _divided(
    handle: TableHandle, snapshot: Snapshot, predicate: Predicate | None, plain: PlainFiles
) -> tuple[list[str], bool]:
    """Return the names of the files that Spark reads, and whether there are others."""
    names: list[str] = []
    others = False
    request = RowRequest(snapshot.schema, (), predicate=predicate)
    for file in RowScanner(handle, snapshot, request).found_files():
        if plain.holds(file):
            names.append(_hadoop(snapshot.store.uri_of(file.path)))
        else:
            others = True
    return names, others


@dataclass(frozen=True, slots=True)
class _Source:
    """The same version through ``format("lazydelta")``."""

    spark: SparkSession
    handle: TableHandle
    snapshot: Snapshot
    where: str | None
    storage_options: Mapping[str, str]
    options: Mapping[str, Any]

    def frame(self, files: str | None = None) -> DataFrame:
        """Return all rows that match, or those of some files."""
        given: dict[str, Any] = {f"storage.{key}": value for key, value in self.storage_options.items()}
        given |= {key: str(value).lower() for key, value in self.options.items() if key.startswith("delta.")}
        given["versionAsOf"] = self.snapshot.version
        if self.where is not None:
            given["where"] = self.where
        if files is not None:
            given["files"] = files
        return self.spark.read.format("lazydelta").options(**given).load(self.handle.uri)


def _text_of(predicate: Predicate, where: Where, snapshot: Snapshot) -> str:
    """Return a predicate as text for the source's options, with ``now()`` and the like as what they are now."""
    text = str(predicate)
    whole = not _is_rewritten(predicate) and not any(isinstance(each, Opaque) for each in leaves(predicate))
    try:
        if whole and str(parse_predicate(text, snapshot.schema)) == text:
            return text
    except PredicateError:
        pass
    if isinstance(where, str):
        return where
    raise OptionError(f"Spark's tasks cannot be told this condition: {text}", hint="write it as SQL text")


def _is_rewritten(predicate: Predicate) -> bool:
    """Tell whether rows are filtered by an expression of PyArrow's, of which the tree says only a part."""
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
        raise OptionError("columns is a list of names, not a text", hint=f"write [{columns!r}]")
    return tuple(snapshot.schema.field(name) for name in columns)


def _hadoop(place: str) -> str:
    """Return a place as Hadoop's paths have it: nothing in it is encoded, and a local one says so."""
    return f"file:{place}" if place.startswith("/") else place

"""``LazyDeltaReader``: ``spark.read.format("lazydelta")``, planned on the driver and read by the tasks.

Spark requests the partitions of a read as a list before the first task runs. Partitions are shares of the scan (see
``rows.scanner``), so neither the planning worker nor the driver holds the list of files: each task discovers its own.
The version is pinned once, together with the log files that define it, and is sent with the reader.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as pushed
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from lazydelta.errors import LazyDeltaError
from lazydelta.predicates import NanOrder, Predicate, conjunction
from lazydelta.predicates.binding import compare, is_null, membership, starts_with
from lazydelta.protocol.schema import TableSchema
from lazydelta.rows.request import RowRequest, selected_fields
from lazydelta.rows.scanner import FEW_FILES, RowScanner, RowShare, ShareSize, row_shares, share_stream
from lazydelta.sidecar.handle import Snapshot
from lazydelta.spark.errors import sentence_first
from lazydelta.spark.read_options import ReadOptions
from lazydelta.spark.schema import arrow_form, chosen_fields, in_form, spark_schema

__all__ = ["LazyDeltaReader", "SharePartition", "open_reader", "read_schema"]


# Translate the filters that Spark pushes down into a predicate.
#
# Spark pushes each simple conjunct separately and filters the result again, so unsupported conjuncts are left to Spark.
# Supported ones also filter rows and must not drop a row that Spark keeps. In Spark, NaN is the largest value and
# equals itself.


_COMPARED: dict[type[Any], str] = {
    pushed.EqualTo: "=",
    pushed.EqualNullSafe: "=",
    pushed.GreaterThan: ">",
    pushed.GreaterThanOrEqual: ">=",
    pushed.LessThan: "<",
    pushed.LessThanOrEqual: "<=",
}


def pushed_predicate(filters: Iterable[pushed.Filter], schema: TableSchema) -> Predicate | None:
    """Return the supported part of the filters, or None if there is none."""
    found = [each for each in (_translated(one, schema, negated=False) for one in filters) if each is not None]
    return conjunction(found) if found else None


def _translated(given: pushed.Filter, schema: TableSchema, *, negated: bool) -> Predicate | None:
    if isinstance(given, pushed.Not):
        return _translated(given.child, schema, negated=not negated)
    attribute = getattr(given, "attribute", None)
    if not attribute:
        return None
    try:
        column = schema.column(tuple(attribute))
        match given:
            case pushed.IsNull():
                return is_null(column, negated=negated)
            case pushed.IsNotNull():
                return is_null(column, negated=not negated)
            case pushed.In(_, values):
                return membership(column, list(values), negated=negated, nan=NanOrder.LARGEST)
            case pushed.StringStartsWith(_, value):
                return starts_with(column, value, negated=negated)
            case pushed.EqualNullSafe(_, value) if value is None or negated:
                # Unlike a comparison it is never null, so its negation keeps nulls.
                return is_null(column, negated=negated) if value is None else None
            case _ if type(given) in _COMPARED:
                value = given.value  # type: ignore[attr-defined]
                return compare(column, _COMPARED[type(given)], value, negated=negated, nan=NanOrder.LARGEST)
    except (LazyDeltaError, TypeError, ValueError, OverflowError):
        return None  # the literal is not of the column's type: leave it to Spark
    return None


SETTING = "spark.sql.python.filterPushdown.enabled"


def read_schema(given: Mapping[str, str]) -> tuple[StructType, int]:
    """Return the Spark schema of a read, from the log alone, and the version it belongs to."""
    with sentence_first():
        options = ReadOptions.from_spark(given, strict=False)
        snapshot = options.pin(options.open())
        return spark_schema(selected_fields(snapshot.schema, options.columns)), snapshot.version


@dataclass
class SharePartition(InputPartition):
    """A share of the scan, pickled by Spark for its task."""

    share: RowShare


class _PushedOnRequest:
    """A ``pushFilters`` method that works in any session.

    If filter pushdown is off, which is Spark's default, Spark rejects a reader that overrides the method. It checks
    this attribute to find out.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: LazyDeltaReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.narrow(filters)


class LazyDeltaReader(DataSourceReader):
    """Reads a pinned version. Created in the planning worker, then sent to the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType, version: int | None = None) -> None:
        with sentence_first():
            handle = options.open()
            found = handle.snapshot(version) if version is not None else options.pin(handle)
            self._snapshot = found.carrying_credentials()
            self._options = options
            self._form = arrow_form(schema)
            fields = chosen_fields(self._snapshot.schema, schema)
            self._request = RowRequest.of(self._snapshot.schema, where=options.where, output=fields)
        self._pushed = False
        if options.push_filters:
            self.pushFilters = _PushedOnRequest(self)  # type: ignore[method-assign]

    def narrow(self, filters: list[Filter]) -> Iterable[Filter]:
        """Add the supported filters to the scan, and return all of them to Spark as well.

        Use it only if the DataFrame is used once: Spark 4.2 keeps the filtered scan for every other use of the same
        DataFrame or view, even one without filters or the other side of a union, so rows would go missing.
        """
        self._pushed = True
        predicate = pushed_predicate(filters, self._snapshot.schema)
        if predicate is not None:
            self._request = _narrowed(self._request, predicate, self._snapshot)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Divide the scan into partitions."""
        with sentence_first():
            scanner = self._scanner()
            workers = self._options.min_partitions or os.cpu_count() or 2
            shares = row_shares(scanner, ShareSize(self._options.max_partition_bytes, workers))
            self._name_the_setting(shares)
        return [SharePartition(each) for each in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share, in a task."""
        if not isinstance(partition, SharePartition):
            return  # Spark's placeholder for an empty list of partitions
        with sentence_first(), share_stream(self._scanner(), partition.share) as stream:
            yield from in_form(stream, self._form)

    def _scanner(self) -> RowScanner:
        return RowScanner(self._snapshot, self._request)

    def _name_the_setting(self, shares: list[RowShare]) -> None:
        files = sum(len(share.files) for share in shares)
        ranges = any(share.within is not None for share in shares)
        if self._pushed or self._request.predicate is not None or not (ranges or files > FEW_FILES // 20):
            return
        todo = f"set {SETTING}=true in the session" if self._options.push_filters else "give it as option('where', …)"
        # Spark's workers have no log of their own; what they print appears in the driver's log.
        said = f"lazydelta: no filter reached the scan of {self._snapshot.uri}. If the query has one, {todo}."
        print(said, file=sys.stderr)  # noqa: T201


def _narrowed(request: RowRequest, predicate: Predicate, snapshot: Snapshot) -> RowRequest:
    asked = [each for each in (request.predicate, predicate) if each is not None]
    return RowRequest.of(snapshot.schema, where=conjunction(asked), output=request.output)


def open_reader(given: Mapping[str, str], schema: StructType, version: int | None) -> LazyDeltaReader:
    """Return a reader for Spark's options."""
    with sentence_first():
        options = ReadOptions.from_spark(given)
    return LazyDeltaReader(options, schema, version)

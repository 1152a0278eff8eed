"""``LazyDeltaReader``: ``spark.read.format("lazydelta")``, planned on the driver and read by the tasks.

Spark asks for the partitions of a read as a list, before the first task runs. Ours are shares of the scan (see
``row_scan.row_shares``), so that neither the planning worker nor the driver holds the list of files: a task discovers
its own. The version is pinned once, with the objects of the log that make it up, and travels with the reader.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from lazydelta.log.snapshot import Snapshot
from lazydelta.pruning import Predicate, conjunction
from lazydelta.row_scan.projection import selected_fields
from lazydelta.row_scan.row_request import RowRequest
from lazydelta.row_scan.row_scanner import RowScanner
from lazydelta.row_scan.row_shares import FEW_FILES, RowShare, ShareSize, row_shares, share_stream
from lazydelta.scan.data_file import StoredFile
from lazydelta.spark.error_order import sentence_first
from lazydelta.spark.reading.plain_files import PlainFiles
from lazydelta.spark.reading.pushed_filters import pushed_predicate
from lazydelta.spark.reading.read_options import ReadOptions
from lazydelta.spark.reading.spark_schema import arrow_form, chosen_fields, in_form, spark_schema

__all__ = ["LazyDeltaReader", "SharePartition", "open_reader", "read_schema"]

SETTING = "spark.sql.python.filterPushdown.enabled"


def read_schema(given: Mapping[str, str]) -> tuple[StructType, int]:
    """Return the columns of a read as Spark's schema, by the log alone, and the version that has them."""
    with sentence_first():
        options = ReadOptions.from_spark(given, strict=False)
        snapshot = options.pin(options.open())
        return spark_schema(selected_fields(snapshot.schema, options.columns)), snapshot.version


@dataclass
class SharePartition(InputPartition):
    """A share of the scan; Spark pickles it for its task."""

    share: RowShare


@dataclass(frozen=True)
class _Others:
    plain: PlainFiles

    def __call__(self, file: StoredFile) -> bool:
        return not self.plain.holds(file)


class _PushedOnRequest:
    """``pushFilters`` of a reader that works in any session.

    Where filter pushdown is switched off, which is Spark's default, Spark refuses a reader that overrides the method,
    which it looks up as this attribute.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: LazyDeltaReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.narrow(filters)


class LazyDeltaReader(DataSourceReader):
    """Reads a pinned version; made in the planning worker, then sent to the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType, version: int | None = None) -> None:
        with sentence_first():
            handle = options.open()
            self._snapshot = handle.snapshot(version) if version is not None else options.pin(handle)
            self._handle = handle.carrying_credentials()
            self._snapshot = msgspec.structs.replace(self._snapshot, store=self._handle.store)
            self._options = options
            self._form = arrow_form(schema)
            fields = chosen_fields(self._snapshot.schema, schema)
            self._request = RowRequest.of(self._snapshot.schema, where=options.where, output=fields)
        self._pushed = False
        if options.push_filters:
            self.pushFilters = _PushedOnRequest(self)  # type: ignore[method-assign]

    def narrow(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what is understood of the filters into the scan, and leave all of them to Spark as well.

        Only where the DataFrame is used once: Spark 4.2 keeps what the last filters left of a scan for every other use
        of the same DataFrame or view, also for one without filters and for both sides of a union: rows go missing.
        """
        self._pushed = True
        predicate = pushed_predicate(filters, self._snapshot.schema)
        if predicate is not None:
            self._request = _narrowed(self._request, predicate, self._snapshot)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Divide the scan."""
        with sentence_first():
            scanner = self._scanner()
            workers = self._options.min_partitions or os.cpu_count() or 2
            shares = row_shares(scanner, ShareSize(self._options.max_partition_bytes, workers))
            self._name_the_setting(shares)
        return [SharePartition(each) for each in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a share, in a task."""
        if not isinstance(partition, SharePartition):
            return  # Spark's stand-in for no partitions at all
        with sentence_first(), share_stream(self._scanner(), partition.share) as stream:
            yield from in_form(stream, self._form)

    def _scanner(self) -> RowScanner:
        only = None if self._options.files is None else _Others(PlainFiles.of(self._snapshot))
        return RowScanner(self._handle, self._snapshot, self._request, only=only)

    def _name_the_setting(self, shares: list[RowShare]) -> None:
        files = sum(len(share.files) for share in shares)
        ranges = any(share.within is not None for share in shares)
        if self._pushed or self._request.predicate is not None or not (ranges or files > FEW_FILES // 20):
            return
        todo = f"set {SETTING}=true in the session" if self._options.push_filters else "give it as option('where', …)"
        # Spark's workers have no log of their own; what they print is in that of the driver.
        said = f"lazydelta: no filter reached the scan of {self._handle.uri}. If the query has one, {todo}."
        print(said, file=sys.stderr)  # noqa: T201


def _narrowed(request: RowRequest, predicate: Predicate, snapshot: Snapshot) -> RowRequest:
    asked = [each for each in (request.predicate, predicate) if each is not None]
    return RowRequest.of(snapshot.schema, where=conjunction(asked), output=request.output)


def open_reader(given: Mapping[str, str], schema: StructType, version: int | None) -> LazyDeltaReader:
    """Return the reader of a table for Spark."""
    with sentence_first():
        options = ReadOptions.from_spark(given)
    return LazyDeltaReader(options, schema, version)

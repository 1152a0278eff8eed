"""The reader of a stream: Spark asks how far it may go, then for pieces, and its tasks read them.

Offsets, admission and pieces are those of ``stream_source``; here they are only put into Spark's words. Spark keeps one
of these alive in a Python process on the driver's machine for as long as the query runs, and makes others to send to
its tasks; so nothing is opened before it is needed, and what was opened is not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lazydelta.errors import OptionError, StreamStoppedError
from lazydelta.handle import TableHandle
from lazydelta.row_scan.row_request import RowRequest
from lazydelta.row_scan.row_scanner import stream_files
from lazydelta.rows.opened_file import FileToRead
from lazydelta.spark.error_order import sentence_first
from lazydelta.spark.reading.read_options import ReadOptions
from lazydelta.spark.reading.spark_schema import arrow_form, in_form
from lazydelta.stream_source import Admission, StreamOffset, StreamOptions, StreamPiece, TableStream, plan_pieces
from lazydelta.types.schema import TableSchema

__all__ = ["LazyDeltaStreamReader"]

# A task finds as many files at once where its piece does not name them.
_FILES_AT_ONCE = 1000


class _Partition(InputPartition):
    """A piece, and the table's columns as the one who planned it knows them."""

    def __init__(self, piece: StreamPiece, table: TableSchema) -> None:
        super().__init__(0)
        self.piece = piece
        self.table = table


class LazyDeltaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table as a stream."""

    def __init__(self, options: Mapping[str, str], struct: StructType) -> None:
        self._given = dict(options)
        self._struct = struct
        self._options = StreamOptions.from_spark(self._given)
        self._last: int | None = None

    @sentence_first()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return where a new query begins."""
        return self._stream.initial_offset().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return a limit, so that Spark tells us when there is to be none; both are kept to, and it takes but one."""
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadMaxFiles(self._options.max_files or 1)

    @sentence_first()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Remember what there is now: the query ends there."""
        self._last = self._stream.newest_version()

    @sentence_first()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return how far the next micro-batch goes; the same as ``start`` where there is nothing new."""
        admission = Admission()
        if not isinstance(limit, ReadAllAvailable):
            admission = Admission(self._options.max_files, self._options.max_bytes)
        return self._stream.latest_offset(StreamOffset.from_dict(start), admission, self._last).to_dict()

    @sentence_first()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide a micro-batch among tasks."""
        first, last = StreamOffset.from_dict(start), StreamOffset.from_dict(end)
        return [_Partition(piece, self._stream.pinned.schema) for piece in plan_pieces(self._stream, first, last)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a piece, in a task."""
        if not isinstance(partition, _Partition):
            raise OptionError(f"{partition!r} is no piece of a stream of lazydelta's")
        with sentence_first():
            handle, form = self._opened(), arrow_form(self._struct)
            request = RowRequest.of(partition.table, columns=self._struct.fieldNames())
            # Pieces that name their files need no look at the log.
            stream = None if partition.piece.files is not None else TableStream(handle, self._options)
            files = partition.piece.files_of(stream)
            while some := list[FileToRead](islice(files, _FILES_AT_ONCE)):
                with stream_files(handle, request, some) as rows:
                    yield from in_form(rows, form)

    def _opened(self) -> TableHandle:
        # What is no option of reading is one of the stream, which has looked at it.
        return ReadOptions.from_spark(self._given, strict=False).open().carrying_credentials()

    @cached_property
    def _stream(self) -> TableStream:
        stream = TableStream(self._opened(), self._options)
        table, ours = [each.name for each in stream.pinned.schema.fields], self._struct.fieldNames()
        if table != ours:
            message = f"The columns of {stream.handle.uri} are {table}, and the DataFrame has {ours}"
            hint = "they changed after load(uri), or were given with schema(…): load it again, and select(…) afterwards"
            raise StreamStoppedError(message, path=stream.handle.uri, version=stream.pinned.version, hint=hint)
        return stream

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to tasks: how to open the table, not what is open here."""
        return {key: value for key, value in self.__dict__.items() if key != "_stream"}

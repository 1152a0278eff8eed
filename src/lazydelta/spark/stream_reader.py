"""The stream reader: Spark asks for offsets, then for pieces, and its tasks read them.

Offsets, admission and pieces come from ``stream_source``; this module adapts them to Spark's API. Spark keeps one
reader in a Python process on the driver's machine while the query runs, and creates others to send to its tasks.
Nothing is therefore opened before it is needed, and open objects are not sent.
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

from lazydelta.data_files.reader import FileToRead
from lazydelta.errors import OptionError, StreamStoppedError
from lazydelta.protocol.schema import TableSchema
from lazydelta.rows.request import RowRequest
from lazydelta.rows.scanner import stream_files
from lazydelta.rows.stream_options import Admission, StreamOffset, StreamOptions
from lazydelta.rows.stream_source import StreamPiece, TableStream, plan_pieces
from lazydelta.sidecar.handle import TableHandle
from lazydelta.spark.errors import sentence_first
from lazydelta.spark.read_options import ReadOptions
from lazydelta.spark.schema import arrow_form, in_form

__all__ = ["LazyDeltaStreamReader"]

# Files that a task finds at a time if its piece does not list them.
_FILES_AT_ONCE = 1000


class _Partition(InputPartition):
    """A piece, and the table's columns as known when it was planned."""

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
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        return self._stream.initial_offset().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return a limit, so that Spark reports when there is none. Both limits apply, but Spark takes only one."""
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadMaxFiles(self._options.max_files or 1)

    @sentence_first()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Record the current newest version, where the query ends."""
        self._last = self._stream.newest_version()

    @sentence_first()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the next micro-batch ends; equal to ``start`` if there is nothing new."""
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
        """Yield the rows of a piece, in a task."""
        if not isinstance(partition, _Partition):
            raise OptionError(f"{partition!r} is not a partition of a lazydelta stream")
        with sentence_first():
            handle, form = self._opened(), arrow_form(self._struct)
            request = RowRequest.of(partition.table, columns=self._struct.fieldNames())
            # Pieces that list their files do not need the log.
            stream = None if partition.piece.files is not None else TableStream(handle, self._options)
            files = partition.piece.files_of(stream)
            while some := list[FileToRead](islice(files, _FILES_AT_ONCE)):
                with stream_files(handle, request, some) as rows:
                    yield from in_form(rows, form)

    def _opened(self) -> TableHandle:
        # Other options belong to the stream, which has validated them.
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
        """Return the state sent to tasks: how to open the table, not the open table."""
        return {key: value for key, value in self.__dict__.items() if key != "_stream"}

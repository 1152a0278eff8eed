"""From rows to data files: grouped by partition, encoded as Parquet, sent to the store, described for the log.

A writer has no state beside its own, so any number of them can work on one table at once, in threads, processes or
Spark tasks. None of them publishes anything: a file that no commit names is no part of the table.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta import compute as pc
from lazydelta.arrays import from_numpy
from lazydelta.errors import OptionError, WriteError
from lazydelta.log.actions import Add
from lazydelta.log.properties import TableProperties
from lazydelta.stats.collector import StatsCollector
from lazydelta.storage import Store
from lazydelta.types.partition_text import can_partition, folder_name, logged_path
from lazydelta.write.column_mapping import PhysicalColumns
from lazydelta.write.parquet_encoding import ParquetEncoding, leaf_columns
from lazydelta.write.partition_rows import Partition, coded, compact, groups_of, pieces
from lazydelta.write.uploads import Chunks, Uploads

__all__ = ["COMPRESSIONS", "MEMORY_BUDGET", "TARGET_FILE_SIZE", "DataFileWriter", "PartitionRows"]

TARGET_FILE_SIZE = 128 << 20
MEMORY_BUDGET = 256 << 20
COMPRESSIONS = ("zstd", "snappy", "gzip", "none")
# Large enough to compress well, small enough to be read in parallel and to roll files in time.
_ROW_GROUP_BYTES = 64 << 20
_ROW_GROUP_ROWS = 1 << 20
# Below this, a partition's rows are not worth a row group of their own while its file stays open.
_LEAST_ROW_GROUP = 8 << 20
_PIECE_BYTES = 32 << 20
_PARALLEL_UPLOADS = 4
# How many rows show whether the values of a column repeat.
_SAMPLE_ROWS = 1 << 14

PartitionRows: TypeAlias = tuple[Partition, pa.RecordBatch]
"""Rows of one partition as its files have them, without the partition columns."""


class DataFileWriter:
    """Writes rows to new data files of a table.

    ``schema`` is the table's, partition columns included, and batches must have it exactly, but that partition columns
    may be encoded by dictionaries. Files hold one partition each and about ``target_file_size`` bytes at most.
    ``memory_budget`` bounds what is buffered, encoded and under way; when it is reached, the largest file is finished
    early, so that a small budget costs larger files, never memory. ``first_number`` is where the numbers in file names
    begin, ``family`` what all names have in common, ``folder`` where the files lie if not at the root. ``physical`` are
    their columns where the table maps its own to others. ``encoding`` is what the caller decides about the files.
    """

    def __init__(  # noqa: PLR0913 - keyword-only but for where and what, and each stands for itself
        self,
        store: Store,
        schema: pa.Schema,
        partition_columns: Sequence[str] = (),
        *,
        properties: TableProperties | None = None,
        target_file_size: int = TARGET_FILE_SIZE,
        memory_budget: int = MEMORY_BUDGET,
        compression: str = "zstd",
        first_number: int = 0,
        physical: PhysicalColumns | None = None,
        family: str = "",
        folder: str = "",
        encoding: ParquetEncoding | None = None,
    ) -> None:
        if compression not in COMPRESSIONS:
            raise OptionError(f"compression={compression!r} makes no sense", hint=f"say one of {COMPRESSIONS}")
        if target_file_size < 1 or memory_budget < 1:
            message = f"target_file_size and memory_budget must be positive: {target_file_size}, {memory_budget}"
            raise OptionError(message)
        self._schema = schema
        self._partition_columns = tuple(partition_columns)
        stored = _file_schema(schema, self._partition_columns)
        if encoding is not None:
            encoding.check(stored, self._partition_columns)
        self._recipe = _Recipe(stored, properties, compression, physical, encoding)
        self._logged_columns = self._partition_columns if physical is None else physical.partition_columns
        self._target = target_file_size
        self._row_group = min(_ROW_GROUP_BYTES, target_file_size, max(1, memory_budget // 2))
        self._budget = memory_budget
        self._number = first_number
        self._family = family
        self._folder = f"{folder}/" if folder else ""
        self._open: dict[Partition, _OpenFile] = {}
        self._finished: list[_Finished] = []
        self._uploads = Uploads(store, _PARALLEL_UPLOADS)
        self._closed = False
        self.num_rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or not self._closed:
            self.abort()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows; files that are full or exceed the budget leave for the store."""
        if self._closed:
            raise WriteError("This writer of data files was closed", hint="make a new one")
        if not self._fits(batch.schema):
            message = f"A batch has the schema [{_brief(batch.schema)}] and the table [{_brief(self._schema)}]"
            raise WriteError(message, hint="bring the batch to the table's schema first")
        for piece in pieces(batch, min(_PIECE_BYTES, self._row_group)):
            self.num_rows += piece.num_rows
            for partition, rows in self._partitioned(piece):
                self._take(partition, rows)
            self._keep_within_budget()

    def _fits(self, schema: pa.Schema) -> bool:
        if schema.equals(self._schema):
            return True
        plain = [
            each.with_type(each.type.value_type)
            if each.name in self._partition_columns and pa.types.is_dictionary(each.type)
            else each
            for each in schema
        ]
        return bool(pa.schema(plain).equals(self._schema))

    def set_aside(self, most_each: int, most_in_all: int) -> list[PartitionRows]:
        """Return the rows of partitions that have too few for a file of their own, smallest first, and forget them.

        Somebody who gathers them from several writers makes one file of them with `write_partition`.
        """
        taken: list[PartitionRows] = []
        by_size = sorted(self._open.items(), key=lambda item: item[1].held_bytes)
        for partition, file in by_size:
            if file.held_bytes > min(most_each, most_in_all):
                break
            if file.encoded_bytes:
                continue
            most_in_all -= file.held_bytes
            taken.append((partition, file.rows()))
            self.num_rows -= file.buffered_rows
            del self._open[partition]
        return taken

    def write_partition(self, partition: Partition, rows: pa.RecordBatch) -> None:
        """Take rows that another writer of the same table set aside."""
        self.num_rows += rows.num_rows
        self._take(partition, rows)
        self._keep_within_budget()

    def begin_new_files(self) -> None:
        """Finish all files: the rows that come next go to others."""
        for partition in list(self._open):
            self._finish(partition)

    def close(self) -> list[Add]:
        """Finish all files and return what a commit needs to add them; if that fails, all are deleted."""
        if not self._closed:
            try:
                self.begin_new_files()
                self._uploads.finish()
            except BaseException:
                self.abort()
                raise
            self._closed = True
        now = time.time_ns() // 1_000_000
        return [each.add(now) for each in self._finished]

    def abort(self) -> None:
        """Delete every file written so far, as well as the store lets us; also after ``close``."""
        self._closed = True
        self._open.clear()
        self._finished.clear()
        self._uploads.undo()

    def _partitioned(self, batch: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
        stored = batch.select(self._recipe.schema.names).replace_schema_metadata(None)
        if not self._partition_columns:
            yield (), compact(stored)
            return
        columns = [coded(batch.column(name), name) for name in self._partition_columns]
        groups, inverse = groups_of(columns)
        if len(groups) == 1:
            yield groups[0], compact(stored)
            return
        # Small numbers are sorted by counting, which is many times as fast.
        order = np.argsort(inverse.astype(np.min_scalar_type(len(groups))), kind="stable")
        ends = np.cumsum(np.bincount(inverse))
        start = 0
        for key, end in zip(groups, ends.tolist(), strict=True):
            rows = np.ascontiguousarray(order[start:end], np.int64)
            # A copy for each partition: a slice of one sorted batch would keep all of it alive as long as any part.
            yield key, stored.take(from_numpy(rows))
            start = end

    def _take(self, partition: Partition, rows: pa.RecordBatch) -> None:
        file = self._open.get(partition)
        if file is None:
            file = self._open[partition] = _OpenFile(self._recipe)
        file.buffer(rows)
        if file.buffered_bytes >= self._row_group or file.buffered_rows >= _ROW_GROUP_ROWS:
            self._encode(partition)

    def _encode(self, partition: Partition) -> None:
        """Turn the buffered rows into a row group; a file that would grow beyond the target with it is finished."""
        file = self._open[partition]
        if file.encoded_bytes and file.encoded_bytes + file.expected_bytes > self._target:
            rest = _OpenFile(self._recipe)
            rest.take_buffer_of(file)
            self._finish(partition)
            self._open[partition] = file = rest
        file.encode()
        if file.encoded_bytes >= self._target:
            self._finish(partition)

    def _keep_within_budget(self) -> None:
        while sum(file.held_bytes for file in self._open.values()) + self._uploads.bytes_in_flight > self._budget:
            if self._uploads.bytes_in_flight:
                self._uploads.wait_for_one()
                continue
            partition, file = max(self._open.items(), key=lambda item: item[1].held_bytes)
            if file.buffered_bytes >= _LEAST_ROW_GROUP:
                self._encode(partition)
            else:
                self._finish(partition)

    def _finish(self, partition: Partition) -> None:
        file = self._open.pop(partition)
        if file.buffered_rows:
            file.encode()
        content = file.close()
        values = dict(zip(self._logged_columns, partition, strict=True))
        path = self._folder + (f"{folder_name(values)}/{self._name()}" if values else self._name())
        finished = _Finished(path, content.size, values, file.stats.to_json(file.encoded_rows))
        self._uploads.send(path, content)
        self._finished.append(finished)

    def _name(self) -> str:
        number, self._number = self._number, self._number + 1
        codec = "" if self._recipe.compression == "none" else f".{self._recipe.compression}"
        unique = uuid.UUID(hex=self._family + uuid.uuid4().hex[len(self._family) :])
        return f"part-{number:05}-{unique}.c000{codec}.parquet"


class _Recipe:
    """How every file of a writer is made; ``schema`` is that of the rows, ``stored`` that of the files."""

    def __init__(
        self,
        schema: pa.Schema,
        properties: TableProperties | None,
        compression: str,
        physical: PhysicalColumns | None = None,
        encoding: ParquetEncoding | None = None,
    ) -> None:
        self.schema = schema
        self.stored: pa.Schema = schema if physical is None else physical.schema
        self.properties = properties
        if physical is not None and properties is not None:
            named = physical.path_texts(properties.stats_columns)
            self.properties = msgspec.structs.replace(properties, stats_columns=named)
        self.compression = compression
        self._physical = physical
        self._encoding = encoding or ParquetEncoding()
        self._repetitive: list[str] | None = None

    def statistics(self) -> StatsCollector:
        return StatsCollector(self.stored, self.properties)

    def to_store(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as files have them."""
        return rows if self._physical is None else self._physical.renamed(rows)

    def writer(self, sink: Chunks, rows: pa.RecordBatch) -> pq.ParquetWriter:
        """Return what writes a file that begins with these rows."""
        return pq.ParquetWriter(
            pa.PythonFile(sink, mode="w"),
            self.stored,
            compression=self.compression,
            version="2.6",
            coerce_timestamps="us",
            write_page_index=True,
            write_page_checksum=True,
            store_schema=False,
            **self._encoding.settings(self.schema, self.stored, self._dictionaries(rows)),
        )

    def row_group_rows(self, rows: pa.RecordBatch) -> int:
        """Return how many of these rows are a row group."""
        return min(self._encoding.row_group_rows or rows.num_rows, int(rows.num_rows))

    def _dictionaries(self, rows: pa.RecordBatch) -> list[str]:
        """Return the columns that a dictionary makes smaller; for others it costs a fourth of the size and much time.

        What was found for one file of some size is used for the writer's others.
        """
        if self._repetitive is None:
            chosen = [leaf for field in self.stored for leaf in leaf_columns(field) if _repeats(rows, field)]
            if rows.num_rows < _SAMPLE_ROWS:
                return chosen
            self._repetitive = chosen
        return self._repetitive


def _repeats(rows: pa.RecordBatch, field: pa.Field) -> bool:
    if pa.types.is_nested(field.type):
        return True
    sample = rows.column(field.name).slice(0, _SAMPLE_ROWS)
    try:
        return bool(2 * pc.count_distinct(sample, mode="all").as_py() <= len(sample))
    except pa.ArrowNotImplementedError:
        return True


class _Finished:
    def __init__(self, path: str, size: int, partition_values: dict[str, str | None], stats: str) -> None:
        self._path = path
        self._size = size
        self._values = partition_values
        self._stats = stats

    def add(self, now: int) -> Add:
        return Add(
            path=logged_path(self._path),
            size=self._size,
            modification_time=now,
            partition_values=self._values,
            stats=self._stats,
        )


class _OpenFile:
    """Rows of one partition: some encoded already, some still as they came."""

    def __init__(self, recipe: _Recipe) -> None:
        self._recipe = recipe
        self._batches: list[pa.RecordBatch] = []
        self._sink = Chunks()
        self._writer: pq.ParquetWriter | None = None
        self._arrow_bytes = 0
        self.stats = recipe.statistics()
        self.buffered_bytes = 0
        self.buffered_rows = 0
        self.encoded_rows = 0

    @property
    def encoded_bytes(self) -> int:
        return self._sink.size

    @property
    def held_bytes(self) -> int:
        return self.buffered_bytes + self._sink.size

    @property
    def expected_bytes(self) -> int:
        """Return what the buffered rows will take, judged by those before them."""
        return self.buffered_bytes * self._sink.size // max(self._arrow_bytes, 1)

    def buffer(self, rows: pa.RecordBatch) -> None:
        self._batches.append(rows)
        self.buffered_bytes += rows.nbytes
        self.buffered_rows += rows.num_rows

    def take_buffer_of(self, other: _OpenFile) -> None:
        for rows in other._batches:
            self.buffer(rows)
        other._forget_buffer()

    def rows(self) -> pa.RecordBatch:
        """Return the buffered rows."""
        return self._batches[0] if len(self._batches) == 1 else pa.concat_batches(self._batches)

    def encode(self) -> None:
        with _faults():
            rows = self._recipe.to_store(self.rows())
            self._arrow_bytes += self.buffered_bytes
            self._forget_buffer()
            self.stats.update(rows)
            if self._writer is None:
                self._writer = self._recipe.writer(self._sink, rows)
            self._writer.write_batch(rows, row_group_size=self._recipe.row_group_rows(rows))
            self.encoded_rows += rows.num_rows

    def close(self) -> Chunks:
        with _faults():
            if self._writer is not None:
                self._writer.close()
        return self._sink

    def _forget_buffer(self) -> None:
        self._batches = []
        self.buffered_bytes = self.buffered_rows = 0


class _faults:  # noqa: N801 - used like a function
    """Turns what pyarrow raises while it encodes into an error of ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What goes wrong with a file in memory is the encoder's doing, also where it has the class of a disk's faults.
        if isinstance(error, pa.ArrowException | NotImplementedError | OSError):
            raise WriteError(f"Rows cannot be written as Parquet: {error}", hint="nothing was committed") from error


def _file_schema(schema: pa.Schema, partition_columns: Sequence[str]) -> pa.Schema:
    for name in partition_columns:
        index = schema.get_field_index(name)
        if index < 0:
            raise OptionError(f"The partition column {name!r} is not in the schema", hint=f"it has {schema.names}")
        if not can_partition(schema.field(index).type):
            message = f"Column {name!r} has type {schema.field(index).type}, by which no table can be partitioned"
            raise OptionError(message, hint="partition by a column of a primitive type")
    if len(set(partition_columns)) != len(partition_columns):
        raise OptionError(f"A partition column is named twice in {list(partition_columns)}", hint="name each once")
    fields = [field for field in schema if field.name not in partition_columns]
    if not fields:
        hint = "leave at least one column that is not a partition column"
        raise OptionError("All columns are partition columns, so that data files would be empty", hint=hint)
    return pa.schema(fields)


def _brief(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)[:300]

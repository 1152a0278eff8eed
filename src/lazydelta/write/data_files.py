"""Writer of data files: group rows by partition, encode them as Parquet, upload them, and describe them for the log.

Writers share no state, so any number of them can write to one table concurrently, in threads, processes or Spark tasks.
None of them publishes anything: a file becomes part of the table only when a commit references it.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import OptionError, WriteError
from lazydelta.protocol.actions import Add
from lazydelta.protocol.properties import TableProperties
from lazydelta.protocol.values import can_partition, folder_name, logged_path, partition_texts
from lazydelta.runtime.arrays import from_numpy
from lazydelta.runtime.threads import Bell, Task, Workers
from lazydelta.stats.collector import StatsCollector
from lazydelta.stats.ranges import WRITTEN_HERE
from lazydelta.storage import Store
from lazydelta.storage.staged_files import delete_paths
from lazydelta.write.column_mapping import PhysicalColumns
from lazydelta.write.parquet_encoding import (
    SAMPLE_ROWS,
    ParquetEncoding,
    leaf_columns,
    leaves_with_nan,
    repeats,
    without_bounds,
)

__all__ = [
    "COMPRESSIONS",
    "MEMORY_BUDGET",
    "TARGET_FILE_SIZE",
    "Chunks",
    "DataFileWriter",
    "Partition",
    "Uploads",
    "coded",
    "compact",
    "groups_of",
    "pieces",
]


# Parallel uploads of finished files, and their deletion on failure.


_CHUNK = 4 << 20


class Chunks:
    """The bytes of a file, collected while it is encoded and released while it is uploaded."""

    closed = False
    mode = "wb"

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Append data written by pyarrow."""
        self._parts.append(bytes(data))
        self.size += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.size

    def flush(self) -> None:
        """Do nothing: there is no underlying file."""

    def close(self) -> None:
        """Do nothing: the bytes are still to be uploaded."""

    def readable(self) -> bool:
        """Return False: the file is write-only."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False: data is only appended."""
        return False

    def take_back(self, length: int) -> bytes:
        """Remove the last bytes from the file, and return them."""
        taken: deque[bytes] = deque()
        missing = length
        while missing > 0:
            taken.appendleft(self._parts.pop())
            missing -= len(taken[0])
        if missing < 0:
            self._parts.append(taken[0][:-missing])
            taken[0] = taken[0][-missing:]
        self.size -= length
        return b"".join(taken)

    def drain(self) -> Iterator[bytes]:
        """Yield all bytes in chunks of a few megabytes, and release them."""
        while self._parts:
            taken, size = [], 0
            while self._parts and size < _CHUNK:
                taken.append(self._parts.popleft())
                size += len(taken[-1])
            yield b"".join(taken)


class Uploads:
    """Uploads files from worker threads. ``paths`` are all files that may exist, whether complete or not."""

    def __init__(self, store: Store, parallel: int) -> None:
        self._store = store
        self._pool = Workers(parallel, "lazydelta-upload")
        self._flying: dict[Task[int], int] = {}
        self._done: deque[Task[int]] = deque()
        self._arrived = Bell()
        self.bytes_in_flight = 0
        """The number of bytes being uploaded, counted by whole files."""
        self.paths: list[str] = []

    def send(self, path: str, content: Chunks) -> None:
        """Start the upload of a file."""
        self._reap()
        self.paths.append(path)
        size, put = content.size, partial(self._store.put_stream, path, content.drain())
        self._flying[self._pool.submit(put, self._note)] = size
        self.bytes_in_flight += size

    def _note(self, task: Task[int]) -> None:
        self._done.append(task)
        self._arrived.ring()

    def wait_for_one(self) -> None:
        """Wait until an upload has finished. Raise its error if it failed."""
        if self._flying:
            while not self._done:
                self._arrived.wait()
            self._reap()

    def finish(self) -> None:
        """Wait until all uploads have finished."""
        while self._flying:
            self.wait_for_one()
        self._pool.close()

    def undo(self) -> None:
        """Delete the uploaded files as far as the store allows. Remaining files are not part of the table."""
        self._pool.close()
        self._flying.clear()
        self._done.clear()
        self.bytes_in_flight = 0
        delete_paths(self._store, self.paths)
        self.paths.clear()

    def _reap(self) -> None:
        # Tasks report their end: to look at all of them each time is quadratic, and a batch may have 20,000 files.
        while self._done:
            done = self._done[0]
            self.bytes_in_flight -= self._flying.pop(done, 0)
            self._done.popleft()  # last, so that an interrupt loses none
            done.result()


# Assignment of rows to partitions, vectorized.


Partition: TypeAlias = tuple[str | None, ...]

_PIECE_ROWS = 1 << 18
# Up to this many partitions are grouped by counting, regardless of the number of rows.
_COUNTED_PARTITIONS = 1 << 12


def groups_of(
    columns: Sequence[tuple[npt.NDArray[np.int64], list[str | None]]],
) -> tuple[list[Partition], npt.NDArray[np.int64]]:
    """Return the partitions that occur, and for each row the index of its partition."""
    combined, count = columns[0][0], len(columns[0][1])
    for codes, texts in columns[1:]:
        combined, count = combined * len(texts) + codes, count * len(texts)
    if count > max(len(combined), _COUNTED_PARTITIONS):
        found, inverse = np.unique(combined, return_inverse=True)
    else:
        is_there = np.bincount(combined, minlength=count) > 0
        found, inverse = np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[combined]
    keys: list[Partition] = []
    for number in found.tolist():
        key: list[str | None] = []
        for _, texts in reversed(columns):
            number, code = divmod(number, len(texts))  # noqa: PLW2901 - digit by digit
            key.append(texts[code])
        keys.append(tuple(reversed(key)))
    return keys, inverse


def coded(values: pa.Array, column: str) -> tuple[npt.NDArray[np.int64], list[str | None]]:
    """Return a code for each row, and the partition values that the codes stand for."""
    encoded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    numbers: dict[str | None, int] = {}
    if encoded.null_count:
        numbers[None] = 0
    # Several values may map to the same string: null and the empty string, or 0.0 and -0.0.
    found = [numbers.setdefault(text, len(numbers)) for text in partition_texts(encoded.dictionary, column)]
    lookup = np.array(found or [0], np.int64)
    indices = encoded.indices.cast(pa.int32())
    if indices.null_count:
        indices = indices.fill_null(0)
    codes = lookup[np.frombuffer(indices.buffers()[1], np.int32, len(indices), indices.offset * 4)]
    if encoded.null_count:
        valid = encoded.indices.is_valid().cast(pa.int8())
        codes = np.where(np.frombuffer(valid.buffers()[1], np.int8, len(valid), valid.offset) == 1, codes, 0)
    return codes, list(numbers)


def pieces(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Split a large batch, to bound the memory of copying and encoding."""
    if batch.num_rows == 0:
        return
    if batch.num_rows <= _PIECE_ROWS and batch.get_total_buffer_size() <= most_bytes:
        yield batch
        return
    rows = min(_PIECE_ROWS, max(1, batch.num_rows * most_bytes // max(batch.nbytes, 1)))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a batch that keeps much more memory alive than its rows need, such as a slice of a larger batch."""
    held, slack = batch.get_total_buffer_size(), (1 << 16) + (batch.num_columns << 8)
    if held <= slack or held <= 2 * batch.nbytes + slack:
        return batch
    return batch.take(from_numpy(np.arange(batch.num_rows, dtype=np.int64)))


TARGET_FILE_SIZE = 128 << 20
MEMORY_BUDGET = 256 << 20
COMPRESSIONS = ("zstd", "snappy", "gzip", "none")
# Large enough to compress well, and small enough to read in parallel and to roll files in time.
_ROW_GROUP_BYTES = 64 << 20
_ROW_GROUP_ROWS = 1 << 20
# Smaller buffers are not worth their own row group while the file stays open.
_LEAST_ROW_GROUP = 8 << 20
# Smaller columns of a batch are joined with those of the next before they are encoded.
_LEAST_COLUMN = 64 << 10
_PIECE_BYTES = 32 << 20
_PARALLEL_UPLOADS = 4
# With fewer rows a dictionary costs more than it saves.
_LEAST_SAMPLE = 16
# Buffer for encoder output, which consists of many small writes (pages and headers).
_BUFFER = 1 << 16

PartitionRows: TypeAlias = tuple[Partition, pa.RecordBatch]
"""Rows of one partition as stored in its files, without the partition columns."""


class DataFileWriter:
    """Writes rows to new data files of a table.

    ``schema`` is the table schema, including partition columns. Batches must match it exactly, except that partition
    columns may be dictionary-encoded. Each file holds one partition and about ``target_file_size`` bytes at most.
    ``memory_budget`` bounds buffered, encoded and in-flight data. When it is reached, the largest file is finished
    early: a small budget costs file size, never memory. ``first_number`` is the first number in file names, ``family``
    their common prefix, and ``folder`` their location if not the root. ``physical`` are the stored columns if the table
    uses column mapping. ``encoding`` is the caller's choice of Parquet encoding.
    """

    def __init__(  # noqa: PLR0913 - keyword-only options
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
            raise OptionError(f"compression={compression!r} is not valid", hint=f"use one of {COMPRESSIONS}")
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
        self._held = 0  # the sum of their held_bytes, which is asked for after each piece of rows
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
        """Write rows. Full files, and files beyond the memory budget, are uploaded."""
        if self._closed:
            raise WriteError("This writer of data files was closed", hint="create a new writer")
        if not self._fits(batch.schema):
            message = f"A batch has the schema [{_brief(batch.schema)}] and the table [{_brief(self._schema)}]"
            raise WriteError(message, hint="convert the batch to the table's schema first")
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
        """Remove and return the rows of partitions with too few rows for a file, smallest first.

        The caller collects them from several writers and writes them to one file with `write_partition`.
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
            self._held -= file.held_bytes
            del self._open[partition]
        return taken

    def write_partition(self, partition: Partition, rows: pa.RecordBatch) -> None:
        """Write rows that another writer of the same table set aside."""
        self.num_rows += rows.num_rows
        self._take(partition, rows)
        self._keep_within_budget()

    def begin_new_files(self) -> None:
        """Finish all files, so that the next rows go to new ones."""
        for partition in list(self._open):
            self._finish(partition)

    def close(self) -> list[Add]:
        """Finish all files and return their add actions. On failure all files are deleted."""
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
        """Delete every file written so far, as far as the store allows. Also valid after ``close``."""
        self._closed = True
        self._open.clear()
        self._held = 0
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
        # A small integer type makes NumPy use a radix sort, which is many times faster.
        order = np.argsort(inverse.astype(np.min_scalar_type(len(groups))), kind="stable")
        ends = np.cumsum(np.bincount(inverse))
        start = 0
        for key, end in zip(groups, ends.tolist(), strict=True):
            rows = np.ascontiguousarray(order[start:end], np.int64)
            # Copy each partition: a slice of one sorted batch would keep the whole batch alive.
            yield key, stored.take(from_numpy(rows))
            start = end

    def _take(self, partition: Partition, rows: pa.RecordBatch) -> None:
        file = self._open.get(partition)
        if file is None:
            file = self._open[partition] = _OpenFile(self._recipe)
        self._held -= file.held_bytes
        file.buffer(rows)
        self._held += file.held_bytes
        if file.buffered_bytes >= self._row_group or file.buffered_rows >= _ROW_GROUP_ROWS:
            self._encode(partition)

    def _encode(self, partition: Partition) -> None:
        """Encode the buffered rows as a row group. First finish a file that would exceed the target with it."""
        file = self._open[partition]
        if file.encoded_bytes and file.encoded_bytes + file.expected_bytes > self._target:
            rest = _OpenFile(self._recipe)
            rest.take_buffer_of(file)
            self._finish(partition)
            self._open[partition] = file = rest
        self._held -= file.held_bytes
        file.encode()
        self._held += file.held_bytes
        if file.encoded_bytes >= self._target:
            self._finish(partition)

    def _keep_within_budget(self) -> None:
        while self._held + self._uploads.bytes_in_flight > self._budget:
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
        self._held -= file.held_bytes
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
        return f"part-{number:05}-{unique}{WRITTEN_HERE}{codec}.parquet"


class _Recipe:
    """Settings shared by all files of a writer. ``schema`` is the schema of the rows, ``stored`` that of the files."""

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
        self._column_codecs: str | dict[str, str] | None = None

    def statistics(self) -> StatsCollector:
        return StatsCollector(self.stored, self.properties)

    def to_store(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the schema of the files."""
        return rows if self._physical is None else self._physical.renamed(rows)

    def writer(self, sink: pa.NativeFile, rows: pa.RecordBatch) -> pq.ParquetWriter:
        """Return a Parquet writer for a file that begins with these rows."""
        return pq.ParquetWriter(
            sink,
            self.stored,
            compression=self._codecs(rows),
            version="2.6",
            coerce_timestamps="us",
            write_page_index=True,
            write_page_checksum=True,
            store_schema=False,
            memory_pool=pa.system_memory_pool(),  # Arrow's own gives pages back that are cleared anew
            **self._encoding.settings(self.schema, self.stored, self._dictionaries(rows)),
        )

    def row_group_rows(self, rows: int) -> int:
        """Return the number of rows per row group."""
        return min(self._encoding.row_group_rows or rows, rows)

    def _codecs(self, rows: pa.RecordBatch) -> str | dict[str, str]:
        """Return the codec of all columns or of each. The choice for the first large file is reused, as below."""
        if self._column_codecs is None and rows.num_rows >= SAMPLE_ROWS:
            self._column_codecs = self._encoding.codecs(rows, self.compression)
        return self._column_codecs or self.compression

    def _dictionaries(self, rows: pa.RecordBatch) -> list[str]:
        """Return the columns that benefit from a dictionary; for others it adds a quarter of the size and much time.

        The choice for the first sufficiently large file is reused for the writer's other files.
        """
        if self._repetitive is None:
            if rows.num_rows < _LEAST_SAMPLE:
                return []
            chosen = [leaf for field in self.stored for leaf in leaf_columns(field) if repeats(rows, field)]
            if rows.num_rows < SAMPLE_ROWS:
                return chosen
            self._repetitive = chosen
        return self._repetitive


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
    """Rows of one partition: partly encoded, partly buffered."""

    def __init__(self, recipe: _Recipe) -> None:
        self._recipe = recipe
        self._batches: list[pa.RecordBatch] = []
        self._sink = Chunks()
        # Made for the first rows that are encoded: it has 64 KB, and many files wait for more rows at once.
        self._buffer: pa.BufferedOutputStream | None = None
        self._writer: pq.ParquetWriter | None = None
        self._arrow_bytes = 0
        self._groups = 0
        self._with_nan: list[tuple[int, int]] = []
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
        """Return the estimated encoded size of the buffered rows, based on the rows encoded before."""
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
            rows = pa.Table.from_batches([self._recipe.to_store(each) for each in self._joined()])
            self._arrow_bytes += self.buffered_bytes
            self._forget_buffer()
            if self._writer is None or self._buffer is None:
                self._buffer = pa.BufferedOutputStream(pa.PythonFile(self._sink, mode="w"), _BUFFER)
                self._writer = self._recipe.writer(self._buffer, rows.to_batches()[0])
                self.stats = self._recipe.statistics()
            size = self._recipe.row_group_rows(rows.num_rows)
            for start in range(0, rows.num_rows, size):
                for part in rows.slice(start, size).to_batches():
                    self.stats.update(part)
                    self._with_nan += [(self._groups, leaf) for leaf in leaves_with_nan(part)]
                self._groups += 1
            self._writer.write_table(rows, row_group_size=size)
            self._buffer.flush()
            self.encoded_rows += rows.num_rows

    def _joined(self) -> list[pa.RecordBatch]:
        """Return the buffered rows in batches that are worth a few calls per column; joining them copies them."""
        if len(self._batches) == 1:
            return self._batches
        least = _LEAST_COLUMN * max(1, len(self._recipe.stored))
        joined: list[pa.RecordBatch] = []
        small, held = [], 0
        for number, rows in enumerate(self._batches, 1):
            small.append(rows)
            held += rows.nbytes
            if held >= least or number == len(self._batches):
                joined.append(rows if len(small) == 1 else pa.concat_batches(small))
                small, held = [], 0
        return joined

    def close(self) -> Chunks:
        with _faults():
            if self._writer is not None and self._buffer is not None:
                self._writer.close()
                self._buffer.close()
        if self._with_nan:
            end = self._sink.take_back(8)
            footer = self._sink.take_back(int.from_bytes(end[:4], "little"))
            footer = without_bounds(footer, frozenset(self._with_nan))
            self._sink.write(footer + len(footer).to_bytes(4, "little") + end[4:])
        return self._sink

    def _forget_buffer(self) -> None:
        self._batches = []
        self.buffered_bytes = self.buffered_rows = 0


class _faults:  # noqa: N801 - used like a function
    """Converts pyarrow errors during encoding to `WriteError`."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The file is in memory, so even an OSError comes from the encoder and not from a disk.
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
    if not partition_columns and len(schema):
        return schema.remove_metadata()
    fields = [field for field in schema if field.name not in partition_columns]
    if not fields:
        hint = "keep at least one column that is not a partition column"
        raise OptionError("All columns are partition columns, so that data files would be empty", hint=hint)
    return pa.schema(fields)


def _brief(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)[:300]

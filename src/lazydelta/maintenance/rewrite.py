"""Rewriting of bins: copy the live rows of a bin to new files, in order, without publishing them."""

from __future__ import annotations

import os
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.data_files.reader import RowReader, page_limit
from lazydelta.errors import OptionError, UnknownColumnError
from lazydelta.log.file_batch import FileBatch
from lazydelta.maintenance.curves import CurveOrder
from lazydelta.protocol.actions import Add
from lazydelta.protocol.properties import TableProperties
from lazydelta.protocol.schema import TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import boolean_array, from_numpy, numpy_of
from lazydelta.runtime.threads import Task, Workers
from lazydelta.sidecar.handle import TableHandle
from lazydelta.write.copied_rows import LoggedFile, copy_rows, logged_files, stored_columns, writer_of_copies
from lazydelta.write.file_commit import delete_files

__all__ = [
    "Bin",
    "BinCarrier",
    "Candidates",
    "Rewriter",
    "Rewritten",
    "candidates_of",
    "check_sort_columns",
    "dated_in_order",
    "in_threads",
    "pack",
    "sorted_rows",
]


# Bin packing: neighbouring files that together have about the target size.


# A single file is rewritten if its share of deleted rows exceeds this. Delta-Spark has the same bound.
_DELETED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Bin:
    """Files of one partition that are rewritten together."""

    files: tuple[LoggedFile, ...]

    @property
    def partition(self) -> tuple[str | None, ...]:
        """Return the partition values."""
        return self.files[0].partition

    @property
    def place(self) -> tuple[int, str]:
        """Return the sort key among the bins of one partition."""
        return self.files[0].modification_time, self.files[0].path

    @property
    def size(self) -> int:
        """Return the number of bytes to read."""
        return sum(each.size for each in self.files)


def pack(files: Sequence[LoggedFile], target: int, *, below: int, least: int = 2) -> Iterator[Bin]:
    """Yield bins of files of one partition, in the given order.

    Only files smaller than ``below`` are packed, at least ``least`` at a time. Larger files are rewritten only to purge
    deleted rows. Packed files are not packed again, because neighbours that fit into one bin are already in one.
    """
    bin_: list[LoggedFile] = []
    held = 0
    for each in files:
        purges = each.deleted_share > _DELETED_SHARE
        if each.size >= below:
            if purges:
                yield Bin((each,))
            continue
        if bin_ and held + each.live_size > target:
            yield from _closed(bin_, least)
            bin_, held = [], 0
        bin_.append(each)
        held += each.live_size
    yield from _closed(bin_, least)


def _closed(files: list[LoggedFile], least: int) -> Iterator[Bin]:
    if len(files) >= least:
        yield Bin(tuple(files))
        return
    yield from (Bin((each,)) for each in files if each.deleted_share > _DELETED_SHARE)


# ``Candidates``: the files that OPTIMIZE may rewrite, grouped by partition in bounded memory.
#
# A scan yields files in log order, but a bin needs the files of one partition. Each file is written to one of a few
# temporary buckets by the hash of its partition, and one bucket is read at a time.


_BUCKETS = 64
_IN_MEMORY = 256 << 10


class Candidates:
    """Files grouped by partition. About 1/64 of them are in memory at a time."""

    def __init__(self) -> None:
        self._buckets: dict[int, Any] = {}
        self.count = 0

    def add(self, found: Iterable[LoggedFile]) -> None:
        """Add files to their partitions."""
        for each in found:
            number = zlib.crc32(msgspec.json.encode(each.partition)) % _BUCKETS
            bucket = self._buckets.get(number)
            if bucket is None:
                bucket = self._buckets[number] = tempfile.SpooledTemporaryFile(  # noqa: SIM115
                    max_size=_IN_MEMORY, prefix="lazydelta-optimize-"
                )
            bucket.write(msgspec.json.encode(each) + b"\n")
            self.count += 1

    def partitions(self) -> Iterator[list[LoggedFile]]:
        """Yield the files of each partition, in the order in which they were written."""
        decoder = msgspec.json.Decoder(LoggedFile)
        for bucket in self._buckets.values():
            bucket.seek(0)
            by_partition: dict[tuple[str | None, ...], list[LoggedFile]] = {}
            for line in bucket:
                each = decoder.decode(line)
                by_partition.setdefault(each.partition, []).append(each)
            for files in by_partition.values():
                yield sorted(files, key=lambda each: (each.modification_time, each.path))

    def close(self) -> None:
        """Release memory and temporary files."""
        for bucket in self._buckets.values():
            bucket.close()
        self._buckets.clear()


def candidates_of(
    batch: FileBatch, partition_columns: Sequence[str], below: int, *, counted: bool
) -> Iterator[LoggedFile]:
    """Yield the files of a batch that are smaller than ``below`` or have a deletion vector; see `logged_files`."""
    chosen = numpy_of(batch.size) < below
    if batch.deletion_vector is not None:
        chosen |= np.asarray(batch.deletion_vector.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    if chosen.any():
        yield from logged_files(batch.filter(boolean_array(chosen)), partition_columns, counted=counted)


# External sort: sorted runs spilled to disk, and merged piece by piece in bounded memory.


_PIECE_ROWS = 16_384


def check_sort_columns(columns: Sequence[str], schema: TableSchema) -> tuple[str, ...]:
    """Return the sort columns as the table spells them. Raise if a column is missing or has no order."""
    if isinstance(columns, str):
        raise OptionError("The columns to sort by are a list of names, not a string", hint=f"write [{columns!r}]")
    known = {each.name.lower(): each for each in schema.fields}
    found: list[str] = []
    for name in columns:
        field = known.get(name.lower())
        if field is None:
            message = f"The table has no column {name!r} to sort by"
            raise UnknownColumnError(message, hint=f"it has {', '.join(each.name for each in schema.fields[:20])}")
        kind = field.to_arrow().type
        if pa.types.is_nested(kind):
            message = f"Rows cannot be sorted by the column {field.name!r} of type {kind}"
            raise OptionError(message, hint="sort by columns of primitive types")
        found.append(field.name)
    return tuple(found)


def sorted_rows(batches: Iterable[pa.RecordBatch], columns: Sequence[str], memory: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows sorted by ``columns``, nulls last, using about ``memory`` bytes."""
    keys = [(name, "ascending") for name in columns]
    with ExitStack() as files:
        runs: list[Iterator[pa.RecordBatch]] = []
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size >= memory // 2:
                runs.append(_spilled(_sorted(pa.Table.from_batches(held), keys), files))
                held, size = [], 0
        rest = _sorted(pa.Table.from_batches(held), keys) if held else None
        del held
        if not runs:
            yield from () if rest is None else rest.to_batches(_PIECE_ROWS)
            return
        if rest is not None:
            runs.append(iter(rest.to_batches(_PIECE_ROWS)))
        yield from _merged(runs, keys)


def _sorted(table: pa.Table, keys: list[tuple[str, str]]) -> pa.Table:
    return table.take(pc.sort_indices(table, sort_keys=keys)).combine_chunks()


def _spilled(run: pa.Table, files: ExitStack) -> Iterator[pa.RecordBatch]:
    file = files.enter_context(tempfile.TemporaryFile(prefix="lazydelta-optimize-"))  # noqa: SIM115
    with pa.ipc.new_stream(file, run.schema) as writer:
        writer.write_table(run, max_chunksize=_PIECE_ROWS)
    file.seek(0)
    return iter(pa.ipc.open_stream(file))


@dataclass(slots=True)
class _SortedRun:
    """A sorted run: its rows in memory, and whether it is exhausted."""

    rest: Iterator[pa.RecordBatch]
    rows: pa.Table | None = None
    is_over: bool = False

    def load(self) -> None:
        if not self.is_over and (self.rows is None or not self.rows.num_rows):
            piece = next(self.rest, None)
            self.is_over = piece is None
            self.rows = None if piece is None else pa.Table.from_batches([piece])


def _merged(runs: Sequence[Iterator[pa.RecordBatch]], keys: Any) -> Iterator[pa.RecordBatch]:
    """Merge sorted runs. Rows up to the first end of a run's piece are final."""
    waiting = [_SortedRun(each) for each in runs]
    while True:
        for run in waiting:
            run.load()
        waiting = [run for run in waiting if run.rows is not None and run.rows.num_rows]
        if not waiting:
            return
        tables = [run.rows for run in waiting if run.rows is not None]
        together = pa.concat_tables(tables)
        order = pc.sort_indices(together, sort_keys=keys).to_numpy()
        owners = np.repeat(np.arange(len(tables)), [each.num_rows for each in tables])[order]
        # Position of the last row of each piece. After the first of them, its run may have more rows to come.
        last = len(order) - 1 - np.array([np.argmax(owners[::-1] == number) for number in range(len(tables))])
        final = int(last.min()) + 1
        yield from together.take(from_numpy(order[:final].astype(np.int64))).combine_chunks().to_batches()
        stays = np.ones(len(order), np.bool_)
        stays[order[:final]] = False
        start = 0
        for run, rows in zip(waiting, tables, strict=True):
            run.rows = rows.filter(boolean_array(stays[start : start + rows.num_rows]))
            start += rows.num_rows


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A bin with its rows in new files, which no commit references yet. ``batches`` is the number of batches read.

    ``run_again`` marks a bin whose earlier attempts may have orphaned files.
    """

    bin: Bin
    adds: tuple[Add, ...]
    rows: int
    batches: int
    run_again: bool = False


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Rewrites bins of one table version. Serializable, so that it can be sent to tasks."""

    handle: TableHandle
    schema: TableSchema
    properties: TableProperties
    target: int
    sort_by: tuple[str, ...]
    memory_budget: int
    compression: str = "zstd"
    curve: str | None = None

    def within(self, memory_budget: int) -> Rewriter:
        """Return a copy with another memory budget."""
        return replace(self, memory_budget=memory_budget)

    def carrying_credentials(self) -> Rewriter:
        """Return a copy whose pickle includes the credentials of its table."""
        return replace(self, handle=self.handle.carrying_credentials())

    def rewrite(self, bin_: Bin, family: str = "", *, run_again: bool = False) -> Rewritten:
        """Write the live rows of a bin to new files. On failure these are deleted.

        ``family`` is the common prefix of the file names.
        """
        schema = self.schema
        reader = RowReader(
            self.handle.store,
            schema,
            columns=stored_columns(schema),
            page_bytes=page_limit(self.handle.options),
        )
        read = _Counted()
        rows = read.through(reader.read_in_order(bin_.files))
        # All rows of a bin have the same partition values.
        keys = [name for name in self.sort_by if name not in schema.partition_columns]
        if keys and self.curve is not None:
            sampled = RowReader(self.handle.store, schema, columns=keys)
            order = CurveOrder.of(self.curve, keys, sampled.read_in_order(bin_.files))
            placed = sorted_rows(order.keyed(rows), [order.key], self.memory_budget // 2)
            rows = (batch.drop_columns([order.key]) for batch in placed)
        elif keys:
            rows = sorted_rows(rows, keys, self.memory_budget // 2)
        with writer_of_copies(
            self.handle.store,
            schema,
            self.properties,
            target_file_size=self.target,
            memory_budget=self.memory_budget,
            compression=self.compression,
            family=family,
        ) as writer:
            for batch in rows:
                copy_rows(writer, bin_.partition, batch)
            adds = writer.close()
        return Rewritten(
            bin_,
            tuple(msgspec.structs.replace(each, data_change=False) for each in adds),
            writer.num_rows,
            read.batches,
            run_again,
        )


def dated_in_order(rewritten: Sequence[Rewritten], latest: dict[tuple[str | None, ...], int]) -> list[Rewritten]:
    """Return the bins with modification times that increase with the order of the bins in each partition.

    Bins that are rewritten in parallel finish in any order, and the next run packs neighbours by modification time.
    Files in another order would be packed again. ``latest`` holds the last time used in each partition.
    """
    dated = list(rewritten)
    for place in sorted(range(len(dated)), key=lambda place: dated[place].bin.place):
        each, adds = dated[place], []
        last = latest.get(each.bin.partition, 0)
        for add in each.adds:
            last = max(add.modification_time, last + 1)  # equal times would be ordered by the path, which is random
            adds.append(msgspec.structs.replace(add, modification_time=last))
        latest[each.bin.partition] = last
        dated[place] = replace(each, adds=tuple(adds))
    return dated


class _Counted:
    """Counts the batches that pass through it."""

    def __init__(self) -> None:
        self.batches = 0

    def through(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.batches += 1
            yield batch


# Execution of rewrites: threads of this process within one memory budget, or adapters that send bins to tasks.


BinCarrier: TypeAlias = Callable[[Rewriter, Iterator[Bin]], Generator[Rewritten]]
"""Rewrites bins and yields the results. If closed early, it deletes rewritten files that it has not yielded."""

_MOST_THREADS = 4
# With a smaller budget a bin would be split into many small files.
_LEAST_BUDGET = 32 << 20


def in_threads(rewriter: Rewriter, bins: Iterator[Bin]) -> Generator[Rewritten]:
    """Rewrite a few bins in parallel, and yield them in order. They share the memory budget."""
    threads = max(1, min(_MOST_THREADS, os.cpu_count() or 1, rewriter.memory_budget // _LEAST_BUDGET))
    if threads == 1:
        yield from (rewriter.rewrite(each) for each in bins)
        return
    each_with = rewriter.within(rewriter.memory_budget // threads)
    running: deque[Task[Rewritten]] = deque()
    pool = Workers(threads, "lazydelta-optimize")
    try:
        for bin_ in bins:
            running.append(pool.submit(partial(each_with.rewrite, bin_)))
            if len(running) >= threads:
                yield _first(running)
        while running:
            yield _first(running)
    finally:
        pool.close()
        for task in running:
            if task.done() and task.exception() is None:
                delete_files(rewriter.handle.store, task.result().adds)


def _first(running: deque[Task[Rewritten]]) -> Rewritten:
    # Remove a task from the queue only after it has succeeded. A failed task has already deleted its own files.
    done = running[0].result()
    running.popleft()
    return done

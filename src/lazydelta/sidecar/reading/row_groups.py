"""``RowGroups``: reads the row groups of a sidecar that can hold a matching file, in order, with a read-ahead."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import chain, islice, takewhile
from weakref import WeakSet

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.errors import StorageError
from lazydelta.log.checkpoint.columns import StatsWanted
from lazydelta.log.checkpoint.reader import CheckpointReader
from lazydelta.log.file_batch import FileBatch, StatsColumns, with_deferred_stats
from lazydelta.log.segment import Checkpoint
from lazydelta.protocol.schema import TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import boolean_array, from_numpy
from lazydelta.runtime.threads import check_complete, in_parallel, release_memory
from lazydelta.scan.base import BaseScan
from lazydelta.sidecar.format.columns import ROWS_PER_GROUP, STATS_OF_COLUMNS, ColumnRole, SidecarLayout, SortColumn
from lazydelta.sidecar.format.manifest import ManifestPart, ManifestRowGroup, SidecarError, StatsFile
from lazydelta.sidecar.format.part_file import (
    TIERED_ABOVE,
    PartFooter,
    check_aligned,
    decode_groups,
    joined_rows,
    joined_tiers,
    part_footer,
    read_groups,
)
from lazydelta.sidecar.format.rows import PlainPartitions, from_rows, key_at, sortable, to_rows
from lazydelta.sidecar.reading.discovery import PartFooters, Sidecar, SidecarCache
from lazydelta.sidecar.reading.group_choice import ChosenGroup, GroupChoice, dated_rows
from lazydelta.storage import Pending, Store

__all__ = ["EmittedGroup", "RowGroups", "from_checkpoint", "sort_layout", "sort_rows", "stats_column_names", "without"]


# Track emitted row groups, so that the checkpoint can take over from a failed sidecar without emitting files twice.


_VECTOR = ("storageType", "pathOrInlineDv", "offset")
_END_COLUMNS = ((ColumnRole.PATH, ()), *((ColumnRole.DV, (name,)) for name in _VECTOR))


class EmittedGroup(msgspec.Struct, frozen=True):
    """An emitted row group, kept as the rows with its first and its last key.

    There are usually two such rows. There are more if a path occurs with several deletion vectors, which share one key:
    at the ends of a row group, the key does not determine whether a file was in it. Keys and files are only derived
    from these rows if the sidecar fails.
    """

    begin: pa.RecordBatch
    end: pa.RecordBatch

    @classmethod
    def of(cls, rows: pa.RecordBatch, layout: SidecarLayout) -> EmittedGroup:
        """Keep the rows at the ends of a group and nothing else."""
        paths = rows.column(layout.name_of(ColumnRole.PATH))
        last = rows.num_rows - 1
        first_path, last_path = paths[0].as_py(), paths[last].as_py()
        begin = sum(1 for _ in takewhile(lambda row: paths[row].as_py() == first_path, range(rows.num_rows)))
        end = sum(1 for _ in takewhile(lambda row: paths[row].as_py() == last_path, range(last, -1, -1)))
        names = dict.fromkeys([*layout.sort_names(), *(layout.name_of(*each) for each in _END_COLUMNS)])
        kept = rows.select([name for name in names if name in rows.schema.names])
        # Copy: a slice would keep the whole row group in memory.
        ends = np.concatenate([np.arange(begin), np.arange(rows.num_rows - end, rows.num_rows)])
        copied = pc.take(kept, from_numpy(ends.astype(np.int64)))
        return cls(copied.slice(0, begin), copied.slice(begin))

    def keys(self, layout: SidecarLayout) -> tuple[bytes, bytes]:
        """Return the first and the last key."""
        ends = sortable(pa.Table.from_batches([self.begin.slice(0, 1), self.end.slice(0, 1)]), layout)
        return ends[0].as_py(), ends[1].as_py()

    def files(self, layout: SidecarLayout) -> Iterator[tuple[str, str]]:
        """Yield the files at the ends, as path and deletion vector."""
        names = [layout.name_of(*each) for each in _END_COLUMNS]
        for batch in (self.begin, self.end):
            there = batch.schema.names  # columns of deletion vectors are missing if there are none
            path, *vector = (
                batch.column(name).to_pylist() if name in there else [None] * batch.num_rows for name in names
            )
            yield from ((each, _vector_text(*parts)) for each, *parts in zip(path, *vector, strict=True))


def _vector_text(kind: str | None, place: str | None, offset: int | None) -> str:
    return "" if kind is None else f"{kind}{place}@{offset}"


def without(
    batch: FileBatch, inside: Sequence[tuple[bytes, bytes]], gone: frozenset[tuple[str, str]], sidecar: Sidecar
) -> FileBatch:
    """Remove the files of emitted row groups: those between the first and the last key of a group.

    ``inside`` holds these key pairs in order, and ``gone`` the emitted files with one of these keys.
    """
    if not inside or not len(batch):
        return batch
    starts = [start for start, _ in inside]
    ends = {key for span in inside for key in span}
    keys = sortable(sort_rows(batch, sidecar.layout, sidecar.schema), sidecar.layout).to_pylist()
    keep = np.empty(len(keys), np.bool_)
    for row, key in enumerate(keys):
        if key in ends:
            vector = None if batch.deletion_vector is None else batch.deletion_vector[row].as_py()
            text = _vector_text(*(vector[name] for name in _VECTOR)) if vector else ""
            keep[row] = (batch.path[row].as_py(), text) not in gone
        else:
            place = bisect_right(starts, key) - 1
            keep[row] = place < 0 or key > inside[place][1]
    return batch.filter(boolean_array(keep))


def sort_layout(layout: SidecarLayout) -> SidecarLayout:
    """Return the columns that the sort order needs."""
    needed = tuple(
        each
        for each in layout.columns
        if each.role == ColumnRole.PATH or SortColumn(each.role, each.path) in layout.sort
    )
    return SidecarLayout(needed, layout.sort)


def sort_rows(batch: FileBatch, layout: SidecarLayout, schema: TableSchema) -> pa.RecordBatch:
    """Return the sort columns of the files, typed by the schema at the checkpoint, as the sidecar was sorted."""
    by_minimum = any(each.role == ColumnRole.MIN for each in layout.sort)
    return to_rows(batch.with_stats() if by_minimum else batch, sort_layout(layout), schema)


# Deferred statistics of sidecar files: read by row group, or from the checkpoint.


logger = logging.getLogger(__name__)


class GroupStats(msgspec.Struct, frozen=True):
    """Row groups of a part and the source of their statistics; ``store`` outlives the scan."""

    store: Store
    layout: SidecarLayout
    part: ManifestPart
    groups: Sequence[ManifestRowGroup]
    footer: PartFooter
    checkpoint: Checkpoint | None

    def read(self, files: FileBatch) -> StatsColumns:
        """Return the statistics of the files of these row groups."""
        try:
            return {"parsed_stats": self._from_sidecar(files.tier)}
        except (SidecarError, StorageError) as error:
            logger.warning("%s fails, statistics come from the checkpoint: %s", self.part.file, error)
            return {} if self.checkpoint is None else from_checkpoint(files, self.store, self.checkpoint)

    def _from_sidecar(self, tier: int) -> pa.Array | None:
        rows, layout = self._first_tier(), self.layout
        if self.part.stats is not None:
            others = self._second_tier(self.part.stats)
            layout = joined_tiers(layout, others.state.layout)
            rows = joined_rows([rows, self._rest(self.part.stats, others)])
        return from_rows(rows, layout, tier=tier).parsed_stats

    def _second_tier(self, stats: StatsFile) -> PartFooter:
        footer = part_footer(self.store, stats)
        check_aligned(self.footer, footer)
        return footer

    def _rest(self, stats: StatsFile, footer: PartFooter) -> pa.RecordBatch:
        names = [column.name for column in footer.state.columns]
        indices = [group.index for group in self.groups]
        spans = [span for index in indices for span in footer.spans(index, names)]
        found = self.store.fetch_ranges(stats.file, spans).result()
        blocks = [(start, data) for (start, _), data in zip(spans, found, strict=True)]
        return read_groups(footer, indices, names, blocks, stats.size)

    def _first_tier(self) -> pa.RecordBatch:
        names, file = stats_column_names(self.layout, StatsWanted()), self.part.file
        cores = [
            self.store.fetch(file, start=group.byte_offset, length=group.core_byte_length) for group in self.groups
        ]
        spans = [self.footer.spans(group.index, names) for group in self.groups]
        named = [self.store.fetch_ranges(file, each) for each in spans]
        blocks = [(group.byte_offset, core.result()) for group, core in zip(self.groups, cores, strict=True)]
        for some, pending in zip(spans, named, strict=True):
            blocks += [(start, data) for (start, _), data in zip(some, pending.result(), strict=True)]
        columns = [*self.layout.names(core=True), *names]
        return read_groups(self.footer, [group.index for group in self.groups], columns, blocks, self.part.size)


def stats_column_names(layout: SidecarLayout, wanted: StatsWanted | None) -> list[str]:
    """Return the sidecar columns with the wanted statistics, except those that are always read."""
    if wanted is None or wanted.columns == ():
        return []
    return [
        column.name
        for column in layout.columns
        if column.role in STATS_OF_COLUMNS
        and (wanted.columns is None or column.path in wanted.columns)
        and not layout.is_core(column)
    ]


def wants_second_tier(first: SidecarLayout, wanted: StatsWanted | None) -> bool:
    """Return whether the wanted statistics include some that the first of two tiers does not have."""
    if wanted is None or wanted.columns is None:
        return wanted is not None
    known = {column.path for column in first.columns if column.role in STATS_OF_COLUMNS}
    return not known.issuperset(wanted.columns)


def from_checkpoint(files: FileBatch, store: Store, checkpoint: Checkpoint) -> StatsColumns:
    """Look up the files of a batch in the checkpoint, if their sidecar is lost and statistics are requested."""
    places = {path: row for row, path in enumerate(files.path.to_pylist())}
    order: list[int] = []
    found: list[FileBatch] = []
    for batch in CheckpointReader(store, checkpoint).files(StatsWanted()):
        rows = [places.get(path, -1) for path in batch.path.to_pylist()]
        keep = np.array(rows) >= 0
        if keep.any():
            order += [row for row in rows if row >= 0]
            found.append(batch.filter(boolean_array(keep)))
    if len(order) != len(files):
        return {}
    take = from_numpy(np.argsort(np.array(order), kind="stable").astype(np.int64))
    columns: dict[str, pa.Array | None] = {"parsed_stats": None}
    for name in ("json_stats", "parsed_stats"):
        if all(getattr(each, name) is not None for each in found):
            columns[name] = pa.concat_arrays([getattr(each, name) for each in found]).take(take)
    return columns


_FEW_GROUPS = 4  # up to this many row groups, save memory; beyond it, save time
# Small row groups are decoded together, to spread the fixed cost of a batch. Together they have no more rows than a
# usual one: two of ten thousand files took 40 MB more, most of which the allocator kept, and saved no time.
_TOGETHER = 4
# How often memory is given back while decoding. With many statistics it is done each time, which keeps 20 of 70 MB.
_DECODED_PER_RELEASE, _MANY_STATISTICS = 4, 8
_DECODERS = 2  # parallel decoders in long scans
_CORE_BYTES, _STATISTIC_BYTES = 200, 12  # per file: path, size and the like; a bound or a count
_LARGEST_GROUP = 96 << 20  # the builder limits parts of wide tables to this size
_COPIES = 12


class _Named(msgspec.Struct, frozen=True):
    """Pending columns of a row group."""

    spans: Sequence[tuple[int, int]]
    pending: Pending[list[bytes]]

    def blocks(self) -> list[tuple[int, bytes]]:
        """Wait for the bytes and return them with their offsets."""
        return [(start, data) for (start, _), data in zip(self.spans, self.pending.result(), strict=True)]


class _GroupRead(msgspec.Struct, eq=False, weakref=True):
    """A pending row group: its core, and the statistics requested once the footer gives their offsets.

    ``rest`` holds statistics of the second tier. ``core`` is None if Arrow reads the file itself.
    """

    part: ManifestPart
    group: ManifestRowGroup
    core: Pending[bytes] | None
    named: _Named | None = None
    rest: _Named | None = None

    def blocks(self) -> list[tuple[int, bytes]]:
        """Wait for the bytes of the first tier and return them with their offsets."""
        core = [] if self.core is None else [(self.group.byte_offset, self.core.result())]
        return core if self.named is None else [*core, *self.named.blocks()]

    def cancel(self) -> None:
        """Cancel the reads."""
        if self.core is not None:
            self.core.cancel()
        for each in (self.named, self.rest):
            if each is not None:
                each.pending.cancel()


class _Decoded(msgspec.Struct, frozen=True):
    """Decoded row groups of a part; ``layout`` covers both tiers, if there are two."""

    part: ManifestPart
    groups: tuple[ManifestRowGroup, ...]
    footer: PartFooter
    rows: pa.RecordBatch
    layout: SidecarLayout | None


class _Fetched(msgspec.Struct, frozen=True):
    """Pending row groups of a part, with everything needed to decode them."""

    together: Sequence[_GroupRead]
    footer: PartFooter
    names: Sequence[str]
    frugal: bool
    second: tuple[PartFooter, Sequence[str]] | None = None
    direct: Store | None = None
    statistics: Sequence[str] = ()
    releases: bool = True

    def decode(self) -> _Decoded:
        """Wait for the bytes and decode them."""
        part = self.together[0].part
        indices = [each.group.index for each in self.together]
        layout = None
        if self.direct is not None:
            cores = [(each.group.byte_offset, each.group.core_byte_length) for each in self.together]
            spans = [*cores, *self._spans(self.footer, self.statistics)]
            rows = self._directly(self.direct, part.file, self.footer, self.names, spans)
        else:
            blocks = [block for each in self.together for block in each.blocks()]
            rows = read_groups(self.footer, indices, self.names, blocks, part.size, frugal=self.frugal)
        if self.second is not None and part.stats is not None:
            footer, names = self.second
            layout = joined_tiers(self.footer.state.layout, footer.state.layout)
            if self.direct is not None:
                others = self._directly(self.direct, part.stats.file, footer, names, self._spans(footer, names))
            else:
                rest = [block for each in self.together if each.rest is not None for block in each.rest.blocks()]
                others = read_groups(footer, indices, names, rest, part.stats.size, frugal=self.frugal)
            rows = joined_rows([rows, others])
        if self.releases:
            release_memory()
        return _Decoded(part, tuple(each.group for each in self.together), self.footer, rows, layout)

    def _spans(self, footer: PartFooter, names: Sequence[str]) -> list[tuple[int, int]]:
        return [span for each in self.together for span in footer.spans(each.group.index, names)] if names else []

    def _directly(
        self, store: Store, file: str, footer: PartFooter, names: Sequence[str], spans: Sequence[tuple[int, int]]
    ) -> pa.RecordBatch:
        """Let Arrow read the file without returning to Python between columns; reads are recorded beforehand."""
        (start, length), *others = spans
        source = store.open_direct(file, start=start, length=length)
        if source is None:
            message = f"{file} cannot be opened as a file"
            raise SidecarError(message)
        with source:
            for start, length in others:
                store.note_read(file, start, length)
            return decode_groups(
                footer, [each.group.index for each in self.together], names, source, frugal=self.frugal
            )


class RowGroups:
    """Reader of the selected row groups, in order, with a bounded read-ahead."""

    def __init__(self, scan: BaseScan, sidecar: Sidecar, cache: SidecarCache, ahead: int) -> None:
        self._scan = scan
        self._sidecar = sidecar
        self._ahead = ahead
        self._footers = PartFooters(scan, sidecar.layout, cache)
        self._choice = GroupChoice(scan, sidecar, cache, self._footers, ahead=ahead)
        self._started: deque[_GroupRead] = deque()
        self._promised = self._delivered = self._fetches = 0
        self._under_way: WeakSet[_GroupRead] = WeakSet()  # includes those being decoded
        self._frugal = True
        self._file = self._stats_file = ""
        self._names = stats_column_names(sidecar.layout, scan.wanted)
        self._all_names = [*sidecar.layout.names(core=True), *self._names]
        self._wants_rest = wants_second_tier(sidecar.layout, scan.wanted)
        self._aside: Generator[_Decoded] | None = None
        self._plain = PlainPartitions()
        self._maps = sidecar.layout.name_of(ColumnRole.PARTITION_VALUES)

    def __iter__(self) -> Iterator[tuple[FileBatch, EmittedGroup]]:
        groups = self.matching_groups()
        few = list(islice(groups, _FEW_GROUPS + 1))
        self._frugal = self._scan.limited or len(few) <= _FEW_GROUPS
        if few:
            self._ahead = min(self._ahead, self._that_fit(has_tiers=few[0].part.stats is not None))
        fetched = self._fetched(chain(few, groups))
        decoded: Iterator[_Decoded] = map(_Fetched.decode, fetched)
        if not self._frugal and self._ahead >= _DECODERS:
            # Decode some row groups while others are checked here and the consumer prunes yet others.
            self._aside = decoded = in_parallel(_Fetched.decode, fetched, threads=_DECODERS, stop=self._cancel)
        held: list[tuple[FileBatch, EmittedGroup]] = []
        for found in decoded:
            first, *undated = self._described(found)
            yield first
            held += undated
        yield from held
        check_complete("row groups of the sidecar", promised=self._promised, delivered=self._delivered)
        self._prove()  # pruning everything is a result that needs proof too

    def _that_fit(self, *, has_tiers: bool) -> int:
        """Return how many row groups can be in flight within the memory budget, at least one.

        The core columns of ten thousand files take two megabytes, and five times that with statistics of a hundred
        columns. Each row group exists several times: as bytes, as rows, decoded together with others, held by the
        consumer, and as memory that the allocator keeps from the previous one. A row group is read whole, because it is
        verified whole.
        """
        statistics, wanted = len(self._names), self._scan.wanted
        if has_tiers and self._wants_rest and wanted is not None:
            statistics += 3 * (TIERED_ABOVE if wanted.columns is None else len(wanted.columns))
        size = min(_LARGEST_GROUP, ROWS_PER_GROUP * (_CORE_BYTES + _STATISTIC_BYTES * statistics))
        return max(1, self._scan.memory_budget // (_COPIES * size))

    def _fetched(self, waiting: Iterator[ChosenGroup]) -> Iterator[_Fetched]:
        done = 0
        # A limit is often reached within one row group, so read-ahead grows only after that was not the case.
        ahead = 1 if self._scan.limited else self._ahead
        self._start(waiting, ahead)
        while self._started:
            together = self._next()
            self._start(waiting, ahead - 1)
            self._prove()
            yield self._with_footer(together)
            ahead = min(2 * ahead, self._ahead)
            done += 1
            self._frugal &= done < _FEW_GROUPS
            self._start(waiting, ahead)

    def _next(self) -> list[_GroupRead]:
        """Return the next row group, in long scans together with those that follow it in the same file."""
        found = [self._started.popleft()]
        most = 1 if self._frugal or self._scan.newest_first else min(_TOGETHER, self._ahead)
        rows = found[0].group.num_rows
        while self._started and len(found) < most:
            group, last = self._started[0].group, found[-1].group
            rows += group.num_rows
            if rows > ROWS_PER_GROUP:
                break
            alike = (self._started[0].core is None) is (found[-1].core is None)
            if not alike or (group.part, group.index) != (last.part, last.index + 1):
                break
            found.append(self._started.popleft())
        return found

    def _prove(self) -> None:
        if self._sidecar.proof is not None:
            self._sidecar.proof.check()

    def close(self) -> None:
        """Cancel all reads."""
        self._cancel()
        if self._aside is not None:
            self._aside.close()

    def _cancel(self) -> None:
        if self._sidecar.proof is not None:
            self._sidecar.proof.cancel()
        for reading in list(self._under_way):
            reading.cancel()
        self._choice.cancel()
        self._footers.cancel()

    def matching_groups(self) -> Iterator[ChosenGroup]:
        """Yield the row groups that can hold a matching file, in scan order."""
        return iter(self._choice)

    def _start(self, waiting: Iterator[ChosenGroup], ahead: int) -> None:
        """Start reading as many row groups as the read-ahead allows."""
        while len(self._started) < ahead and (chosen := next(waiting, None)) is not None:
            part, group = chosen.part, chosen.group
            self._fetch_footers(part)
            if self._frugal or not self._scan.store.reads_directly:
                core = self._scan.store.fetch(part.file, start=group.byte_offset, length=group.core_byte_length)
                reading = _GroupRead(part, group, core)
                self._under_way.add(reading)
                self._fetch_named(reading)
            else:
                reading = _GroupRead(part, group, None)
            self._started.append(reading)
            self._promised += 1

    def _fetch_named(self, reading: _GroupRead) -> None:
        """Request the statistics of a row group, once the footer of its part is available."""
        part = reading.part
        if self._names and reading.named is None:
            reading.named = self._fetch_columns(part, reading.group, self._names)
        if self._wants_rest and part.stats is not None and reading.rest is None:
            second = self._footers.at_hand(part.stats)
            names = () if second is None else stats_column_names(second.state.layout, self._scan.wanted)
            reading.rest = self._fetch_columns(part.stats, reading.group, names) if names else None

    def _fetch_columns(
        self, file: ManifestPart | StatsFile, group: ManifestRowGroup, names: Sequence[str]
    ) -> _Named | None:
        footer = self._footers.at_hand(file)
        if footer is None:
            return None
        spans = footer.spans(group.index, names)
        return _Named(spans, self._scan.store.fetch_ranges(file.file, spans))

    def _fetch_footers(self, part: ManifestPart) -> None:
        self._footers.fetch(part)
        if self._wants_rest and part.stats is not None:
            self._footers.fetch(part.stats)

    def _second_tier(self, part: ManifestPart) -> tuple[PartFooter, Sequence[str]] | None:
        """Return the footer of the second tier and its wanted columns, if there are any."""
        if not self._wants_rest or part.stats is None:
            return None
        footer = self._footers.of(part.stats)
        check_aligned(self._footers.of(part), footer)
        names = stats_column_names(footer.state.layout, self._scan.wanted)
        return (footer, names) if names else None

    def _with_footer(self, together: Sequence[_GroupRead]) -> _Fetched:
        part = together[0].part
        if part.file != self._file:
            # Row groups arrive part by part: the previous part and its footer are done, except for undated files.
            if all(each.part.file != self._file for each in self._started):
                self._footers.forget(self._file)
                self._footers.forget(self._stats_file)
            self._file = part.file
            self._stats_file = "" if part.stats is None else part.stats.file
        self._fetch_footers(part)
        footer, second = self._footers.of(part), self._second_tier(part)
        for each in (*together, *self._started):
            if each.core is not None:
                self._fetch_named(each)
        left_out: set[str | None] = {*footer.absent([each.group.index for each in together])}
        if footer.plain_partitions:
            left_out.add(self._maps)
        names = [name for name in self._all_names if name not in left_out]
        direct = self._scan.store if together[0].core is None else None
        self._fetches += 1
        # Of a short scan it is most of what it allocates.
        releases = self._frugal or len(self._names) > _MANY_STATISTICS or self._fetches % _DECODED_PER_RELEASE == 0
        return _Fetched(together, footer, names, self._frugal, second, direct, self._names, releases)

    def _described(self, found: _Decoded) -> list[tuple[FileBatch, EmittedGroup]]:
        """Check row groups and return their files; undated files are separate if they have to wait."""
        part, groups, rows = found.part, found.groups, found.rows
        layout = self._sidecar.layout
        try:
            start = 0
            for group in groups:
                last = start + group.num_rows - 1
                if (key_at(rows, start, layout), key_at(rows, last, layout)) != (group.first, group.last):
                    message = f"row group {group.index} of {part.file} is not the one that the manifest describes"
                    raise SidecarError(message)
                start += group.num_rows
            if start != rows.num_rows or not start:
                message = f"{part.file} has {rows.num_rows} rows where the manifest has {start or 'none'}"
                raise SidecarError(message)
            files = from_rows(rows, found.layout or layout, tier=self._sidecar.tier, plain=self._plain)
            dated = dated_rows(rows, layout) if self._scan.newest_first else rows.num_rows
            spans = [span for span in ((0, dated), (dated, rows.num_rows - dated)) if span[1]]
            used = [EmittedGroup.of(rows.slice(*span), layout) for span in spans]
        except (pa.ArrowException, KeyError, ValueError, IndexError, StopIteration) as error:
            message = f"row group {groups[0].index} of {part.file} does not have the rows it should: {error!r}"
            raise SidecarError(message) from error
        self._scan.metrics.row_groups_read += len(groups)
        self._delivered += len(groups)
        if self._scan.wanted is None:
            snapshot = self._scan.snapshot
            stats = GroupStats(snapshot.store, layout, part, groups, found.footer, snapshot.segment.checkpoint)
            files = with_deferred_stats(files, partial(stats.read, files))
        if not self._scan.newest_first:
            return [(files, used[0])]
        # As with decoding: Arrow's allocator would reserve more for the copy than the rest of a short scan.
        pool = pa.system_memory_pool() if self._frugal else None
        return [(files.slice(*span).reversed(pool), ends) for span, ends in zip(spans, used, strict=True)]

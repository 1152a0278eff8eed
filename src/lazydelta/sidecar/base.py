"""The base read from the sidecar, and from the checkpoint as soon as anything about the sidecar is wrong."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa

from lazydelta.errors import StorageError
from lazydelta.log.checkpoint import CheckpointReader
from lazydelta.log.checkpoint_columns import StatsWanted
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.segment import Checkpoint
from lazydelta.read_ahead import ReadAhead
from lazydelta.scan.arrays import boolean_array
from lazydelta.scan.base import BaseScan, checkpoint_files
from lazydelta.sidecar.cache import SidecarCache, shared_cache
from lazydelta.sidecar.discovery import Sidecar, find_sidecar
from lazydelta.sidecar.format import SidecarLayout, SortColumn
from lazydelta.sidecar.keys import key_at
from lazydelta.sidecar.manifest import ManifestPart, ManifestRowGroup, SidecarError
from lazydelta.sidecar.order import sortable
from lazydelta.sidecar.part_file import PartFooter, PartReader
from lazydelta.sidecar.ranges import surviving
from lazydelta.sidecar.rows import from_rows, to_rows
from lazydelta.storage import Pending, Store

__all__ = ["SidecarBase"]

logger = logging.getLogger(__name__)

_VECTOR = ("storageType", "pathOrInlineDv", "offset")
_END_COLUMNS = (("path", ()), *(("dv", (name,)) for name in _VECTOR))
_FEW_GROUPS = 4  # so few are read in little memory, more in little time


@dataclass(frozen=True, slots=True)
class SidecarBase:
    """Opens the base of a scan (see ``scan.base.OpenBase``): the sidecar where there is a good one."""

    row_groups_ahead: int = 5
    cache: SidecarCache = field(default_factory=lambda: shared_cache)

    def __call__(self, scan: BaseScan) -> Iterator[FileBatch]:
        """Yield the files at the checkpoint; the tier changes if it must, the answer does not."""
        checkpoint = scan.snapshot.segment.checkpoint
        if checkpoint is None:
            return
        sidecar = find_sidecar(scan.store, scan.snapshot, checkpoint, self.cache)
        if sidecar is None:
            yield from checkpoint_files(scan)
            return
        scan.metrics.tier = sidecar.tier
        scan.metrics.sidecar_hits += 1
        scan.metrics.cache_hits += sidecar.from_cache
        used: list[_Used] = []
        groups = _Groups(scan, sidecar, self.cache, self.row_groups_ahead)
        try:
            for batch, group in groups:
                yield batch
                used.append(group)
        except (SidecarError, StorageError) as error:
            logger.warning("the sidecar of version %d fails, the checkpoint goes on: %s", checkpoint.version, error)
            self.cache.forget_manifest(scan.store.identity, checkpoint)
        else:
            return
        finally:
            groups.close()
        scan.metrics.sidecar_hits -= 1
        inside = sorted(each.keys(sidecar.layout) for each in used)
        gone = frozenset(file for each in used for file in each.files(sidecar.layout))
        for batch in checkpoint_files(scan):
            rest = _without(batch, inside, gone, sidecar)
            if len(rest):
                yield rest


@dataclass(frozen=True, slots=True)
class _Used:
    """A row group that has left, by the rows at its ends: whose key is that of the first or of the last one.

    These are two, but where one path is there under several deletion vectors, which have the same key: at the ends of a
    row group the key does not tell whether a file was in it. What is made of them is made when the sidecar fails.
    """

    begin: pa.RecordBatch
    end: pa.RecordBatch

    @classmethod
    def of(cls, rows: pa.RecordBatch, layout: SidecarLayout) -> _Used:
        """Keep the ends of a group, and nothing else of it."""
        paths = rows.column(layout.name_of("path"))
        last = rows.num_rows - 1
        first_path, last_path = paths[0].as_py(), paths[last].as_py()
        begin = sum(1 for _ in takewhile(lambda row: paths[row].as_py() == first_path, range(rows.num_rows)))
        end = sum(1 for _ in takewhile(lambda row: paths[row].as_py() == last_path, range(last, -1, -1)))
        names = [*layout.sort_names(), *(layout.name_of(*each) for each in _END_COLUMNS)]
        kept = rows.select(list(dict.fromkeys(names)))
        # Copies: a slice would keep the whole row group.
        return cls(_copy(kept, 0, begin), _copy(kept, rows.num_rows - end, end))

    def keys(self, layout: SidecarLayout) -> tuple[bytes, bytes]:
        """Return the first and the last key."""
        ends = sortable(pa.Table.from_batches([self.begin.slice(0, 1), self.end.slice(0, 1)]), layout)
        return ends[0].as_py(), ends[1].as_py()

    def files(self, layout: SidecarLayout) -> Iterator[tuple[str, str]]:
        """Yield the files at the ends, by path and deletion vector."""
        names = [layout.name_of(*each) for each in _END_COLUMNS]
        for batch in (self.begin, self.end):
            path, *vector = (batch.column(name).to_pylist() for name in names)
            yield from ((each, _vector_text(*parts)) for each, *parts in zip(path, *vector, strict=True))


def _copy(rows: pa.RecordBatch, start: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(start, start + count, dtype=np.int64)
    return rows.take(pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(numbers)]))


def _vector_text(kind: str | None, place: str | None, offset: int | None) -> str:
    return "" if kind is None else f"{kind}{place}@{offset}"


def _without(
    batch: FileBatch, inside: Sequence[tuple[bytes, bytes]], gone: frozenset[tuple[str, str]], sidecar: Sidecar
) -> FileBatch:
    """Leave out the files of row groups that have left already: those between a group's first and last key.

    ``inside`` are these keys, in order, and ``gone`` the files that have one of them.
    """
    if not inside or not len(batch):
        return batch
    starts = [start for start, _ in inside]
    ends = {key for span in inside for key in span}
    keys = sortable(_sort_rows(batch, sidecar), sidecar.layout).to_pylist()
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


def _sort_rows(batch: FileBatch, sidecar: Sidecar) -> pa.RecordBatch:
    """Return what the order needs of the files, by the schema at the checkpoint, as the sidecar was sorted."""
    layout = sidecar.layout
    needed = tuple(
        each for each in layout.columns if each.role == "path" or SortColumn(each.role, each.path) in layout.sort
    )
    by_minimum = any(each.role == "min" for each in layout.sort)
    return to_rows(batch.with_stats() if by_minimum else batch, SidecarLayout(needed, layout.sort), sidecar.schema)


@dataclass(slots=True)
class _Reading:
    """A row group under way: its core, and the statistics asked for as soon as the footer tells where they are."""

    group: ManifestRowGroup
    core: Pending[bytes]
    spans: Sequence[tuple[int, int]] = ()
    named: Pending[list[bytes]] | None = None

    def blocks(self) -> list[tuple[int, bytes]]:
        """Wait for the bytes, and return them with where they begin."""
        found = [(self.group.byte_offset, self.core.result())]
        if self.named is not None:
            found += [(start, data) for (start, _), data in zip(self.spans, self.named.result(), strict=True)]
        return found

    def cancel(self) -> None:
        """Stop the reads."""
        self.core.cancel()
        if self.named is not None:
            self.named.cancel()


class _Groups:
    """Reads the surviving row groups in order, a few ahead of the consumer."""

    def __init__(self, scan: BaseScan, sidecar: Sidecar, cache: SidecarCache, ahead: int) -> None:
        self._scan = scan
        self._sidecar = sidecar
        self._cache = cache
        self._ahead = ahead
        self._footers: dict[int, PartFooter | Pending[bytes]] = {}
        self._started: deque[_Reading] = deque()
        self._frugal = True
        self._names = _named_columns(sidecar.layout, scan.wanted)
        self._all_names = [*sidecar.layout.names(core=True), *self._names]
        self._aside: ReadAhead[tuple[ManifestRowGroup, pa.RecordBatch]] | None = None
        self._maps = sidecar.layout.name_of("partition_values")
        self._reader: PartReader
        self._reads: tuple[int, bool] | None = None

    def __iter__(self) -> Iterator[tuple[FileBatch, _Used]]:
        waiting = deque(self._surviving())
        self._frugal = self._scan.limited or len(waiting) <= _FEW_GROUPS
        decoded = self._decoded(waiting)
        if not self._frugal:
            # One row group is decoded while another is checked here and a third is pruned by the consumer.
            self._aside = decoded = ReadAhead(decoded, depth=1, stop=self._cancel)
        for group, rows in decoded:
            yield self._described(group, rows)
        self._prove()  # to leave everything out is an answer too

    def _decoded(self, waiting: deque[ManifestRowGroup]) -> Iterator[tuple[ManifestRowGroup, pa.RecordBatch]]:
        done = 0
        # A limit is often reached within one row group: more are read ahead only once that was not so.
        ahead = 1 if self._scan.limited else self._ahead
        while waiting or self._started:
            while waiting and len(self._started) < ahead:
                self._start(waiting.popleft())
            self._prove()
            reading = self._started.popleft()
            yield reading.group, self._decode(reading)
            ahead = min(2 * ahead, self._ahead)
            done += 1
            self._frugal &= done < _FEW_GROUPS

    def _prove(self) -> None:
        if self._sidecar.proof is not None:
            self._sidecar.proof.check()

    def close(self) -> None:
        if self._aside is not None:
            self._aside.close()
        self._cancel()

    def _cancel(self) -> None:
        if self._sidecar.proof is not None:
            self._sidecar.proof.cancel()
        for reading in list(self._started):
            reading.cancel()
        for footer in list(self._footers.values()):
            if isinstance(footer, Pending):
                footer.cancel()

    def _surviving(self) -> list[ManifestRowGroup]:
        predicate, parts, metrics = self._scan.predicate, self._sidecar.parts, self._scan.metrics
        total = sum(part.num_row_groups for part in parts)
        numbers = surviving(predicate, [part.ranges for part in parts]) if len(parts) > 1 else range(len(parts))
        groups = self._sidecar.groups_of(numbers)
        if groups is None:
            for number in numbers:
                self._fetch_footer(number)
            groups = [replace_part(group, number) for number in numbers for group in self._footer(number).row_groups()]
        kept = [groups[index] for index in surviving(predicate, [group.ranges for group in groups])]
        metrics.row_groups_pruned += total - len(kept)
        return kept[::-1] if self._scan.newest_first else kept

    def _start(self, group: ManifestRowGroup) -> None:
        part = self._sidecar.parts[group.part]
        self._fetch_footer(group.part)
        core = self._scan.store.fetch(part.file, start=group.byte_offset, length=group.core_byte_length)
        self._started.append(_Reading(group, core))
        self._fetch_named(self._started[-1])

    def _fetch_named(self, reading: _Reading) -> None:
        """Ask for the statistics of a row group, once its part's footer is there."""
        footer, group = self._footers[reading.group.part], reading.group
        if self._names and isinstance(footer, PartFooter) and reading.named is None:
            reading.spans = footer.spans(group.index, self._names)
            reading.named = self._scan.store.fetch_ranges(self._sidecar.parts[group.part].file, reading.spans)

    def _fetch_footer(self, number: int) -> None:
        if number in self._footers:
            return
        part = self._sidecar.parts[number]
        known = self._cache.footer(part.footer_sha256)
        if known is not None:
            self._scan.metrics.cache_hits += 1
            self._footers[number] = known
        else:
            self._footers[number] = self._scan.store.fetch(
                part.file, start=part.footer_offset, length=part.footer_length
            )

    def _footer(self, number: int) -> PartFooter:
        found = self._footers[number]
        if isinstance(found, Pending):
            part = self._sidecar.parts[number]
            found = PartFooter(found.result(), expected=part.footer_sha256)
            if found.state.layout != self._sidecar.layout:
                message = f"{part.file} has other columns than the manifest says"
                raise SidecarError(message)
            self._footers[number] = found
            self._cache.keep_footer(part.footer_sha256, found)
        return found

    def _decode(self, reading: _Reading) -> pa.RecordBatch:
        group = reading.group
        part = self._sidecar.parts[group.part]
        footer = self._footer(group.part)
        for each in (reading, *self._started):
            self._fetch_named(each)
        if (group.part, self._frugal) != self._reads:
            self._reader = PartReader(footer, part.size, frugal=self._frugal)
            self._reads = group.part, self._frugal
        left_out = self._maps if footer.plain_partitions else None
        names = [name for name in self._all_names if name != left_out]
        rows = self._reader.read(group.index, names, reading.blocks())
        if self._frugal:
            # The allocator keeps what each thread has freed, and a short scan takes little else.
            pa.default_memory_pool().release_unused()
        return rows

    def _described(self, group: ManifestRowGroup, rows: pa.RecordBatch) -> tuple[FileBatch, _Used]:
        part = self._sidecar.parts[group.part]
        try:
            return self._checked(rows, group, part, self._footer(group.part))
        except (pa.ArrowException, KeyError, ValueError, IndexError, StopIteration) as error:
            message = f"row group {group.index} of {part.file} does not have the rows it should: {error!r}"
            raise SidecarError(message) from error

    def _checked(
        self, rows: pa.RecordBatch, group: ManifestRowGroup, part: ManifestPart, footer: PartFooter
    ) -> tuple[FileBatch, _Used]:
        layout = self._sidecar.layout
        last = rows.num_rows - 1
        if rows.num_rows != group.num_rows or (
            rows.num_rows and (key_at(rows, 0, layout), key_at(rows, last, layout)) != (group.first, group.last)
        ):
            message = f"row group {group.index} of {part.file} is not the one that the manifest describes"
            raise SidecarError(message)
        self._scan.metrics.row_groups_read += 1
        files = from_rows(rows, layout, tier=self._sidecar.tier)
        if self._scan.wanted is None:
            files = _with_later_stats(files, self._scan, part, footer, group, layout)
        return files, _Used.of(rows, layout)


def replace_part(group: ManifestRowGroup, number: int) -> ManifestRowGroup:
    """Return a row group of a part as one of the whole sidecar."""
    return ManifestRowGroup(
        **{name: getattr(group, name) for name in group.__struct_fields__ if name != "part"}, part=number
    )


def _named_columns(layout: SidecarLayout, wanted: StatsWanted | None) -> list[str]:
    if wanted is None or wanted.columns == ():
        return []
    others = set(layout.names(core=False))
    return [
        column.name
        for column in layout.columns
        if column.name in others
        and column.role in {"min", "max", "null_count"}
        and (wanted.columns is None or column.path in wanted.columns)
    ]


def _with_later_stats(
    files: FileBatch,
    scan: BaseScan,
    part: ManifestPart,
    footer: PartFooter,
    group: ManifestRowGroup,
    layout: SidecarLayout,
) -> FileBatch:
    def load() -> FileBatch:
        try:
            store, names = scan.snapshot.store, _named_columns(layout, StatsWanted())
            spans = footer.spans(group.index, names)
            core = store.fetch(part.file, start=group.byte_offset, length=group.core_byte_length)
            reading = _Reading(group, core, spans, store.fetch_ranges(part.file, spans))
            rows = footer.read(group.index, [*layout.names(core=True), *names], reading.blocks(), part.size)
            return from_rows(rows, layout, tier=files.tier)
        except (SidecarError, StorageError) as error:
            logger.warning("%s fails, statistics come from the checkpoint: %s", part.file, error)
            checkpoint = scan.snapshot.segment.checkpoint
            return files if checkpoint is None else _stats_from_checkpoint(files, scan.snapshot.store, checkpoint)

    return replace(files, load_stats=load)


def _stats_from_checkpoint(files: FileBatch, store: Store, checkpoint: Checkpoint) -> FileBatch:
    """Look the files of a batch up in the checkpoint, for somebody who asks for statistics of a lost sidecar."""
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
        return replace(files, load_stats=None)
    back = np.argsort(np.array(order), kind="stable")
    take = pa.Array.from_buffers(pa.int64(), len(back), [None, pa.py_buffer(back.astype(np.int64))])
    columns: dict[str, Any] = {
        name: pa.concat_arrays([getattr(each, name) for each in found]).take(take)
        for name in ("json_stats", "parsed_stats")
        if all(getattr(each, name) is not None for each in found)
    }
    return replace(files, **({"parsed_stats": None} | columns), load_stats=None)

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
from lazydelta.scan.arrays import boolean_array
from lazydelta.scan.base import BaseScan, checkpoint_files
from lazydelta.sidecar.cache import SidecarCache, shared_cache
from lazydelta.sidecar.discovery import Sidecar, find_sidecar
from lazydelta.sidecar.format import SidecarLayout, SortColumn
from lazydelta.sidecar.keys import key_at
from lazydelta.sidecar.manifest import ManifestPart, ManifestRowGroup, SidecarError
from lazydelta.sidecar.order import sortable
from lazydelta.sidecar.part_file import PartFooter
from lazydelta.sidecar.ranges import surviving
from lazydelta.sidecar.rows import from_rows, to_rows
from lazydelta.storage import Pending, Store

__all__ = ["SidecarBase"]

logger = logging.getLogger(__name__)

_VECTOR = ("storageType", "pathOrInlineDv", "offset")


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
        for batch in checkpoint_files(scan):
            rest = _without(batch, used, sidecar)
            if len(rest):
                yield rest


@dataclass(frozen=True, slots=True)
class _Used:
    """A row group that has left: its first and last key, and its files at these keys.

    One path may be there under several deletion vectors, which have the same key: at the ends of a row group the key
    does not tell whether a file was in it.
    """

    first: bytes
    last: bytes
    at_ends: frozenset[tuple[str, str]]

    @classmethod
    def of(cls, rows: pa.RecordBatch, layout: SidecarLayout) -> _Used:
        """Describe the rows of a group."""
        last = rows.num_rows - 1
        ends = sortable(pa.Table.from_batches([rows.slice(0, 1), rows.slice(last, 1)]), layout)
        paths = rows.column(layout.name_of("path"))
        kinds, places, offsets = (rows.column(layout.name_of("dv", (name,))) for name in _VECTOR)

        def name(row: int) -> tuple[str, str]:
            return paths[row].as_py(), _vector_text(kinds[row].as_py(), places[row].as_py(), offsets[row].as_py())

        begin = takewhile(lambda row: paths[row] == paths[0], range(rows.num_rows))
        end = takewhile(lambda row: paths[row] == paths[last], range(last, -1, -1))
        return cls(ends[0].as_py(), ends[1].as_py(), frozenset(map(name, {*begin, *end})))


def _vector_text(kind: str | None, place: str | None, offset: int | None) -> str:
    return "" if kind is None else f"{kind}{place}@{offset}"


def _without(batch: FileBatch, used: Sequence[_Used], sidecar: Sidecar) -> FileBatch:
    """Leave out the files of row groups that have left already: those between a group's first and last key."""
    if not used or not len(batch):
        return batch
    inside = sorted((each.first, each.last) for each in used)
    starts = [start for start, _ in inside]
    ends = {key for span in inside for key in span}
    gone = frozenset[tuple[str, str]]().union(*(each.at_ends for each in used))
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


class _Groups:
    """Reads the surviving row groups in order, a few ahead of the consumer."""

    def __init__(self, scan: BaseScan, sidecar: Sidecar, cache: SidecarCache, ahead: int) -> None:
        self._scan = scan
        self._sidecar = sidecar
        self._cache = cache
        self._ahead = ahead
        self._footers: dict[int, PartFooter | Pending[bytes]] = {}
        self._started: deque[tuple[ManifestRowGroup, Pending[bytes]]] = deque()
        self._names = _named_columns(sidecar.layout, scan.wanted)

    def __iter__(self) -> Iterator[tuple[FileBatch, _Used]]:
        waiting = deque(self._surviving())
        # A limit is often reached within one row group: more are read ahead only once that was not so.
        ahead = 1 if self._scan.limited else self._ahead
        while waiting or self._started:
            while waiting and len(self._started) < ahead:
                self._start(waiting.popleft())
            yield self._finish(*self._started.popleft())
            ahead = min(2 * ahead, self._ahead)

    def close(self) -> None:
        for _, pending in self._started:
            pending.cancel()
        for footer in self._footers.values():
            if isinstance(footer, Pending):
                footer.cancel()

    def _surviving(self) -> list[ManifestRowGroup]:
        predicate, parts, metrics = self._scan.predicate, self._sidecar.parts, self._scan.metrics
        groups = list(self._sidecar.row_groups)
        total = sum(part.num_row_groups for part in parts)
        if not groups and total:
            # A long manifest keeps ranges of parts only; the rest is in the footers of the parts that survive.
            numbers = surviving(predicate, [part.ranges for part in parts])
            for number in numbers:
                self._fetch_footer(number)
            groups = [replace_part(group, number) for number in numbers for group in self._footer(number).row_groups()]
        kept = [groups[index] for index in surviving(predicate, [group.ranges for group in groups])]
        metrics.row_groups_pruned += total - len(kept)
        return kept[::-1] if self._scan.newest_first else kept

    def _start(self, group: ManifestRowGroup) -> None:
        part = self._sidecar.parts[group.part]
        self._fetch_footer(group.part)
        pending = self._scan.store.fetch(part.file, start=group.byte_offset, length=group.core_byte_length)
        self._started.append((group, pending))

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

    def _finish(self, group: ManifestRowGroup, pending: Pending[bytes]) -> tuple[FileBatch, _Used]:
        part = self._sidecar.parts[group.part]
        footer = self._footer(group.part)
        if group.index >= len(footer.groups):
            message = f"{part.file} has no row group {group.index}"
            raise SidecarError(message)
        rows = _read(self._scan.store, part, footer, group, self._names, pending)
        try:
            return self._checked(rows, group, part, footer)
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


def _read(
    store: Store,
    part: ManifestPart,
    footer: PartFooter,
    group: ManifestRowGroup,
    names: Sequence[str],
    core: Pending[bytes] | None,
) -> pa.RecordBatch:
    """Read the core columns and the named ones of a row group."""
    layout = footer.state.layout
    blocks: list[tuple[int, bytes]] = []
    spans = footer.spans(group.index, names) if names else []
    rest = store.fetch_ranges(part.file, spans) if spans else None
    if core is not None:
        blocks.append((group.byte_offset, core.result()))
    else:
        blocks.append((group.byte_offset, store.get(part.file, start=group.byte_offset, length=group.core_byte_length)))
    if rest is not None:
        blocks += [(start, data) for (start, _), data in zip(spans, rest.result(), strict=True)]
    return footer.read(group.index, [*layout.names(core=True), *names], blocks, part.size)


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
            rows = _read(scan.snapshot.store, part, footer, group, _named_columns(layout, StatsWanted()), None)
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

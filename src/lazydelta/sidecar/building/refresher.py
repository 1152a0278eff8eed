"""Refreshing a sidecar: the parts that a change left alone are used again, the others are rewritten.

The newest earlier manifest says what there was at C1; the commits C1+1 to C2 say what changed. Where that is not known
for certain, or would cost more than it saves, everything is built anew from the checkpoint.

Which parts lose files is guessed first, from the partition values and statistics of the actions, and then proven: rows
can only be left over, never lost, so if the number of files comes out as the checksum or the hint of C2 has it, nothing
was overlooked. Without such a number, or if it differs, the paths in all other parts are compared too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import boolean_array, one_array
from lazydelta.errors import LogError, StorageError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import DomainMetadata, Txn
from lazydelta.log.compactions import TailReader
from lazydelta.log.hint import read_hint
from lazydelta.log.names import FileKind
from lazydelta.log.segment import Checkpoint, LogSegment, list_from
from lazydelta.log.snapshot import Snapshot
from lazydelta.options import Options
from lazydelta.sidecar.building.builder import MEMORY_BUDGET, Progress, assemble, build_at, existing
from lazydelta.sidecar.building.net_change import NetChange, read_change
from lazydelta.sidecar.building.part_order import PartOrder
from lazydelta.sidecar.building.planning import SidecarPlan, at_checkpoint, plan_of
from lazydelta.sidecar.building.publication import BuildResult, Publication, PublishedPart, schema_hash
from lazydelta.sidecar.layout.folder import FolderFile, list_folder
from lazydelta.sidecar.layout.leaves import EveryPart, every_part, pack_groups
from lazydelta.sidecar.layout.manifest import ManifestIndex, ManifestPart, SidecarError, file_identity
from lazydelta.sidecar.layout.mirrored import prove
from lazydelta.sidecar.layout.order import sortable
from lazydelta.sidecar.layout.part_reader import part_columns, part_table, whole_layout
from lazydelta.sidecar.layout.sidecar_columns import ColumnRole
from lazydelta.sidecar.layout.sidecar_rows import vectors_of
from lazydelta.sidecar.upkeep.lifecycle import sweep
from lazydelta.storage import Store
from lazydelta.types.schema import TableSchema

__all__ = ["refresh", "refresh_at"]

LARGEST_CHANGE = 0.25
"""Above this fraction of the table, rewriting parts saves little over building them."""
_TRIED_MANIFESTS = 5
_COMPACTED_PARTS = 2


def refresh(
    table_uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
) -> BuildResult:
    """Bring the sidecar to the newest checkpoint, reusing what did not change since an earlier one.

    The cost grows with the change. Small neighbouring parts are merged on the way. Where a refresh is not possible the
    sidecar is built anew, sorted as it was, and the result says why.
    """
    handle = TableHandle.open(table_uri, storage_options, options)
    return refresh_at(handle, memory_budget=memory_budget, progress=progress)


def refresh_at(
    handle: TableHandle,
    *,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
) -> BuildResult:
    """Do what ``refresh`` does, for a table that is open."""
    store, settings = handle.store, handle.options

    def work(snapshot: Snapshot, checkpoint: Checkpoint) -> BuildResult:
        return _refreshed(store, snapshot, checkpoint, settings, memory_budget, progress)

    return at_checkpoint(store, None, work)


def _refreshed(
    store: Store,
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    settings: Options,
    memory_budget: int,
    progress: Progress | None,
) -> BuildResult:
    present = existing(store, snapshot, checkpoint)
    if present is not None:
        return present
    sort_by = None
    try:
        base = _newest_base(store, snapshot, checkpoint)
        sort_by = _sort_names(base.manifest, snapshot.schema)
        result = _Refresh(store, snapshot, checkpoint, base, settings, memory_budget, progress).run()
    except (SidecarError, LogError, StorageError) as error:
        return build_at(
            store,
            snapshot,
            checkpoint,
            sort_by=sort_by,
            memory_budget=memory_budget,
            progress=progress,
            reason=str(error),
        )
    sweep(store, snapshot)
    return result


@dataclass(frozen=True, slots=True)
class _Base:
    """An earlier sidecar that is all there, and the log since then."""

    every: EveryPart
    segment: LogSegment

    @property
    def manifest(self) -> ManifestIndex:
        """Return what the earlier manifest says of the sidecar as a whole."""
        return self.every.index


def _newest_base(store: Store, snapshot: Snapshot, checkpoint: Checkpoint) -> _Base:
    """Return the newest earlier sidecar from which the change up to the checkpoint is known."""
    files = list_folder(store)
    sizes = {file.path: file.info.size for file in files}
    earlier = [file for file in files if file.kind == "manifest" and file.version < checkpoint.version]
    earlier.sort(key=lambda file: file.version, reverse=True)
    reasons = []
    for file in earlier[:_TRIED_MANIFESTS]:
        try:
            return _base(store, file, sizes, snapshot, checkpoint.version)
        except (SidecarError, StorageError) as error:
            reasons.append(f"{file.path} is of no use: {error}")
    message = reasons[0] if reasons else "there is no earlier sidecar"
    raise SidecarError(message)


def _base(store: Store, file: FolderFile, sizes: Mapping[str, int], snapshot: Snapshot, target: int) -> _Base:
    manifest = ManifestIndex.decode(store.get(file.path))
    every = every_part(store, manifest)
    listed = list(list_from(store, file.version, target))
    commits = {each.version: each for each in listed if each.kind is FileKind.COMMIT and each.version > file.version}
    compactions = [
        each for each in listed if each.kind is FileKind.COMPACTION and each.version > file.version and each.info.size
    ]
    there = {file_identity(each.info): each.info for each in listed}
    gone = [version for version in range(file.version + 1, target + 1) if version not in commits]
    message = None
    if manifest.version != file.version or manifest.table_id != snapshot.metadata.id:
        message = "it belongs to another table or version"
    elif not all(each.identity in there for each in manifest.checkpoint):
        message = "the checkpoint that it mirrors is gone or another"
    elif gone:
        message = f"commit {gone[0]} is gone"
    elif (manifest.protocol, manifest.meta_data) != (snapshot.protocol, snapshot.metadata):
        message = "protocol or metadata changed since then"
    elif manifest.schema_hash != schema_hash(snapshot):
        message = "it was built for another schema"
    elif any(sizes.get(path) != size for path, size in every.files.items()):
        message = "parts of it are gone or were replaced"
    if message is not None:
        raise SidecarError(message)
    prove(store, manifest.checkpoint, [there[each.identity] for each in manifest.checkpoint])
    segment = LogSegment(
        version=target,
        commits=tuple(commits[version] for version in sorted(commits)),
        checkpoint=Checkpoint(file.version, ()),
        compactions=tuple(each for each in compactions if each.end <= target),
    )
    return _Base(every, segment)


def _sort_names(manifest: ManifestIndex, schema: TableSchema) -> list[str] | None:
    """Return what the earlier sidecar was sorted by, for ``sort_by``; None where the table has it no longer."""
    names = {(column.is_partition, column.physical_path): column.name for column in schema.leaves()}
    found = [names.get((each.role == ColumnRole.PARTITION, each.path)) for each in manifest.sort]
    return [name for name in found if name is not None] if found and None not in found else None


class _Refresh:
    """One refresh: learn the change, find the parts that it strikes, write what is new."""

    def __init__(
        self,
        store: Store,
        snapshot: Snapshot,
        checkpoint: Checkpoint,
        base: _Base,
        settings: Options,
        memory_budget: int,
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._checkpoint = checkpoint
        self._base = base
        self._settings = settings
        self._progress = progress
        layout, first = whole_layout(store, base.every), base.manifest.layout
        self._plan: SidecarPlan = plan_of(layout, snapshot.schema, None if layout == first else first)
        self._memory_rows = self._plan.rows_at_once(memory_budget)
        self._schema = self._plan.layout.arrow_schema(self._plan.schema)
        # By their number in the earlier sidecar, of which an empty one has a part without rows.
        self._numbers = [number for number, part in enumerate(base.every.parts) if part.num_rows]
        self._parts = [base.every.parts[number] for number in self._numbers]
        self._full = self._plan.rows_in_part(memory_budget)
        self._encoders = self._plan.encoders(memory_budget)

    def run(self) -> BuildResult:
        order = PartOrder(self._parts, self._plan.layout, self._plan.schema)
        commits = TailReader(self._store, self._base.segment, parallelism=self._settings.commit_parallelism, whole=True)
        change = read_change(
            commits, self._plan, order, len(self._parts), memory_rows=self._memory_rows, check=self._check_size
        )
        try:
            lost = self._lost(change)
            rewritten = self._rewritten(change, lost)
            domains = _domains(self._base.manifest) | change.domains
            publication = Publication(
                self._store,
                self._snapshot,
                self._checkpoint,
                self._plan,
                transactions=list((_transactions(self._base.manifest) | change.transactions).values()),
                domains=[each for each in domains.values() if not each.removed],
            )
            pieces = self._pieces(change, order, lost, rewritten)
            return publication.publish(pieces, encoders=self._encoders, action="refreshed")
        finally:
            change.close()

    def _check_size(self, keys: int) -> None:
        if keys > LARGEST_CHANGE * self._base.manifest.num_files:
            message = f"at least {keys} of {self._base.manifest.num_files} files changed"
            raise SidecarError(message)
        if self._progress is not None:
            self._progress(keys, None)

    # --- which rows go

    def _lost(self, change: NetChange) -> list[int]:
        """Return how many rows each part loses, having made sure that none is overlooked."""
        lost = [0] * len(self._parts)
        if not len(change.seen):
            return lost
        expected = self._expected()
        likely = sorted(change.touched)
        rest = [number for number in range(len(self._parts)) if number not in change.touched]
        for some in (likely, rest):
            for number in some:
                lost[number] = self._count_lost(self._parts[number], change)
            if expected is not None and self._total(change, lost) == expected:
                return lost
        if expected is not None:
            message = f"the log counts {expected} files and the commits make it {self._total(change, lost)}"
            raise SidecarError(message)
        return lost

    def _total(self, change: NetChange, lost: Sequence[int]) -> int:
        return sum(part.num_rows for part in self._parts) - sum(lost) + len(change.rows)

    def _expected(self) -> int | None:
        """Return how many files the checkpoint has, where something small says so."""
        if self._snapshot.checksum is not None:
            return self._snapshot.checksum.num_files
        hint = read_hint(self._store)
        return hint.num_of_add_files if hint is not None and hint.version == self._checkpoint.version else None

    def _count_lost(self, part: ManifestPart, change: NetChange) -> int:
        layout = self._plan.layout
        names = [column.name for column in layout.columns if column.role in {ColumnRole.PATH, ColumnRole.DV}]
        return sum(
            int(_masked(rows, self._plan, change).sum()) for rows in part_columns(self._store, part, layout, names)
        )

    # --- which parts are rewritten

    def _rewritten(self, change: NetChange, lost: Sequence[int]) -> list[bool]:
        """Choose the parts to rewrite: those that lose or get rows, and small neighbours, to merge them."""
        count = len(self._parts)
        if count and max(change.arrivals[:count]) > self._memory_rows:
            message = "too many new files belong into one part"
            raise SidecarError(message)
        sizes = [part.num_rows - gone for part, gone in zip(self._parts, lost, strict=True)]
        sizes = [size + int(come) for size, come in zip(sizes, change.arrivals, strict=False)]
        chosen = [bool(gone) or bool(come) for gone, come in zip(lost, change.arrivals, strict=False)]
        if count and change.arrivals[count] and sizes[-1] < self._full:
            chosen[-1] = True  # the newest files fill up the last part before they get parts of their own
        budget = _COMPACTED_PARTS * self._full
        for number in range(count - 1):
            together = sizes[number] + sizes[number + 1]
            cost = sum(sizes[each] for each in (number, number + 1) if not chosen[each])
            if together <= self._full and cost <= budget:
                budget -= cost
                chosen[number] = chosen[number + 1] = True
                sizes[number + 1] = together
        return chosen

    def _pieces(
        self, change: NetChange, order: PartOrder, lost: Sequence[int], rewritten: Sequence[bool]
    ) -> Iterator[pa.Table | PublishedPart]:
        """Yield the parts of the new sidecar in order: old ones as they are, new ones as rows."""
        arrivals = _Arrivals(change, order, self._plan)
        count = len(self._parts)
        number = 0
        while number < count:
            if not rewritten[number]:
                groups = self._base.every.groups_of(self._numbers[number])
                yield self._parts[number], b"" if groups is None else pack_groups(groups)
                number += 1
                continue
            end = number
            while end < count and rewritten[end]:
                end += 1
            run = range(number, end)
            rows = sum(self._parts[each].num_rows - lost[each] + int(change.arrivals[each]) for each in run)
            if end == count:
                # Time goes on at this end: full parts, and a rest that grows.
                yield from assemble(self._run_tables(run, change, arrivals, last=True), self._full)
                return
            if rows:
                yield from assemble(
                    self._run_tables(run, change, arrivals, last=False), -(-rows // -(-rows // self._full))
                )
            number = end
        yield from assemble(arrivals.of(count), self._full)

    def _run_tables(self, run: range, change: NetChange, arrivals: _Arrivals, *, last: bool) -> Iterator[pa.Table]:
        layout = self._plan.layout
        for number in run:
            old = part_table(self._store, self._parts[number], layout, self._schema)
            masked = _masked(old, self._plan, change)
            if masked.any():
                old = old.filter(boolean_array(~masked))
            new = list(arrivals.of(number))
            if new:
                old = pa.concat_tables([old, *new]).combine_chunks()
                old = old.take(pc.sort_indices(sortable(old, layout)))
            if old.num_rows:
                yield old
        if last:
            yield from arrivals.of(len(self._parts))


def _masked(rows: pa.Table | pa.RecordBatch, plan: SidecarPlan, change: NetChange) -> npt.NDArray[np.bool_]:
    """Tell which rows of the base were removed or replaced."""
    path = one_array(rows.column(plan.layout.name_of(ColumnRole.PATH)))
    return change.seen.find(path, vectors_of(rows, plan.layout))


class _Arrivals:
    """New rows in order, handed out by the part that they belong to; parts must be asked for in ascending order."""

    def __init__(self, change: NetChange, order: PartOrder, plan: SidecarPlan) -> None:
        self._tables = change.rows.sorted_tables()
        self._order = order
        self._layout = plan.layout
        self._waiting: list[tuple[int, pa.Table]] = []

    def of(self, number: int) -> Iterator[pa.Table]:
        """Yield the rows that belong to a part."""
        while True:
            if not self._waiting and not self._load():
                return
            if self._waiting[0][0] != number:
                return
            yield self._waiting.pop(0)[1]

    def _load(self) -> bool:
        table = next(self._tables, None)
        if table is None:
            return False
        places = self._order.places(sortable(table, self._layout))
        edges = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
        self._waiting = [(int(places[start]), table.slice(start, end - start)) for start, end in pairwise(edges)]
        return True


def _transactions(manifest: ManifestIndex) -> dict[str, Txn]:
    return {each.app_id: each for each in manifest.txn}


def _domains(manifest: ManifestIndex) -> dict[str, DomainMetadata]:
    return {each.domain: each for each in manifest.domain_metadata}

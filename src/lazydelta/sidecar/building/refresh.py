"""Refreshing a sidecar: reuse the parts that did not change, rewrite the others.

The newest earlier manifest has the state at C1, and the commits C1+1 to C2 have the changes. If these are not known for
certain, or a refresh would cost more than it saves, the sidecar is rebuilt from the checkpoint.

The parts that lose files are first estimated from partition values and statistics of the actions, then verified. An
estimate can only keep too many rows, never lose any. If the file count equals that of the checksum or the hint of C2,
nothing was missed. Without such a count, or if it differs, the paths in all other parts are compared as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.errors import LogError, StorageError
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.hint import read_hint
from lazydelta.log.keys import RemoveSet
from lazydelta.log.replay import TailCommit, TailReader, active_tail_files
from lazydelta.log.segment import Checkpoint, LogSegment, list_from
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.missing_names import known_arguments
from lazydelta.options import Options
from lazydelta.protocol.actions import Add, DomainMetadata, LogLine, Remove, Txn
from lazydelta.protocol.file_names import FileKind
from lazydelta.protocol.schema import TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import boolean_array, one_array
from lazydelta.runtime.metrics import ScanMetrics
from lazydelta.sidecar.building.build import (
    MEMORY_BUDGET,
    ExternalSort,
    KeySample,
    Progress,
    assemble,
    build_at,
    existing,
)
from lazydelta.sidecar.building.plan import PartOrder, SidecarPlan, SpillFile, at_checkpoint, key_layout, plan_of
from lazydelta.sidecar.building.publish import BuildResult, Publication, PublishedPart, schema_hash
from lazydelta.sidecar.format.columns import ColumnRole, SidecarLayout
from lazydelta.sidecar.format.leaves import EveryPart, every_part, pack_groups
from lazydelta.sidecar.format.manifest import (
    FolderFile,
    ManifestIndex,
    ManifestPart,
    SidecarError,
    file_identity,
    list_folder,
    prove,
)
from lazydelta.sidecar.format.part_file import part_columns, part_table, whole_layout
from lazydelta.sidecar.format.rows import sortable, to_rows, vectors_of
from lazydelta.sidecar.handle import TableHandle
from lazydelta.sidecar.lifecycle import sweep
from lazydelta.storage import Store

__all__ = ["refresh", "refresh_at"]


# ``NetChange``: the net effect of the commits between two checkpoints on files, in bounded memory.


_SAMPLED_KEYS = 100_000


@dataclass(slots=True)
class NetChange:
    """The added files, and the keys of removed or replaced base rows.

    ``seen`` has every key of the commits: a base row with one of them was removed or replaced. ``touched`` are the
    parts that should have such rows, as far as the log shows. It can be incomplete: a path can be encoded differently,
    a remove can lack partition values, and new statistics can move a file. ``arrivals`` counts the new files by part.
    """

    seen: RemoveSet
    rows: RowSpool
    touched: set[int]
    arrivals: npt.NDArray[np.int64]
    transactions: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)

    def close(self) -> None:
        """Release memory and delete temporary files."""
        self.seen.close()
        self.rows.close()


def read_change(
    commits: Iterable[TailCommit],
    plan: SidecarPlan,
    order: PartOrder,
    num_parts: int,
    *,
    memory_rows: int,
    check: Callable[[int], None],
) -> NetChange:
    """Read commits, newest first; ``check`` gets the number of keys so far and can raise to stop."""
    change = NetChange(RemoveSet(), RowSpool(plan, memory_rows), set(), np.zeros(num_parts + 1, np.int64))
    try:
        watched = _Watch(change, plan, order).over(commits)
        for batch in active_tail_files(watched, change.seen, ScanMetrics(), extra=True):
            rows = to_rows(batch, plan.layout, plan.schema)
            places = order.places(change.rows.add(rows))
            change.arrivals += np.bincount(places, minlength=num_parts + 1)
            change.touched.update(np.unique(places).tolist())
            check(len(change.seen))
    except BaseException:
        change.close()
        raise
    check(len(change.seen))
    change.touched.discard(num_parts)
    return change


class _Watch:
    """Observer of commits: records which parts removes affect, transactions and domain metadata."""

    def __init__(self, change: NetChange, plan: SidecarPlan, order: PartOrder) -> None:
        self._change = change
        self._order = order
        self._schema = plan.schema
        self._layout = key_layout(plan.layout)
        self._by_minimum = any(each.role == ColumnRole.MIN for each in plan.layout.sort)

    def over(self, commits: Iterable[TailCommit]) -> Iterator[TailCommit]:
        change = self._change
        for commit in commits:
            transactions: dict[str, Txn] = {}
            domains: dict[str, DomainMetadata] = {}
            yield TailCommit(commit.file, self._noted(commit.actions, transactions, domains))
            # Commits arrive newest first, and the newest value wins.
            change.transactions = transactions | change.transactions
            change.domains = domains | change.domains

    def _noted(
        self, actions: Iterator[list[LogLine]], transactions: dict[str, Txn], domains: dict[str, DomainMetadata]
    ) -> Iterator[list[LogLine]]:
        for lines in actions:
            self._locate([line.remove for line in lines if line.remove is not None])
            transactions.update({line.txn.app_id: line.txn for line in lines if line.txn is not None})
            domains.update({each.domain: each for line in lines if (each := line.domain_metadata) is not None})
            yield lines

    def _locate(self, removes: list[Remove]) -> None:
        known = [each for each in removes if _tells_its_place(each, by_minimum=self._by_minimum)]
        if known:
            batch = FileBatch.from_adds([_as_add(each, with_stats=self._by_minimum) for each in known])
            keys = sortable(to_rows(batch, self._layout, self._schema), self._layout)
            self._change.touched.update(np.unique(self._order.places(keys)).tolist())


def _tells_its_place(remove: Remove, *, by_minimum: bool) -> bool:
    return remove.partition_values is not None and (not by_minimum or remove.stats is not None)


def _as_add(remove: Remove, *, with_stats: bool) -> Add:
    return Add(
        path=remove.path,
        size=0,
        modification_time=0,
        partition_values=remove.partition_values or {},
        stats=remove.stats if with_stats else None,
    )


class RowSpool:
    """Rows in any order, buffered in memory up to a limit and on disk beyond it, returned sorted."""

    def __init__(self, plan: SidecarPlan, memory_rows: int) -> None:
        self._layout: SidecarLayout = plan.layout
        self._schema = plan.layout.arrow_schema(plan.schema)
        self._memory_rows = memory_rows
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._count = 0
        self._sample = KeySample(_SAMPLED_KEYS)
        self._spilled: SpillFile | None = None
        self._places: list[int] = []

    def __len__(self) -> int:
        return self._count

    def add(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """Add rows and return their keys."""
        keys = sortable(rows, self._layout)
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self._count += rows.num_rows
        chosen = self._sample.chosen(len(keys))
        self._sample.add(keys if chosen is None else keys.filter(chosen))
        if self._held_rows > self._memory_rows:
            self._spill()
        return keys

    def sorted_tables(self) -> Iterator[pa.Table]:
        """Yield all rows in order; can be called once."""
        sort = ExternalSort(self._layout, self._splitters(), self._schema, most_waiting=self._memory_rows)
        try:
            if self._spilled is not None:
                for batch in self._spilled.pieces(self._places):
                    sort.add(batch)
            for batch in self._held:
                sort.add(batch)
            self._held = []
            yield from sort.sorted_tables()
        finally:
            sort.close()

    def close(self) -> None:
        """Delete the temporary files."""
        self._held = []
        self._sample.clear()
        if self._spilled is not None:
            self._spilled.close()
            self._spilled = None

    def _spill(self) -> None:
        if self._spilled is None:
            self._spilled = SpillFile(self._schema)
        self._places += [self._spilled.add(batch) for batch in self._held]
        self._held, self._held_rows = [], 0

    def _splitters(self) -> pa.BinaryArray:
        buckets = -(-self._count // max(1, self._memory_rows)) if self._spilled is not None else 1
        return self._sample.splitters(buckets)


LARGEST_CHANGE = 0.25
"""Above this fraction of the table, rewriting parts saves little over a full build."""
_TRIED_MANIFESTS = 5
_COMPACTED_PARTS = 2


@known_arguments
def refresh(
    table_uri: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
) -> BuildResult:
    """Update the sidecar to the newest checkpoint, reusing the parts that did not change.

    The cost grows with the size of the change. Small neighboring parts are merged along the way. If a refresh is not
    possible, the sidecar is rebuilt with the same sort order, and the result says why.
    """
    handle = TableHandle.open(table_uri, storage_options, options)
    return refresh_at(handle, memory_budget=memory_budget, progress=progress)


def refresh_at(
    handle: TableHandle,
    *,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
) -> BuildResult:
    """Do the same as ``refresh`` for an open table."""
    store, settings = handle.store, handle.options

    def work(snapshot: LogSnapshot, checkpoint: Checkpoint) -> BuildResult:
        return _refreshed(store, snapshot, checkpoint, settings, memory_budget, progress)

    return at_checkpoint(store, None, work)


def _refreshed(
    store: Store,
    snapshot: LogSnapshot,
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
    """A complete earlier sidecar, and the log since then."""

    every: EveryPart
    segment: LogSegment

    @property
    def manifest(self) -> ManifestIndex:
        """Return the head of the earlier manifest."""
        return self.every.index


def _newest_base(store: Store, snapshot: LogSnapshot, checkpoint: Checkpoint) -> _Base:
    """Return the newest earlier sidecar with a known change up to the checkpoint."""
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


def _base(store: Store, file: FolderFile, sizes: Mapping[str, int], snapshot: LogSnapshot, target: int) -> _Base:
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
        message = "the checkpoint that it mirrors is missing or was replaced"
    elif gone:
        message = f"commit {gone[0]} is missing"
    elif (manifest.protocol, manifest.meta_data) != (snapshot.protocol, snapshot.metadata):
        message = "protocol or metadata changed since then"
    elif manifest.schema_hash != schema_hash(snapshot):
        message = "it was built for another schema"
    elif any(sizes.get(path) != size for path, size in every.files.items()):
        message = "parts of it are missing or were replaced"
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
    """Return the sort columns of the earlier sidecar, for ``sort_by``; None if the table no longer has them."""
    names = {(column.is_partition, column.physical_path): column.name for column in schema.leaves()}
    found = [names.get((each.role == ColumnRole.PARTITION, each.path)) for each in manifest.sort]
    return [name for name in found if name is not None] if found and None not in found else None


class _Refresh:
    """A refresh: compute the change, find the affected parts, write the new ones."""

    def __init__(
        self,
        store: Store,
        snapshot: LogSnapshot,
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
        # By number in the earlier sidecar: an empty one has one part without rows.
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

    # --- rows to remove

    def _lost(self, change: NetChange) -> list[int]:
        """Return how many rows each part loses, after verifying that none is missed."""
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
        """Return the file count of the checkpoint, if a small file records it."""
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

    # --- parts to rewrite

    def _rewritten(self, change: NetChange, lost: Sequence[int]) -> list[bool]:
        """Choose the parts to rewrite: those that lose or gain rows, and small neighbors to merge."""
        count = len(self._parts)
        if count and max(change.arrivals[:count]) > self._memory_rows:
            message = "too many new files belong in one part"
            raise SidecarError(message)
        sizes = [part.num_rows - gone for part, gone in zip(self._parts, lost, strict=True)]
        sizes = [size + int(come) for size, come in zip(sizes, change.arrivals, strict=False)]
        chosen = [bool(gone) or bool(come) for gone, come in zip(lost, change.arrivals, strict=False)]
        if count and change.arrivals[count] and sizes[-1] < self._full:
            chosen[-1] = True  # the newest files fill up the last part before they get their own parts
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
        """Yield the parts of the new sidecar in order: unchanged parts as they are, new ones as rows."""
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
                # New files arrive at this end: full parts, and a remainder that grows.
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
    """Return which rows of the base were removed or replaced."""
    path = one_array(rows.column(plan.layout.name_of(ColumnRole.PATH)))
    return change.seen.find(path, vectors_of(rows, plan.layout))


class _Arrivals:
    """New rows in order, by the part that they belong to; parts must be requested in ascending order."""

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

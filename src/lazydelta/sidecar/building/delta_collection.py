"""From JSON commits to delta sidecars: actions are collected until they fill a file, or something has to end it.

A delta sidecar holds whole commits, under one schema. So it ends before a commit with protocol or metadata, which stays
JSON, and so does a commit that alone is more than a file should hold: that one is streamed as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa

from lazydelta.errors import ObjectExistsError
from lazydelta.log.actions import Add, LogLine, Remove
from lazydelta.log.names import LogFile
from lazydelta.log.properties import TableProperties
from lazydelta.log.reverse_commits import ReverseCommitReader, TailCommit
from lazydelta.log.snapshot import Snapshot
from lazydelta.sidecar.building.planning import PART_ROWS, columns_named_in, plan_of
from lazydelta.sidecar.layout.delta_manifest import DeltaEntry, delta_path
from lazydelta.sidecar.layout.delta_part import (
    CommitActions,
    VersionedLine,
    action_rows,
    delta_layout,
    encode_delta,
)
from lazydelta.sidecar.layout.sidecar_columns import SidecarLayout
from lazydelta.stats.chosen_columns import stats_columns
from lazydelta.storage import Store

__all__ = ["DeltaCollection", "collect_deltas", "publish_delta"]

_LEAST_COMMITS = 2
_ACTIONS_AT_ONCE = 4096
_SAMPLED = 200

StateAt = Callable[[int], Snapshot]
"""Returns the table as it was at a version."""
Progress = Callable[[int], None]
"""Called with the actions read so far."""


class DeltaCollection:
    """The actions of commits, ascending, on their way into one file; ``state`` is the table as it was then."""

    def __init__(self, state: Snapshot, memory_budget: int) -> None:
        self.state = state
        self._memory_budget = memory_budget
        self._layout: SidecarLayout | None = None
        self._held: list[CommitActions] = []
        self._held_rows = 0
        self._tables: list[pa.RecordBatch] = []
        self._lines: list[VersionedLine] = []
        self.commits: list[LogFile] = []
        self.num_rows = 0

    def most_rows(self, actions: CommitActions) -> int:
        """Return how many rows a file may have into which these actions go: fewer where they are wide."""
        if self._layout is None and actions.adds:
            self._layout = _layout_for(self.state, actions.adds)
        if self._layout is None:
            return PART_ROWS
        return plan_of(self._layout, self.state.schema).rows_in_part(self._memory_budget)

    def add(self, file: LogFile, actions: CommitActions, lines: Sequence[VersionedLine]) -> None:
        """Take the next commit."""
        self.commits.append(file)
        self._lines += lines
        self.num_rows += len(actions)
        self._held_rows += len(actions)
        if len(actions):
            self._held.append(actions)
        if self._held_rows >= _ACTIONS_AT_ONCE:
            self._convert()

    def encoded(self) -> tuple[bytes, DeltaEntry]:
        """Return the file and its entry."""
        self._convert()
        layout, state = self._laid_out(), self.state
        schema = layout.arrow_schema(state.schema)
        rows = pa.Table.from_batches(self._tables[::-1], schema=schema)
        first, last = self.commits[0].version, self.commits[-1].version
        return encode_delta(rows, self._lines, self.commits, layout, state.metadata, delta_path(first, last))

    def _convert(self) -> None:
        if self._held:
            self._tables.append(action_rows(self._held[::-1], self._laid_out(), self.state.schema))
            self._held, self._held_rows = [], 0

    def _laid_out(self) -> SidecarLayout:
        if self._layout is None:
            self._layout = _layout_for(self.state, ())  # there are only removes
        return self._layout


def _layout_for(state: Snapshot, adds: Sequence[Add]) -> SidecarLayout:
    """Lay out the columns: the statistics that the table's properties choose, and those that some files have."""
    chosen = stats_columns(state.schema, TableProperties.of(state.metadata, strict=False))
    named = {path for add in adds[:_SAMPLED] for path in columns_named_in(add.stats)}
    leaves = [column for column in state.schema.leaves() if not column.is_partition]
    return delta_layout(state.schema, [each for each in leaves if each in chosen or each.physical_path in named])


def collect_deltas(
    store: Store,
    commits: Sequence[LogFile],
    state_at: StateAt,
    *,
    parallelism: int | None,
    memory_budget: int,
    progress: Progress,
) -> Iterator[DeltaCollection]:
    """Yield collections of a run of commits; those that stay JSON are in none of them."""
    found: DeltaCollection | None = None
    read = 0
    # The reader goes from the last to the first, which is here the first to the last.
    for commit in ReverseCommitReader(store, commits[::-1], parallelism=parallelism, whole=True):
        if found is None:
            found = DeltaCollection(state_at(commit.file.version), memory_budget)
        actions, lines, describes = _actions_of(commit)
        most = found.most_rows(actions)
        too_large = len(actions) > most
        if describes or too_large or found.num_rows + len(actions) > most:
            if len(found.commits) >= _LEAST_COMMITS:
                yield found
            found = DeltaCollection(state_at(commit.file.version), memory_budget)
        if not describes and not too_large:
            found.add(commit.file, actions, lines)
        read += len(actions)
        progress(read)
    if found is not None and len(found.commits) >= _LEAST_COMMITS:
        yield found


def _actions_of(commit: TailCommit) -> tuple[CommitActions, list[VersionedLine], bool]:
    """Return what a commit does, and whether it describes the table; of a large one no more than shows that it is."""
    version = commit.file.version
    adds: list[Add] = []
    removes: list[Remove] = []
    others: list[VersionedLine] = []
    describes = False
    for lines in commit.actions:
        adds += [line.add for line in lines if line.add is not None]
        removes += [line.remove for line in lines if line.remove is not None]
        describes |= any(line.describes_table() for line in lines)
        others += [VersionedLine(version, line) for line in lines if _is_kept(line)]
        if describes or len(adds) + len(removes) > PART_ROWS:
            break
    return CommitActions(version, adds, removes), others, describes


def _is_kept(line: LogLine) -> bool:
    return line.txn is not None or line.domain_metadata is not None or line.is_unknown()


def publish_delta(store: Store, data: bytes, entry: DeltaEntry, unique: str) -> DeltaEntry:
    """Write a delta sidecar and return its entry; where another one has its name, under one of its own."""
    try:
        store.put_if_absent(entry.file, data)
    except ObjectExistsError:
        if store.get(entry.file) != data:
            entry = msgspec.structs.replace(entry, file=delta_path(entry.first, entry.last, unique))
            store.put_if_absent(entry.file, data)
    return entry

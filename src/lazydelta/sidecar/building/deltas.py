"""``build_deltas``: writes chained delta sidecars for long gaps between checkpoints and merges small ones.

Each run appends a delta sidecar for the new commits. Small neighbors are merged, so that a gap has few of them, however
often the build runs. Nothing is deleted here: readers can still use merged files, and ``clean`` gives them time.
"""

from __future__ import annotations

import functools
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError, OptionError, StorageError
from lazydelta.log.replay import ReverseCommitReader, TailCommit
from lazydelta.log.segment import LogSegment
from lazydelta.log.snapshot import LogSnapshot, open_snapshot
from lazydelta.protocol.actions import Add, LogLine, Remove
from lazydelta.protocol.file_names import LogFile
from lazydelta.protocol.properties import TableProperties
from lazydelta.sidecar.building.plan import MEMORY_BUDGET, PART_ROWS, columns_named_in, plan_of
from lazydelta.sidecar.format.columns import DELTA_MANIFEST, SidecarLayout
from lazydelta.sidecar.format.delta_file import (
    CommitActions,
    DeltaEntry,
    DeltaManifest,
    VersionedLine,
    action_rows,
    delta_layout,
    delta_path,
    encode_delta,
    other_actions,
    schema_hash,
    versions_of,
)
from lazydelta.sidecar.format.manifest import SidecarError
from lazydelta.sidecar.format.part_file import PartFooter, typed
from lazydelta.sidecar.handle import TableHandle
from lazydelta.sidecar.reading.base import SidecarBase
from lazydelta.sidecar.reading.delta_spans import LONG_TAIL
from lazydelta.stats.collector import stats_columns
from lazydelta.storage import Store

__all__ = ["DeltaFile", "DeltaResult", "build_deltas", "collect_deltas", "publish_delta", "write_deltas"]


# Convert JSON commits to delta sidecars: collect actions until a file is full or has to end. A delta sidecar holds
# whole commits under one schema. It ends before a commit with protocol or metadata, which stays JSON. A commit that is
# larger than one file also stays JSON, and readers stream it.


_LEAST_COMMITS = 2
_ACTIONS_AT_ONCE = 4096
_SAMPLED = 200

StateAt = Callable[[int], LogSnapshot]
"""Returns the table state at a version."""
CollectProgress = Callable[[int], None]
"""Called with the number of actions read so far."""


class DeltaCollection:
    """The actions of commits, ascending, for one file; ``state`` is the table at these commits."""

    def __init__(self, state: LogSnapshot, memory_budget: int) -> None:
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
        """Return the row limit of a file with these actions: lower for wide rows."""
        if self._layout is None and actions.adds:
            self._layout = _layout_for(self.state, actions.adds)
        if self._layout is None:
            return PART_ROWS
        return plan_of(self._layout, self.state.schema).rows_in_part(self._memory_budget)

    def add(self, file: LogFile, actions: CommitActions, lines: Sequence[VersionedLine]) -> None:
        """Add the next commit."""
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


def _layout_for(state: LogSnapshot, adds: Sequence[Add]) -> SidecarLayout:
    """Return the layout: the statistics chosen by table properties, and those that some files have."""
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
    progress: CollectProgress,
) -> Iterator[DeltaCollection]:
    """Yield collections over a run of commits; commits that stay JSON are in none of them."""
    found: DeltaCollection | None = None
    read = 0
    # The reader goes from last to first: with the reversed input, that is ascending order.
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
    """Return the actions of a commit, and whether it changes protocol or metadata; large ones are cut short."""
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
    """Write a delta sidecar and return its entry; if its name is taken, write it under a unique name."""
    try:
        store.put_if_absent(entry.file, data)
    except ObjectExistsError:
        if store.get(entry.file) != data:
            entry = msgspec.structs.replace(entry, file=delta_path(entry.first, entry.last, unique))
            store.put_if_absent(entry.file, data)
    return entry


logger = logging.getLogger(__name__)

_ROUNDS = 5
_SMALL = 10_000  # rows; below a row group, neighbors are merged regardless of their sizes
_GROWTH = 2
_MOST_BYTES = 24 << 20
_COPIES_WHILE_MERGING = 16

Progress = Callable[[int, int | None], None]
"""Called with the number of file actions read so far and the total, which is not known."""


class DeltaFile(msgspec.Struct, frozen=True, kw_only=True):
    """A delta sidecar with the actions of commits ``first`` to ``last``."""

    file: str
    first: int
    last: int
    adds: int
    removes: int
    size_bytes: int


class DeltaResult(msgspec.Struct, frozen=True, kw_only=True):
    """The delta sidecars of a table after a run, ascending; ``action`` is ``written`` or ``unchanged``.

    ``commits`` is the number of commits since the checkpoint; ``covered`` is how many of them are in delta sidecars.
    """

    action: str
    version: int
    checkpoint: int | None
    commits: int
    covered: int
    written: list[str]
    deltas: list[DeltaFile]


def build_deltas(
    table_uri: str | os.PathLike[str],
    *,
    at_least: int = LONG_TAIL,
    memory_budget: int = MEMORY_BUDGET,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> DeltaResult:
    """Write delta sidecars for the commits since the newest checkpoint, if at least ``at_least`` are uncovered.

    Existing delta sidecars are read in full and kept if they are valid. Scan results do not depend on them.
    """
    if at_least < 1:
        raise OptionError(f"Delta sidecars of at least {at_least} commits are not useful", hint="use 1 or more")
    handle = TableHandle.open(table_uri, storage_options, options)
    return write_deltas(handle, at_least=at_least, memory_budget=memory_budget, check=True, progress=progress)


def write_deltas(
    handle: TableHandle,
    *,
    at_least: int = LONG_TAIL,
    memory_budget: int = MEMORY_BUDGET,
    check: bool = False,
    progress: Progress | None = None,
) -> DeltaResult:
    """Do the same for an open table; without ``check``, existing files are trusted by name and size."""
    run = _DeltaBuild(handle, at_least, memory_budget, check=check, progress=progress)
    for _ in range(_ROUNDS):
        try:
            return run.publish()
        except (ObjectExistsError, ObjectChangedError):
            logger.info("another process has written the delta sidecars of %s meanwhile: looking again", handle.uri)
    return run.publish()


class _DeltaBuild:
    """A run over one table."""

    def __init__(
        self,
        handle: TableHandle,
        at_least: int,
        memory_budget: int,
        *,
        check: bool,
        progress: Progress | None,
    ) -> None:
        self._handle = handle
        self._store: Store = handle.store
        self._at_least = at_least
        self._memory_budget = memory_budget
        self._check = check
        self._progress = progress
        self._snapshot = self._newest()
        self._state_at: StateAt = handle.snapshot

    def publish(self) -> DeltaResult:
        """Plan, write and publish; raise if another process published in the meantime."""
        self._snapshot = self._newest()
        self._state_at = functools.cache(self._handle.snapshot)
        segment = self._snapshot.segment
        known, etag = self._published()
        spans = () if known is None else known.spans
        kept = [entry for entry in spans if self._is_good(entry, segment)]
        entries = sorted([*kept, *self._new(kept, segment)], key=lambda entry: entry.first)
        entries = self._merged(entries, segment)
        written = [entry.file for entry in entries if entry not in spans]
        if known is None or tuple(entries) != spans:
            data = DeltaManifest(spans=tuple(entries)).encode()
            if etag is None:
                self._store.put_if_absent(DELTA_MANIFEST, data)
            else:
                self._store.put(DELTA_MANIFEST, data, if_match=etag)
            self._handle.cache.forget_deltas(self._store.identity)
        return self._result(entries, written, segment)

    def _newest(self) -> LogSnapshot:
        # Read the current log instead of a cached one. Commits in delta sidecars need not be read again.
        parallelism = self._handle.options.commit_parallelism
        base = SidecarBase(self._store, cache=self._handle.cache, use_manifest=False)
        return open_snapshot(self._store, parallelism=parallelism, base=base)

    def _result(self, entries: Sequence[DeltaEntry], written: list[str], segment: LogSegment) -> DeltaResult:
        base = segment.base_version
        return DeltaResult(
            action="written" if written else "unchanged",
            version=segment.version,
            checkpoint=None if segment.checkpoint is None else base,
            commits=segment.version - base,
            covered=sum(entry.last - max(entry.first - 1, base) for entry in entries),
            written=written,
            deltas=[
                DeltaFile(
                    file=entry.file,
                    first=entry.first,
                    last=entry.last,
                    adds=entry.num_adds,
                    removes=entry.num_removes,
                    size_bytes=entry.size,
                )
                for entry in entries
            ],
        )

    def _published(self) -> tuple[DeltaManifest | None, str | None]:
        """Return the manifest (empty if there is none, None if damaged), and the etag to replace."""
        try:
            etag = self._store.head(DELTA_MANIFEST).etag
            data = self._store.get(DELTA_MANIFEST, if_match=etag)
        except ObjectNotFoundError:
            return DeltaManifest(), None
        try:
            return DeltaManifest.decode(data), etag
        except SidecarError as error:
            logger.warning("%s is written anew: %s", DELTA_MANIFEST, error)
            return None, etag

    def _is_good(self, entry: DeltaEntry, segment: LogSegment) -> bool:
        if entry.last <= segment.base_version or entry.last > segment.version:
            return False
        commits = [each for each in segment.commits if entry.first <= each.version <= entry.last]
        try:
            if entry.table_id != self._snapshot.metadata.id or entry.stale_commit(commits) is not None:
                return False
            if self._check:
                self._rows_of(entry)
                return True
            return self._store.head(entry.file).size == entry.size
        except ObjectNotFoundError:
            return False
        except SidecarError as error:
            logger.warning("%s is written anew: %s", entry.file, error)
            return False

    def _new(self, kept: Sequence[DeltaEntry], segment: LogSegment) -> Iterator[DeltaEntry]:
        """Write delta sidecars for uncovered runs of commits that are long enough."""
        for run in _uncovered(kept, segment):
            if len(run) < self._at_least:
                continue
            for found in collect_deltas(
                self._store,
                run,
                self._state_at,
                parallelism=self._handle.options.commit_parallelism,
                memory_budget=self._memory_budget,
                progress=self._report,
            ):
                # If the table was replaced by another one, readers would reject the earlier commits.
                if found.state.metadata.id == self._snapshot.metadata.id:
                    yield publish_delta(self._store, *found.encoded(), str(uuid.uuid4()))

    def _report(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, None)

    def _merged(self, entries: Sequence[DeltaEntry], segment: LogSegment) -> list[DeltaEntry]:
        """Return the entries with small neighbors merged."""
        merged: list[DeltaEntry] = []
        for group in _groups(entries, min(_MOST_BYTES, self._memory_budget // _COPIES_WHILE_MERGING)):
            try:
                merged += group if len(group) == 1 else [self._one(group, segment)]
            except (SidecarError, StorageError) as error:
                logger.warning("delta sidecars are left as they are: %s", error)
                merged += group
        return merged

    def _one(self, group: Sequence[DeltaEntry], segment: LogSegment) -> DeltaEntry:
        """Write one delta sidecar that replaces several consecutive ones."""
        state = self._state_at(group[-1].last)
        base = segment.base_version
        first, last = max(group[0].first, base + 1), group[-1].last
        commits = [each for each in segment.commits if first <= each.version <= last]
        read = [self._rows_of(entry) for entry in reversed(group)]
        layout = read[0][0].state.layout
        if any(footer.state.layout != layout for footer, _ in read) or schema_hash(state.metadata) != (
            group[-1].schema_hash
        ):
            message = "they have other columns than each other"
            raise SidecarError(message)
        schema = layout.arrow_schema(state.schema)
        rows = pa.concat_tables([typed(table, schema) for _, table in read])
        rows = rows.slice(0, int((versions_of(rows, layout) > base).sum())).combine_chunks()
        lines = [
            line
            for entry, (footer, _) in zip(group, reversed(read), strict=True)
            for line in other_actions(footer, max(entry.first, first), entry.last)
        ]
        data, entry = encode_delta(rows, lines, commits, layout, state.metadata, delta_path(first, last))
        return publish_delta(self._store, data, entry, str(uuid.uuid4()))

    def _rows_of(self, entry: DeltaEntry) -> tuple[PartFooter, pa.Table]:
        """Return all rows of a delta sidecar, after verifying every page."""
        data = self._store.get(entry.file)
        if len(data) != entry.size:
            message = f"it has {len(data)} bytes, and the manifest says {entry.size}"
            raise SidecarError(message)
        footer = PartFooter(data[entry.footer_offset :], expected=entry.footer_sha256)
        names = [column.name for column in footer.state.columns]
        groups = [footer.read(index, names, [(0, data)], entry.size) for index in range(len(footer.groups))]
        if not groups:
            schema = footer.state.layout.arrow_schema(self._state_at(entry.last).schema)
            return footer, schema.empty_table()
        return footer, pa.Table.from_batches(groups)


def _uncovered(entries: Sequence[DeltaEntry], segment: LogSegment) -> Iterator[list[LogFile]]:
    """Yield the runs of commits since the checkpoint that are in no delta sidecar."""
    covered = {version for entry in entries for version in range(entry.first, entry.last + 1)}
    run: list[LogFile] = []
    for commit in segment.commits:
        if commit.version in covered:
            if run:
                yield run
            run = []
        else:
            run.append(commit)
    if run:
        yield run


def _groups(entries: Sequence[DeltaEntry], most_bytes: int) -> list[list[DeltaEntry]]:
    """Return the neighbors to merge: a small one joins its predecessor, unless that is much larger.

    Each action is thus rewritten about once per doubling of their number, and a gap has few files.
    """
    groups: list[list[DeltaEntry]] = []
    for entry in entries:
        groups.append([entry])
        while len(groups) > 1 and _belong_together(groups[-2], groups[-1], most_bytes):
            last = groups.pop()
            groups[-1] += last
    return groups


def _belong_together(before: Sequence[DeltaEntry], after: Sequence[DeltaEntry], most_bytes: int) -> bool:
    older, newer = sum(each.num_rows for each in before), sum(each.num_rows for each in after)
    follows = before[-1].last + 1 == after[0].first
    alike = (before[-1].table_id, before[-1].schema_hash) == (after[0].table_id, after[0].schema_hash)
    few = older + newer <= _SMALL or older <= _GROWTH * newer
    fits = older + newer <= PART_ROWS and sum(each.size for each in (*before, *after)) <= most_bytes
    return follows and alike and few and fits

"""``build_deltas``: delta sidecars for the long gaps between checkpoints, chained, and merged where they are small.

Each run adds one behind the others, for the commits that came since; of small neighbours one is made, so that a gap
has few of them however often it was looked at. Nothing is deleted here: readers may be at what was merged, which
``clean`` leaves them the time for.
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
from lazydelta.handle import TableHandle
from lazydelta.log.names import LogFile
from lazydelta.log.segment import LogSegment
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.snapshot_opening import open_snapshot
from lazydelta.sidecar.building.delta_collection import StateAt, collect_deltas, publish_delta
from lazydelta.sidecar.building.planning import MEMORY_BUDGET, PART_ROWS
from lazydelta.sidecar.layout.delta_manifest import DeltaEntry, DeltaManifest, delta_path
from lazydelta.sidecar.layout.delta_part import encode_delta, other_actions, schema_hash, versions_of
from lazydelta.sidecar.layout.manifest import SidecarError
from lazydelta.sidecar.layout.part_file import PartFooter
from lazydelta.sidecar.layout.part_reader import typed
from lazydelta.sidecar.layout.sidecar_columns import DELTA_MANIFEST
from lazydelta.sidecar.reading.delta_spans import LONG_TAIL, DeltaSpans
from lazydelta.storage import Store

__all__ = ["DeltaFile", "DeltaResult", "build_deltas", "write_deltas"]

logger = logging.getLogger(__name__)

_ROUNDS = 5
_SMALL = 10_000  # rows; below a row group, neighbours are merged whatever their sizes
_GROWTH = 2
_MOST_BYTES = 24 << 20
_COPIES_WHILE_MERGING = 16

Progress = Callable[[int, int | None], None]
"""Called with the actions about files that were read so far, and how many there are, which is not known."""


class DeltaFile(msgspec.Struct, frozen=True, kw_only=True):
    """A delta sidecar: the actions of commits ``first`` to ``last``."""

    file: str
    first: int
    last: int
    adds: int
    removes: int
    size_bytes: int


class DeltaResult(msgspec.Struct, frozen=True, kw_only=True):
    """The delta sidecars of a table after a run, ascending; ``action`` is ``written`` or ``unchanged``.

    ``commits`` is how many there are since the checkpoint, and ``covered`` how many of them are in delta sidecars.
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
    """Write delta sidecars for the commits since the newest checkpoint, where at least so many are in none yet.

    Those that are there are read from end to end and kept if they are good; what a scan finds does not depend on them.
    """
    if at_least < 1:
        raise OptionError(f"Delta sidecars of at least {at_least} commits make no sense", hint="1 or more")
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
    """Do the same with a table at hand; without ``check`` those that are there count by their names and sizes."""
    run = _Run(handle, at_least, memory_budget, check=check, progress=progress)
    for _ in range(_ROUNDS):
        try:
            return run.once()
        except (ObjectExistsError, ObjectChangedError):
            logger.info("another process has written the delta sidecars of %s meanwhile: looking again", handle.uri)
    return run.once()


class _Run:
    """One run over one table."""

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

    def once(self) -> DeltaResult:
        """Decide, write, and publish; raise if somebody else has published meanwhile."""
        self._snapshot = self._newest()
        self._state_at = functools.cache(self._handle.snapshot)
        segment = self._snapshot.segment
        known, etag = self._published()
        kept = [entry for entry in known.spans if self._is_good(entry, segment)]
        entries = sorted([*kept, *self._new(kept, segment)], key=lambda entry: entry.first)
        entries = self._merged(entries, segment)
        written = [entry.file for entry in entries if entry not in known.spans]
        if tuple(entries) != known.spans:
            data = DeltaManifest(spans=tuple(entries)).encode()
            if etag is None:
                self._store.put_if_absent(DELTA_MANIFEST, data)
            else:
                self._store.put(DELTA_MANIFEST, data, if_match=etag)
            self._handle.cache.forget_deltas(self._store.identity)
        return self._result(entries, written, segment)

    def _newest(self) -> Snapshot:
        # As the log is now, and not as somebody remembers it; what is in delta sidecars need not be read again.
        parallelism = self._handle.options.commit_parallelism
        return open_snapshot(self._store, parallelism=parallelism, spans=DeltaSpans(self._handle.cache, self._store))

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

    def _published(self) -> tuple[DeltaManifest, str | None]:
        """Return the manifest as it is, or an empty one, with what it takes to replace it."""
        try:
            etag = self._store.head(DELTA_MANIFEST).etag
            data = self._store.get(DELTA_MANIFEST, if_match=etag)
        except ObjectNotFoundError:
            return DeltaManifest(), None
        try:
            return DeltaManifest.decode(data), etag
        except SidecarError as error:
            logger.warning("%s is written anew: %s", DELTA_MANIFEST, error)
            return DeltaManifest(), etag

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
        """Write what is in no delta sidecar yet, where that is long enough."""
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
                # Where the table was replaced by another one, readers would not believe what is below.
                if found.state.metadata.id == self._snapshot.metadata.id:
                    yield publish_delta(self._store, *found.encoded(), str(uuid.uuid4()))

    def _report(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, None)

    def _merged(self, entries: Sequence[DeltaEntry], segment: LogSegment) -> list[DeltaEntry]:
        """Return the entries with small neighbours made one."""
        merged: list[DeltaEntry] = []
        for group in _groups(entries, min(_MOST_BYTES, self._memory_budget // _COPIES_WHILE_MERGING)):
            try:
                merged += group if len(group) == 1 else [self._one(group, segment)]
            except (SidecarError, StorageError) as error:
                logger.warning("delta sidecars are left as they are: %s", error)
                merged += group
        return merged

    def _one(self, group: Sequence[DeltaEntry], segment: LogSegment) -> DeltaEntry:
        """Write one delta sidecar in place of several that follow each other."""
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
        """Return all of a delta sidecar, having looked at every page."""
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
    """Return which neighbours to make one: a small one goes with the one before, unless that is much larger.

    So each action is written again about as often as the number of them doubles, and a gap has few files.
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

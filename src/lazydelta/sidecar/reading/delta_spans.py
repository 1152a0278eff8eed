"""``DeltaReader``: streams the row groups of one delta sidecar, with a bounded read-ahead."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.errors import LazyDeltaError, ObjectNotFoundError, StorageError
from lazydelta.log.checkpoint.columns import StatsWanted
from lazydelta.log.commits import Prefetch, read_actions
from lazydelta.log.file_batch import FileBatch, StatsColumns, with_deferred_stats
from lazydelta.log.segment import LogSegment
from lazydelta.log.tail_spans import FoundSpans, SpanError, SpanRows
from lazydelta.protocol.actions import Add, LogLine
from lazydelta.protocol.file_names import FileKind, LogFile
from lazydelta.runtime.arrays import flags, from_numpy, one_array, string_array
from lazydelta.sidecar.format.columns import DELTA_MANIFEST, ColumnRole, SidecarLayout
from lazydelta.sidecar.format.delta_file import DeltaEntry, DeltaGroup, other_actions, versions_of
from lazydelta.sidecar.format.manifest import SidecarError
from lazydelta.sidecar.format.part_file import PartFooter
from lazydelta.sidecar.format.rows import from_rows
from lazydelta.sidecar.reading.discovery import SidecarCache
from lazydelta.sidecar.reading.row_groups import stats_column_names
from lazydelta.storage import ObjectInfo, Pending, Store

if TYPE_CHECKING:
    from lazydelta.sidecar.format.delta_file import DeltaManifest

__all__ = ["LONG_TAIL", "WRITTEN_EVERY", "find_spans", "prefetch_spans"]


_WHOLE = 1 << 20  # files up to this size are read with one request
_GROUPS_UNDER_WAY = 4
_UNREADABLE = (SidecarError, pa.ArrowException, KeyError, ValueError, IndexError, TypeError)


class DeltaSpan(msgspec.Struct, frozen=True):
    """The versions of a delta sidecar that belong to a log tail (see ``log.tail_spans.TailSpan``)."""

    entry: DeltaEntry
    file: LogFile
    commits: dict[int, LogFile]
    cache: SidecarCache
    lasting: Store

    @property
    def table_id(self) -> str:
        """Return the id of the table that it was built from."""
        return self.entry.table_id

    def read(self, store: Store, wanted: StatsWanted | None) -> DeltaReader:
        """Start reading the span."""
        return DeltaReader(store, self.entry, self.commits, wanted, self.cache, lasting=self.lasting)


class DeltaReader:
    """A read of some versions of a delta sidecar (see ``log.tail_spans.SpanReader``).

    ``lasting`` is a store that outlives the scan, for statistics that are requested later. ``commits`` are the commits
    themselves, the fallback source of statistics.
    """

    def __init__(
        self,
        store: Store,
        entry: DeltaEntry,
        commits: Mapping[int, LogFile],
        wanted: StatsWanted | None,
        cache: SidecarCache,
        *,
        lasting: Store,
    ) -> None:
        self._store = store
        self._lasting = lasting
        self._entry = entry
        self._commits = commits
        self._first, self._last = min(commits), max(commits)
        self._wanted = wanted
        self._cache = cache
        self._footer: PartFooter | Pending[bytes] | None = None
        self._all: Pending[bytes] | None = None
        self._started: deque[tuple[int, Pending[bytes] | None]] = deque()
        self._waiting = deque(
            number
            for number, group in enumerate(entry.row_groups)
            if group.oldest <= self._last and group.newest >= self._first
        )
        self._begin()

    def lines(self) -> list[LogLine]:
        """Return the non-file actions of these versions, oldest first."""
        try:
            return [line.action for line in other_actions(self._opened(), self._first, self._last)]
        except (StorageError, *_UNREADABLE) as error:
            raise self._failed(error) from error

    def rows(self) -> Iterator[SpanRows]:
        """Yield the rows of these versions, newest first."""
        try:
            yield from self._rows()
        except (StorageError, *_UNREADABLE) as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Cancel all reads."""
        for pending in (self._all, self._footer, *(core for _, core in self._started)):
            if isinstance(pending, Pending):
                pending.cancel()
        self._started.clear()
        self._waiting.clear()

    def _failed(self, error: Exception) -> SpanError:
        self._cache.forget_deltas(self._store.identity)
        return SpanError(str(error))

    def _begin(self) -> None:
        entry = self._entry
        self._footer = self._cache.footer(entry.footer_sha256)
        if entry.size <= _WHOLE:
            self._all = self._store.fetch(entry.file)
            return
        if self._footer is None:
            self._footer = self._store.fetch(entry.file, start=entry.footer_offset, length=entry.footer_length)
        self._start()

    def _start(self) -> None:
        """Start core reads for as many row groups as the read-ahead allows."""
        while self._waiting and len(self._started) < _GROUPS_UNDER_WAY:
            number = self._waiting.popleft()
            group, core = self._entry.row_groups[number], None
            if self._all is None:
                core = self._store.fetch(self._entry.file, start=group.byte_offset, length=group.core_byte_length)
            self._started.append((number, core))

    def _opened(self) -> PartFooter:
        found, entry = self._footer, self._entry
        if isinstance(found, PartFooter):
            return found
        data = self._bytes()[entry.footer_offset :] if found is None else found.result()
        footer = PartFooter(data, expected=entry.footer_sha256)
        if (footer.state.table_id, footer.state.schema_hash) != (entry.table_id, entry.schema_hash):
            message = "it is not what the manifest says"
            raise SidecarError(message)
        self._cache.keep_footer(entry.footer_sha256, footer)
        self._footer = footer
        return footer

    def _bytes(self) -> bytes:
        """Return all bytes of a small file."""
        data = b"" if self._all is None else self._all.result()
        if len(data) != self._entry.size:
            message = f"it has {len(data)} bytes, and the manifest says {self._entry.size}"
            raise SidecarError(message)
        return data

    def _rows(self) -> Iterator[SpanRows]:
        footer = self._opened()
        layout = footer.state.layout
        if len(footer.groups) != len(self._entry.row_groups):
            message = "it has different row groups than the manifest says"
            raise SidecarError(message)
        names = stats_column_names(layout, self._wanted)
        below = self._first - 1
        self._start()
        if not self._started:
            empty = FileBatch.from_adds([])
            yield SpanRows(empty, np.zeros(0, np.bool_), below)
        while self._started:
            number, core = self._started.popleft()
            group = self._entry.row_groups[number]
            rows = self._decoded(footer, number, names, core)
            self._start()
            yield self._described(rows, layout, footer, number, below if not self._started else group.oldest)

    def _decoded(
        self, footer: PartFooter, number: int, names: Sequence[str], core: Pending[bytes] | None
    ) -> pa.RecordBatch:
        entry, group = self._entry, self._entry.row_groups[number]
        if core is None:
            blocks = [(0, self._bytes())]
        else:
            spans = footer.spans(number, names)
            named = self._store.fetch_ranges(entry.file, spans).result() if spans else []
            blocks = [(group.byte_offset, core.result())]
            blocks += [(start, data) for (start, _), data in zip(spans, named, strict=True)]
        left_out = footer.absent([number])
        columns = [name for name in [*footer.state.layout.names(core=True), *names] if name not in left_out]
        return footer.read(number, columns, blocks, entry.size)

    def _described(
        self, rows: pa.RecordBatch, layout: SidecarLayout, footer: PartFooter, number: int, rest: int
    ) -> SpanRows:
        versions = _checked(versions_of(rows, layout), self._entry.row_groups[number])
        # Rows are newest first, so the requested versions are one contiguous slice.
        start = int(np.searchsorted(-versions, -self._last, side="left"))
        end = int(np.searchsorted(-versions, -self._first, side="right"))
        removed = one_array(rows.column(layout.name_of(ColumnRole.REMOVED)))
        if removed.null_count:
            message = "it has rows that are neither added nor removed"
            raise SidecarError(message)
        try:
            files = msgspec.structs.replace(from_rows(rows, layout, tier=0), versions=from_numpy(versions))
        except StopIteration as error:
            message = "it lacks a column that it should have"
            raise SidecarError(message) from error
        if self._wanted is None:
            files = with_deferred_stats(files, partial(self._deferred_stats, files, footer, number))
        return SpanRows(files.slice(start, end - start), ~flags(removed)[start:end], rest)

    def _deferred_stats(self, files: FileBatch, footer: PartFooter, number: int) -> StatsColumns:
        """Return deferred statistics of a row group: from the delta sidecar, or else from its commits."""
        entry, group, layout = self._entry, self._entry.row_groups[number], footer.state.layout
        try:
            names = stats_column_names(layout, StatsWanted())
            spans = [(group.byte_offset, group.core_byte_length), *footer.spans(number, names)]
            found = self._lasting.fetch_ranges(entry.file, spans).result()
            blocks = [(start, data) for (start, _), data in zip(spans, found, strict=True)]
            rows = footer.read(number, [*layout.names(core=True), *names], blocks, entry.size)
            return {"parsed_stats": from_rows(rows, layout, tier=0).parsed_stats}
        except (StorageError, *_UNREADABLE):
            return {"parsed_stats": None, "json_stats": self._logged_stats(files)}

    def _logged_stats(self, files: FileBatch) -> pa.Array | None:
        """Return the statistics of files as logged in the commits."""
        wanted = [] if files.versions is None else files.versions.to_pylist()
        found: dict[tuple[int, str, str | None], str | None] = {}
        try:
            for version in set(wanted) & self._commits.keys():
                for lines in read_actions(self._lasting, self._commits[version]):
                    adds = [line.add for line in lines if line.add is not None]
                    found |= {(version, add.path, _vector_id(add)): add.stats for add in adds}
        except LazyDeltaError:
            return None  # the files were listed without statistics and remain valid without them
        vectors = [None] * len(files) if files.deletion_vector is None else files.deletion_vector.to_pylist()
        ids = [None if each is None else _id(each) for each in vectors]
        keys = zip(wanted, files.path.to_pylist(), ids, strict=True)
        return string_array([found.get(key) for key in keys])


def _checked(
    versions: np.ndarray[tuple[int], np.dtype[np.int64]], group: DeltaGroup
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    falls = len(versions) > 0 and bool((np.diff(versions) <= 0).all())
    if not falls or (int(versions[0]), int(versions[-1])) != (group.newest, group.oldest):
        message = "a row group is not the one that the manifest describes"
        raise SidecarError(message)
    return versions


def _vector_id(add: Add) -> str | None:
    return None if add.deletion_vector is None else add.deletion_vector.unique_id


def _id(vector: dict[str, object]) -> str:
    suffix = "" if vector["offset"] is None else f"@{vector['offset']}"
    return f"{vector['storageType']}{vector['pathOrInlineDv']}{suffix}"


# ``find_spans``: delta sidecars that replace the JSON of a long tail. Their manifest is requested only for a long tail,
# and the reader is imported only then, so a table with regular checkpoints never pays for it. Each entry is compared
# with the listing, commit by commit. A delta sidecar with a replaced commit is not used.


logger = logging.getLogger(__name__)

LONG_TAIL = 100
"""The manifest is requested again if at least this many commits are not covered by a known delta sidecar."""
WRITTEN_EVERY = 50
"""Writers cover commits after so many without a checkpoint. Tails from this length on are looked at."""
_LEAST_COMMITS = 2  # a single commit is read just as fast from its JSON


def prefetch_spans(store: Store, segment: LogSegment, prefetch: Prefetch, cache: SidecarCache) -> None:
    """Prefetch the manifest in parallel with other reads, if it will be needed."""
    if _is_long(segment) and _known(store, segment, cache) is None:
        prefetch.request(store, [DELTA_MANIFEST])


def find_spans(
    store: Store, segment: LogSegment, prefetch: Prefetch, cache: SidecarCache, *, rows_from: Store
) -> FoundSpans:
    """Return the delta sidecars of the tail whose commits match the listing; ``rows_from`` outlives all scans."""
    if not _is_long(segment):
        return FoundSpans()
    try:
        manifest = _known(store, segment, cache) or _read(store, prefetch, cache)
    except ObjectNotFoundError:
        return FoundSpans()
    except (SidecarError, StorageError) as error:
        logger.warning("%s is not used: %s", DELTA_MANIFEST, error)
        return FoundSpans(rejected={DELTA_MANIFEST: str(error)})
    listed = {commit.version: commit for commit in segment.commits}
    spans: list[DeltaSpan] = []
    rejected: dict[str, str] = {}
    for entry in manifest.spans:
        first, last = max(entry.first, segment.base_version + 1), min(entry.last, segment.version)
        if last - first + 1 < _LEAST_COMMITS:
            continue
        commits = {version: listed[version] for version in range(first, last + 1)}
        stale = entry.stale_commit(list(commits.values()))
        if stale is not None:
            rejected[entry.file] = f"commit {stale} is not the one that it was made of"
            logger.warning("%s is not used: %s", entry.file, rejected[entry.file])
            continue
        file = LogFile(FileKind.SPAN, first, ObjectInfo(entry.file, entry.size, 0, None), last)
        spans.append(DeltaSpan(entry, file, commits, cache, rows_from))
    return FoundSpans(tuple(spans), rejected)


def _known(store: Store, segment: LogSegment, cache: SidecarCache) -> DeltaManifest | None:
    """Return the cached manifest, unless many new commits follow it."""
    known = cache.deltas(store.identity)
    last = max((each.last for each in known.spans), default=0) if known is not None else 0
    return known if known is not None and segment.version - last < LONG_TAIL else None


def _read(store: Store, prefetch: Prefetch, cache: SidecarCache) -> DeltaManifest:
    from lazydelta.sidecar.format.delta_file import DeltaManifest  # noqa: PLC0415 - only for a long tail, see above

    if DELTA_MANIFEST in prefetch:
        data = prefetch.read(DELTA_MANIFEST)
        prefetch.drop(DELTA_MANIFEST)
        if data is None:  # most tables have none, and asking again would waste a round trip
            raise ObjectNotFoundError(DELTA_MANIFEST)
    else:
        data = store.get(DELTA_MANIFEST)
    manifest = DeltaManifest.decode(data)
    cache.keep_deltas(store.identity, manifest, len(data))
    return manifest


def _is_long(segment: LogSegment) -> bool:
    return segment.version - segment.base_version >= min(LONG_TAIL, WRITTEN_EVERY)

"""``SidecarBase``: reads the base of a scan from the sidecar, and falls back to the checkpoint on any error."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from lazydelta.errors import LazyDeltaError, StorageError
from lazydelta.log.commits import Prefetch
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.segment import Checkpoint, LogSegment, on_older_checkpoint
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.log.tail_spans import FoundSpans, PendingState, TailSpans
from lazydelta.predicates import Predicate
from lazydelta.protocol.file_names import LogFile
from lazydelta.protocol.schema import TableSchema
from lazydelta.runtime.arrays import boolean_array
from lazydelta.scan.base import BasePlace, BaseScan, EmittedKeys, checkpoint_files, checkpoint_places
from lazydelta.scan.scanner import SMALL_SHARE
from lazydelta.sidecar.format.columns import ColumnRole, SidecarLayout, manifest_path
from lazydelta.sidecar.format.manifest import (
    ManifestIndex,
    ManifestLeaf,
    ManifestPart,
    ManifestRowGroup,
    RangeText,
    SidecarError,
    mirrors,
    range_key,
)
from lazydelta.sidecar.format.rows import keys_from_text, sortable
from lazydelta.sidecar.reading.delta_spans import find_spans, prefetch_spans
from lazydelta.sidecar.reading.discovery import Sidecar, SidecarCache, begin_state, find_sidecar, shared_cache
from lazydelta.sidecar.reading.group_choice import ChosenGroup, is_undated, matching_groups
from lazydelta.sidecar.reading.row_groups import EmittedGroup, RowGroups, sort_layout, sort_rows, without
from lazydelta.storage import Store

if TYPE_CHECKING:
    from lazydelta.sidecar.reading.foreign import ForeignSidecar

__all__ = ["SidecarBase"]


# Estimate, from manifest ranges alone, the share of the base that a lower bound on the sort column keeps.


def share_left(manifest: ManifestIndex, predicate: Predicate, enough: float) -> float | None:
    """Return the share of files that the sort column's ranges keep; shares of ``enough`` or more are exact.

    Return None if the oldest files with a sort key are among them: then the predicate has no lower bound, and the
    newest files are not what the query asks for.
    """
    if not manifest.sort or not manifest.num_files:
        return None
    key = range_key(manifest.sort[0].path)
    parts: Sequence[ManifestLeaf | ManifestPart] = manifest.stretches
    numbers = matching_groups(predicate, _only(key, [part.ranges for part in parts]))
    left = sum(parts[number].num_rows for number in numbers)
    oldest = next((number for number, part in enumerate(parts) if not is_undated(part)), None)
    if oldest is None:
        return None
    by_parts = None if oldest in numbers else left / manifest.num_files
    # Row groups are more precise but slow to decode, so they are used only if the parts are not conclusive. Row groups
    # in leaves are not loaded; each leaf is a small share of a large table.
    known = manifest.leaves is None and (by_parts is None or by_parts >= enough)
    groups = manifest.groups_of(numbers) if known else None
    if groups is None:
        return by_parts
    kept = matching_groups(predicate, _only(key, [group.ranges for group in groups]))
    if any((groups[index].part, groups[index].index) == (oldest, 0) for index in kept):
        return None
    return sum(groups[index].num_rows for index in kept) / manifest.num_files


def _only(key: str, ranges: Sequence[Mapping[str, RangeText]]) -> list[dict[str, RangeText]]:
    return [{key: each[key]} if key in each else {} for each in ranges]


logger = logging.getLogger(__name__)

_TIERS = {1: "by its manifest", 2: "by its file alone, because there is no good manifest"}
_NOT_ASKED = "by the footers of its files, because use_manifest is off"


# While the newest checkpoint has no sidecar yet, the sidecar of an older one and the commits since say the same.
# Reading them is cheaper than reading the checkpoint, unless there are very many.

_WORTH_A_LOOK = 1 << 20  # a checkpoint of fewer bytes is read in less time than it takes to look for an older sidecar
_REQUEST_BYTES = 16 << 10  # a request takes as long as reading so many bytes, where commits are read in parallel
_CANDIDATES = 2


def on_older_sidecar(store: Store, snapshot: LogSnapshot, cache: SidecarCache) -> LogSnapshot | None:
    """Return the snapshot on an older checkpoint with a sidecar, if the newest has none and that is cheaper.

    Return None if the log could not be looked at.
    """
    segment, prefetch = snapshot.segment, snapshot.commits.prefetch
    checkpoint = segment.checkpoint
    if checkpoint is None or segment.base_bytes < _WORTH_A_LOOK:
        return snapshot
    try:
        if cache.manifest(store.identity, checkpoint) is None:
            newest = manifest_path(checkpoint.version)
            prefetch.request(store, [newest])
            if prefetch.read(newest) is None:
                return _on_older(store, snapshot)
    except LazyDeltaError as error:
        logger.info("no older sidecar is looked for: %s", error)
        return None
    return snapshot


def _on_older(store: Store, snapshot: LogSnapshot) -> LogSnapshot:
    from lazydelta.sidecar.format.manifest import list_folder  # noqa: PLC0415 - few scans get here

    segment, prefetch = snapshot.segment, snapshot.commits.prefetch
    kept = [file for file in list_folder(store) if file.kind in {"manifest", "single"}]
    if any(file.version == segment.base_version for file in kept):
        return snapshot  # by its file alone
    versions = {file.version for file in kept if file.kind == "manifest" and file.version < segment.base_version}
    for version in sorted(versions, reverse=True)[:_CANDIDATES]:
        path = manifest_path(version)
        prefetch.request(store, [path])
        found = on_older_checkpoint(store, segment, version)
        data = prefetch.read(path)
        if found is None or found.checkpoint is None or data is None:
            continue
        try:
            ManifestIndex.decode(data).check(table_id=snapshot.metadata.id, checkpoint=found.checkpoint)
        except SidecarError as error:
            logger.info("%s is not used: %s", path, error)
            continue
        older = msgspec.structs.replace(snapshot, segment=found, spans=TailSpans(snapshot.spans.base))
        if _cost(store, older) < segment.base_bytes:
            return older
    return snapshot


def _cost(store: Store, snapshot: LogSnapshot) -> int:
    """Return what the commits of a tail take, in bytes; a request counts as some."""
    segment, first = snapshot.segment, snapshot.segment.base_version + 1
    files: list[LogFile] = []
    for span in snapshot.spans.found(store, segment, snapshot.commits.prefetch):
        files += [*segment.cover(first, span.file.version - 1), span.file]
        first = span.file.end + 1
    return sum(each.info.size + _REQUEST_BYTES for each in (*files, *segment.cover(first, segment.version)))


class SidecarBase(msgspec.Struct, frozen=True):
    """The base of a table (see ``scan.base.ScanBase``): the sidecar if there is a valid one.

    ``store`` outlives all scans. ``use_manifest`` and ``prune_row_groups`` can be switched off to measure their
    benefit.
    """

    store: Store
    row_groups_ahead: int = 5
    cache: SidecarCache = msgspec.field(default_factory=lambda: shared_cache)
    use_manifest: bool = True
    prune_row_groups: bool = True

    def state_paths(self, store: Store, version: int) -> Sequence[str]:
        """Return the path of the manifest, unless it is cached: then prefetching it would be wasted."""
        return [] if not self.use_manifest or self.cache.knows(store.identity, version) else [manifest_path(version)]

    def begin_state(self, store: Store, checkpoint: Checkpoint, prefetch: Prefetch) -> PendingState | None:
        """Start reading protocol and metadata from the manifest."""
        return begin_state(store, checkpoint, prefetch, self.cache) if self.use_manifest else None

    def prefetch_spans(self, store: Store, segment: LogSegment, prefetch: Prefetch) -> None:
        """Prefetch the manifest of the delta sidecars, if it will be needed."""
        prefetch_spans(store, segment, prefetch, self.cache)

    def find_spans(self, store: Store, segment: LogSegment, prefetch: Prefetch) -> FoundSpans:
        """Return the delta sidecars of the tail whose commits match the listing."""
        return find_spans(store, segment, prefetch, self.cache, rows_from=self.store)

    def settled(self, store: Store, snapshot: LogSnapshot) -> LogSnapshot:
        """Return the snapshot, or its checkpoint's version on an older one with a sidecar; the same for all scans."""
        if not self.use_manifest:
            return snapshot
        return snapshot.scanned_base.of(snapshot, lambda found: on_older_sidecar(store, found, self.cache))

    def files(self, scan: BaseScan) -> Iterator[FileBatch]:
        """Yield the files at the checkpoint; the tier can change during the scan, the result cannot."""
        checkpoint = scan.snapshot.segment.checkpoint
        if checkpoint is None:
            return
        if scan.place is not None and scan.place.files_of_it is None:
            yield from checkpoint_files(scan)  # the place refers to the checkpoint, even if a sidecar was built since
            return
        sidecar = self._find(scan, checkpoint)
        if sidecar is None:
            scan.metrics.sidecar = scan.metrics.sidecar or f"none of version {checkpoint.version}"
            yield from _by_checkpoint(scan)
            return
        scan.metrics.tier = sidecar.tier
        scan.metrics.sidecar = (
            f"version {checkpoint.version}, {_TIERS[sidecar.tier] if self.use_manifest else _NOT_ASKED}"
        )
        if scan.without_sidecar is not None:
            scan.metrics.sidecar += f", with the commits up to checkpoint {scan.without_sidecar}, which has none yet"
        scan.metrics.base_order = _order(sidecar, scan)
        scan.metrics.sidecar_hits += 1
        if sidecar.foreign is not None:
            yield from self._foreign_files(scan, checkpoint, sidecar.foreign)
            return
        scan.metrics.cache_hits += sidecar.from_cache
        used: list[EmittedGroup] = []
        groups = self._row_groups(scan, sidecar)
        try:
            for batch, group in groups:
                yield batch
                used.append(group)
        except (SidecarError, StorageError) as error:
            logger.warning("the sidecar of version %d fails, the checkpoint goes on: %s", checkpoint.version, error)
            scan.metrics.sidecar_failed("storage" if isinstance(error, StorageError) else "damaged", error)
            self.cache.forget_manifest(scan.store.identity, checkpoint)
        else:
            return
        finally:
            groups.close()
        scan.metrics.sidecar_hits -= 1
        scan.metrics.files_pruned_by_groups = 0  # the checkpoint has those files too and prunes them itself
        inside = sorted(each.keys(sidecar.layout) for each in used)
        gone = frozenset(file for each in used for file in each.files(sidecar.layout))
        for batch in _by_checkpoint(scan):
            rest = without(batch, inside, gone, sidecar)
            if len(rest):
                yield rest

    def _foreign_files(self, scan: BaseScan, checkpoint: Checkpoint, foreign: ForeignSidecar) -> Iterator[FileBatch]:
        """Yield the files of a sidecar of the minimal profile. Its order is not known, so keys are recorded."""
        scan.metrics.sidecar = f"version {checkpoint.version}, of the minimal profile"
        emitted = EmittedKeys()
        files = foreign.files(scan, ahead=self.row_groups_ahead, prune=self.prune_row_groups)
        try:
            try:
                for batch in files:
                    yield emitted.rest(batch, record=True)
            except (SidecarError, StorageError) as error:
                logger.warning("the sidecar of version %d fails, the checkpoint goes on: %s", checkpoint.version, error)
                scan.metrics.sidecar_failed("storage" if isinstance(error, StorageError) else "damaged", error)
            else:
                return
            scan.metrics.sidecar_hits -= 1
            scan.metrics.files_pruned_by_groups = 0
            emitted.look_up()
            for batch in _by_checkpoint(scan):
                yield emitted.rest(batch, record=False)
        finally:
            files.close()
            emitted.close()

    def _find(self, scan: BaseScan, checkpoint: Checkpoint) -> Sidecar | None:
        return find_sidecar(
            scan.store,
            scan.snapshot,
            checkpoint,
            self.cache,
            failed=scan.metrics.sidecar_failed,
            use_manifest=self.use_manifest,
        )

    def _row_groups(self, scan: BaseScan, sidecar: Sidecar) -> RowGroups:
        # The predicate and the named files only select which row groups are read.
        asked = scan if self.prune_row_groups else msgspec.structs.replace(scan, predicate=None, named=None)
        return RowGroups(asked, sidecar, self.cache, self.row_groups_ahead)

    def places(self, scan: BaseScan, files: int) -> list[BasePlace]:
        """Return the places of the base: row groups of the sidecar, from its manifest."""
        checkpoint = scan.snapshot.segment.checkpoint
        if checkpoint is None:
            return []
        sidecar = self._find(scan, checkpoint)
        places = None if sidecar is None or sidecar.foreign is not None else self._places(scan, sidecar, files)
        return checkpoint_places(scan, files) if places is None else places

    def _places(self, scan: BaseScan, sidecar: Sidecar, files: int) -> list[BasePlace] | None:

        groups = self._row_groups(scan, sidecar)
        try:
            places = places_of_groups(sidecar, groups.matching_groups(), files)
            if sidecar.proof is not None:
                sidecar.proof.check()
        except (SidecarError, StorageError) as error:
            logger.warning("the sidecar of version %d fails: %s", scan.snapshot.segment.base_version, error)
            return None
        else:
            return places
        finally:
            groups.close()

    def share(self, store: Store, snapshot: LogSnapshot, predicate: Predicate | None) -> float | None:
        """Return the share of the base that the predicate keeps, if a loaded manifest tells.

        The share only decides the scan order, so nothing is verified here. On a remote store, it only waits for reads
        that were already started.
        """
        checkpoint = snapshot.segment.checkpoint
        if checkpoint is None or predicate is None or not (self.use_manifest and self.prune_row_groups):
            return None
        try:
            manifest = self.cache.manifest(store.identity, checkpoint)
            if manifest is None:
                path = manifest_path(checkpoint.version)
                data = snapshot.commits.prefetch.read(path)
                if data is None and not store.is_remote:
                    snapshot.commits.prefetch.request(store, [path])
                    data = snapshot.commits.prefetch.read(path)
                manifest = None if data is None else ManifestIndex.decode(data)
            if manifest is None or not mirrors(manifest.checkpoint, checkpoint):
                return None
            return share_left(manifest, predicate, SMALL_SHARE)
        except (SidecarError, IndexError):
            return None  # the scan will find the error and report it


def _by_checkpoint(scan: BaseScan) -> Iterator[FileBatch]:
    """Yield the files of the scan's place from the checkpoint, because the sidecar of the place is unusable."""
    place = scan.place
    if place is None or place.files_of_it is None:
        yield from checkpoint_files(scan)
        return
    for batch in checkpoint_files(msgspec.structs.replace(scan, place=None)):
        yield place.files_of_it(batch)


def _order(sidecar: Sidecar, scan: BaseScan) -> str:
    # Use the table's logical names: a sidecar has physical ones.
    if sidecar.foreign is not None:
        return f"as another pipeline stored it{', row groups from the last to the first' * scan.newest_first}"
    names = {column.physical_path: column.name for column in scan.snapshot.schema.leaves()}
    by = [
        f"{'the minimum of ' * (each.role == ColumnRole.MIN)}{names.get(each.path, '.'.join(each.path))}"
        for each in sidecar.layout.sort
    ]
    return f"by {', '.join([*by, 'path'])}{', descending' * scan.newest_first}"


# ``KeySpan``: a key range of the sidecar, with which a worker finds its files if the sidecar is lost. A scan that is
# split by row groups stores the first and last keys of each piece. The checkpoint has the same files, so those with
# keys in the range are the files of the row groups.


class KeySpan(msgspec.Struct, frozen=True):
    """The keys from ``lower`` up to but excluding ``upper``; None is unbounded. Keeps only sort columns."""

    layout: SidecarLayout
    schema: TableSchema
    lower: bytes | None = None
    upper: bytes | None = None

    @classmethod
    def everything(cls, sidecar: Sidecar) -> KeySpan:
        """Return the span of all keys of a sidecar."""
        layout, schema = sort_layout(sidecar.layout), sidecar.schema
        roots = {each.path[0] for each in layout.sort}
        fields = tuple(each for each in schema.fields if each.physical_name in roots)
        partitions = tuple(each.name for each in fields if each.name in schema.partition_columns)
        return cls(layout, TableSchema(fields, partitions, schema.column_mapping))

    def __call__(self, files: FileBatch) -> FileBatch:
        """Return the files whose keys are in the span."""
        if (self.lower is None and self.upper is None) or not len(files):
            return files
        keys = sortable(sort_rows(files, self.layout, self.schema), self.layout).to_pylist()
        keep = np.fromiter((self._holds(key) for key in keys), np.bool_, len(keys))
        return files.filter(boolean_array(keep))

    def _holds(self, key: bytes) -> bool:
        return (self.lower is None or key >= self.lower) and (self.upper is None or key < self.upper)

    def key_of(self, texts: Sequence[str | None]) -> bytes | None:
        """Return a manifest key in comparable form.

        Return None if a value is missing: it can be null, or a value without a string form in the manifest.
        """
        if any(text is None for text in texts):
            return None
        try:
            key: bytes = keys_from_text([tuple(texts)], self.layout, self.schema)[0].as_py()
        except SidecarError:
            return None
        return key


def places_of_groups(sidecar: Sidecar, groups: Iterable[ChosenGroup], files: int) -> list[BasePlace] | None:
    """Join consecutive row groups into places of about ``files`` files; None if their keys overlap.

    Two places are split only where the last key of one is smaller than the first key of the next.
    """
    span = KeySpan.everything(sidecar)
    places: list[BasePlace] = []
    spans: list[KeySpan] = []
    before: ManifestRowGroup | None = None
    for chosen in groups:
        file, group = chosen.part.file, chosen.group
        other_file = before is not None and group.part != before.part
        if before is None or other_file or places[-1].files >= files:
            lower = None if before is None else _cut(span, before, group)
            if before is None or lower is not None:
                if spans:
                    spans[-1] = msgspec.structs.replace(spans[-1], upper=lower)
                spans.append(msgspec.structs.replace(span, lower=lower))
                places.append(BasePlace(file, group.index, group.index + 1, group.num_rows, leaf=chosen.leaf))
                before = group
                continue
            if other_file:
                return None
        place = places[-1]
        places[-1] = msgspec.structs.replace(place, stop=group.index + 1, files=place.files + group.num_rows)
        before = group
    return [msgspec.structs.replace(place, files_of_it=span) for place, span in zip(places, spans, strict=True)]


def _cut(span: KeySpan, before: ManifestRowGroup, group: ManifestRowGroup) -> bytes | None:
    """Return the key that separates two row groups; None if there is no such key."""
    last, first = span.key_of(before.last), span.key_of(group.first)
    return first if last is not None and first is not None and last < first else None

"""The base read from the sidecar, and from the checkpoint as soon as anything about the sidecar is wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import msgspec

from lazydelta.errors import StorageError
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.pruning import Predicate
from lazydelta.scan.base import BaseScan, checkpoint_files, checkpoint_places
from lazydelta.scan.scan_range import BasePlace
from lazydelta.scan.strategy_choice import SMALL_SHARE
from lazydelta.sidecar.layout.manifest import ManifestIndex, SidecarError, mirrors
from lazydelta.sidecar.layout.sidecar_columns import ColumnRole, manifest_path
from lazydelta.sidecar.reading.discovery import Sidecar, find_sidecar
from lazydelta.sidecar.reading.row_groups import RowGroups
from lazydelta.sidecar.reading.share_of_base import share_left
from lazydelta.sidecar.reading.sidecar_cache import SidecarCache, shared_cache
from lazydelta.sidecar.reading.used import Used, without
from lazydelta.storage import Store

__all__ = ["SidecarBase"]

logger = logging.getLogger(__name__)

_TIERS = {1: "by its manifest", 2: "by its file alone, because there is no good manifest"}
_NOT_ASKED = "by the footers of its files, because use_manifest is off"


class SidecarBase(msgspec.Struct, frozen=True):
    """Opens the base of a scan (see ``scan.base.OpenBase``): the sidecar where there is a good one.

    ``use_manifest`` and ``prune_row_groups`` are switches to see what either of them is worth.
    """

    row_groups_ahead: int = 5
    cache: SidecarCache = msgspec.field(default_factory=lambda: shared_cache)
    use_manifest: bool = True
    prune_row_groups: bool = True

    def __call__(self, scan: BaseScan) -> Iterator[FileBatch]:
        """Yield the files at the checkpoint; the tier changes if it must, the answer does not."""
        checkpoint = scan.snapshot.segment.checkpoint
        if checkpoint is None:
            return
        if scan.place is not None and scan.place.files_of_it is None:
            yield from checkpoint_files(scan)  # that is where the place is, whatever has been built since then
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
        scan.metrics.base_order = _order(sidecar, scan)
        scan.metrics.sidecar_hits += 1
        scan.metrics.cache_hits += sidecar.from_cache
        used: list[Used] = []
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
        scan.metrics.files_pruned_by_groups = 0  # the checkpoint has those files too, and they are looked at there
        inside = sorted(each.keys(sidecar.layout) for each in used)
        gone = frozenset(file for each in used for file in each.files(sidecar.layout))
        for batch in _by_checkpoint(scan):
            rest = without(batch, inside, gone, sidecar)
            if len(rest):
                yield rest

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
        # What is asked for decides which row groups are read, and nothing else of them.
        asked = scan if self.prune_row_groups else msgspec.structs.replace(scan, predicate=None, named=None)
        return RowGroups(asked, sidecar, self.cache, self.row_groups_ahead)

    def places(self, scan: BaseScan, files: int) -> list[BasePlace]:
        """Return the places of the base (see ``PlacesOfBase``): row groups of the sidecar, as its manifest has them."""
        checkpoint = scan.snapshot.segment.checkpoint
        if checkpoint is None:
            return []
        sidecar = self._find(scan, checkpoint)
        places = None if sidecar is None else self._places(scan, sidecar, files)
        return checkpoint_places(scan, files) if places is None else places

    def _places(self, scan: BaseScan, sidecar: Sidecar, files: int) -> list[BasePlace] | None:
        from lazydelta.sidecar.reading.key_span import places_of_groups  # noqa: PLC0415 - few scans are divided

        groups = self._row_groups(scan, sidecar)
        try:
            places = places_of_groups(sidecar, groups.surviving(), files)
            if sidecar.proof is not None:
                sidecar.proof.check()
        except (SidecarError, StorageError) as error:
            logger.warning("the sidecar of version %d fails: %s", scan.snapshot.segment.base_version, error)
            return None
        else:
            return places
        finally:
            groups.close()

    def share(self, store: Store, snapshot: Snapshot, predicate: Predicate | None) -> float | None:
        """Return which share of the base the predicate leaves, if a manifest at hand tells (see ``ShareOfBase``).

        It decides about an order and nothing else, so that nothing is proven here, and on a remote store nothing is
        waited for that was not asked for before.
        """
        checkpoint = snapshot.segment.checkpoint
        if checkpoint is None or predicate is None or not (self.use_manifest and self.prune_row_groups):
            return None
        try:
            manifest = self.cache.manifest(store.identity, checkpoint)
            if manifest is None:
                path = manifest_path(checkpoint.version)
                data = snapshot.commits.ahead.read(path)
                if data is None and not store.is_remote:
                    snapshot.commits.ahead.ask(store, [path])
                    data = snapshot.commits.ahead.read(path)
                manifest = None if data is None else ManifestIndex.decode(data)
            if manifest is None or not mirrors(manifest.checkpoint, checkpoint):
                return None
            return share_left(manifest, predicate, SMALL_SHARE)
        except (SidecarError, IndexError):
            return None  # the scan will find out what is wrong with it, and say so


def _by_checkpoint(scan: BaseScan) -> Iterator[FileBatch]:
    """Yield the files of the scan's place from the checkpoint, where the sidecar that the place is in cannot serve."""
    place = scan.place
    if place is None or place.files_of_it is None:
        yield from checkpoint_files(scan)
        return
    for batch in checkpoint_files(msgspec.structs.replace(scan, place=None)):
        yield place.files_of_it(batch)


def _order(sidecar: Sidecar, scan: BaseScan) -> str:
    # The table's own names: a sidecar has physical ones.
    names = {column.physical_path: column.name for column in scan.snapshot.schema.leaves()}
    by = [
        f"{'the minimum of ' * (each.role == ColumnRole.MIN)}{names.get(each.path, '.'.join(each.path))}"
        for each in sidecar.layout.sort
    ]
    return f"by {', '.join([*by, 'path'])}{', descending' * scan.newest_first}"

"""The base read from the sidecar, and from the checkpoint as soon as anything about the sidecar is wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from lazydelta.errors import StorageError
from lazydelta.log.file_batch import FileBatch
from lazydelta.scan.base import BaseScan, checkpoint_files
from lazydelta.sidecar.layout.manifest import SidecarError
from lazydelta.sidecar.layout.sidecar_columns import ColumnRole
from lazydelta.sidecar.reading.discovery import Sidecar, find_sidecar
from lazydelta.sidecar.reading.row_groups import RowGroups
from lazydelta.sidecar.reading.sidecar_cache import SidecarCache, shared_cache
from lazydelta.sidecar.reading.used import Used, without

__all__ = ["SidecarBase"]

logger = logging.getLogger(__name__)


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
        scan.metrics.base_order = _order(sidecar, scan)
        scan.metrics.sidecar_hits += 1
        scan.metrics.cache_hits += sidecar.from_cache
        used: list[Used] = []
        groups = RowGroups(scan, sidecar, self.cache, self.row_groups_ahead)
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
            rest = without(batch, inside, gone, sidecar)
            if len(rest):
                yield rest


def _order(sidecar: Sidecar, scan: BaseScan) -> str:
    # The table's own names: a sidecar has physical ones.
    names = {column.physical_path: column.name for column in scan.snapshot.schema.leaves()}
    by = [
        f"{'the minimum of ' * (each.role == ColumnRole.MIN)}{names.get(each.path, '.'.join(each.path))}"
        for each in sidecar.layout.sort
    ]
    return f"by {', '.join([*by, 'path'])}{', descending' * scan.newest_first}"

"""``LazyDeltaScanner``: the files of a version, found while they are asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from lazydelta.log.checkpoint import CheckpointReader
from lazydelta.log.checksum import compare_totals
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.snapshot import Snapshot
from lazydelta.metrics import ScanMetrics
from lazydelta.options import Options
from lazydelta.scan.arrays import numpy_of
from lazydelta.scan.reconcile import active_tail_files, unmasked
from lazydelta.scan.remove_set import RemoveSet

__all__ = ["LazyDeltaScanner"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LazyDeltaScanner:
    """One scan of one snapshot: the tail newest first, then the base without what the tail removed or replaced."""

    snapshot: Snapshot
    options: Options = field(default_factory=Options)
    metrics: ScanMetrics = field(default_factory=ScanMetrics)

    def batches(self) -> Iterator[FileBatch]:
        """Yield the active files; nothing is read before the consumer asks, and nothing after it stops."""
        seen = RemoveSet(self.options.remove_set_memory_limit)
        totals = _Totals()
        try:
            for batch in self._active(seen):
                totals.count(batch)
                self.metrics.first_file()
                self.metrics.files_emitted += len(batch)
                yield batch
        finally:
            seen.close()
        self._verify(totals)

    def _active(self, seen: RemoveSet) -> Iterator[FileBatch]:
        yield from active_tail_files(self.snapshot.tail(), seen, self.metrics)
        checkpoint = self.snapshot.segment.checkpoint
        if checkpoint is None:
            return
        reader = CheckpointReader(self.snapshot.store, checkpoint, self.options.batch_size)
        self.metrics.tier = 3
        for batch in reader.files():
            live = unmasked(batch, seen)
            if len(live):
                yield live

    def _verify(self, totals: _Totals) -> None:
        file, checksum = self.snapshot.segment.checksum, self.snapshot.checksum
        if file is None or checksum is None or self.options.checksum == "off":
            return
        error = compare_totals(checksum, file, num_files=totals.files, size=totals.size)
        if error is not None:
            if self.options.checksum == "error":
                raise error
            logger.warning("%s", error)


@dataclass(slots=True)
class _Totals:
    files: int = 0
    size: int = 0

    def count(self, batch: FileBatch) -> None:
        self.files += len(batch)
        self.size += int(numpy_of(batch.size).sum())

"""Limits: how many files may still leave, and which of a batch."""

from __future__ import annotations

import numpy as np

from lazydelta.log.file_batch import FileBatch
from lazydelta.scan.pruner import Pruner
from lazydelta.scan.request import ScanRequest

__all__ = ["Limits"]


class Limits:
    """Counts files and proven rows; a scan ends when either limit is reached."""

    def __init__(self, request: ScanRequest, pruner: Pruner) -> None:
        self._files = request.limit
        self._rows = request.row_limit
        self._pruner = pruner

    @property
    def reached(self) -> bool:
        """Tell whether nothing more may leave."""
        return self._files == 0 or (self._rows is not None and self._rows <= 0)

    def cut(self, batch: FileBatch) -> FileBatch:
        """Return the part of a batch that may leave: up to and including the file that reaches a limit."""
        if self._rows is not None:
            rows = np.cumsum(self._pruner.proven_rows(batch))
            enough = int(np.searchsorted(rows, self._rows)) + 1
            if enough <= len(batch):
                batch, rows = batch.slice(0, enough), rows[:enough]
            self._rows -= int(rows[-1]) if len(rows) else 0
        if self._files is not None:
            batch = batch.slice(0, self._files) if len(batch) > self._files else batch
            self._files -= len(batch)
        return batch

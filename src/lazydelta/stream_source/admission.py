"""How many files one step of a stream may take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Admission"]


@dataclass(slots=True)
class Admission:
    """Counts what is taken; the first file always is, however large, or the stream would never get past it.

    As in Delta-Spark a number of files is kept to, and bytes are counted before a file, so that they may be exceeded by
    the last one.
    """

    max_files: int | None = None
    max_bytes: int | None = None
    files: int = 0
    bytes: int = 0

    def take(self, sizes: npt.NDArray[np.int64]) -> int:
        """Return how many of the next files are admitted, and count them."""
        count = len(sizes)
        if self.max_files is not None:
            count = min(count, max(0, self.max_files - self.files))
        ends = self.bytes + np.cumsum(sizes[:count], dtype=np.int64)
        if self.max_bytes is not None:
            count = int(np.count_nonzero(ends - sizes[:count] < self.max_bytes))
        self.files += count
        self.bytes = int(ends[count - 1]) if count else self.bytes
        return count

    @property
    def is_full(self) -> bool:
        """Tell whether no further file would be admitted."""
        by_files = self.max_files is not None and self.files >= self.max_files
        return by_files or (self.max_bytes is not None and self.bytes >= self.max_bytes)

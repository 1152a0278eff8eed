"""``ScanRange``: a part of a scan that somebody else discovers, described without naming a single file.

A scan is divided among workers before anybody has looked at its files. A range says where they are: in the tail, or in
some row groups of a file that the base is read from; and which of them are meant, where one place is divided further.
Which slice a file belongs to depends on nothing but its path, so that it does not matter in which order, from which
tier or through which compaction a worker comes across it. Together the ranges of a scan hold each file once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from zlib import crc32

import msgspec
import numpy as np

from lazydelta.arrays import boolean_array, numpy_of
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.segment import LogSegment

__all__ = ["BasePlace", "ScanRange", "divided", "tail_bytes"]

_MOST_RANGES = 10_000
_BYTES_OF_AN_ADD = 500


class BasePlace(msgspec.Struct, frozen=True):
    """Row groups ``start`` to ``stop`` of a file that the base is read from, which hold ``files`` files.

    ``files_of_it`` leaves of any files those that are in it, for a sidecar that is lost between planning and reading:
    the checkpoint has the same files, in another order. A place in a checkpoint itself has none. ``leaf`` is where a
    sidecar of many files describes this one.
    """

    file: str
    start: int
    stop: int
    files: int
    files_of_it: Callable[[FileBatch], FileBatch] | None = None
    leaf: int = 0


class ScanRange(msgspec.Struct, frozen=True):
    """One of ``slices`` slices of the files in a place of the base, or of the tail where there is no place.

    A file of more than ``share_bytes`` is in several slices, one for each so many bytes, for those who divide its rows
    among them; the others need not open it.
    """

    place: BasePlace | None = None
    number: int = 0
    slices: int = 1
    share_bytes: int | None = None

    def only(self, files: FileBatch) -> FileBatch:
        """Leave the files of this slice."""
        if self.slices == 1 or not len(files):
            return files
        marks = np.array([_mark(each) for each in files.path.to_pylist()], np.int64)
        # Which of the slices this one is, counted from the first that the file is in.
        behind = (self.number - marks) % self.slices
        keep = behind == 0
        if self.share_bytes is not None:
            shares = -(-numpy_of(files.size) // self.share_bytes)
            keep |= behind < np.minimum(shares, self.slices)
        return files.filter(boolean_array(keep))

    def share_of(self, path: str, size: int) -> tuple[int, int] | None:
        """Return which share of a file of this slice is meant, as number and count; None is the whole file."""
        if self.share_bytes is None:
            return None
        shares = min(-(-size // self.share_bytes), self.slices)
        return ((self.number - _mark(path)) % self.slices, shares) if shares > 1 else None


def divided(
    segment: LogSegment, places: Sequence[BasePlace], files_a_range: float, *, share_bytes: int | None = None
) -> list[ScanRange]:
    """Return the ranges of a scan: all places of its base and its tail, in slices of about so many files.

    Less than one file makes several slices of each; who reads them divides the file by ``share_bytes``.
    """
    tail = -(-tail_bytes(segment) // _BYTES_OF_AN_ADD)
    total = tail + sum(place.files for place in places)
    # Each range is a task with a few requests of its own; more of them than this help nobody.
    wanted = max(files_a_range, total / _MOST_RANGES)
    found: list[ScanRange] = []
    for place, files in (*((place, place.files) for place in places), *([(None, tail)] if tail else [])):
        slices = max(1, ceil(files / wanted))
        whole = ScanRange(place, 0, slices, share_bytes if slices > 1 else None)
        found += [msgspec.structs.replace(whole, number=number) for number in range(slices)]
    return found


def tail_bytes(segment: LogSegment) -> int:
    """Return the size of the tail's commits, as far as the listing tells."""
    return sum(max(1, file.info.size) for file in segment.tail())


def _mark(path: str) -> int:
    return crc32(path.encode("utf-8", "surrogatepass"))

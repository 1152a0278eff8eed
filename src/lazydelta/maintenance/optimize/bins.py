"""Which files become one: bins of neighbours that together have about the target size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lazydelta.write.logged_files import LoggedFile

__all__ = ["Bin", "pack"]

# A file alone is rewritten for its deleted rows once they are so many; Delta-Spark has the same bound.
_DELETED_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Bin:
    """Files of one partition that are rewritten together."""

    files: tuple[LoggedFile, ...]

    @property
    def partition(self) -> tuple[str | None, ...]:
        """Return the values of the partition columns."""
        return self.files[0].partition

    @property
    def place(self) -> tuple[int, str]:
        """Return what bins of one partition are in order by."""
        return self.files[0].modification_time, self.files[0].path

    @property
    def size(self) -> int:
        """Return the bytes that are read."""
        return sum(each.size for each in self.files)


def pack(files: Sequence[LoggedFile], target: int, *, below: int, least: int = 2) -> Iterator[Bin]:
    """Yield bins of files of one partition, which are given in their order and stay in it.

    Only files smaller than ``below`` are packed, ``least`` of them at least; others only lose their deleted rows. What
    was packed once is not packed again, because neighbours that fit into one bin already are in one.
    """
    bin_: list[LoggedFile] = []
    held = 0
    for each in files:
        purges = each.deleted_share > _DELETED_SHARE
        if each.size >= below:
            if purges:
                yield Bin((each,))
            continue
        if bin_ and held + each.live_size > target:
            yield from _closed(bin_, least)
            bin_, held = [], 0
        bin_.append(each)
        held += each.live_size
    yield from _closed(bin_, least)


def _closed(files: list[LoggedFile], least: int) -> Iterator[Bin]:
    if len(files) >= least:
        yield Bin(tuple(files))
        return
    yield from (Bin((each,)) for each in files if each.deleted_share > _DELETED_SHARE)

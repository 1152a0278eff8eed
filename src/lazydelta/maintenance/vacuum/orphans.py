"""``Orphans``: the files that nobody refers to, found while the store is listed; on disk where there are many."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import islice

import msgspec

__all__ = ["Orphan", "Orphans"]

_IN_MEMORY = 8 << 20
_BATCH = 1000


class Orphan(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that may go: its path below the root, and its size."""

    path: str
    size: int


class Orphans:
    """A list of files that takes little memory, and counts them."""

    def __init__(self) -> None:
        self._spool = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="lazydelta-vacuum-")  # noqa: SIM115
        self.count = 0
        self.size = 0

    def add(self, path: str, size: int) -> None:
        """Append a file."""
        self._spool.write(msgspec.json.encode((path, size)) + b"\n")
        self.count += 1
        self.size += size

    def batches(self) -> Iterator[list[Orphan]]:
        """Yield the files, a thousand at a time."""
        self._spool.seek(0)
        decoder = msgspec.json.Decoder(Orphan)
        while lines := list(islice(self._spool, _BATCH)):
            yield [decoder.decode(line) for line in lines]

    def close(self) -> None:
        """Give back memory and the temporary file."""
        self._spool.close()

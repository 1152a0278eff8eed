"""``EmittedKeys``: which files of the base have left, for a checkpoint that is replaced while it is read.

The new checkpoint has the same files in another order, so that only their keys tell which are still to come. Nobody
needs them but then. So they are written down one after the other, hashed, to a file once they are many, and sorted when
they are asked for: sixteen bytes a file on disk, and no memory that grows with the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lazydelta.arrays import boolean_array
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.keys import Hashes, hash_keys
from lazydelta.log.remove_set import RemoveSet

if TYPE_CHECKING:
    import tempfile

__all__ = ["EmittedKeys"]

_IN_MEMORY = 1 << 20
_AT_ONCE = 1 << 16
_KEY_BYTES = 16


class EmittedKeys:
    """Keys that are written down in order, and looked up after ``look_up``."""

    def __init__(self, key_memory: int = 64 << 20) -> None:
        self._key_memory = key_memory
        self._file: tempfile.SpooledTemporaryFile[bytes] | None = None
        self._known: RemoveSet | None = None
        self.unrecorded = 0

    def rest(self, batch: FileBatch, *, record: bool) -> FileBatch:
        """Return the files of a batch that have not left, and write them down; ``record`` False only counts them."""
        if not len(batch) or (self._known is None and not record):
            self.unrecorded += len(batch)
            return batch
        hashes = hash_keys(batch.path, batch.deletion_vector)
        if self._known is not None and (gone := self._known.contains(hashes)).any():
            batch, hashes = batch.filter(boolean_array(~gone)), hashes[:, ~gone]
        if record:
            self._write(hashes)
        else:
            self.unrecorded += len(batch)
        return batch

    def look_up(self) -> None:
        """Begin to leave out what has left so far."""
        if self._known is None:
            self._known = RemoveSet(self._key_memory)
        if self._file is None:
            return
        self._file.seek(0)
        while data := self._file.read(_AT_ONCE * _KEY_BYTES):
            # Written as pairs, a key after the other; the set wants the halves apart.
            self._known.add_hashes(np.ascontiguousarray(np.frombuffer(data, np.uint64).reshape(-1, 2).T))
        self._file.close()
        self._file = None

    def close(self) -> None:
        """Give back memory and temporary files."""
        if self._file is not None:
            self._file.close()
        if self._known is not None:
            self._known.close()
        self._file = self._known = None

    def _write(self, hashes: Hashes) -> None:
        if self._file is None:
            import tempfile  # noqa: PLC0415 - few scans get here

            self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed with the scan
        self._file.write(np.ascontiguousarray(hashes.T).tobytes())

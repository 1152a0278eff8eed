"""``SpillFile``: rows spilled to an unnamed file on disk, which disappears with the process however it ends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator

import pyarrow as pa

__all__ = ["SpillFile"]

_BUFFER = 1 << 20


class SpillFile:
    """Stores rows with ``add`` and returns them piece by piece with ``pieces``.

    Each owner spills to one file, whichever rows are read together. A file per group would need its own buffer and
    schema, which with a thousand columns is larger than the rows.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = tempfile.TemporaryFile(prefix="lazydelta-spill-", buffering=_BUFFER)  # noqa: SIM115 - see close
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), schema, options=options)

    def add(self, rows: pa.RecordBatch) -> int:
        """Store rows, and return the position to read them from."""
        place = self._file.tell()
        self._writer.write_batch(rows)
        return place

    def pieces(self, places: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows at some positions. Nothing may be added after the first one is read."""
        source = pa.PythonFile(self._file, "r")
        for place in places:
            self._file.seek(place)
            message = pa.ipc.read_message(source)
            if message.type == "schema":  # written with the first rows
                message = pa.ipc.read_message(source)
            yield pa.ipc.read_record_batch(message, self._schema)

    def close(self) -> None:
        """Free the disk space."""
        self._file.close()

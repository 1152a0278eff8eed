"""``SpillFile``: rows that wait on disk, in a file without a name: it goes with the process, however that ends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator

import pyarrow as pa

__all__ = ["SpillFile"]

_BUFFER = 1 << 20


class SpillFile:
    """Takes pieces of rows with ``add``, gives them back one by one with ``pieces``.

    One file is for all that somebody spills, whatever is to be read together: a file for each would have a buffer and
    the schema of its own, which with a thousand columns is more than the rows that wait for it.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = tempfile.TemporaryFile(prefix="lazydelta-spill-", buffering=_BUFFER)  # noqa: SIM115 - see close
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), schema, options=options)

    def add(self, rows: pa.RecordBatch) -> int:
        """Take rows, and return the place where they are found again."""
        place = self._file.tell()
        self._writer.write_batch(rows)
        return place

    def pieces(self, places: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows at some places; nothing may be added from the first of them on."""
        source = pa.PythonFile(self._file, "r")
        for place in places:
            self._file.seek(place)
            message = pa.ipc.read_message(source)
            if message.type == "schema":  # which the first rows were written with
                message = pa.ipc.read_message(source)
            yield pa.ipc.read_record_batch(message, self._schema)

    def close(self) -> None:
        """Give the disk back."""
        self._file.close()

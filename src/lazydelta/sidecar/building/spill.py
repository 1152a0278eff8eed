"""``SpillFile``: rows that wait on disk, in a file without a name: it goes with the process, however that ends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pyarrow as pa

__all__ = ["SpillFile"]

_BUFFER = 1 << 20


class SpillFile:
    """Takes rows with ``add``, gives them back once, in the same order, with ``batches``."""

    def __init__(self, schema: pa.Schema) -> None:
        self._file = tempfile.TemporaryFile(prefix="lazydelta-spill-", buffering=_BUFFER)  # noqa: SIM115 - see close
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._file, "w"), schema, options=options)

    def add(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Take rows."""
        self._writer.write(rows)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows; the input ends here, and the file with the last of them."""
        self._writer.close()
        self._file.seek(0)
        yield from pa.ipc.open_stream(pa.PythonFile(self._file, "r"))
        self.close()

    def close(self) -> None:
        """Give the disk back."""
        self._file.close()

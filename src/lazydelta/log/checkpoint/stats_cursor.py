"""``StatsCursor``: the statistics of a checkpoint file, read in order for the batches that somebody asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Lock

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.errors import CorruptLogError
from lazydelta.log.checkpoint.checkpoint_columns import stats_of
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.later_stats import StatsColumns, with_later_stats
from lazydelta.log.names import LogFile

__all__ = ["StatsCursor"]


class StatsCursor:
    """Serves the batches of one checkpoint file.

    ``read`` opens the file anew and yields its rows with nothing but statistics. The cursor moves forward with the
    batches it is asked for: a consumer that asks for all of them costs one more pass over the statistics, and one that
    asks for none costs nothing.
    """

    def __init__(self, part: LogFile, read: Callable[[], Iterator[pa.StructArray]]) -> None:
        self._part = part
        self._open = read
        self._cursor: Iterator[pa.StructArray] | None = None
        self._held: list[tuple[int, pa.Array]] = []
        self._next_row = 0
        self._lock = Lock()

    def attach(self, files: FileBatch, first_row: int, adds: pa.StructArray) -> FileBatch:
        """Return the batch with a way to its statistics; ``adds`` are the rows of the file that it was made of."""
        live = pc.is_valid(adds) if adds.null_count else None
        count = len(adds)

        def read() -> StatsColumns:
            with self._lock:
                found = self._read(first_row, count)
            return stats_of(found if live is None else pc.filter(found, live))

        return with_later_stats(files, read)

    def _read(self, first_row: int, count: int) -> pa.Array:
        start = self._held[0][0] if self._held else self._next_row
        if self._cursor is None or first_row < start:
            self._cursor = self._open()
            self._held, self._next_row = [], 0
        while self._next_row < first_row + count:
            adds = next(self._cursor, None)
            if adds is None:
                message = f"{self._part.path} changed while it was read"
                raise CorruptLogError(message, path=self._part.path, version=self._part.version)
            self._held.append((self._next_row, adds))
            self._next_row += len(adds)
            self._held = [(row, adds) for row, adds in self._held if row + len(adds) > first_row]
        pieces = [
            adds.slice(max(0, first_row - row), min(row + len(adds), first_row + count) - max(row, first_row))
            for row, adds in self._held
            if row < first_row + count
        ]
        if any(piece.type != pieces[0].type for piece in pieces):
            return pa.nulls(count, pa.struct([]))  # some did not fit into memory: this batch has none
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)

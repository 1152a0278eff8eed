"""How the process that commits a batch tells the one that asked for it: Spark itself passes nothing back.

Both run on the driver's machine, so that a small file in its temporary folder does. A client of Spark Connect is on
another one, and is told nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from lazydelta.log.actions import Metadata
from lazydelta.write.job import WriteResult

__all__ = ["NOTE", "ResultNote", "taken_note"]

NOTE = "__lazydelta_result"


class _Noted(msgspec.Struct, frozen=True):
    version: int
    rows: int
    files: int
    bytes: int
    rejected: int
    already_committed: bool
    metadata: Metadata


class ResultNote:
    """A place for one result."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    @contextmanager
    def expected(cls) -> Iterator[ResultNote]:
        """Make a place for the length of a block."""
        with tempfile.TemporaryDirectory(prefix="lazydelta-result-") as folder:
            yield cls(Path(folder) / "result.json")

    @property
    def option(self) -> dict[str, str]:
        """What is added to the options of the writer."""
        return {NOTE: str(self._path)}

    def write(self, done: WriteResult) -> None:
        """Note a result; where its place is gone, nobody waits for it."""
        if self._path.parent.is_dir():
            noted = _Noted(
                done.version, done.rows, done.files, done.bytes, done.rejected, done.already_committed, done.metadata
            )
            self._path.write_bytes(msgspec.json.encode(noted))

    def read(self) -> WriteResult | None:
        """Return the result, None if nobody noted one here."""
        if not self._path.exists():
            return None
        found = msgspec.json.decode(self._path.read_bytes(), type=_Noted)
        return WriteResult(
            found.version,
            metadata=found.metadata,
            rows=found.rows,
            files=found.files,
            bytes=found.bytes,
            rejected=found.rejected,
            already_committed=found.already_committed,
        )


def taken_note(options: MutableMapping[str, str]) -> ResultNote | None:
    """Take the place of the result out of the options, None if nobody waits for one."""
    path = options.pop(NOTE, None)
    return None if path is None else ResultNote(Path(path))

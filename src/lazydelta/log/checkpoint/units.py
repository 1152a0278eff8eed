"""A checkpoint divided into units that tasks read in parallel: row groups of one of its files each."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from lazydelta.log.checkpoint.reader import CheckpointReader
from lazydelta.protocol.file_names import LogFile

__all__ = ["CheckpointResult", "Unit", "units_of"]


@dataclass(frozen=True, slots=True)
class Unit:
    """Some row groups of a checkpoint file, or all of it if ``groups`` is None."""

    part: LogFile
    groups: range | None = None


def units_of(reader: CheckpointReader, rows: int) -> list[Unit]:
    """Divide a checkpoint into units of about this many rows; a row group is never split."""
    found = []
    for part in reader.parts():
        counts = reader.row_counts(part)
        if counts is None:
            found.append(Unit(part))
            continue
        start = held = 0
        for number, count in enumerate(counts):
            held += count
            if held >= rows or number + 1 == len(counts):
                found.append(Unit(part, range(start, number + 1)))
                start, held = number + 1, 0
    return found


# ``CheckpointResult``: a checkpoint that was written or found, with the fields of the hint.


class CheckpointResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a checkpoint; ``action`` is written or already-there.

    ``size`` counts actions and ``num_of_add_files`` files; they are None for an existing checkpoint that would have to
    be read. ``parts`` is set for an existing multi-part checkpoint, and ``is_v1`` is false for other kinds.
    """

    action: str
    version: int
    path: str
    size_in_bytes: int
    size: int | None = None
    num_of_add_files: int | None = None
    parts: int | None = None
    is_v1: bool = True

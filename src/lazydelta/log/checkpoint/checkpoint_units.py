"""A checkpoint cut into units that tasks read side by side: some row groups of one of its files each."""

from __future__ import annotations

from dataclasses import dataclass

from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader
from lazydelta.log.names import LogFile

__all__ = ["Unit", "units_of"]


@dataclass(frozen=True, slots=True)
class Unit:
    """Some row groups of a file of the checkpoint; all of it where ``groups`` is None."""

    part: LogFile
    groups: range | None = None


def units_of(reader: CheckpointReader, rows: int) -> list[Unit]:
    """Cut a checkpoint into units of about so many rows; a row group is never cut."""
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

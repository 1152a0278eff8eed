"""How many rows of which files were read and rejected.

A few bad rows are put aside, and the others go on. A file of which nothing is left is another matter: it has the wrong
separator, no header, or is not meant at all, and to put all of it aside would hide that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lazydelta.sources.lines import BadRow, RejectRows
from lazydelta.write.max_rejected import MaxRejected

__all__ = ["FileTally", "Tally"]

_REASONS = 3


@dataclass(slots=True)
class FileTally:
    """What was read of one file, with the first reasons for which rows were rejected."""

    rows: int = 0
    rejected: int = 0
    reasons: list[str] = field(default_factory=list)

    def rejecting(self, reject: RejectRows) -> RejectRows:
        """Return what counts rows before it rejects them."""

        def counted(bad: list[BadRow]) -> None:
            self.rejected += len(bad)
            self._note(f"{each.source}: {each.reason}" for each in bad)
            reject(bad)

        return counted

    def add(self, other: FileTally) -> None:
        """Take what was read of another part of the same file."""
        self.rows += other.rows
        self.rejected += other.rejected
        self._note(other.reasons)

    def _note(self, reasons: Iterable[str]) -> None:
        for each in reasons:
            if len(self.reasons) == _REASONS:
                return
            self.reasons.append(each)


@dataclass(slots=True)
class Tally:
    """What was read of which files, by their places."""

    files: dict[str, FileTally] = field(default_factory=dict)

    def of(self, place: str) -> FileTally:
        """Return what is known of a file."""
        return self.files.setdefault(place, FileTally())

    def add(self, other: Tally) -> None:
        """Take what somebody else has read."""
        for place, each in other.files.items():
            self.of(place).add(each)

    @property
    def rejected(self) -> FileTally:
        """The sum of all files, with the first reasons of the worst one."""
        total = FileTally()
        for each in sorted(self.files.values(), key=lambda each: -each.rejected):
            total.add(each)
        return total

    def refuse(self, limit: MaxRejected) -> None:
        """Refuse files of which nothing is left, and more rejected rows than there may be."""
        for place, each in sorted(self.files.items()):
            limit.refuse_file(place, each.rows, each.rejected, each.reasons)
        total = self.rejected
        limit.refuse_rows(total.rows, total.rejected, f"{len(self.files)} files", total.reasons)

"""How many rows of which files were read and rejected, and how many may be.

A few bad rows are put aside, and the others go on. A file of which nothing is left is another matter: it has the wrong
separator, no header, or is not meant at all, and to put all of it aside would hide that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lazydelta.errors import OptionError, WriteError
from lazydelta.sources.lines import BadRow, RejectRows

__all__ = ["FileTally", "MaxRejected", "Tally"]

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


@dataclass(frozen=True, slots=True)
class MaxRejected:
    """How many rows may be rejected: a number of them, a share of all, or as many as there are.

    A file of which all rows are rejected is an error whatever the number is, unless the share is the whole.
    """

    count: int | None = None
    share: float | None = None

    @classmethod
    def of(cls, given: float | str | MaxRejected | None) -> MaxRejected:
        """Read a number of rows (an integer) or a share (0.01, "1%")."""
        if given is None or isinstance(given, MaxRejected):
            return given or cls()
        text = str(given).strip()
        if text.isdecimal() and not isinstance(given, bool):
            return cls(count=int(text))
        number, percent = text.removesuffix("%"), text.endswith("%")
        try:
            share = float(number) / (100 if percent else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            hint = "give a number of rows, such as 100, or a share of them, such as 0.01 or 1%"
            raise OptionError(f"max_rejected={given!r} makes no sense", hint=hint)
        return cls(share=share)

    def __str__(self) -> str:
        """Say it as it may be given."""
        return str(self.count) if self.share is None else f"{self.share:.8%}".rstrip("0%").rstrip(".") + "%"

    def refuse(self, tally: Tally) -> None:
        """Refuse files of which nothing is left, and more rejected rows than there may be."""
        for place, each in sorted(tally.files.items()):
            if each.rejected and not each.rows and self.share != 1:
                message = f"{each.rejected} of {each.rejected} rows of {place} were rejected, and none is left"
                hint = (
                    "nothing was committed; see that the file is meant, in its format, with commas and a header if it "
                    "is CSV (header=false reads one without), or take it away; max_rejected=100% lets it pass"
                )
                raise WriteError(f"{message}: {'; '.join(each.reasons)}", path=place, hint=hint)
        total = tally.rejected
        self.refuse_rows(total.rows, total.rejected, f"{len(tally.files)} files", total.reasons)

    def refuse_rows(self, rows: int, rejected: int, origin: str, reasons: Iterable[str] = ()) -> None:
        """Refuse more rejected rows of all those of some origin than there may be."""
        most = rejected if self.count is None else self.count
        if self.share is not None:
            most = int(self.share * (rows + rejected) + 1e-9)
        if rejected > most:
            message = f"{rejected} of {rows + rejected} rows of {origin} were rejected, and max_rejected is {self}"
            hint = "nothing was committed; correct them, or let more of them be rejected"
            raise WriteError(": ".join([message, *filter(None, ["; ".join(reasons)])]), hint=hint)

"""``MaxRejected``: how many rows may be rejected before a write is given up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lazydelta.errors import OptionError, WriteError

__all__ = ["MaxRejected"]


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

    def refuse_file(self, place: str, rows: int, rejected: int, reasons: Iterable[str]) -> None:
        """Refuse a file of which nothing is left."""
        if rejected and not rows and self.share != 1:
            message = f"{rejected} of {rejected} rows of {place} were rejected, and none is left"
            hint = (
                "nothing was committed; see that the file is meant, in its format, with commas and a header if it "
                "is CSV (header=false reads one without), or take it away; max_rejected=100% lets it pass"
            )
            raise WriteError(f"{message}: {'; '.join(reasons)}", path=place, hint=hint)

    def refuse_rows(self, rows: int, rejected: int, origin: str, reasons: Iterable[str] = ()) -> None:
        """Refuse more rejected rows of all those of some origin than there may be."""
        most = rejected if self.count is None else self.count
        if self.share is not None:
            most = int(self.share * (rows + rejected) + 1e-9)
        if rejected > most:
            message = f"{rejected} of {rows + rejected} rows of {origin} were rejected, and max_rejected is {self}"
            hint = "nothing was committed; correct them, or let more of them be rejected"
            raise WriteError(": ".join([message, *filter(None, ["; ".join(reasons)])]), hint=hint)

"""Rows from files of text: fast for blocks of good records, exact about bad ones.

A block goes to Arrow's reader whole. Only if that refuses it, or does not find a row a record, are the records looked
at one by one: those that are known to be bad are put aside, and if the reader still refuses the rest, it is halved
until the record to blame is alone. So the reader alone decides what is a row, and each record is read once or rejected
once, whatever stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.sources.blocks import Block

__all__ = ["BadRow", "LineFormat", "RejectRows", "Required", "as_text", "missing", "rows_of_lines"]


class BadRow(NamedTuple):
    """What is not a row of the table: its text, why, and where it stands."""

    record: str
    reason: str
    source: str


RejectRows: TypeAlias = Callable[[list[BadRow]], None]
Required: TypeAlias = dict[str, str]
"""Columns that must have a value, each with what is said of a row that has none."""


class LineFormat(Protocol):
    """How records, most of which are lines, become rows."""

    def parse(self, lines: bytes) -> pa.RecordBatch:
        """Return the rows of records; an `ArrowException` or `ValueError` if any of them is bad."""

    def fault(self, line: bytes) -> str | None:
        """Return what is wrong with a record, None if that is not known without Arrow."""

    def records(self, data: bytes) -> Iterable[tuple[int, bytes]]:
        """Return the records that stand for something, each with the number of lines before it."""


def rows_of_lines(
    found: Iterable[Block], lines: LineFormat, place: str, reject: RejectRows, required: Required
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file's blocks; what is no row goes to ``reject``."""
    for block in found:
        if block.fault is not None:
            # Line by line, so that their number tells how much of the file it is.
            texts = enumerate(block.data.split(b"\n"), block.first)
            bad = [(number, as_text(line.rstrip(b"\r"))) for number, line in texts]
            reject([BadRow(text, block.fault, f"{place}:{number}") for number, text in bad if text])
            continue
        yield from _Block(block, lines, place, reject, required).rows()


class _Block:
    def __init__(self, block: Block, lines: LineFormat, place: str, reject: RejectRows, required: Required) -> None:
        self._block = block
        self._lines = lines
        self._place = place
        self._reject = reject
        self._required = required

    def rows(self) -> Iterator[pa.RecordBatch]:
        data = self._block.data
        try:
            batch = self._lines.parse(data)
        except (pa.ArrowException, ValueError):
            batch = None
        if batch is not None and batch.num_rows == data.count(b"\n") + (not data.endswith(b"\n")):
            numbered: list[tuple[int, bytes]] | None = None
        else:
            numbered = self._numbered()
            if batch is None or batch.num_rows != len(numbered):
                yield from self._salvaged(numbered)
                return
        yield from self._complete(batch, numbered)

    def _numbered(self) -> list[tuple[int, bytes]]:
        first = self._block.first
        return [(first + before, record) for before, record in self._lines.records(self._block.data)]

    def _salvaged(self, numbered: list[tuple[int, bytes]]) -> Iterator[pa.RecordBatch]:
        bad: list[BadRow] = []
        good = []
        for number, line in numbered:
            fault = self._lines.fault(line)
            if fault is None:
                good.append((number, line))
            else:
                bad.append(self._bad(number, line, fault))
        self._reject(bad)
        # The halves are taken from the front, so that the rows keep their order.
        left = [good] if good else []
        while left:
            part = left.pop()
            try:
                batch = self._lines.parse(b"\n".join(line for _, line in part))
                if batch.num_rows != len(part):
                    raise pa.ArrowInvalid(f"the line makes {batch.num_rows} rows")
            except (pa.ArrowException, ValueError) as error:
                if len(part) == 1:
                    self._reject([self._bad(*part[0], _brief(error))])
                else:
                    middle = len(part) // 2
                    left += [part[middle:], part[:middle]]
                continue
            yield from self._complete(batch, part)

    def _complete(self, batch: pa.RecordBatch, numbered: list[tuple[int, bytes]] | None) -> Iterator[pa.RecordBatch]:
        """Take out the rows that lack a value that they must have."""
        faults = missing(batch, self._required)
        if faults:
            numbered = self._numbered() if numbered is None else numbered
            self._reject([self._bad(*numbered[row], reason) for row, reason in sorted(faults.items())])
            batch = batch.filter(pa.array([row not in faults for row in range(batch.num_rows)]))
        if batch.num_rows:
            yield batch

    def _bad(self, number: int, line: bytes, reason: str) -> BadRow:
        return BadRow(as_text(line.rstrip(b"\r\n")), reason, f"{self._place}:{number}")


def missing(batch: pa.RecordBatch, required: Required) -> dict[int, str]:
    """Return the rows that lack a value that they must have, with the reason."""
    faults: dict[int, str] = {}
    for name, reason in required.items():
        index = batch.schema.get_field_index(name)
        nulls = batch.num_rows if index < 0 else batch.column(index).null_count
        if not nulls:
            continue
        rows = range(batch.num_rows) if index < 0 else pc.indices_nonzero(pc.is_null(batch.column(index))).to_pylist()
        for row in rows:
            faults.setdefault(row, reason)
    return faults


def as_text(line: bytes) -> str:
    """Return a record as text, whatever bytes it has."""
    return line.decode("utf-8", "backslashreplace")


def _brief(error: Exception) -> str:
    """Return what Arrow says, without its count of rows, which is that of our halves."""
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return said.removesuffix(" in row 0").removeprefix("JSON parse error: ")[:500]

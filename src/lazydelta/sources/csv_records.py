"""Where the records of CSV end, and what their cells are.

A cell that begins with a quote goes on to the quote that closes it, over commas and ends of lines; two quotes in it
stand for one. A quote anywhere else is a character like others. A record ends with the line (LF, CR LF or CR alone) in
which no quote is open. These are the rules of Python's ``csv`` and of Arrow, with one difference: what follows a
closing quote is neither dropped nor joined to the cell, but makes the record a bad one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum, auto

import numpy as np

__all__ = ["CsvRecord", "CsvSplitter", "cells", "first_record", "is_sound", "records"]

_QUOTE, _LF, _CR = b'"\n\r'
_SEPARATORS = b",\n\r"
_CELL_END = re.compile(rb"[,\r\n]")
_LINE_END = re.compile(rb"\r\n|\r|\n")


class _State(Enum):
    CELL = auto()
    QUOTED = auto()
    BEHIND_QUOTE = auto()
    PLAIN = auto()
    BEHIND_CR = auto()


class CsvRecord:
    """The search for the end of one record, from piece to piece; ``is_sound`` once it was found."""

    def __init__(self) -> None:
        self._state = _State.CELL
        self.is_sound = True

    @property
    def is_closed(self) -> bool:
        """Tell whether no quote is open."""
        return self._state is not _State.QUOTED

    def end(self, data: bytes, position: int = 0) -> int:
        """Return the index behind the record in its next piece, -1 if it goes on."""
        while position < len(data):
            byte = data[position]
            if self._state is _State.QUOTED:
                position = data.find(b'"', position) + 1
                if not position:
                    return -1
                self._state = _State.BEHIND_QUOTE
            elif self._state is _State.BEHIND_CR:
                return position + (byte == _LF)
            elif byte == _QUOTE and self._state is not _State.PLAIN:  # the first of a cell, or the second of a pair
                self._state = _State.QUOTED
                position += 1
            else:
                self.is_sound &= self._state is not _State.BEHIND_QUOTE or byte in _SEPARATORS
                found = _CELL_END.search(data, position)
                if found is None:
                    self._state = _State.PLAIN
                    return -1
                position = found.end()
                mark = data[position - 1]
                if mark == _LF:
                    return position
                self._state = _State.BEHIND_CR if mark == _CR else _State.CELL
        return -1


class CsvSplitter:
    """Tells where records end."""

    unit = "row"
    unclosed = "a quote that is opened in the row that begins in line {line} is never closed"

    def cut(self, data: bytes) -> int:
        """Return the index behind the last record that ends for certain."""
        if b'"' not in data and not _lone_returns(data):
            return data.rfind(b"\n") + 1
        found, _ = _ends(data)
        return int(found[-1]) if len(found) else 0

    def lines(self, data: bytes) -> int:
        """Return how many lines end, in cells or between them."""
        return data.count(b"\n") + _lone_returns(data)

    def begin(self) -> CsvRecord:
        """Begin to look for the end of a record."""
        return CsvRecord()


def is_sound(data: bytes) -> bool:
    """Tell whether no cell of some records goes on behind its closing quote."""
    return b'"' not in data or _ends(data)[1]


def records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield records without the ends of their lines, each with the number of lines before it; no empty ones."""
    found, _ = _ends(data)
    line = start = 0
    simple = b'"' not in data and b"\r" not in data.replace(b"\r\n", b"")
    for stop in [*map(int, found), len(data)]:
        record = data[start:stop]
        text = record.rstrip(b"\r\n")
        if text:
            yield line, text
        line += 1 if simple else CsvSplitter().lines(record)
        start = stop


def first_record(data: bytes) -> tuple[bytes, int, int] | None:
    """Return the first record that is not empty, how many lines end before it, and the index behind it."""
    start = 0
    while start < len(data):
        end = CsvRecord().end(data, start)
        end = len(data) if end < 0 else end
        text = data[start:end].rstrip(b"\r\n")
        if text:
            return text, CsvSplitter().lines(data[:start]), end
        start = end
    return None


def _ends(data: bytes) -> tuple[Sequence[int], bool]:
    """Return the indices behind the records that end for certain, and whether all are sound."""
    if not _lone_returns(data):
        array = np.frombuffer(data, np.uint8)
        lines = np.flatnonzero(array == _LF)
        quotes = _that_matter(array, np.flatnonzero(array == _QUOTE), lines)
        if quotes is not None:
            return lines[np.searchsorted(quotes, lines) % 2 == 0] + 1, True
    return _ends_one_by_one(data)


def _that_matter(array: np.ndarray, quotes: np.ndarray, lines: np.ndarray) -> np.ndarray | None:
    """Return the quotes that are more than characters, None if that is not to be told for all of them at once."""
    if not len(quotes) or _in_their_places(array, quotes):
        return quotes
    begins = np.isin(array[quotes - 1], (ord(","), _LF)) | (quotes == 0)
    line = np.searchsorted(lines, quotes)
    # A line that begins outside of a cell, and in which no cell begins with a quote, has none that matter.
    opened = np.zeros(len(lines) + 1, bool)
    opened[line[begins]] = True
    chosen = opened[line]
    rest, plain = quotes[chosen], quotes[~chosen]
    if (np.searchsorted(rest, plain) % 2).any():
        return None
    return rest if not len(rest) or _in_their_places(array, rest) else None


def _in_their_places(array: np.ndarray, quotes: np.ndarray) -> bool:
    """Tell whether each quote opens or closes a cell, or is one of a pair in such a cell.

    Then, and only then, is a place in a cell if the number of quotes before it is odd.
    """
    opening, closing = quotes[::2], quotes[1::2]
    begins = np.isin(array[opening - 1], (ord(","), _LF)) | (opening == 0)
    begins[1:] |= opening[1:] == closing[: len(opening) - 1] + 1
    behind = array[np.minimum(closing + 1, len(array) - 1)]
    ends = np.isin(behind, (ord(","), _LF, _CR)) | (closing == len(array) - 1)
    paired = opening[1:]
    ends[: len(paired)] |= closing[: len(paired)] + 1 == paired
    return bool(begins.all() and ends.all())


def _ends_one_by_one(data: bytes) -> tuple[Sequence[int], bool]:
    found: list[int] = []
    sound = True
    start = 0
    while start < len(data):
        line = _LINE_END.search(data, start)
        if line is None or data.find(b'"', start, line.start()) >= 0:
            record = CsvRecord()
            end = record.end(data, start)
            sound &= record.is_sound
        else:
            end = line.end()
        # Of a return at the very end nobody knows yet whether it is one of two.
        if end < 0 or (end == len(data) and data[end - 1] == _CR):
            break
        found.append(end)
        start = end
    return found, sound


def _lone_returns(data: bytes) -> int:
    returns = data.count(b"\r")
    return returns - data.count(b"\r\n") if returns else 0


def cells(record: bytes) -> list[str]:
    """Return the cells of one record; a `ValueError` if it is a bad one."""
    text = record.rstrip(b"\r\n").decode()
    found: list[str] = []
    position = 0
    while True:
        if text.startswith('"', position):
            end = _closing(text, position + 1)
            cell = text[position + 1 : end - 1].replace('""', '"')
            if end < len(text) and text[end] != ",":
                raise ValueError(f"cell {len(found) + 1} goes on behind its closing quote: {text[position:][:80]!r}")
        else:
            end = text.find(",", position)
            end = len(text) if end < 0 else end
            cell = text[position:end]
        found.append(cell)
        if end == len(text):
            return found
        position = end + 1


def _closing(text: str, position: int) -> int:
    """Return the index behind the quote that closes a cell."""
    while True:
        position = text.find('"', position) + 1
        if not position:
            raise ValueError("a quote is not closed")
        if not text.startswith('"', position):
            return position
        position += 1

"""CSV reader: the columns of the cells come from the header, or from the caller if there is none.

An empty cell is a null. A quoted empty cell is an empty string.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import chain

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from lazydelta.ingest.json import DATE, TIMESTAMP, Rows, read_type
from lazydelta.ingest.lines import Block, LineFormat

__all__ = [
    "CsvSplitter",
    "NoLines",
    "after_header",
    "cells",
    "csv_lines",
    "header_names",
    "lines_of_columns",
    "looks_like_a_row",
    "no_header",
    "records",
]


# Record boundaries and cells of CSV.
#
# A cell that begins with a quote extends to the closing quote, across commas and line ends; two quotes inside stand for
# one. Any other quote is a plain character. A record ends at a line end (LF, CR LF or CR) outside quotes. These are the
# rules of Python's ``csv`` and of Arrow, except that text after a closing quote makes the record invalid.


_QUOTE, _LF, _CR = b'"\n\r'
_SEPARATORS = b",\n\r"
_CELL_END = re.compile(rb"[,\r\n]")
_LINE_END = re.compile(rb"\r\n|\r|\n")


class _ParserState(Enum):
    CELL = auto()
    QUOTED = auto()
    BEHIND_QUOTE = auto()
    PLAIN = auto()
    BEHIND_CR = auto()


class CsvRecord:
    """Incremental search for the end of one record. ``is_sound`` is valid once the end was found."""

    def __init__(self) -> None:
        self._state = _ParserState.CELL
        self.is_sound = True

    @property
    def is_closed(self) -> bool:
        """Return whether no quote is open."""
        return self._state is not _ParserState.QUOTED

    def end(self, data: bytes, position: int = 0) -> int:
        """Return the index after the record in its next piece, or -1 if it continues."""
        while position < len(data):
            byte = data[position]
            if self._state is _ParserState.QUOTED:
                position = data.find(b'"', position) + 1
                if not position:
                    return -1
                self._state = _ParserState.BEHIND_QUOTE
            elif self._state is _ParserState.BEHIND_CR:
                return position + (byte == _LF)
            elif (
                byte == _QUOTE and self._state is not _ParserState.PLAIN
            ):  # the first quote of a cell, or the second of a pair
                self._state = _ParserState.QUOTED
                position += 1
            else:
                self.is_sound &= self._state is not _ParserState.BEHIND_QUOTE or byte in _SEPARATORS
                found = _CELL_END.search(data, position)
                if found is None:
                    self._state = _ParserState.PLAIN
                    return -1
                position = found.end()
                mark = data[position - 1]
                if mark == _LF:
                    return position
                self._state = _ParserState.BEHIND_CR if mark == _CR else _ParserState.CELL
        return -1


class CsvSplitter:
    """Finds the ends of records."""

    unit = "row"
    unclosed = "a quote that is opened in the row that begins in line {line} is never closed"

    def cut(self, data: bytes) -> int:
        """Return the index after the last record that is certain to end."""
        if b'"' not in data and not _lone_returns(data):
            return data.rfind(b"\n") + 1
        found, _ = _ends(data)
        return int(found[-1]) if len(found) else 0

    def lines(self, data: bytes) -> int:
        """Return the number of line ends, inside or outside cells."""
        return data.count(b"\n") + _lone_returns(data)

    def begin(self) -> CsvRecord:
        """Start a search for the end of a record."""
        return CsvRecord()


def is_sound(data: bytes) -> bool:
    """Return whether no cell continues after its closing quote."""
    return b'"' not in data or _ends(data)[1]


def records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the non-empty records without line ends, each with the number of lines before it."""
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
    """Return the first non-empty record, the number of lines before it, and the index after it."""
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
    """Return the indices after the records that are certain to end, and whether all records are sound."""
    if not _lone_returns(data):
        array = np.frombuffer(data, np.uint8)
        lines = np.flatnonzero(array == _LF)
        quotes = _that_matter(array, np.flatnonzero(array == _QUOTE), lines)
        if quotes is not None:
            return lines[np.searchsorted(quotes, lines) % 2 == 0] + 1, True
    return _ends_one_by_one(data)


def _that_matter(array: np.ndarray, quotes: np.ndarray, lines: np.ndarray) -> np.ndarray | None:
    """Return the quotes that are not plain characters, or None if vectorized code cannot determine them."""
    if not len(quotes) or _in_their_places(array, quotes):
        return quotes
    begins = np.isin(array[quotes - 1], (ord(","), _LF)) | (quotes == 0)
    line = np.searchsorted(lines, quotes)
    # In a line that starts outside a cell and has no cell starting with a quote, all quotes are plain characters.
    opened = np.zeros(len(lines) + 1, bool)
    opened[line[begins]] = True
    chosen = opened[line]
    rest, plain = quotes[chosen], quotes[~chosen]
    if (np.searchsorted(rest, plain) % 2).any():
        return None
    return rest if not len(rest) or _in_their_places(array, rest) else None


def _in_their_places(array: np.ndarray, quotes: np.ndarray) -> bool:
    """Return whether each quote opens or closes a cell, or is one of a pair in such a cell.

    If and only if this holds, a position is inside a cell when the number of quotes before it is odd.
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
        # A CR at the very end may be the first half of CR LF.
        if end < 0 or (end == len(data) and data[end - 1] == _CR):
            break
        found.append(end)
        start = end
    return found, sound


def _lone_returns(data: bytes) -> int:
    returns = data.count(b"\r")
    return returns - data.count(b"\r\n") if returns else 0


def cells(record: bytes) -> list[str]:
    """Return the cells of one record. Raise `ValueError` if the record is invalid."""
    text = record.rstrip(b"\r\n").decode()
    found: list[str] = []
    position = 0
    while True:
        if text.startswith('"', position):
            end = _closing(text, position + 1)
            cell = text[position + 1 : end - 1].replace('""', '"')
            if end < len(text) and text[end] != ",":
                raise ValueError(f"cell {len(found) + 1} continues after its closing quote: {text[position:][:80]!r}")
        else:
            end = text.find(",", position)
            end = len(text) if end < 0 else end
            cell = text[position:end]
        found.append(cell)
        if end == len(text):
            return found
        position = end + 1


def _closing(text: str, position: int) -> int:
    """Return the index after the quote that closes a cell."""
    while True:
        position = text.find('"', position) + 1
        if not position:
            raise ValueError("a quote is not closed")
        if not text.startswith('"', position):
            return position
        position += 1


_TRUE, _FALSE = ["true", "True", "TRUE", "1"], ["false", "False", "FALSE", "0"]
_LIKE_INTEGER = re.compile(r"\s*-?(\d+|0[xX][0-9a-fA-F]+)\s*")
_LIKE_NUMBER = re.compile(r".*(\d|nan|inf).*", re.IGNORECASE | re.DOTALL)
_LIKE_TIMESTAMP, _LIKE_DATE = re.compile(TIMESTAMP), re.compile(DATE)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_YEAR = re.compile(r"\d{4}")
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_BOM = b"\xef\xbb\xbf"
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Header:
    """The first non-empty record of a file, and its line number."""

    record: bytes
    line: int


def after_header(found: Iterator[Block]) -> tuple[Header | None, Iterator[Block]]:
    """Return the header, or None if there is none, and the blocks of the records after it."""
    for block in found:
        if block.fault is not None:
            return None, chain([block], found)
        first = first_record(block.data)
        if first is None:
            continue
        record, before, end = first
        rest = block.data[end:]
        line = block.first + CsvSplitter().lines(block.data[:end])
        behind = [replace(block, data=rest, first=line)] if rest else []
        return Header(record, block.first + before), chain(behind, found)
    return None, found


def header_names(header: bytes, known: Sequence[str] = ()) -> list[str]:
    """Return the names in a header, as ``known`` spells them. Raise `ValueError` if it cannot be read.

    Whitespace around a name is ignored, and so is case unless that is ambiguous.
    """
    for mark, encoding in _OTHER_ENCODINGS.items():
        if header.startswith(mark):
            raise ValueError(f"the file is {encoding}, and only UTF-8 is supported")
    by_lower: dict[str, list[str]] = {}
    for each in known:
        by_lower.setdefault(each.lower(), []).append(each)
    names = []
    for cell in cells(header):
        name = cell if cell in known else cell.strip()
        alike = by_lower.get(name.lower(), [])
        names.append(alike[0] if name not in known and len(alike) == 1 else name)
    return names


def csv_lines(header: bytes, schema: pa.Schema) -> LineFormat:
    """Return the reader for the records of a file with this header."""
    try:
        names = header_names(header, schema.names)
    except ValueError as error:
        return NoLines(f"the header of the file cannot be read: {error}")
    return lines_of_columns(names, schema)


def lines_of_columns(names: Sequence[str], schema: pa.Schema, *, origin: str = "the header of the file") -> LineFormat:
    """Return the reader for records with these columns. ``origin`` names the source of the columns in errors."""
    unknown = [name for name in names if name not in schema.names]
    if len(unknown) == len(names):
        return NoLines(no_header(names, schema))
    if unknown:
        return NoLines(f"{origin} names the column {unknown[0]!r}, which is not in the schema")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        return NoLines(f"{origin} names the column {twice[0]!r} twice")
    nested = [name for name in names if pa.types.is_nested(schema.field(name).type)]
    if nested:
        return NoLines(f"column {nested[0]!r} is {schema.field(nested[0]).type}, which CSV cannot hold")
    return CsvLines(schema, list(names))


def no_header(names: Sequence[str], schema: pa.Schema) -> str:
    """Return an error message for a header that names no column of the schema."""
    other = next((word for mark, word in _OTHER_SEPARATORS.items() if mark in names[0]), None)
    if len(names) == 1 and other is not None:
        return f"the header of the file has {other} between its cells, and only commas are understood"
    return (
        f"the first line is no header: none of its cells ({_listed(names)}) is the name of a column "
        f"({_listed(schema.names)})"
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, …"


def looks_like_a_row(names: Sequence[str]) -> bool:
    """Return whether a header contains a timestamp or a number. Four digits alone may be a year used as a name."""
    values = [name for name in names if _LIKE_TIMESTAMP.match(name) or _NUMBER.fullmatch(name)]
    return any(_YEAR.fullmatch(each) is None for each in values) or len(values) == len([name for name in names if name])


class CsvLines:
    """Reads records. ``names`` are the columns of their cells."""

    def __init__(self, schema: pa.Schema, names: list[str]) -> None:
        self._schema = schema
        self._names = names
        self._rows = Rows(schema)
        self._convert = arrow_csv.ConvertOptions(
            column_types={name: read_type(schema.field(name).type) for name in names},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            true_values=_TRUE,
            false_values=_FALSE,
        )
        self._parse = arrow_csv.ParseOptions(newlines_in_values=True)

    def parse(self, lines: bytes) -> pa.RecordBatch:
        """Parse records to rows."""
        if not lines.strip(b"\r\n"):
            return self._rows.none()
        if not is_sound(lines):
            raise ValueError("a cell continues after its closing quote")  # Arrow would append the text to the cell
        if lines.startswith(_BOM):
            lines = b"\n" + lines  # inside a file a BOM is a plain character, but Arrow would drop it
        if not lines.endswith(b"\n"):
            lines += b"\n"  # otherwise Arrow treats an empty last cell as quoted if the previous cell was quoted
        options = arrow_csv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(lines) + 1)
        return self._rows(arrow_csv.read_csv(pa.BufferReader(lines), options, self._parse, self._convert))

    def fault(self, line: bytes) -> str | None:
        """Return what is wrong with a record, or None if that is not apparent."""
        try:
            found = cells(line)
        except ValueError as error:  # also UnicodeDecodeError
            return f"the row cannot be read: {error}"
        if len(found) != len(self._names):
            return f"the row has {len(found)} cells, and there are {len(self._names)} columns"
        for name, text in zip(self._names, found, strict=True):
            if text and not _may_be(text, self._schema.field(name).type):
                return f"column {name!r} is {self._schema.field(name).type}, and {text[:80]!r} is not"
        return None

    def records(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the non-empty records."""
        return records(data)


class NoLines:
    """Reader for a file with an invalid header: all records are rejected."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def parse(self, lines: bytes) -> pa.RecordBatch:  # noqa: ARG002 - all are refused
        """Raise `ValueError` for any records."""
        raise ValueError(self.reason)

    def fault(self, line: bytes) -> str | None:  # noqa: ARG002
        """Return what is wrong with the header."""
        return self.reason

    def records(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the non-empty records."""
        return records(data)


def _may_be(text: str, kind: pa.DataType) -> bool:
    """Return whether a string may be a value of the type. The check is never stricter than Arrow."""
    types = pa.types
    if types.is_integer(kind):
        return _LIKE_INTEGER.fullmatch(text) is not None
    if types.is_floating(kind):
        return _LIKE_NUMBER.fullmatch(text) is not None
    if types.is_boolean(kind):
        return text.strip() in {*_TRUE, *_FALSE}
    if types.is_timestamp(kind):
        return _LIKE_TIMESTAMP.match(text) is not None
    if types.is_date(kind):
        return _LIKE_DATE.match(text) is not None
    return True

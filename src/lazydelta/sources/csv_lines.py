"""CSV: the cells of a record are those of the columns that the header names, or whoever reads a file without one.

An empty cell is a null; quotes around nothing make an empty text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from pyarrow import csv as arrow_csv

from lazydelta.sources.blocks import Block
from lazydelta.sources.convert import DATE, MOMENT, Rows, read_type
from lazydelta.sources.csv_records import CsvSplitter, cells, first_record, is_sound, records
from lazydelta.sources.lines import LineFormat

__all__ = [
    "CsvLines",
    "Header",
    "NoLines",
    "after_header",
    "csv_lines",
    "header_names",
    "lines_of_columns",
    "looks_like_a_row",
    "no_header",
]

_TRUE, _FALSE = ["true", "True", "TRUE", "1"], ["false", "False", "FALSE", "0"]
_LIKE_INTEGER = re.compile(r"\s*-?(\d+|0[xX][0-9a-fA-F]+)\s*")
_LIKE_NUMBER = re.compile(r".*(\d|nan|inf).*", re.IGNORECASE | re.DOTALL)
_LIKE_MOMENT, _LIKE_DATE = re.compile(MOMENT), re.compile(DATE)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_YEAR = re.compile(r"\d{4}")
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_OTHER_ENCODINGS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_BOM = b"\xef\xbb\xbf"
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Header:
    """The first record of a file that is not empty, and in which line it stands."""

    record: bytes
    line: int


def after_header(found: Iterator[Block]) -> tuple[Header | None, Iterator[Block]]:
    """Return the header, None if there is none, and the blocks of the records behind it."""
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
    """Return the names in a header, as ``known`` spells them; a `ValueError` if it cannot be read.

    Space around a name does not count, nor does the case of its letters where that leaves no doubt.
    """
    for mark, encoding in _OTHER_ENCODINGS.items():
        if header.startswith(mark):
            raise ValueError(f"the file is {encoding}, and only UTF-8 is understood")
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
    """Return how the records of a file with this header are read."""
    try:
        names = header_names(header, schema.names)
    except ValueError as error:
        return NoLines(f"the header of the file cannot be read: {error}")
    return lines_of_columns(names, schema)


def lines_of_columns(names: Sequence[str], schema: pa.Schema, *, origin: str = "the header of the file") -> LineFormat:
    """Return how records with these columns are read; ``origin`` is who says that they have them."""
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
    """Say what is wrong with a header that names no column."""
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
    """Tell whether what should be a header has a moment or a number in it; four digits may be a year, and a name."""
    values = [name for name in names if _LIKE_MOMENT.match(name) or _NUMBER.fullmatch(name)]
    return any(_YEAR.fullmatch(each) is None for each in values) or len(values) == len([name for name in names if name])


class CsvLines:
    """Reads records; ``names`` are the columns of their cells."""

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
        """Return the rows of records."""
        if not lines.strip(b"\r\n"):
            return self._rows.none()
        if not is_sound(lines):
            raise ValueError("a cell goes on behind its closing quote")  # which Arrow joins to the cell
        if lines.startswith(_BOM):
            lines = b"\n" + lines  # in the midst of a file it is a character like others, and Arrow drops it
        if not lines.endswith(b"\n"):
            lines += b"\n"  # Arrow takes an empty cell at the very end for a quoted one if the one before it was
        options = arrow_csv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(lines) + 1)
        return self._rows(arrow_csv.read_csv(pa.BufferReader(lines), options, self._parse, self._convert))

    def fault(self, line: bytes) -> str | None:
        """Return what is wrong with a record, as far as that is plain to see."""
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
        """Yield the records that are not empty."""
        return records(data)


class NoLines:
    """The records of a file whose header is wrong: all of them are rejected."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def parse(self, lines: bytes) -> pa.RecordBatch:  # noqa: ARG002 - none will do
        """Refuse them."""
        raise ValueError(self.reason)

    def fault(self, line: bytes) -> str | None:  # noqa: ARG002
        """Return what is wrong with the header."""
        return self.reason

    def records(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the records that are not empty."""
        return records(data)


def _may_be(text: str, kind: pa.DataType) -> bool:
    """Tell whether a text may be a value of the type; it is never stricter than Arrow."""
    types = pa.types
    if types.is_integer(kind):
        return _LIKE_INTEGER.fullmatch(text) is not None
    if types.is_floating(kind):
        return _LIKE_NUMBER.fullmatch(text) is not None
    if types.is_boolean(kind):
        return text.strip() in {*_TRUE, *_FALSE}
    if types.is_timestamp(kind):
        return _LIKE_MOMENT.match(text) is not None
    if types.is_date(kind):
        return _LIKE_DATE.match(text) is not None
    return True

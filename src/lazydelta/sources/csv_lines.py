"""CSV with a header: a line is a row, cells are those of the columns that the header names.

An empty cell is a null; quotes around nothing make an empty text. A row does not go on in the next line, so that what
is wrong with one line is never more than that.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyarrow import csv as arrow_csv

from lazydelta.sources.blocks import Block
from lazydelta.sources.convert import DATE, MOMENT, Rows, read_type
from lazydelta.sources.lines import LineFormat

__all__ = ["CsvLines", "after_header", "cells", "csv_lines"]

_TRUE, _FALSE = ["true", "True", "TRUE"], ["false", "False", "FALSE"]
_LIKE_INTEGER = re.compile(r"\s*-?(\d+|0[xX][0-9a-fA-F]+)\s*")
_LIKE_NUMBER = re.compile(r".*(\d|nan|inf).*", re.IGNORECASE | re.DOTALL)
_LIKE_MOMENT, _LIKE_DATE = re.compile(MOMENT), re.compile(DATE)


def after_header(found: Iterator[Block]) -> tuple[bytes | None, Iterator[Block]]:
    """Return the header's line, None if there is none, and the blocks of the lines behind it."""
    for block in found:
        lines = block.data.split(b"\n")
        header = next((index for index, line in enumerate(lines) if not _is_empty(line)), None)
        if header is None:
            continue
        if block.oversize:
            return block.data, found
        rest = replace(block, data=b"\n".join(lines[header + 1 :]), first=block.first + header + 1)
        return lines[header], _chained(rest, found)
    return None, found


def _chained(first: Block, rest: Iterator[Block]) -> Iterator[Block]:
    if first.data:
        yield first
    yield from rest


def csv_lines(header: bytes, schema: pa.Schema) -> LineFormat:
    """Return how the lines of a file with this header are read."""
    try:
        names = [name.strip() for name in cells(header)]
    except ValueError as error:
        return _NoLines(f"the header of the file cannot be read: {error}")
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        return _NoLines(f"the header of the file names the column {unknown[0]!r}, which is not in the schema")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        return _NoLines(f"the header of the file names the column {twice[0]!r} twice")
    nested = [name for name in names if pa.types.is_nested(schema.field(name).type)]
    if nested:
        return _NoLines(f"column {nested[0]!r} is {schema.field(nested[0]).type}, which CSV cannot hold")
    return CsvLines(schema, names)


def cells(line: bytes) -> list[str]:
    """Return the cells of a line; a `ValueError` if it has none."""
    try:
        return next(csv.reader([line.rstrip(b"\r\n").decode()]), [])
    except csv.Error as error:
        raise ValueError(str(error)) from error


class CsvLines:
    """Reads the lines behind a header; ``names`` are the columns of the cells."""

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
        self._parse = arrow_csv.ParseOptions(newlines_in_values=False)

    def parse(self, lines: bytes) -> pa.RecordBatch:
        """Return the rows of lines."""
        if not lines.strip(b"\r\n"):
            return self._rows.none()
        options = arrow_csv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(lines) + 1)
        return self._rows(arrow_csv.read_csv(pa.BufferReader(lines), options, self._parse, self._convert))

    def fault(self, line: bytes) -> str | None:
        """Return what is wrong with a line, as far as that is plain to see."""
        try:
            found = cells(line)
        except ValueError as error:  # also UnicodeDecodeError
            return f"the line cannot be read: {error}"
        if len(found) != len(self._names):
            return f"the row has {len(found)} cells and the header {len(self._names)}"
        for name, text in zip(self._names, found, strict=True):
            if text and not _may_be(text, self._schema.field(name).type):
                return f"column {name!r} is {self._schema.field(name).type}, and {text[:80]!r} is not"
        return None

    def is_blank(self, line: bytes) -> bool:
        """Tell whether the line is empty."""
        return _is_empty(line)


class _NoLines:
    """The lines of a file whose header is wrong: all of them are rejected."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def parse(self, lines: bytes) -> pa.RecordBatch:  # noqa: ARG002 - none will do
        raise ValueError(self._reason)

    def fault(self, line: bytes) -> str | None:  # noqa: ARG002
        return self._reason

    def is_blank(self, line: bytes) -> bool:
        return _is_empty(line)


def _is_empty(line: bytes) -> bool:
    return line in {b"", b"\r"}


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

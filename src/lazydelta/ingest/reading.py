"""Readers of source files in all supported formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from lazydelta.errors import OptionError, WriteError
from lazydelta.ingest.csv import CsvSplitter, NoLines, after_header, csv_lines, lines_of_columns
from lazydelta.ingest.files import SourceFile, Tally, Unit, rows_of_groups
from lazydelta.ingest.json import JsonLines
from lazydelta.ingest.lines import (
    BadRow,
    Block,
    LineFormat,
    Lines,
    RejectRows,
    Required,
    Splitter,
    as_text,
    blocks,
    decompressed,
    rows_of_lines,
)
from lazydelta.storage import Store

__all__ = ["ON_BAD_ROWS", "blocks_of", "read_units", "refuse_rows", "required_columns", "rows_of_csv"]

ON_BAD_ROWS = ("reject", "fail")
_CHUNK = 1 << 20


def required_columns(schema: pa.Schema, timestamp_column: str | None) -> Required:
    """Return the non-nullable columns, and the timestamp column if rows without a timestamp are rejected."""
    required = {
        each.name: f"no value in column {each.name!r}, which the table has without nulls"
        for each in schema
        if not each.nullable
    }
    if timestamp_column is not None:
        required[timestamp_column] = f"no value in the timestamp column {timestamp_column!r}"
    return required


def refuse_rows(bad: list[BadRow]) -> None:
    """Raise `WriteError` if there is any bad row."""
    if bad:
        first = bad[0]
        message = f"{first.source}: {first.reason}"
        hint = "correct or remove it, or let on_bad_rows='reject' set such rows aside; nothing was committed"
        raise WriteError(message, path=first.source, hint=hint)


def read_units(
    store: Store,
    units: Iterable[Unit],
    file_format: str,
    schema: pa.Schema,
    reject: RejectRows,
    required: Required,
    *,
    columns: Sequence[str] | None = None,
    tally: Tally | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of units, one after the other. Invalid rows go to ``reject``.

    Rows from text formats have exactly the columns of ``schema``. Rows from Parquet have the columns of their file.
    ``columns`` are the columns of CSV files without a header. ``tally`` counts the rows of each file.
    """
    read = _READERS.get(file_format)
    if read is None:
        raise OptionError(f"There is no reader for the format {file_format!r}", hint=f"known: {list(_READERS)}")
    schema = pa.schema([each.with_nullable(True) for each in schema])  # noqa: FBT003 - pyarrow signature
    tally = Tally() if tally is None else tally
    for unit in units:
        found = tally.of(store.place(unit.file.path))
        work = _ReadTask(store, unit, schema, found.rejecting(reject), required, columns)
        for batch in read(work):
            found.rows += batch.num_rows
            yield batch


class _ReadTask(NamedTuple):
    """Input of a reader."""

    store: Store
    unit: Unit
    schema: pa.Schema
    reject: RejectRows
    required: Required
    columns: Sequence[str] | None

    @property
    def place(self) -> str:
        return self.store.place(self.unit.file.path)


def _json(work: _ReadTask) -> Iterator[pa.RecordBatch]:
    found = blocks_of(work.store, work.unit.file, Lines())
    return rows_of_lines(found, JsonLines(work.schema), work.place, work.reject, work.required)


def _csv(work: _ReadTask) -> Iterator[pa.RecordBatch]:
    found = blocks_of(work.store, work.unit.file, CsvSplitter())
    lines = None if work.columns is None else lines_of_columns(work.columns, work.schema, origin="the schema")
    return rows_of_csv(found, work.schema, lines, work.place, work.reject, work.required)


def rows_of_csv(
    found: Iterator[Block],
    schema: pa.Schema,
    lines: LineFormat | None,
    place: str,
    reject: RejectRows,
    required: Required,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a CSV file. ``lines`` reads the records if the file has no header."""
    if lines is None:
        header, found = after_header(found)
        if header is None:
            lines = NoLines("the file has no header")
        else:
            lines = csv_lines(header.record, schema)
            if isinstance(lines, NoLines):  # it may be a row, which must not be lost
                reject([BadRow(as_text(header.record), lines.reason, f"{place}:{header.line}")])
    yield from rows_of_lines(found, lines, place, reject, required)


def _parquet(work: _ReadTask) -> Iterator[pa.RecordBatch]:
    file = work.unit.file
    return rows_of_groups(work.store, file.path, file.size, work.unit.groups, work.reject, work.required)


_Reader = Callable[[_ReadTask], Iterator[pa.RecordBatch]]
_READERS: dict[str, _Reader] = {"json": _json, "csv": _csv, "parquet": _parquet}


def blocks_of(store: Store, file: SourceFile, splitter: Splitter) -> Iterator[Block]:
    """Yield the records of a text file in blocks."""
    with store.stream(file.path, chunk_size=_CHUNK) as stream:
        chunks: Iterable[bytes] = decompressed(stream, store.place(file.path)) if file.is_gzip else stream
        yield from blocks(chunks, splitter)

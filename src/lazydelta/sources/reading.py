"""Rows of source files, whatever their format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from lazydelta.errors import OptionError, WriteError
from lazydelta.sources.blocks import Block, blocks, decompressed
from lazydelta.sources.csv_lines import after_header, csv_lines
from lazydelta.sources.files import SourceFile, Unit
from lazydelta.sources.json_lines import JsonLines
from lazydelta.sources.lines import BadRow, RejectRows, Required, rows_of_lines
from lazydelta.sources.parquet import rows_of_groups
from lazydelta.storage import Store

__all__ = ["ON_BAD_ROWS", "blocks_of", "read_units", "refuse_rows", "required_columns"]

ON_BAD_ROWS = ("reject", "fail")
_CHUNK = 1 << 20


def required_columns(schema: pa.Schema, timestamp_column: str | None) -> Required:
    """Return the columns without nulls, and the timestamp column where rows without a time are not wanted."""
    required = {
        each.name: f"no value in column {each.name!r}, which the table has without nulls"
        for each in schema
        if not each.nullable
    }
    if timestamp_column is not None:
        required[timestamp_column] = f"no value in the timestamp column {timestamp_column!r}"
    return required


def refuse_rows(bad: list[BadRow]) -> None:
    """Refuse everything because of one bad row."""
    if bad:
        first = bad[0]
        message = f"{first.source}: {first.reason}"
        hint = "correct or remove it, or let on_bad_rows='reject' put such rows aside; nothing was committed"
        raise WriteError(message, path=first.source, hint=hint)


def read_units(
    store: Store, units: Iterable[Unit], file_format: str, schema: pa.Schema, reject: RejectRows, required: Required
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of units, one after the other; what is no row goes to ``reject``.

    Rows from text have exactly the columns of ``schema``; those of Parquet files have the columns of their file.
    """
    read = _READERS.get(file_format)
    if read is None:
        raise OptionError(f"There is no reader for the format {file_format!r}", hint=f"known are {list(_READERS)}")
    schema = pa.schema([each.with_nullable(True) for each in schema])  # noqa: FBT003 - pyarrow's
    for unit in units:
        yield from read(store, unit, schema, reject, required)


def _json(
    store: Store, unit: Unit, schema: pa.Schema, reject: RejectRows, required: Required
) -> Iterator[pa.RecordBatch]:
    found = blocks_of(store, unit.file)
    return rows_of_lines(found, JsonLines(schema), store.place(unit.file.path), reject, required)


def _csv(
    store: Store, unit: Unit, schema: pa.Schema, reject: RejectRows, required: Required
) -> Iterator[pa.RecordBatch]:
    header, found = after_header(blocks_of(store, unit.file))
    if header is None:
        return iter(())
    return rows_of_lines(found, csv_lines(header, schema), store.place(unit.file.path), reject, required)


def _parquet(
    store: Store, unit: Unit, _schema: pa.Schema, reject: RejectRows, required: Required
) -> Iterator[pa.RecordBatch]:
    return rows_of_groups(store, unit.file.path, unit.file.size, unit.groups, reject, required)


_Reader = Callable[[Store, Unit, pa.Schema, RejectRows, Required], Iterator[pa.RecordBatch]]
_READERS: dict[str, _Reader] = {"json": _json, "csv": _csv, "parquet": _parquet}


def blocks_of(store: Store, file: SourceFile) -> Iterator[Block]:
    """Yield the lines of a text file."""
    with store.stream(file.path, chunk_size=_CHUNK) as stream:
        chunks: Iterable[bytes] = decompressed(stream, store.place(file.path)) if file.is_gzip else stream
        yield from blocks(chunks)

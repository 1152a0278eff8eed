"""Files to append: Parquet, CSV and JSON lines, read batch by batch with the types that the table has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from lazydelta.errors import OptionError, SchemaMismatchError
from lazydelta.sources.blocks import Block, Lines, blocks
from lazydelta.sources.csv_lines import after_header, header_names, lines_of_columns, looks_like_a_row, no_header
from lazydelta.sources.csv_records import CsvSplitter, cells, records
from lazydelta.sources.json_lines import JsonLines
from lazydelta.sources.lines import BadRow, RejectRows, rows_of_lines
from lazydelta.storage.location import is_half_uri
from lazydelta.write.evolution import Conformer

__all__ = ["FORMATS", "Counted", "open_files", "schema_of"]

FORMATS = ("parquet", "csv", "json")
_SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4"}
_BATCH_ROWS = 65_536
_CHUNK_BYTES = 1 << 20

Batches: TypeAlias = Iterator[pa.RecordBatch]


class Counted:
    """Counts rows and files on their way."""

    def __init__(self) -> None:
        self.rows = 0
        self.files = 0

    def describe(self) -> str:
        """Say how far the reading has come."""
        return f"{self.rows:,} rows of {self.files:,} files read"


def open_files(
    paths: Sequence[Path],
    table: pa.Schema | None,
    *,
    file_format: str | None,
    counted: Counted,
    may_be_new: bool = False,
) -> pa.RecordBatchReader:
    """Return the rows of all files as one stream; the files are opened one after the other.

    ``table`` is the schema of the table, which says how text is to be understood; without it types are guessed from
    the beginning of each file. ``may_be_new`` lets a file have none of the table's columns.
    """
    if table is not None and not may_be_new:
        for path in paths:
            _check_header(path, table, file_format)
    schemas = [schema_of(path, table, file_format=file_format) for path in paths]
    try:
        unified = pa.unify_schemas(schemas)
    except pa.ArrowException as error:
        message = f"The files have different columns: {error}"
        raise SchemaMismatchError(message, hint="append them one by one, or bring them to the same types") from error

    def batches() -> Batches:
        for path in paths:
            counted.files += 1
            conform: Conformer | None = None
            with _opened(path, table, file_format) as found:
                for batch in found:
                    if conform is None:
                        conform = Conformer(unified, batch.schema)
                    counted.rows += batch.num_rows
                    yield conform(batch)

    return pa.RecordBatchReader.from_batches(unified, batches())


def schema_of(path: Path, table: pa.Schema | None = None, *, file_format: str | None = None) -> pa.Schema:
    """Return the schema of a file, without reading more of it than that takes."""
    if is_half_uri(str(path)) is not None and not path.exists():
        # A path has one slash where the URI had two.
        message = f"{path} is not a local file"
        raise OptionError(message, path=str(path), hint="`lazydelta ingest` reads the files of object stores")
    with _faults(path):
        return _READERS[_format(path, file_format)](path, table)[0]


@contextmanager
def _opened(path: Path, table: pa.Schema | None, file_format: str | None) -> Iterator[Batches]:
    with _faults(path):
        yield _READERS[_format(path, file_format)](path, table)[1]


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        message = f"There is no file {path}"
        raise OptionError(message, path=str(path), hint="check its name; nothing was appended") from error
    except (pa.ArrowException, OSError) as error:
        message = f"The file {path} cannot be read: {error}"
        hint = "check its format, or say which one it is by --format"
        if isinstance(error, PermissionError):
            hint = "you may not read it"
        elif path.is_dir():
            hint = "`lazydelta ingest` reads folders"
        raise OptionError(message, path=str(path), hint=hint) from error


def _format(path: Path, given: str | None) -> str:
    if given is not None:
        return given
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    found = _SUFFIXES.get(suffixes[-1]) if suffixes else None
    if found is None:
        message = f"The format of {path} cannot be told from its name"
        raise OptionError(message, path=str(path), hint=f"say --format {', '.join(FORMATS)}")
    return found


_Reader: TypeAlias = Callable[[Path, pa.Schema | None], tuple[pa.Schema, Batches]]


def _parquet(path: Path, _table: pa.Schema | None) -> tuple[pa.Schema, Batches]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - only who reads it needs it

    # Given a name, Arrow would take one such as s3:/a/b for a URI, and look for credentials of its own.
    file = pq.ParquetFile(pa.OSFile(str(path)), pre_buffer=False, buffer_size=1 << 20)
    return file.schema_arrow.remove_metadata(), file.iter_batches(batch_size=_BATCH_ROWS)


def _csv(path: Path, table: pa.Schema | None) -> tuple[pa.Schema, Batches]:
    known = [] if table is None else table.names
    names, line, first, rest = _after_header(path, known)
    if table is None and looks_like_a_row(names):
        message = f"The first line of {path} looks like a row, not like a header: {','.join(names)[:200]}"
        hint = "give it a header, or create the table first; `lazydelta ingest --no-header` reads it by position"
        raise OptionError(message, path=str(path), hint=hint)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _unreadable(path, line, f"the header names the column {twice!r} twice")
    schema = pa.schema([]) if not names else _guessed_csv(path, names, first, table)

    def batches() -> Batches:
        found = chain([] if first is None else [first], rest)
        yield from rows_of_lines(found, lines_of_columns(names, schema), str(path), _refuse(path), {})

    return schema, batches() if names else iter(())


def _check_header(path: Path, table: pa.Schema, file_format: str | None) -> None:
    """Refuse a file of CSV whose first line names no column of the table: it is a row, and would be lost."""
    if _format(path, file_format) != "csv":
        return
    with _faults(path):
        names, line, _, _ = _after_header(path, table.names)
    if names and not set(names) & set(table.names):
        raise _unreadable(path, line, no_header(names, table))


def _after_header(path: Path, known: Sequence[str]) -> tuple[list[str], int, Block | None, Iterator[Block]]:
    """Return the names of a header, the number of its line, and the blocks behind it, the first of them apart."""
    header, rest = after_header(blocks(_chunks(path), CsvSplitter()))
    first = next(rest, None)
    if header is None:
        if first is not None and first.fault is not None:
            raise _unreadable(path, first.first, first.fault)
        return [], 1, first, rest
    try:
        return header_names(header.record, known), header.line, first, rest
    except ValueError as error:
        raise _unreadable(path, header.line, f"the header cannot be read: {error}") from error


def _guessed_csv(path: Path, names: list[str], first: Block | None, table: pa.Schema | None) -> pa.Schema:
    """Return the columns of a file: those of the table as it has them, others as the first block looks like."""
    from pyarrow import csv  # noqa: PLC0415 - only who reads it needs it

    # An empty cell is a null, of text too: CSV has no other way to write one. Words such as NA are texts.
    convert = csv.ConvertOptions(
        column_types=_text_types(table), null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    # Rows that are none are refused when they are read, with the number of their line.
    good = [] if first is None or first.fault else [each for _, each in records(first.data) if _fits(each, len(names))]
    data = b"\n".join([*good, b""])
    if not good:
        return pa.schema([(name, _text_types(table).get(name, pa.string())) for name in names])
    options = csv.ReadOptions(column_names=names, block_size=len(data) + 1)
    with _faults(path):
        found = csv.read_csv(pa.BufferReader(data), options, csv.ParseOptions(newlines_in_values=True), convert)
    return pa.schema([(each.name, _in_microseconds(each.type)) for each in found.schema])


def _fits(record: bytes, width: int) -> bool:
    try:
        return len(cells(record)) == width
    except ValueError:
        return False


def _json(path: Path, table: pa.Schema | None) -> tuple[pa.Schema, Batches]:
    from pyarrow import json  # noqa: PLC0415

    found = blocks(_chunks(path), Lines())
    first = next(found, None)
    taken = [] if first is None or first.fault else first.data.split(b"\n")
    known = pa.schema(_text_types(table))
    unknown = [row for each in taken if (row := _fields(each, known.names))]
    schema = known
    if unknown:
        # The types are those of the first block, so it is a large one.
        lines = b"\n".join(msgspec.json.encode(each) for each in unknown)
        guessed = json.read_json(pa.BufferReader(lines), json.ReadOptions(block_size=len(lines) + 1)).schema
        # Whether a moment was written with its zone is not known here; without one it is taken as UTC.
        schema = pa.schema([*known, *(each.with_type(_zoned(each.type)) for each in guessed)])

    def batches() -> Batches:
        rows = chain([] if first is None else [first], found)
        yield from rows_of_lines(rows, JsonLines(schema), str(path), _refuse(path), {})

    return schema, batches()


def _fields(line: bytes, known: Sequence[str]) -> dict[str, Any]:
    """Return the fields of an object that are not known; none if it is no object, which is said when it is read."""
    try:
        row = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in row.items() if name not in known} if isinstance(row, dict) else {}


def _chunks(path: Path) -> Iterator[bytes]:
    with pa.input_stream(str(path), compression="detect") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


def _refuse(path: Path) -> RejectRows:
    def refuse(bad: list[BadRow]) -> None:
        for each in bad:
            raise _unreadable(path, int(each.source.rpartition(":")[2]), each.reason)

    return refuse


def _unreadable(path: Path, line: int, reason: str) -> OptionError:
    hint = "correct it, nothing was appended; `lazydelta ingest` can put such rows aside"
    return OptionError(f"The file {path} cannot be read: line {line}: {reason}", path=str(path), hint=hint)


def _text_types(table: pa.Schema | None) -> dict[str, pa.DataType]:
    """Return the types that text is read as; those that pyarrow does not read from text are left to its guess."""
    return {} if table is None else {field.name: field.type for field in table if not pa.types.is_binary(field.type)}


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


def _zoned(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_zoned(each.type)) for each in kind])
    return pa.list_(kind.value_field.with_type(_zoned(kind.value_type))) if pa.types.is_list(kind) else kind


_READERS: dict[str, _Reader] = {"parquet": _parquet, "csv": _csv, "json": _json}

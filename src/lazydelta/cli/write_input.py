"""Files to append: Parquet, CSV and JSON lines, read batch by batch with the types that the table has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from lazydelta.errors import OptionError, SchemaMismatchError
from lazydelta.storage.location import is_half_uri
from lazydelta.write.evolution import Conformer

__all__ = ["FORMATS", "Counted", "open_files", "schema_of"]

FORMATS = ("parquet", "csv", "json")
_SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4"}
_BATCH_ROWS = 65_536
_BLOCK_BYTES = 8 << 20

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
    paths: Sequence[Path], table: pa.Schema | None, *, file_format: str | None, counted: Counted
) -> pa.RecordBatchReader:
    """Return the rows of all files as one stream; the files are opened one after the other.

    ``table`` is the schema of the table, which says how text is to be understood; without it types are guessed from
    the beginning of each file.
    """
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
    except (pa.ArrowException, OSError) as error:
        message = f"The file {path} cannot be read: {error}"
        raise OptionError(
            message, path=str(path), hint="check its format, or say which one it is by --format"
        ) from error


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
    from pyarrow import csv  # noqa: PLC0415

    # An empty cell is a null, of text too: CSV has no other way to write one.
    convert = csv.ConvertOptions(column_types=_text_types(table), strings_can_be_null=True)
    source = pa.input_stream(str(path), compression="detect")
    reader = csv.open_csv(source, csv.ReadOptions(block_size=_BLOCK_BYTES), convert_options=convert)
    return reader.schema, iter(reader)


def _json(path: Path, table: pa.Schema | None) -> tuple[pa.Schema, Batches]:
    from pyarrow import json  # noqa: PLC0415

    source = pa.input_stream(str(path), compression="detect")
    options = json.ParseOptions(explicit_schema=None if table is None else pa.schema(_text_types(table)))
    # The types are those of the first block, so it is a large one.
    reader = json.open_json(source, json.ReadOptions(block_size=_BLOCK_BYTES), options)
    return reader.schema, iter(reader)


def _text_types(table: pa.Schema | None) -> dict[str, pa.DataType]:
    """Return the types that text is read as; those that pyarrow does not read from text are left to its guess."""
    return {} if table is None else {field.name: field.type for field in table if not pa.types.is_binary(field.type)}


_READERS: dict[str, _Reader] = {"parquet": _parquet, "csv": _csv, "json": _json}

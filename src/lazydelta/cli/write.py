"""The commands that write: ``create``, ``append``, ``checkpoint`` and ``log clean``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import click
import msgspec
import pyarrow as pa

from lazydelta.cli import sentences
from lazydelta.cli.app import CommandGroup
from lazydelta.cli.parameters import (
    CONTEXT,
    TableTarget,
    chosen_engine,
    counting,
    engine_options,
    pairs,
    refuse_extra_arguments,
    session,
    target_command,
)
from lazydelta.errors import OptionError, SchemaMismatchError, TableExistsError, TableNotFoundError
from lazydelta.ingest.csv import (
    CsvSplitter,
    after_header,
    cells,
    header_names,
    lines_of_columns,
    looks_like_a_row,
    no_header,
    records,
)
from lazydelta.ingest.json import JsonLines
from lazydelta.ingest.lines import BadRow, Block, Lines, RejectRows, blocks, rows_of_lines
from lazydelta.storage.location import is_half_uri
from lazydelta.write.evolution import Conformer

__all__ = ["append", "checkpoint", "create", "log"]


_MIB = 1 << 20
# As for sidecars: below this, one process finishes before a cluster has started.
_MANY_TO_SHARE = 10_000_000
_BOUNDARIES = ("month", "day", "hour", "minute", "second")
_COMPRESSIONS = ("zstd", "snappy", "gzip", "none")


_write_command = target_command(library_options=False)


def _layout_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that determine the partitions of a table."""
    for decorate in (
        click.option(
            "--boundary",
            type=click.Choice(_BOUNDARIES),
            help="The unit of time that no data file crosses. [default: hour, or that of the table]",
        ),
        click.option(
            "--partition-format",
            metavar="FORMAT",
            help="The strftime format of the time column, such as %Y-%m-%d-%H; it must sort as time.",
        ),
        click.option(
            "--partition-generated",
            is_flag=True,
            help="Make the time column a generated column, from which Delta-Spark derives filters.",
        ),
        click.option(
            "--timestamp-column",
            metavar="A",
            help="Partition by the UTC time in this column: _event_hour, or the unit of --boundary.",
        ),
        click.option("--partition-by", metavar="A,B", help="Partition by these columns."),
    ):
        function = decorate(function)
    return function


_property_option = click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="K=V",
    callback=pairs,
    help="A property of the new table, such as delta.checkpointInterval; repeatable.",
)
# Opening the file checks that it exists. Click would repeat a secret that was mistaken for a file.
_FILE = click.Path(path_type=Path)


@click.command("create", context_settings=CONTEXT)
@_write_command
@click.argument("fields", nargs=-1, metavar="[NAME:TYPE]...")
@click.option(
    "--column",
    "columns",
    multiple=True,
    metavar="NAME:TYPE",
    help="A column and its Delta type (id:long, price:decimal(10,2)); NAME:TYPE! is not nullable; repeatable.",
)
@click.option("--like", type=_FILE, metavar="FILE", help="Use the columns of this Parquet, CSV or JSON file.")
@_layout_options
@_property_option
@click.option("--name", help="The name of the table.")
@click.option("--description", help="The description of the table.")
@click.option("--if-absent", is_flag=True, help="Do nothing if the table exists.")
def create(
    target: TableTarget,
    *,
    columns: tuple[str, ...],
    fields: tuple[str, ...],
    like: Path | None,
    partition_by: str | None,
    if_absent: bool,
    **rest: Any,
) -> None:
    """Create an empty table at URI, with the columns NAME:TYPE."""
    if not all(re.fullmatch(r"\w+:[\w ,()!]+", each) for each in fields):  # it may be a secret that was cut off
        ctx = click.get_current_context()
        ctx.args = list(fields)
        refuse_extra_arguments()
    from lazydelta.write.create import create_table  # noqa: PLC0415 - takes a second, not needed for --help

    try:
        version = create_table(
            target.uri,
            _schema((*columns, *fields), like),
            partition_by=_names(partition_by),
            storage_options=target.storage_options or None,
            mode="ignore" if if_absent else "error",
            **rest,
        )
    except TableExistsError as error:
        hint = "--if-absent leaves it as it is; `lazydelta append` adds rows to it"
        raise TableExistsError(error.args[0], path=error.path, hint=hint) from error
    target.out.tell({"uri": target.handle.store.uri, "version": version}, sentences.created)


@click.command("append")
@_write_command
@click.argument("files", nargs=-1, required=True, type=_FILE)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["parquet", "csv", "json"]),
    help="The format of the files, if their names do not show it; json is one object per line.",
)
@_layout_options
@click.option("--reject-null-timestamps", is_flag=True, help="Reject rows without a timestamp to partition by.")
@click.option("--merge-schema", is_flag=True, help="Add columns of the files that the table lacks.")
@_property_option
@click.option("--app-id", metavar="ID", help="With --app-version: append only once, even if the command runs again.")
@click.option(
    "--app-version", type=click.IntRange(min=0), metavar="N", help="The number of this write of the application."
)
@click.option(
    "--file-size",
    type=click.IntRange(min=1),
    metavar="MIB",
    default=128,
    show_default=True,
    help="The approximate maximum size of a data file.",
)
@click.option(
    "--memory",
    type=click.IntRange(min=1),
    metavar="MIB",
    default=256,
    show_default=True,
    help="Memory budget; less memory means smaller files.",
)
@click.option(
    "--compression",
    type=click.Choice(_COMPRESSIONS),
    default="zstd",
    show_default=True,
    help="The compression codec of data files.",
)
def append(
    target: TableTarget,
    *,
    files: tuple[Path, ...],
    file_format: str | None,
    partition_by: str | None,
    reject_null_timestamps: bool,
    file_size: int,
    memory: int,
    **rest: Any,
) -> None:
    """Append the rows of FILES to the table at URI in one commit, and create the table if there is none."""
    from lazydelta.ingest.arrow import commit_arrow  # noqa: PLC0415
    from lazydelta.write.options import WriteOptions  # noqa: PLC0415

    options = WriteOptions(
        partition_by=_names(partition_by) or None,
        null_timestamps="reject" if reject_null_timestamps else "null-partition",
        target_file_size=file_size * _MIB,
        memory_budget=memory * _MIB,
        storage_options=target.storage_options,
        **rest,
    )
    counted = Counted()
    with target.out.watch(counted.describe):
        known = _table_schema(target)
        rows = open_files(files, known, file_format=file_format, counted=counted, may_be_new=options.merge_schema)
        done = commit_arrow(target.uri, rows, options)
    result = {
        "uri": target.handle.store.uri,
        "version": done.version,
        "files_read": counted.files,
        "rows": 0 if done.already_committed else counted.rows,
        "already_committed": done.already_committed,
    }
    target.out.tell(result, sentences.appended)


@click.command("checkpoint", context_settings=CONTEXT)
@_write_command
@click.option("--version", type=click.IntRange(min=0), metavar="N", help="Write the checkpoint of this version.")
@click.option(
    "--memory",
    type=click.IntRange(min=16),
    metavar="MIB",
    default=256,
    show_default=True,
    help="Memory budget.",
)
@engine_options
@click.option("--no-sidecar", is_flag=True, help="Do not write a sidecar.")
@click.option("--dry-run", is_flag=True, help="Show what would be written and where, without writing it.")
def checkpoint(
    target: TableTarget,
    *,
    version: int | None,
    memory: int,
    engine: str,
    master: str | None,
    conf: dict[str, str],
    no_sidecar: bool,
    dry_run: bool,
) -> None:
    """Write the checkpoint of the newest version of the table at URI, unless it exists, and its sidecar.

    Readers then start from it, regardless of the number of commits.
    """
    import msgspec  # noqa: PLC0415

    from lazydelta.maintenance.after_commit import sidecar_beside  # noqa: PLC0415
    from lazydelta.write.checkpoint.distributed import preview  # noqa: PLC0415
    from lazydelta.write.checkpoint.writer import write_checkpoint, write_last_checkpoint  # noqa: PLC0415

    store = target.handle.store
    asked: dict[str, Any] = {"memory_budget": memory * _MIB}
    chosen = chosen_engine(engine, master, conf, lambda: preview(store, version).actions, many=_MANY_TO_SHARE)
    if dry_run:
        found = msgspec.structs.replace(preview(store, version), engine=chosen)
        target.out.tell(msgspec.to_builtins(found), sentences.checkpoint_foreseen)
        return
    if chosen == "spark":
        with session("lazydelta checkpoint", master, conf, target.out) as spark:
            from lazydelta.spark.sidecar import write_on  # noqa: PLC0415 - loads Spark

            with target.out.watch(lambda: "the tasks of Spark write"):
                result = write_on(spark, store, version, **asked)
    else:
        with counting(target.out, "written") as progress:
            result = write_checkpoint(store, version, progress=progress, **asked)
            write_last_checkpoint(store, result)
    built = None
    if not no_sidecar:
        with counting(target.out, "in the sidecar") as progress:
            built = sidecar_beside(target.handle, progress=progress, **asked)
    target.out.tell(msgspec.to_builtins(result) | {"sidecar": msgspec.to_builtins(built)}, sentences.checkpointed)


@click.group("log", cls=CommandGroup)
def log() -> None:
    """Maintain a table's log."""


@log.command("clean", context_settings=CONTEXT)
@_write_command
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, without deleting it.")
def clean(target: TableTarget, *, dry_run: bool) -> None:
    """Delete commits and checkpoints that no version within the table's retention needs.

    The property delta.logRetentionDuration says how long that is; 30 days by default.
    """
    from dataclasses import asdict  # noqa: PLC0415

    from lazydelta.maintenance.after_commit import clean_log  # noqa: PLC0415

    with target.out.watch(lambda: "cleaning the log"):
        result = clean_log(target.handle, dry_run=dry_run)
    target.out.tell(asdict(result), sentences.log_cleaned)


def _names(text: str | None) -> list[str]:
    return [name for each in (text or "").split(",") if (name := each.strip())]


def _table_schema(target: TableTarget) -> pa.Schema | None:
    import pyarrow as pa  # noqa: PLC0415

    from lazydelta.log.snapshot import open_snapshot  # noqa: PLC0415
    from lazydelta.write.computed_columns import ComputedColumns  # noqa: PLC0415

    try:
        snapshot = open_snapshot(target.handle.store)
    except TableNotFoundError:
        return None
    made = snapshot.metadata.property("lazydelta.partitionColumn")  # it is not a column of the files
    columns = [each for each in snapshot.schema.to_arrow() if each.name != made]
    computed = ComputedColumns(snapshot.schema).names
    return pa.schema([each.with_metadata({_COMPUTED: ""}) if each.name in computed else each for each in columns])


_COMPUTED = b"lazydelta.computed"


def _schema(columns: tuple[str, ...], like: Path | None) -> pa.Schema:
    import pyarrow as pa  # noqa: PLC0415

    from lazydelta.protocol.delta_types import type_name  # noqa: PLC0415
    from lazydelta.protocol.schema import TableSchema  # noqa: PLC0415

    if not columns and like is None:
        raise OptionError("A table needs columns", hint="pass NAME:TYPE, or --like FILE")
    fields = []
    for each in columns:
        name, _, kind = each.partition(":" if ":" in each else " ")
        if not name or not kind:
            raise OptionError(f"The column {each} is not valid", hint="write it as name:type")
        required = kind.endswith("!")
        fields.append({"name": name, "type": type_name(kind.removesuffix("!")), "nullable": not required})
    named = TableSchema.parse(json.dumps({"type": "struct", "fields": fields}), origin="--column").to_arrow()
    taken = [] if like is None else list(schema_of(like))
    return pa.schema([*taken, *named])


# Files to append: Parquet, CSV and JSON lines, read batch by batch with the types of the table.


FORMATS = ("parquet", "csv", "json")
_SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
_COMPRESSED = {".gz", ".bz2", ".zst", ".lz4"}
_BATCH_ROWS = 65_536
_CHUNK_BYTES = 1 << 20

Batches: TypeAlias = Iterator[pa.RecordBatch]


class Counted:
    """Counts rows and files as they are read."""

    def __init__(self) -> None:
        self.rows = 0
        self.files = 0

    def describe(self) -> str:
        """Describe the progress of reading."""
        return f"{self.rows:,} rows of {self.files:,} files read"


def open_files(
    paths: Sequence[Path],
    table: pa.Schema | None,
    *,
    file_format: str | None,
    counted: Counted,
    may_be_new: bool = False,
) -> pa.RecordBatchReader:
    """Return the rows of all files as one stream. The files are opened one after the other.

    ``table`` is the schema of the table, which determines how strings are parsed. Without it, types are inferred from
    the beginning of each file. ``may_be_new`` allows a file to have none of the table's columns.
    """
    if table is not None and not may_be_new:
        for path in paths:
            _check_header(path, table, file_format)
    schemas = [schema_of(path, table, file_format=file_format) for path in paths]
    try:
        unified = pa.unify_schemas(schemas)
    except pa.ArrowException as error:
        message = f"The files have different columns: {error}"
        raise SchemaMismatchError(message, hint="append them one at a time, or cast them to the same types") from error

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
    """Return the schema of a file, reading no more of it than needed."""
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
        hint = "check its format, or pass it as --format"
        if isinstance(error, PermissionError):
            hint = "you do not have permission to read it"
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
        raise OptionError(message, path=str(path), hint=f"pass --format {', '.join(FORMATS)}")
    return found


_Reader: TypeAlias = Callable[[Path, pa.Schema | None], tuple[pa.Schema, Batches]]


def _parquet(path: Path, _table: pa.Schema | None) -> tuple[pa.Schema, Batches]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - loaded only for this format

    # Given a name, Arrow would take s3:/a/b for a URI and look for credentials on its own.
    file = pq.ParquetFile(pa.OSFile(str(path)), pre_buffer=False, buffer_size=1 << 20)
    return file.schema_arrow.remove_metadata(), file.iter_batches(batch_size=_BATCH_ROWS)


def _csv(path: Path, table: pa.Schema | None) -> tuple[pa.Schema, Batches]:
    known = [] if table is None else table.names
    names, line, first, rest = _after_header(path, known)
    if table is None and looks_like_a_row(names):
        message = f"The first line of {path} looks like a row, not like a header: {','.join(names)[:200]}"
        hint = "add a header, or create the table first; `lazydelta ingest --no-header` reads it by position"
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
    """Refuse a CSV file whose first line names no column of the table: it is a row, and would be lost."""
    if _format(path, file_format) != "csv":
        return
    with _faults(path):
        names, line, _, _ = _after_header(path, table.names)
    if names and not set(names) & set(table.names):
        raise _unreadable(path, line, no_header(names, table))


def _after_header(path: Path, known: Sequence[str]) -> tuple[list[str], int, Block | None, Iterator[Block]]:
    """Return the names in a header, its line number, the first block after it, and the remaining blocks."""
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
    """Return the columns of a file: known ones with the table's types, others inferred from the first block."""
    from pyarrow import csv  # noqa: PLC0415 - loaded only for this format

    # An empty cell is null, also for strings: CSV has no other notation. Words such as NA are strings.
    convert = csv.ConvertOptions(
        column_types=_text_types(table), null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    # Invalid rows are refused when they are read, with their line number.
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
    # The table computes these columns if the rows lack them.
    computed = {each.name for each in table or () if _COMPUTED in (each.metadata or {})}
    lacking = {name for name in computed if not any(_fields(each, ()).keys() & {name} for each in taken)}
    known = pa.schema([(name, kind) for name, kind in _text_types(table).items() if name not in lacking])
    unknown = [row for each in taken if (row := _fields(each, known.names))]
    schema = known
    if unknown:
        # The first block determines the types, so it is a large one.
        lines = b"\n".join(msgspec.json.encode(each) for each in unknown)
        guessed = json.read_json(pa.BufferReader(lines), json.ReadOptions(block_size=len(lines) + 1)).schema
        # It is unknown here whether a timestamp was written with a time zone. Without one it is taken as UTC.
        schema = pa.schema([*known, *(each.with_type(_zoned(each.type)) for each in guessed)])

    def batches() -> Batches:
        rows = chain([] if first is None else [first], found)
        yield from rows_of_lines(rows, JsonLines(schema), str(path), _refuse(path), {})

    return schema, batches()


def _fields(line: bytes, known: Sequence[str]) -> dict[str, Any]:
    """Return the unknown fields of an object. Return none for other values, which are refused when they are read."""
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
    hint = "correct it, nothing was appended; `lazydelta ingest` can set such rows aside"
    return OptionError(f"The file {path} cannot be read: line {line}: {reason}", path=str(path), hint=hint)


def _text_types(table: pa.Schema | None) -> dict[str, pa.DataType]:
    """Return the types that strings are parsed as. Types that pyarrow cannot parse are left to its inference."""
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

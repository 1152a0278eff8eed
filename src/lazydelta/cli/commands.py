"""The table commands: each opens a table, asks the library, and hands the answer to a renderer."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import click

from lazydelta.cli.output import Column, Output, TableInfo
from lazydelta.cli.parameters import CONTEXT, TableSource, scan_options, table_command, where_option
from lazydelta.cli.values import Record, records
from lazydelta.handle import TableHandle

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from lazydelta.scan.file_stream import FileStream
    from lazydelta.table import DeltaTable

__all__ = ["COMMANDS", "describe_table", "file_records", "output"]

# A person asks for a look, not for a million lines and a million requests.
_SOME_VERSIONS = 20
_SOME_ROWS = 10


def output(*, as_json: bool) -> Output:
    """Return the renderer for programs or for people."""
    if as_json:
        from lazydelta.cli.json_output import JsonOutput  # noqa: PLC0415 - a program needs no Rich

        return JsonOutput(sys.stdout)
    from lazydelta.cli.console_output import ConsoleOutput, console  # noqa: PLC0415

    return ConsoleOutput(console(), console(stderr=True))


@click.command("info", context_settings=CONTEXT)
@table_command
def info(source: TableSource) -> None:
    """Show what a table is, without reading its file list.

    That is its version, columns, partitioning, protocol and properties; quick on tables of any size.
    """
    output(as_json=source.as_json).info(describe_table(source.open()))


@click.command("history", context_settings=CONTEXT)
@table_command
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    default=_SOME_VERSIONS,
    show_default=True,
    help="Show this many versions; each costs a request.",
)
@click.option("--all", "everything", is_flag=True, help="Show every version whose commit is kept.")
def history(source: TableSource, limit: int, *, everything: bool) -> None:
    """Show what happened to a table, newest version first."""
    output(as_json=source.as_json).history(source.open().history(None if everything else limit))


@click.command("files", context_settings=CONTEXT)
@table_command
@scan_options
@click.option(
    "--stats-columns",
    metavar="A,B",
    help="Also show how many rows a file has, and with --json the statistics of these columns; '' for rows alone.",
)
@click.option("--uris", is_flag=True, help="Show where each file is, not the path as logged.")
@click.option(
    "--newest",
    type=click.IntRange(min=0),
    metavar="N",
    help="Show the N newest files: the same as --strategy reverse --limit N.",
)
def files(
    source: TableSource,
    *,
    where: str | None,
    limit: int | None,
    row_limit: int | None,
    strategy: str,
    newest: int | None,
    stats_columns: str | None,
    uris: bool,
) -> None:
    """List the files of a table while they are found.

    The scan stops when the reader of its output does: `lazydelta files URI | head` costs a few requests.
    """
    if newest is not None:
        if limit is not None or strategy == "forward":
            message = "--newest N stands for --strategy reverse --limit N: give neither beside it."
            raise click.UsageError(message, click.get_current_context())
        limit, strategy = newest, "reverse"
    out = output(as_json=source.as_json)
    table = source.open()
    stream = table.files(
        where,
        limit=limit,
        row_limit=row_limit,
        strategy=strategy,
        stats_columns=None if stats_columns is None else _names(stats_columns),
    )
    with stream, _watched(out, stream):
        out.files(file_records(stream, source if uris else None), with_counts=stats_columns is not None)


@click.command("explain", context_settings=CONTEXT)
@table_command
@scan_options
def explain(source: TableSource, *, where: str | None, limit: int | None, row_limit: int | None, strategy: str) -> None:
    """Scan the files of a table and show how, why and at what cost."""
    out = output(as_json=source.as_json)
    table = source.open()
    with table.files(where, limit=limit, row_limit=row_limit, strategy=strategy) as stream:
        with _watched(out, stream):
            for _ in stream.batches():
                pass
        out.explanation(stream.explain().as_dict())


@click.command("rows", context_settings=CONTEXT)
@table_command
@where_option("Show only rows for which this holds; SQL or JSON as for files.")
@click.option("--columns", metavar="A,B", help="Show these columns, in this order.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    default=_SOME_ROWS,
    show_default=True,
    help="Stop after this many rows.",
)
@click.option("--all", "everything", is_flag=True, help="Show every row.")
def rows(source: TableSource, *, where: str | None, columns: str | None, limit: int, everything: bool) -> None:
    """Show rows of a table; only as many files are opened as it takes."""
    out = output(as_json=source.as_json)
    table = source.open()
    names = None if columns is None else _names(columns)
    shown = _Shown(None if everything else limit)
    found = table.rows(columns=names, where=where)
    with out.watch(shown.describe):
        out.rows(shown.first(found), table.schema().names if names is None else names)


def describe_table(table: DeltaTable) -> TableInfo:
    """Gather what ``info`` tells; one request for the newest commit, none for files."""
    metadata, protocol = table.metadata(), table.protocol()
    newest: dict[str, Any] = next(iter(table.history(1)), {})
    timestamp, operation = newest.get("timestamp"), newest.get("operation")
    plan = table.files().explain().plan
    return TableInfo(
        uri=table.table_uri,
        version=table.version(),
        timestamp=timestamp if isinstance(timestamp, int) else None,
        operation=operation if isinstance(operation, str) else None,
        id=metadata.id,
        name=metadata.name,
        description=metadata.description,
        created_time=metadata.created_time,
        partition_columns=list(metadata.partition_columns),
        columns=[Column(field.name, str(field.type), field.nullable) for field in table.schema()],
        min_reader_version=protocol.min_reader_version,
        min_writer_version=protocol.min_writer_version,
        reader_features=sorted(protocol.reader_features or ()),
        writer_features=sorted(protocol.writer_features or ()),
        properties=dict(metadata.configuration or {}),
        checkpoint_version=plan["base_version"],
        tail_commits=plan["tail_commits"],
    )


def file_records(stream: FileStream, resolve: TableSource | None = None) -> Iterator[Iterator[Record]]:
    """Yield the files of a stream by batch, with their URIs where the table's source is given."""
    store = None
    if resolve is not None:
        external = resolve.external_locations
        store = TableHandle.open(resolve.uri, resolve.storage_options or None, external_locations=external).store
    for batch in stream.batches():
        if store is None:
            yield records(batch)
        else:
            yield ({"uri": store.uri_of(record["path"])} | record for record in records(batch))


def _names(text: str) -> list[str]:
    return [name for each in text.split(",") if (name := each.strip())]


def _watched(out: Output, stream: FileStream) -> Any:
    def describe() -> str:
        metrics = stream.metrics
        return f"{metrics.files_emitted:,} files found, {metrics.commits_scanned:,} tail commits read"

    return out.watch(describe)


class _Shown:
    """Counts rows on their way out, and stops at the limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._count = 0

    def first(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left = self._limit
        for batch in batches if left != 0 else ():
            shown = batch if left is None else batch.slice(0, left)
            self._count += shown.num_rows
            yield shown
            if left is not None and (left := left - shown.num_rows) == 0:
                break
        if isinstance(batches, Generator):
            # Closed now and not when somebody collects garbage: it holds a scan and an open file.
            batches.close()

    def describe(self) -> str:
        return f"{self._count:,} rows found"


COMMANDS = (info, files, history, rows, explain)

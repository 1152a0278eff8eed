"""The table commands: each opens a table, asks the library, and hands the answer to a renderer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from lazydelta.cli.output import Output, output
from lazydelta.cli.parameters import CONTEXT, TableSource, scan_options, table_command, where_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lazydelta.cli.values import Record
    from lazydelta.delta_table import DeltaTable
    from lazydelta.scan.file_stream import FileStream

__all__ = ["Column", "TableInfo", "explain", "files", "history", "info", "rows"]

# A person asks for a look, not for a million lines and a million requests.
_SOME_VERSIONS = 20
_SOME_ROWS = 10
_LOOK_EVERY = 5.0


class Column(msgspec.Struct, frozen=True):
    """A column of the table; ``type`` is PyArrow's name for it."""

    name: str
    type: str
    nullable: bool


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``info`` tells; moments are epoch milliseconds."""

    uri: str
    version: int
    timestamp: int | None
    operation: str | None
    id: str
    name: str | None
    description: str | None
    created_time: int | None
    partition_columns: list[str]
    columns: list[Column]
    min_reader_version: int
    min_writer_version: int
    reader_features: list[str]
    writer_features: list[str]
    properties: dict[str, str | None]
    checkpoint_version: int | None
    tail_commits: int


@click.command("info", context_settings=CONTEXT)
@table_command
def info(source: TableSource) -> None:
    """Show what a table is, without reading its file list.

    That is its version, columns, partitioning, protocol and properties; quick on tables of any size.
    """
    output(as_json=source.as_json).tell(_described(source.open()), _words("info"))


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
    versions = source.open().history(None if everything else limit)
    output(as_json=source.as_json).tell(versions, _words("history"))


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
@click.option("--follow", is_flag=True, help="Go on: show what versions add and remove, as they come, until Ctrl-C.")
@click.option(
    "--since",
    type=click.IntRange(min=-1),
    metavar="V",
    help="With --follow, begin with what came after this version; -1 for all, by default what comes from now on.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=_LOOK_EVERY,
    show_default=True,
    help="With --follow, how long to wait before the next look at the log.",
)
def files(  # noqa: PLR0913 - the options of the command
    source: TableSource,
    *,
    where: str | None,
    last: str | None,
    strict: bool,
    limit: int | None,
    row_limit: int | None,
    strategy: str,
    newest: int | None,
    within_retention: bool,
    stats_columns: str | None,
    uris: bool,
    follow: bool,
    since: int | None,
    interval: float,
) -> None:
    """List the files of a table while they are found.

    The scan stops when the reader of its output does: `lazydelta files URI | head` costs a few requests.
    """
    out = output(as_json=source.as_json)
    if follow:
        shaping = (where, last, row_limit, newest, stats_columns, source.version, source.timestamp)
        if any(each is not None for each in shaping) or strict or uris or within_retention or strategy != "auto":
            message = "--follow shows every change: beside it --since, --interval, --limit and --json make sense."
            raise click.UsageError(message, click.get_current_context())
        from lazydelta.cli.following import followed  # noqa: PLC0415 - loaded by whoever follows

        out.changes(followed(source.open(), since, interval=interval, limit=limit))
        return
    if since is not None:
        raise click.UsageError("--since makes sense with --follow.", click.get_current_context())
    if newest is not None:
        if limit is not None or strategy == "forward":
            message = "--newest N stands for --strategy reverse --limit N: give neither beside it."
            raise click.UsageError(message, click.get_current_context())
        limit, strategy = newest, "reverse"
    table = source.open()
    stream = table.files(
        where,
        last=last,
        strict=strict,
        limit=limit,
        row_limit=row_limit,
        strategy=strategy,
        stats_columns=None if stats_columns is None else _names(stats_columns),
        retention_guard=table.retention_guard() if within_retention else None,
    )
    with stream, _watched(out, stream):
        out.files(_file_records(stream, source if uris else None), with_counts=stats_columns is not None)


@click.command("explain", context_settings=CONTEXT)
@table_command
@scan_options
def explain(
    source: TableSource,
    *,
    where: str | None,
    last: str | None,
    strict: bool,
    limit: int | None,
    row_limit: int | None,
    strategy: str,
    within_retention: bool,
) -> None:
    """Scan the files of a table and show how, why and at what cost."""
    out = output(as_json=source.as_json)
    table = source.open()
    stream = table.files(
        where,
        last=last,
        strict=strict,
        limit=limit,
        row_limit=row_limit,
        strategy=strategy,
        retention_guard=table.retention_guard() if within_retention else None,
    )
    with stream:
        with _watched(out, stream):
            for _ in stream.batches():
                pass
        explained = stream.explain().as_dict()
        if str(explained["plan"]["sidecar"]).startswith("none"):
            explained["plan"]["sidecar"] = _absence(source, explained["plan"]["base_version"])
        out.tell(explained, _words("explanation"))


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
    found = table.rows(columns=names, where=where, limit=None if everything else limit)
    with found, out.watch(lambda: f"{found.metrics.rows_emitted:,} rows found"):
        out.rows(iter(found), found.schema.names)


def _described(table: DeltaTable) -> TableInfo:
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
        columns=[Column(field.name, str(field.type), field.nullable) for field in table.schema().to_arrow()],
        min_reader_version=protocol.min_reader_version,
        min_writer_version=protocol.min_writer_version,
        reader_features=sorted(protocol.reader_features or ()),
        writer_features=sorted(protocol.writer_features or ()),
        properties=dict(metadata.configuration or {}),
        checkpoint_version=plan["base_version"],
        tail_commits=plan["tail_commits"],
    )


def _words(name: str) -> Callable[[Any], Iterable[Any]]:
    """Return the function that shows a result to people; it is looked for when there are people."""

    def words(result: Any) -> Iterable[Any]:
        from lazydelta.cli import tables  # noqa: PLC0415 - and with it Rich

        found: Iterable[Any] = getattr(tables, name)(result)
        return found

    return words


def _file_records(stream: FileStream, resolve: TableSource | None = None) -> Iterator[Iterator[Record]]:
    """Yield the files of a stream by batch, with their URIs where the table's source is given."""
    from lazydelta.cli.values import records  # noqa: PLC0415 - loaded by whoever runs the command
    from lazydelta.handle import TableHandle  # noqa: PLC0415

    store = None
    if resolve is not None:
        external = resolve.external_locations
        store = TableHandle.open(resolve.uri, resolve.storage_options or None, external_locations=external).store
    for batch in stream.batches():
        if store is None:
            yield records(batch)
        else:
            yield ({"uri": store.uri_of(record["path"])} | record for record in records(batch))


def _absence(source: TableSource, version: int) -> str:
    from lazydelta.handle import TableHandle  # noqa: PLC0415
    from lazydelta.sidecar.inspection.staleness import why_absent  # noqa: PLC0415 - rarely wanted

    options, external = source.storage_options or None, source.external_locations
    return why_absent(TableHandle.open(source.uri, options, external_locations=external).store, version)


def _names(text: str) -> list[str]:
    return [name for each in text.split(",") if (name := each.strip())]


def _watched(out: Output, stream: FileStream) -> Any:
    def describe() -> str:
        metrics = stream.metrics
        return f"{metrics.files_emitted:,} files found, {metrics.commits_scanned:,} tail commits read"

    return out.watch(describe)

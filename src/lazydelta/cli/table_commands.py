"""The table commands: each opens a table, calls the library, and passes the result to a renderer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from lazydelta.cli.output import Output, output, write_csv
from lazydelta.cli.parameters import CONTEXT, TableSource, csv_option, scan_options, table_command, where_option
from lazydelta.cli.wording import printable
from lazydelta.runtime.results import records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lazydelta.runtime.results import Record
    from lazydelta.scan.stream import FileStream
    from lazydelta.table.delta_table import DeltaTable

__all__ = ["followed"]


# People want an overview, not a million lines and a million requests.
_SOME_VERSIONS = 20
_SOME_ROWS = 10
_LOOK_EVERY = 5.0


@click.command("info", context_settings=CONTEXT)
@table_command
def info(source: TableSource) -> None:
    """Describe a table without reading its file list.

    Shows version, columns, partitioning, protocol and properties; fast for tables of any size.
    """
    output(as_json=source.as_json).tell(source.open().info(), _words("info"))


@click.command("history", context_settings=CONTEXT)
@table_command
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    default=_SOME_VERSIONS,
    show_default=True,
    help="Show this many versions; each takes a request.",
)
@click.option("--all", "everything", is_flag=True, help="Show every version that has a commit file.")
def history(source: TableSource, limit: int, *, everything: bool) -> None:
    """Show the history of a table, newest version first."""
    out = output(as_json=source.as_json)
    read = [0, 0]

    def progress(done: int, total: int) -> None:
        read[:] = done, total

    with out.watch(lambda: f"{read[0]:,} of {read[1]:,} versions read" if read[1] else "reading the log"):
        versions = source.open().history(None if everything else limit, progress=progress)
    out.tell(versions, _words("history"))


@click.command("files", context_settings=CONTEXT)
@table_command
@scan_options
@click.option(
    "--stats-columns",
    metavar="A,B",
    help="Also show the number of rows per file and, with --json, the statistics of these "
    "columns; '' for row counts only.",
)
@click.option("--uris", is_flag=True, help="Show the URI of each file instead of its path in the log.")
@click.option("--paths", is_flag=True, help="Print only the path of each file, for xargs; with --uris its URI.")
@csv_option
@click.option(
    "--newest",
    type=click.IntRange(min=0),
    metavar="N",
    help="Show the N newest files; same as --strategy reverse --limit N.",
)
@click.option("--follow", is_flag=True, help="Keep showing what new versions add and remove, until Ctrl-C.")
@click.option(
    "--since",
    type=click.IntRange(min=-1),
    metavar="V",
    help="With --follow: start after this version; -1 for all versions. [default: new versions only]",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=_LOOK_EVERY,
    show_default=True,
    help="With --follow: the time between two reads of the log.",
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
    paths: bool,
    as_csv: bool,
    follow: bool,
    since: int | None,
    interval: float,
) -> None:
    """List the files of a table as they are found.

    The scan stops when the reader of its output stops: `lazydelta files URI | head` takes a few requests.
    """
    if sum([source.as_json, paths, as_csv]) > 1:
        raise click.UsageError("--json, --csv and --paths are mutually exclusive.", click.get_current_context())
    out = output(as_json=source.as_json)
    if follow:
        shaping = (where, last, row_limit, newest, stats_columns, source.version, source.timestamp)
        if (
            any(each is not None for each in shaping)
            or strict
            or uris
            or paths
            or as_csv
            or within_retention
            or strategy != "auto"
        ):
            message = (
                "--follow shows every change: it can be combined with --since, --interval, --limit and --json only."
            )
            raise click.UsageError(message, click.get_current_context())

        out.changes(followed(source.open(), since, interval=interval, limit=limit))
        return
    if since is not None:
        raise click.UsageError("--since requires --follow.", click.get_current_context())
    if newest is not None:
        if limit is not None or strategy == "forward":
            message = "--newest N stands for --strategy reverse --limit N: pass only one of them."
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
    if as_csv:
        with stream, _watched(out, stream):
            write_csv(out, stream.batches(), stream.columns)
        return
    if paths:
        name = "uri" if uris else "path"
        with stream, _watched(out, stream):
            for batch in _file_records(stream, source if uris else None):
                out.write("".join(f"{printable(record[name])}\n" for record in batch))
        return
    with stream, _watched(out, stream):
        out.files(_file_records(stream, source if uris else None), with_counts=stats_columns is not None)


@click.command("explain", context_settings=CONTEXT)
@table_command
@scan_options
@click.option("--all", "everything", is_flag=True, help="Show every metric with its meaning.")
def explain(  # noqa: PLR0913 - the options of the command
    source: TableSource,
    *,
    everything: bool,
    where: str | None,
    last: str | None,
    strict: bool,
    limit: int | None,
    row_limit: int | None,
    strategy: str,
    within_retention: bool,
) -> None:
    """Scan the files of a table and show the plan, the pruning and the cost."""
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
        out.tell(explained, _words("explanation" if everything else "short_explanation"))


@click.command("rows", context_settings=CONTEXT)
@table_command
@where_option("Show only rows for which this holds; SQL or JSON as for files.")
@click.option("--columns", multiple=True, metavar="A,B", help="Show these columns, in this order; repeatable.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    default=_SOME_ROWS,
    show_default=True,
    help="Stop after this many rows.",
)
@click.option("--all", "everything", is_flag=True, help="Show every row.")
@csv_option
def rows(
    source: TableSource, *, where: str | None, columns: tuple[str, ...], limit: int, everything: bool, as_csv: bool
) -> None:
    """Show rows of a table, opening only as many files as needed."""
    if as_csv and source.as_json:
        raise click.UsageError("--json and --csv are mutually exclusive.", click.get_current_context())
    out = output(as_json=source.as_json)
    table = source.open()
    names = [name for each in columns for name in _names(each)] or None
    found = table.rows(columns=names, where=where, limit=None if everything else limit)
    with found, out.watch(lambda: f"{found.metrics.rows_emitted:,} rows found"):
        if as_csv:
            write_csv(out, iter(found), found.schema.names)
            return
        out.rows(iter(found), found.schema.names)


def _words(name: str) -> Callable[[Any], Iterable[Any]]:
    """Return the function that shows a result to people. It is loaded only when called."""

    def words(result: Any) -> Iterable[Any]:
        from lazydelta.cli import tables  # noqa: PLC0415 - loads Rich

        found: Iterable[Any] = getattr(tables, name)(result)
        return found

    return words


def _file_records(stream: FileStream, resolve: TableSource | None = None) -> Iterator[Iterator[Record]]:
    """Yield the files of a stream by batch, with their URIs if the table's source is given."""
    from lazydelta.runtime.results import records  # noqa: PLC0415 - loaded when the command runs
    from lazydelta.sidecar.handle import TableHandle  # noqa: PLC0415

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
    from lazydelta.sidecar.handle import TableHandle  # noqa: PLC0415
    from lazydelta.sidecar.inspection import why_absent  # noqa: PLC0415 - rarely needed

    options, external = source.storage_options or None, source.external_locations
    return why_absent(TableHandle.open(source.uri, options, external_locations=external).store, version)


def _names(text: str) -> list[str]:
    return [name for each in text.split(",") if (name := each.strip())]


def _watched(out: Output, stream: FileStream) -> Any:
    def describe() -> str:
        metrics = stream.metrics
        return f"{metrics.files_emitted:,} files found, {metrics.commits_scanned:,} tail commits read"

    return out.watch(describe)


# ``files --follow``: the changes of a table's files, printed as new versions appear.


def followed(
    table: DeltaTable,
    since: int | None,
    *,
    interval: float,
    limit: int | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Iterator[Record]]:
    """Yield the changes after ``since``, or after the table's version, and continue with later versions.

    A version is printed completely before the log is checked again, every ``interval`` seconds. The stream ends after
    ``limit`` changes, or never.
    """
    last = table.version() if since is None else since
    left = limit
    while left is None or left > 0:
        for batch in table.changes(last):
            found = batch if left is None else batch.slice(0, left)
            yield records(found)
            if left is not None and (left := left - found.num_rows) == 0:
                return
        last = table.version()
        wait(interval)
        table.update_incremental()

"""``lazydelta query`` and ``lazydelta kql``: SQL or KQL over tables, with one set of options and outputs."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click
import msgspec

from lazydelta.cli.charts import DRAWN, FILES, chart_of, draw, save
from lazydelta.cli.output import Output, note, output, write_csv
from lazydelta.cli.parameters import (
    CONTEXT,
    check_uri,
    csv_option,
    debug_option,
    decorated,
    external_option,
    json_option,
    library_option,
    named_table,
    pairs,
    refuse_extra_arguments,
    storage_option,
)
from lazydelta.cli.wording import printable
from lazydelta.errors import MissingExtraError, OptionError, require
from lazydelta.runtime.threads import Task, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from lazydelta.engines.sql import SqlResult
    from lazydelta.kql import KqlResult
    from lazydelta.kql.execution.query import StoppableQuery
    from lazydelta.table.delta_table import DeltaTable


# A query in the background: Ctrl-C stops it, whatever DuckDB is doing.


R = TypeVar("R")
# An idle thread ends at once. One that still holds objects of DuckDB when the interpreter ends makes it report leaks.
_ENDS_WITHIN = 5.0


class Background:
    """Runs the steps of one query in a separate thread, one after the other. The caller waits for each.

    Python delivers Ctrl-C to the main thread, between two Python instructions. A single DuckDB call may run for
    minutes, so the main thread makes none. It waits where it can be interrupted, and then stops the query.
    """

    def __init__(self) -> None:
        self._steps: SimpleQueue[Task[Any] | None] = SimpleQueue()
        self.halt: Callable[[], object] = lambda: None
        """Stops the running step. Called from the main thread."""
        self._thread = start_thread(self._run, "query")

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            step.run()
            del step  # it holds the query, and waiting may last until exit

    def call(self, step: Callable[[], R]) -> R:
        """Return what a step returns, or raise what it raises."""
        task = Task(step)
        self._steps.put(task)
        try:
            return task.result()
        except KeyboardInterrupt:
            self.halt()
            raise

    def close(self, step: Callable[[], object], error: BaseException | None) -> None:
        """Run the last step. Skip it after Ctrl-C: the process ends and need not wait for running work."""
        if isinstance(error, KeyboardInterrupt):
            self.halt()
            self._steps.put(None)
            return
        try:
            self.call(step)
        finally:
            self._steps.put(None)
            self.halt = step = lambda: None
            self._thread.join(_ENDS_WITHIN)


class RunningQuery:
    """One SQL or KQL query on its own connection, run in the background and read batch by batch."""

    def __init__(self, start: Callable[[Callable[[Any], None]], SqlResult | KqlResult]) -> None:
        self._background = Background()
        self.rows = 0
        """The number of rows that were read so far."""

        def begun(query: StoppableQuery | SqlResult) -> None:
            self._background.halt = query.halt

        try:
            self.result = self._background.call(lambda: start(begun))
        except BaseException as error:
            self._background.close(lambda: None, error)
            raise
        self.schema: pa.Schema = self.result.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the result as it is produced."""
        rows = iter(self.result)
        while (batch := self._background.call(lambda: next(rows, None))) is not None:
            self.rows += batch.num_rows
            yield batch

    def explain(self) -> Any:
        """Return the plan of a KQL query, or what the scans of an SQL query did, which is run for that."""
        explained = self.result.explain()
        if "scans" not in explained:
            return explained
        for _ in self.batches():
            pass
        return self.result.explain()["scans"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._background.close(self.result.close, error)


_CATALOG = "LAZYDELTA_CATALOG"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What `query` and `kql` have in common: the text, its tables and values, and the form of the answer."""

    text: str
    tables: dict[str, str]
    parameters: dict[str, Any]
    now: datetime | None
    storage_options: dict[str, str]
    options: dict[str, str]
    external_locations: dict[str, dict[str, str]]
    form: str
    parquet: str | None

    def open_table(self, uri: str) -> DeltaTable:
        """Open a table by its URI."""
        from lazydelta.table.delta_table import DeltaTable  # noqa: PLC0415 - not needed for --help

        check_uri(uri)
        return DeltaTable(
            uri,
            storage_options=self.storage_options or None,
            options=self.options,
            external_locations=self.external_locations,
        )

    def kql_text(self) -> str:
        """Return the KQL query with its parameters as ``let`` statements."""
        lets = [f"let {name} = {_kql_literal(value)}; " for name, value in self.parameters.items()]
        return "".join([*lets, self.text])

    def asked(self, *, is_kql: bool, result: int | None = None) -> RunningQuery:
        """Start the query, for one of its results if it has several."""
        if is_kql:
            from lazydelta.kql.execution.query import QuerySettings, run  # noqa: PLC0415 - DuckDB and Lark are optional

            settings, text = QuerySettings(self.now, result=result), self.kql_text()
            return RunningQuery(
                lambda begun: run(text, self.tables, settings=settings, open_table=self.open_table, begun=begun)
            )
        from lazydelta.engines.sql import SqlResult  # noqa: PLC0415 - DuckDB is optional

        if self.now is not None:
            raise click.UsageError(
                "--now is for KQL; in SQL, write the timestamp into the query or pass it as --param."
            )
        return RunningQuery(
            lambda begun: SqlResult(
                self.text, self.tables, params=self.parameters or None, open_table=self.open_table, begun=begun
            )
        )

    def answer(self, *, is_kql: bool, as_chart: bool | None = None, chart_file: str | None = None) -> None:
        """Run the query and print the answer, or draw its chart; each one of several results in turn."""
        numbers = range(self._results()) if is_kql and self.form in {"text", "json", "csv"} else [None]
        for number in numbers if len(numbers) > 1 else [None]:
            if number and self.form != "json":
                click.echo()
            self._answer(number, is_kql=is_kql, as_chart=as_chart, chart_file=chart_file)

    def _results(self) -> int:
        from lazydelta.kql.execution.query import result_count  # noqa: PLC0415 - DuckDB and Lark are optional

        return result_count(self.kql_text())

    def _answer(self, result: int | None, *, is_kql: bool, as_chart: bool | None, chart_file: str | None) -> None:
        out = _fitting_output() if self.form == "text" and sys.stdout.isatty() else output(as_json=self.form == "json")
        found: list[RunningQuery] = []
        with contextlib.ExitStack() as progress:
            progress.enter_context(out.watch(lambda: f"{found[0].rows:,} rows found" if found else "the query runs"))
            with self.asked(is_kql=is_kql, result=result) as asked:
                found.append(asked)
                draws = chart_file is not None or (is_kql and self.form == "text" and _draws(asked, as_chart))
                if not draws and self.form in {"text", "json"}:
                    out.rows(asked.batches(), asked.schema.names)
                    return
                if not draws and self.form in {"csv", "arrow", "parquet"}:
                    self._export(out, asked)
                    return
                progress.close()  # what follows writes past the renderer
                if self.form.startswith("explain"):
                    plan = output(as_json=self.form == "explain json")
                    plan.tell(asked.explain(), (lambda each: map(printable, told(each))) if is_kql else _explained)
                else:
                    _chart(asked, chart_file)

    def _export(self, out: Output, asked: RunningQuery) -> None:
        if self.form == "arrow":
            _write_arrow(asked)
        elif self.form == "parquet":
            _write_parquet(asked, self.parquet or "")
        else:
            write_csv(out, asked.batches(), asked.schema.names)


def is_terminal() -> bool:
    """Return whether a person reads what is printed."""
    return sys.stdout.isatty()


def _draws(asked: RunningQuery, as_chart: bool | None) -> bool:  # noqa: FBT001 - None is neither
    """Return whether the result becomes a chart; without being asked, only if one can be drawn in this terminal."""
    if as_chart is not None:
        return as_chart
    render = getattr(asked.result, "render", None)
    if render is None or render[0] == "table" or not is_terminal():
        return False
    if render[0] not in DRAWN:
        note(f"A terminal draws no {printable(render[0])}. These are its rows.")
        return False
    try:
        require("charts", "plotext")
    except MissingExtraError as missing:
        note(f"{missing}: it draws the chart of render. These are its rows.")
        return False
    return True


def _chart(asked: RunningQuery, file: str | None) -> None:
    result: Any = asked.result
    render = getattr(result, "render", None)
    if render is None:
        raise OptionError(
            "The query asks for no chart", hint="end the query with | render timechart, or print its rows"
        )
    if file is not None and Path(file).suffix not in FILES:
        raise OptionError(f"{file} is neither .svg nor .png", hint="use a file name such as chart.svg or chart.png")
    found = chart_of(render, result.kinds, asked.batches())
    if file is None:
        click.echo(draw(found, color=is_terminal() and not os.environ.get("NO_COLOR")))
    else:
        save(found, Path(file))
    for each in found.notes:
        note(each)


def named_tables() -> dict[str, str]:
    """Return the tables that stand behind the query as ``NAME=URI`` or ``URI``. Refuse all other arguments."""
    ctx = click.get_current_context()
    # Anything else may be a secret that was cut off its option.
    if not all(re.fullmatch(r"[^\W\d]\w*=.+", each) or "://" in each or Path(each).is_dir() for each in ctx.args):
        refuse_extra_arguments()
    return dict(named_table(each) for each in ctx.args)


def query_command(function: Callable[..., None]) -> Callable[..., None]:
    """Add what the commands `query` and `kql` share, and pass it on as a `Question`."""

    @functools.wraps(function)
    def command(  # noqa: PLR0913 - one parameter an option
        *,
        text: str | None,
        file: str | None,
        tables: dict[str, str],
        catalog: str | None,
        parameters: dict[str, str],
        now: str | None,
        as_csv: bool,
        as_arrow: bool,
        parquet: str | None,
        explain: bool,
        storage_option: dict[str, str],
        option: dict[str, str],
        external_location: dict[str, dict[str, str]],
        as_json: bool,
        **rest: Any,
    ) -> None:
        ctx = click.get_current_context()
        if file is not None and text is not None:  # the file has the query, so this is a table
            ctx.args, text = [text, *ctx.args], None
        tables = tables | named_tables()
        if sum([as_csv, as_arrow, as_json and not explain, parquet is not None]) > 1:
            raise click.UsageError("--csv, --json, --arrow and --parquet are mutually exclusive.")
        form = "csv" if as_csv else "arrow" if as_arrow else "json" if as_json else "text"
        form = "parquet" if parquet is not None else f"explain {form}" if explain else form
        question = Question(
            text=_text(text, file),
            tables=_catalog(catalog) | tables,
            parameters={name: _value(given) for name, given in parameters.items()},
            now=None if now is None else _timestamp(now),
            storage_options=storage_option,
            options=option,
            external_locations=external_location,
            form=form,
            parquet=parquet,
        )
        function(question, **rest)

    decorators: list[Callable[[Callable[..., None]], Callable[..., None]]] = [
        click.argument("text", required=False),
        click.option("--file", type=click.Path(dir_okay=False), metavar="F", help="Read the query from a file."),
        click.option(
            "--table",
            "tables",
            multiple=True,
            metavar="NAME=URI",
            callback=pairs,
            help="A table and its name in the query; repeatable.",
        ),
        click.option(
            "--catalog",
            type=click.Path(dir_okay=False),
            metavar="F",
            help=f"Names of tables in a TOML file, under [tables]; else the file that {_CATALOG} names.",
        ),
        click.option(
            "--param",
            "parameters",
            multiple=True,
            metavar="NAME=VALUE",
            callback=pairs,
            help="A query parameter: $NAME in SQL, NAME in KQL; repeatable.",
        ),
        click.option("--now", metavar="T", help="KQL: the value of now(): ISO 8601, UTC unless it has a time zone."),
        csv_option,
        click.option("--arrow", "as_arrow", is_flag=True, help="Write an Arrow IPC stream to standard output."),
        click.option(
            "--parquet", type=click.Path(dir_okay=False), metavar="FILE", help="Write the rows to a Parquet file."
        ),
        click.option(
            "--explain", is_flag=True, help="Show which conditions reach the tables and what is read; SQL queries run."
        ),
        storage_option,
        external_option,
        library_option,
        json_option,
        debug_option,
    ]
    return decorated(command, decorators)


@click.command("query", context_settings=CONTEXT)
@query_command
@click.option("--kql", "is_kql", is_flag=True, help="The query is KQL; the same as the command `kql`.")
def query(question: Question, *, is_kql: bool) -> None:
    """Query tables in SQL (DuckDB's dialect) or KQL.

    Tables are given after the query as NAME=URI, with --table, in a catalog file, or inline as delta('URI'). The query
    is an argument, a file, or - for standard input. Rows are printed as they are found; files are read only until
    the query has its result.
    """
    question.answer(is_kql=is_kql)


@click.command("kql", context_settings=CONTEXT)
@query_command
@click.option(
    "--rewrite", is_flag=True, help="Print the query for a Kusto cluster: externaldata over the files that may match."
)
@click.option(
    "--cluster-uri",
    multiple=True,
    metavar="NAME=URI",
    callback=pairs,
    help="With --rewrite: the URI at which the cluster finds a table; repeatable.",
)
@click.option(
    "--secret-variable",
    metavar="NAME",
    help="With --rewrite: the environment variable with a SAS token or ;key to append to each URL.",
)
@click.option("--managed-identity", metavar="ID", help="With --rewrite: a managed identity: system, or its object id.")
@click.option(
    "--cap", type=click.IntRange(min=0), metavar="BYTES", help="With --rewrite: fail if the files have more bytes."
)
@click.option(
    "--chart/--rows",
    "as_chart",
    default=None,
    help="Draw the chart of a render operator, or print rows. [default: the chart in a terminal, rows in a pipe]",
)
@click.option(
    "--output",
    "chart_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the chart to an .svg or .png file.",
)
def kql(
    question: Question,
    *,
    rewrite: bool,
    cluster_uri: dict[str, str],
    secret_variable: str | None,
    managed_identity: str | None,
    cap: int | None,
    as_chart: bool | None,
    chart_file: str | None,
) -> None:
    """Query tables in KQL, the language of Azure Data Explorer.

    Rows are printed as they are found; files are read only until the query has its result.
    """
    if not rewrite:
        question.answer(is_kql=True, as_chart=as_chart, chart_file=chart_file)
        return
    rewritten = _rewritten(
        question.kql_text(),
        question.tables,
        now=question.now,
        cluster_uris=cluster_uri,
        secret=None if secret_variable is None else _secret(secret_variable),
        managed_identity=managed_identity,
        open_table=question.open_table,
        **({} if cap is None else {"cap": cap}),
    )
    if question.form.endswith("json"):
        output(as_json=True).tell({"query": rewritten}, lambda _: ())
    else:
        # Not through the renderer for people, which would wrap lines: this is meant to be pasted.
        click.echo(rewritten)


def told(explained: dict[str, Any]) -> Iterator[str]:
    """Yield an explanation for people, line by line."""
    for table in explained["tables"]:
        yield f"{table['table']}"
        yield f"  columns     {', '.join(table['columns']) or 'none'}"
        yield f"  predicate   {json.dumps(table['where'], ensure_ascii=False) if table['where'] else 'none'}"
        yield f"  row limit   {'none' if table['row_limit'] is None else table['row_limit']}"
        for each in table["conditions"]:
            why = f": {each['why']}" if each["why"] else ""
            yield f"  {'reached' if each['reached'] else 'stopped'}     {' '.join(each['text'].split())}{why}"
    yield f"SQL  {explained['sql']}"


def _rewritten(text: str, tables: dict[str, str], **options: Any) -> str:
    from lazydelta.kql.execution.cluster_rewrite import rewrite  # noqa: PLC0415 - DuckDB and Lark are optional

    return rewrite(text, tables, **options)


def _secret(variable: str) -> str:
    # Not on the command line, where every process on the machine can read it.
    secret = os.environ.get(variable)
    if not secret:
        raise OptionError(
            f"The environment variable {variable} is not set", hint="write the token or key into the file"
        )
    return secret


def _timestamp(text: str) -> datetime:
    try:
        timestamp = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is not an ISO 8601 timestamp"
        raise OptionError(message, hint="write it as 2026-02-10T22:00:00Z") from None
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)


def _value(text: str) -> Any:
    """Return the value of a parameter: a number, true, false or null, else the text."""
    words = {"true": True, "false": False, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        return float(text)
    return text


def _kql_literal(value: Any) -> str:
    if value is None:
        return "dynamic(null)"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else json.dumps(value)


def _text(text: str | None, file: str | None) -> str:
    if text is None and file is None and not sys.stdin.isatty() and (piped := sys.stdin.read()).strip():
        return piped
    if text is None and file is None:
        raise click.UsageError("Pass the query, - to read it from standard input, or --file FILE.")
    if "-" in {text, file}:
        return sys.stdin.read()
    if file is None:
        if str(text).endswith((".sql", ".kql")) and Path(str(text)).is_file():
            raise click.UsageError(f"{text} is a file. Write --file {text}.")
        if Path(str(text)).is_dir():
            raise click.UsageError("The query comes first, then its tables as NAME=URI or URI.")
        return text or ""
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"The query in {file} cannot be read: {error}", path=file) from error


def _catalog(given: str | None) -> dict[str, str]:
    path = given or os.environ.get(_CATALOG)
    if not path:
        return {}
    hint = 'write [tables] and below it name = "URI"'
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("tables", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"The catalog {path} cannot be read: {error}", path=path, hint=hint) from error
    if not isinstance(tables, dict) or not all(isinstance(uri, str) for uri in tables.values()):
        raise OptionError(f"The catalog {path} contains more than names and URIs", path=path, hint=hint)
    return tables


def _fitting_output() -> Any:
    from lazydelta.cli.console import ConsoleOutput  # noqa: PLC0415 - for people only

    return ConsoleOutput(width=os.get_terminal_size(sys.stdout.fileno()).columns)


def _write_arrow(asked: RunningQuery) -> None:
    import pyarrow as pa  # noqa: PLC0415 - see above

    out = sys.stdout.buffer
    if sys.stdout.isatty():
        raise OptionError("An Arrow stream cannot be written to a terminal", hint="redirect it, or use --parquet FILE")
    with pa.ipc.new_stream(out, asked.schema) as writer:
        for batch in asked.batches():
            writer.write_batch(batch)
            out.flush()


def _write_parquet(asked: RunningQuery, path: str) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415 - see above

    # Use another name until the file is complete, so that readers never find a partial file.
    unfinished = Path(f"{path}.unfinished-{os.getpid()}")
    try:
        with pq.ParquetWriter(unfinished, asked.schema) as writer:
            for batch in asked.batches():
                writer.write_batch(batch)
        unfinished.replace(path)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error}", path=path) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _explained(scans: list[dict[str, Any]]) -> Iterator[str]:
    if not scans:
        yield "The query reads no table."
    for scan in scans:
        plan, rows, files = scan["plan"], scan["rows"], scan["metrics"]
        yield f"{scan['table']}, version {plan['version']}"
        yield f"  columns read: {', '.join(plan['columns']) or 'none, rows are counted'}"
        yield f"  filter pushed down: {plan['predicate'] or 'none'}"
        yield f"  files: {files['delta.lazy.files_emitted']} found, {files['delta.lazy.files_pruned']} pruned by log"
        yield f"  files opened: {rows['files_opened']}, {rows['files_while_discovering']} while others were looked for"
        yield f"  row groups: {rows['row_groups_read']} read, {rows['row_groups_pruned']} pruned by footers"
        yield f"  rows: {rows['rows_read']} decoded, {rows['rows_emitted']} handed over"
        yield f"  requests: {files['delta.lazy.requests']}, {files['delta.lazy.bytes_read']} bytes of log and data"

"""``lazydelta shell``: SQL and KQL line by line, over tables or over a server, with history and completion."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import click

from lazydelta.cli.output import output, write_csv
from lazydelta.cli.parameters import (
    CONTEXT,
    check_uri,
    debug_option,
    external_option,
    folders,
    library_option,
    named_table,
    refuse_extra_arguments,
    storage_option,
)
from lazydelta.cli.query import Question, RunningQuery
from lazydelta.cli.wording import one_line, printable
from lazydelta.errors import LazyDeltaError, OptionError, QueryError, require

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["shell"]

_SQL_WORDS = frozenset(
    ["select", "with", "from", "show", "describe", "desc", "summarize", "values", "pivot", "unpivot", "table"]
)
_KEYWORDS = (
    *("select", "from", "where", "group by", "order by", "limit", "join", "between", "like", "describe", "show tables"),
    *("summarize", "project", "extend", "take", "top", "count", "render", "ago", "bin"),
)
_HELP = """SELECT …, DESCRIBE t, SHOW TABLES    SQL, in DuckDB's dialect
T | where … | summarize …            KQL
.tables                              the tables
.schema [TABLE]                      columns and types
.explain QUERY                       what a query pushes down, prunes and reads
.render                              draw the last result as bars
.mode text|csv|json                  the form of the output
.timing on|off                       say how long each query took
.help, .quit                         a line that ends in \\ goes on"""
_SHOWN = 1000
_BAR = 40


class QueryTarget(Protocol):
    """Where queries are sent."""

    def tables(self) -> list[str]:
        """Return the names of the tables."""

    def columns(self, table: str) -> dict[str, str]:
        """Return the columns of a table with their types."""

    def ask(self, text: str, *, is_kql: bool) -> Any:
        """Run a query. The result has ``schema``, ``batches()`` and ``explain()``, and is a context manager."""

    def close(self) -> None:
        """Close connections."""


class Tables:
    """Tables opened in this process."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._opened: dict[str, Any] = {}

    def tables(self) -> list[str]:
        """Return the names of the tables."""
        return sorted(self._question.tables)

    def columns(self, table: str) -> dict[str, str]:
        """Return the columns of a table with their types."""
        if table not in self._question.tables:
            raise QueryError(f"There is no table {table}", hint=f"known tables: {', '.join(self.tables())}")
        if table not in self._opened:
            self._opened[table] = self._question.open_table(self._question.tables[table])
        types: dict[str, str] = self._opened[table].dtypes
        return types

    def ask(self, text: str, *, is_kql: bool) -> RunningQuery:
        """Run a query over the newest versions."""
        import msgspec  # noqa: PLC0415 - loaded already

        return msgspec.structs.replace(self._question, text=text).asked(is_kql=is_kql)

    def close(self) -> None:
        """Do nothing: each query closes what it opens."""


class Server:
    """Tables of ``lazydelta serve``, asked by Flight SQL."""

    def __init__(self, location: str, token: str | None) -> None:
        require("shell", "adbc_driver_flightsql", "adbc_driver_manager")
        from adbc_driver_flightsql import dbapi  # noqa: PLC0415 - optional

        headers = {} if token is None else {"adbc.flight.sql.authorization_header": f"Bearer {token}"}
        self._connection = dbapi.connect(location, db_kwargs=headers, autocommit=True)

    def tables(self) -> list[str]:
        """Return the names of the tables."""
        with self.ask("SHOW TABLES", is_kql=False) as answer:
            return [name for batch in answer.batches() for name in batch.column(0).to_pylist()]

    def columns(self, table: str) -> dict[str, str]:
        """Return the columns of a table with their types."""
        quoted = table.replace('"', '""')
        with self.ask(f'DESCRIBE "{quoted}"', is_kql=False) as answer:
            rows = [row for batch in answer.batches() for row in zip(*batch.columns[:2], strict=True)]
        return {name.as_py(): kind.as_py() for name, kind in rows}

    def ask(self, text: str, *, is_kql: bool) -> _Answer:
        """Send a statement."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(f"kql:{text}" if is_kql else text)
            return _Answer(cursor, cursor.fetch_record_batch())
        except Exception as error:
            cursor.close()
            raise QueryError(f"The server refuses the query: {error}") from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class _Answer:
    def __init__(self, cursor: Any, reader: pa.RecordBatchReader) -> None:
        self._cursor = cursor
        self._reader = reader
        self.schema = reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        return iter(self._reader)

    def explain(self) -> dict[str, Any]:
        raise OptionError("A server does not explain statements here", hint="send EXPLAIN with the query as SQL")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cursor.close()


class Session:
    """Runs lines one by one. ``write`` prints text, ``is_terminal`` cuts long results and pages them."""

    def __init__(self, source: QueryTarget, *, is_terminal: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self.source = source
        self._is_terminal = is_terminal
        self._clock = clock
        self._mode = "text"
        self._timing = is_terminal
        self._last: pa.Table | None = None

    def run(self, line: str) -> bool:
        """Run a line. Return false if it ends the session. Errors are printed, and the session goes on."""
        text = line.strip().removesuffix(";").strip()
        if not text or text.startswith("--"):
            return True
        try:
            if text.startswith("."):
                return self._command(*text[1:].split(maxsplit=1))
            self._answer(text)
        except LazyDeltaError as error:
            click.echo(f"error: {one_line(str(error))}", err=True)
        except KeyboardInterrupt:
            if not self._is_terminal:
                raise
            click.echo("interrupted", err=True)
        return True

    def _command(self, name: str = "", rest: str = "") -> bool:
        match name:
            case "quit" | "exit" | "q":
                return False
            case "help":
                click.echo(_HELP)
            case "tables":
                click.echo("".join(f"{printable(each)}\n" for each in self.source.tables()), nl=False)
            case "schema":
                for table in [rest] if rest else self.source.tables():
                    click.echo(printable(table))
                    for column, kind in self.source.columns(table).items():
                        click.echo(f"  {printable(column)}  {kind}")
            case "explain" if rest:
                import json  # noqa: PLC0415 - rarely needed

                with self.source.ask(rest, is_kql=is_kql(rest)) as answer:
                    click.echo(json.dumps(answer.explain(), indent=2, default=str))
            case "render":
                self._render()
            case "mode" if rest in {"text", "csv", "json"}:
                self._mode = rest
            case "timing" if rest in {"on", "off"}:
                self._timing = rest == "on"
            case "explain" | "mode" | "timing":
                raise OptionError(f".{name} needs to know what", hint=".help says how it is written")
            case _:
                raise OptionError(
                    f"There is no command .{printable(name)} {printable(rest)}".rstrip(), hint=".help lists them"
                )
        return True

    def _answer(self, text: str) -> None:
        begun = self._clock()
        with self.source.ask(text, is_kql=is_kql(text)) as answer:
            kept: list[pa.RecordBatch] = []
            batches = self._kept(answer.batches(), kept)
            if self._mode == "csv":
                write_csv(output(as_json=False), batches, answer.schema.names)
            elif self._mode == "json" or not self._is_terminal:
                output(as_json=self._mode == "json").rows(batches, answer.schema.names)
            else:
                self._page(answer.schema, batches)
            import pyarrow as pa  # noqa: PLC0415 - loaded by now

            self._last = pa.Table.from_batches(kept, schema=answer.schema)
        if self._timing:
            click.echo(f"{self._clock() - begun:.2f} s", err=True)

    @staticmethod
    def _kept(batches: Iterable[pa.RecordBatch], kept: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, and keep the first rows for `.render`."""
        rows = 0
        for batch in batches:
            if rows < _SHOWN:
                kept.append(batch.slice(0, _SHOWN - rows))
                rows += kept[-1].num_rows
            yield batch

    def _page(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        import pyarrow as pa  # noqa: PLC0415 - loaded by now

        from lazydelta.runtime.results import text_table  # noqa: PLC0415 - for people only

        taken: list[pa.RecordBatch] = []
        for batch in batches:
            taken.append(batch)
            if sum(each.num_rows for each in taken) > _SHOWN:
                break
        table = pa.Table.from_batches(taken, schema=schema)
        text = "\n".join(map(printable, text_table(table.slice(0, _SHOWN)).split("\n")))
        if table.num_rows > _SHOWN:
            text += f"\nthe first {_SHOWN:,} rows; .mode csv prints all"
        if text.count("\n") >= shutil.get_terminal_size().lines:
            click.echo_via_pager(f"{text}\n")
        else:
            click.echo(text)

    def _render(self) -> None:
        import pyarrow as pa  # noqa: PLC0415 - loaded by now

        if self._last is None:
            raise OptionError("There is no result to draw", hint="run a query first")
        numbers = [
            field.name
            for field in self._last.schema
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        ]
        labels = [field.name for field in self._last.schema if field.name not in numbers[-1:]]
        if not numbers or not labels:
            raise OptionError(
                "The last result has no column of labels beside one of numbers",
                hint="select a label column and a numeric column",
            )
        values = [value or 0 for value in self._last.column(numbers[-1]).to_pylist()]
        most = max([abs(value) for value in values], default=0) or 1
        texts = [printable(str(each)) for each in self._last.column(labels[0]).to_pylist()]
        width = max(map(len, texts), default=0)
        for label, value in zip(texts, values, strict=True):
            click.echo(f"{label:<{width}}  {'█' * round(abs(value) / most * _BAR)} {value:,}")


def is_kql(text: str) -> bool:
    """Return whether a query is KQL: it does not begin with a word of SQL."""
    first = re.match(r"\s*\(*\s*(\w+)", text)
    word = "" if first is None else first[1].lower()
    return word not in _SQL_WORDS


@click.command("shell", context_settings=CONTEXT)
@click.argument("tables", nargs=-1, metavar="[URI|NAME=URI]...", shell_complete=folders)
@click.option("--server", metavar="LOCATION", help="Query a server over Flight SQL: grpc://host:port.")
@click.option("--token-variable", metavar="NAME", help="With --server: the environment variable that holds the token.")
@storage_option
@external_option
@library_option
@debug_option
def shell(
    tables: tuple[str, ...],
    *,
    server: str | None,
    token_variable: str | None,
    storage_option: dict[str, str],
    option: dict[str, str],
    external_location: dict[str, dict[str, str]],
) -> None:
    """Query tables interactively in SQL and KQL.

    A table is NAME=URI, or a URI, named after its folder. The tab key completes, and lines are kept in a
    history. Without a terminal, lines are read from standard input. `.help` lists the commands.
    """
    refuse_extra_arguments()
    source: QueryTarget
    if server is not None:
        if tables:
            raise click.UsageError("A server has its own tables: pass --server or tables.")
        token = None if token_variable is None else os.environ.get(token_variable)
        source = Server(server, token)
    else:
        named = dict(named_table(each) for each in tables)
        for name, uri in named.items():
            if not name.isidentifier():
                raise OptionError(f"The table {printable(uri)} has no name for a query", hint="write NAME=URI")
            check_uri(uri)
        if not named:
            raise click.UsageError("Name the tables: lazydelta shell URI, or NAME=URI, or --server LOCATION.")
        question = Question(
            text="",
            tables=named,
            parameters={},
            now=None,
            storage_options=storage_option,
            options=option,
            external_locations=external_location,
            form="text",
            parquet=None,
        )
        source = Tables(question)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    session = Session(source, is_terminal=is_terminal)
    with contextlib.closing(source):
        for line in _joined(_typed(source) if is_terminal else sys.stdin):
            if not session.run(line):
                return


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, with those that end in a backslash joined to the next."""
    waiting = ""
    for line in lines:
        text = line.rstrip("\n")
        if text.endswith("\\"):
            waiting += text[:-1] + " "
            continue
        yield waiting + text
        waiting = ""
    if waiting:
        yield waiting


def _typed(source: QueryTarget) -> Iterator[str]:
    """Yield the lines that a person types, until Ctrl-D."""
    require("shell", "prompt_toolkit")
    from prompt_toolkit import PromptSession  # noqa: PLC0415 - optional
    from prompt_toolkit.completion import WordCompleter  # noqa: PLC0415
    from prompt_toolkit.history import FileHistory  # noqa: PLC0415

    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "lazydelta"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = source.tables()
    columns = dict.fromkeys(column for name in names for column in source.columns(name))
    words = [*names, *columns, *_KEYWORDS, *(line.split()[0] for line in _HELP.splitlines() if line.startswith("."))]
    prompt: Any = PromptSession(
        history=FileHistory(str(folder / "history")), completer=WordCompleter(words, WORD=True, ignore_case=True)
    )
    while True:
        try:
            yield prompt.prompt("lazydelta> ")
        except KeyboardInterrupt:
            continue  # the line is dropped
        except EOFError:
            return

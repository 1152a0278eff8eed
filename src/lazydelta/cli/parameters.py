"""The arguments that all table commands share."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, TypeAlias, TypeVar

import click

from lazydelta.cli.output import Output, output
from lazydelta.cli.wording import printable
from lazydelta.errors import OptionError, require

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from pyspark.sql import SparkSession

    from lazydelta.table.delta_table import DeltaTable

__all__ = [
    "CONTEXT",
    "TableSource",
    "TableTarget",
    "check_uri",
    "chosen_engine",
    "counting",
    "csv_option",
    "debug_option",
    "engine_options",
    "external_option",
    "folders",
    "in_debug_mode",
    "json_option",
    "library_option",
    "named_table",
    "pairs",
    "refuse_extra_arguments",
    "scan_options",
    "session",
    "storage_option",
    "table_command",
    "target_command",
    "where_option",
]


F = TypeVar("F", bound="Callable[..., Any] | click.Command")

DEBUG = "lazydelta.debug"
# See `refuse_extra_arguments`.
CONTEXT = {"allow_extra_args": True}


@dataclass(frozen=True, slots=True)
class TableSource:
    """The table, its version and access options, and the output format."""

    uri: str
    version: int | None
    timestamp: str | None
    storage_options: dict[str, str]
    options: dict[str, str]
    as_json: bool
    external_locations: dict[str, dict[str, str]]

    def open(self) -> DeltaTable:
        """Open the table."""
        from lazydelta.table.delta_table import DeltaTable  # noqa: PLC0415 - not needed for --help

        check_uri(self.uri)
        pinned = self.timestamp if self.version is None else self.version
        return DeltaTable(
            self.uri,
            version=pinned,
            storage_options=self.storage_options or None,
            options=self.options,
            external_locations=self.external_locations,
        )


def debug_option(function: F) -> F:
    """Add ``--debug``, which has the same effect before and after the subcommand."""
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_remember_debug,
        help="Show tracebacks of errors and the library's log messages.",
    )(function)


def in_debug_mode(ctx: click.Context) -> bool:
    """Return whether ``--debug`` was given anywhere on the command line."""
    return bool(ctx.meta.get(DEBUG))


def pairs(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Parse the values of a repeatable key=value option."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            # The message does not repeat the value, because it may be a secret.
            raise click.BadParameter("write it as key=value.", ctx, parameter)
        found[key.strip()] = value
    return found


def prefixed_pairs(
    ctx: click.Context, parameter: click.Parameter, given: tuple[tuple[str, str], ...]
) -> dict[str, dict[str, str]]:
    """Parse the values of a repeatable option with a prefix and key=value."""
    found: dict[str, dict[str, str]] = {}
    for prefix, pair in given:
        found.setdefault(prefix, {}).update(pairs(ctx, parameter, (pair,)))
    return found


storage_option = click.option(
    "--storage-option",
    multiple=True,
    metavar="K=V",
    callback=pairs,
    help="A credential or setting of the object store; repeatable. Values are never shown.",
)
external_option = click.option(
    "--external-location",
    "external_location",
    multiple=True,
    type=(str, str),
    metavar="PREFIX K=V",
    callback=prefixed_pairs,
    help="A folder of another account or bucket that the log may refer to, with a storage option for it; repeatable.",
)
library_option = click.option(
    "--option",
    multiple=True,
    metavar="K=V",
    callback=pairs,
    help="An option of lazydelta, such as delta.commit.parallelism; repeatable.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a header.")


def folders(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the location of a table: folders, but nothing of a URI."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415 - for the shell only

    return [] if "://" in incomplete else [CompletionItem(incomplete, type="dir")]


def check_uri(uri: str) -> None:
    """Refuse a URI that is not valid text: stores name objects by strings."""
    try:
        uri.encode()
    except UnicodeEncodeError:
        message = f"The URI {printable(uri)} is not valid Unicode"
        raise OptionError(message, hint="rename the folder, or check the terminal's encoding") from None


def named_table(given: str) -> tuple[str, str]:
    """Return the name and URI of a table. Without a name, the last folder of the URI names it."""
    name, equals, uri = given.partition("=")
    if equals and "/" not in name and "\\" not in name and ":" not in name:
        return name, uri
    last = given.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9_]", "_", last).lstrip("_") or "table", given


# What a further argument usually means.
_MEANT_BY_ARGUMENTS = {
    **dict.fromkeys(("files", "rows"), "Write --where, --columns and --limit for what to print."),
    **dict.fromkeys(("kql", "query"), "The query comes first, then NAME=URI."),
    "alter": "Write --add NAME:TYPE, --set K=V, --rename OLD=NEW or --drop NAME.",
    "create": "Write columns as NAME:TYPE.",
    "delete": "Write --where PREDICATE.",
    "explain": "Write --where PREDICATE; lazydelta query --explain is for SQL.",
    "restore": "Write --version N.",
}


def refuse_extra_arguments() -> None:
    """Refuse extra arguments with our own message.

    Click would print them, and `--storage-option key = secret` leaves a secret as an extra argument.
    """
    ctx = click.get_current_context()
    if ctx.args:
        write = _MEANT_BY_ARGUMENTS.get(ctx.command.name or "", "")
        message = f"{len(ctx.args)} argument(s) too many; quote a value that holds spaces. {write}".rstrip()
        raise click.UsageError(message, ctx)


def decorated(
    command: Callable[..., None], decorators: Sequence[Callable[[Callable[..., None]], Callable[..., None]]]
) -> Callable[..., None]:
    """Apply decorators as if they stood above the command, the first on top."""
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def table_command(function: Callable[Concatenate[TableSource, ...], None]) -> Callable[..., None]:
    """Add the URI and the options that all table commands share."""

    @functools.wraps(function)
    def command(
        *,
        uri: str,
        version: int | None,
        timestamp: str | None,
        storage_option: dict[str, str],
        option: dict[str, str],
        as_json: bool,
        external_location: dict[str, dict[str, str]],
        **rest: Any,
    ) -> None:
        refuse_extra_arguments()
        if version is not None and timestamp is not None:
            raise click.UsageError("--version and --timestamp are mutually exclusive.", click.get_current_context())
        function(TableSource(uri, version, timestamp, storage_option, option, as_json, external_location), **rest)

    decorators: list[Callable[[Callable[..., None]], Callable[..., None]]] = [
        click.argument("uri", shell_complete=folders),
        click.option("--version", type=click.IntRange(min=0), metavar="N", help="Read this version of the table."),
        click.option(
            "--timestamp",
            metavar="T",
            help="Read the version at this timestamp: ISO 8601, UTC unless it has a time zone.",
        ),
        storage_option,
        external_option,
        library_option,
        json_option,
        debug_option,
    ]
    return decorated(command, decorators)


def scan_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a file scan."""
    for decorate in (
        click.option(
            "--strategy",
            type=click.Choice(["auto", "reverse", "forward"]),
            default="auto",
            show_default=True,
            help="The order of the scan: newest files first (reverse), highest throughput (forward), or "
            "the better of the two.",
        ),
        click.option(
            "--within-retention",
            is_flag=True,
            help="Refuse a version whose files VACUUM may have deleted.",
        ),
        click.option(
            "--row-limit",
            type=click.IntRange(min=0),
            metavar="N",
            help="Stop when the files found are certain to hold this many matching rows.",
        ),
        click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after this many files."),
        click.option("--strict", is_flag=True, help="Fail if the condition cannot prune any file."),
        click.option(
            "--last",
            metavar="SPAN",
            help="List only files that may hold rows of the last 1h, 30m, 2d, …, by the table's time column.",
        ),
        where_option(
            "Leave out files that cannot hold a matching row: "
            'SQL ("hour >= \'2026021022\'") or JSON ({"hour": "2026021022"}).'
        ),
    ):
        function = decorate(function)
    return function


def where_option(help_text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add ``--where``."""
    return click.option("--where", metavar="PREDICATE", help=help_text)


def _remember_debug(ctx: click.Context, _parameter: click.Parameter, given: bool) -> None:  # noqa: FBT001 - for click
    # `meta` is one dictionary for the whole chain of contexts.
    if given:
        ctx.meta[DEBUG] = True


# The table that a command changes or maintains: its URI and access options, declared once.


if TYPE_CHECKING:
    from lazydelta.sidecar.handle import TableHandle

    Command: TypeAlias = Callable[..., None]


@dataclass(frozen=True, slots=True)
class TableTarget:
    """The table, its access options, and the output."""

    uri: str
    storage_options: dict[str, str]
    options: dict[str, str]
    out: Output

    @property
    def handle(self) -> TableHandle:
        """Open the table, which need not exist."""
        from lazydelta.sidecar.handle import TableHandle  # noqa: PLC0415 - not needed for --help

        return TableHandle.open(self.uri, self.storage_options or None, self.options or None)


def target_command(
    *, library_options: bool = True
) -> Callable[[Callable[Concatenate[TableTarget, ...], None]], Command]:
    """Add the table and the options that all such commands share. Not all of them take ``--option``."""

    def decorate(function: Callable[Concatenate[TableTarget, ...], None]) -> Command:
        @functools.wraps(function)
        def command(
            *,
            uri: str,
            storage_option: dict[str, str],
            as_json: bool,
            option: dict[str, str] | None = None,
            **rest: Any,
        ) -> None:
            refuse_extra_arguments()
            check_uri(uri)
            function(TableTarget(uri, storage_option, option or {}, output(as_json=as_json)), **rest)

        shared = [debug_option, json_option, *([library_option] if library_options else []), storage_option]
        decorated: Command = command
        for each in (*shared, click.argument("uri", shell_complete=folders)):
            decorated = each(decorated)
        return decorated

    return decorate


@contextmanager
def counting(out: Output, deed: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show how many files are done while a block runs, and yield the function that is told."""
    told: list[int | None] = [0, None]

    def progress(done: int, total: int | None) -> None:
        told[:] = done, total

    with out.watch(lambda: f"{told[0]:,}{'' if told[1] is None else f' of {told[1]:,}'} files {deed}"):
        yield progress


# Commands that run in this process or on a Spark cluster: their options, the choice of engine, the session.


Function = TypeVar("Function", bound=Callable[..., Any])


def engine_options(function: Function) -> Function:
    """Add ``--engine``, ``--master`` and ``--conf``."""
    decorated = click.option(
        "--conf", multiple=True, metavar="K=V", callback=pairs, help="A Spark configuration setting; repeatable."
    )(function)
    decorated = click.option("--master", metavar="M", help="The Spark master; local[*] unless set by spark-submit.")(
        decorated
    )
    return click.option(
        "--engine",
        type=click.Choice(["auto", "local", "spark"]),
        default="auto",
        show_default=True,
        help="Run in this process or on Spark; auto uses Spark for large jobs if there is a cluster.",
    )(decorated)


def chosen_engine(engine: str, master: str | None, conf: dict[str, str], files: Callable[[], int], *, many: int) -> str:
    """Return local or spark: the requested engine, or by size if --master or spark-submit name a cluster.

    ``files`` counts the files and is only called in the second case. Spark is chosen from ``many`` files on.
    """
    if engine == "local" and (master is not None or conf):
        raise click.UsageError("--master and --conf cannot be used with --engine local.", click.get_current_context())
    has_cluster = master is not None or "PYSPARK_GATEWAY_PORT" in os.environ
    if engine == "auto":
        engine = "spark" if has_cluster and files() >= many else "local"
    if engine == "spark":
        require("spark", "pyspark")
    return engine


@contextmanager
def session(name: str, master: str | None, conf: dict[str, str], out: Output | None) -> Iterator[SparkSession]:
    """Start Spark for the duration of a block, or use the active session.

    ``out``, if given, shows that Spark is starting.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415 - loaded only for Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from lazydelta.spark import start_session  # noqa: PLC0415

    is_ours = SparkSession.getActiveSession() is None
    with nullcontext() if out is None else out.watch(lambda: "starting Spark"):
        spark = start_session(name, master=master, conf=conf)
    try:
        yield spark
    finally:
        if is_ours:
            with suppress(Py4JError, PySparkException, OSError, KeyboardInterrupt):
                spark.stop()

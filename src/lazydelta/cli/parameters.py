"""The arguments that every table command takes, declared once."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, TypeVar

import click

from lazydelta.cli.wording import printable
from lazydelta.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazydelta.delta_table import DeltaTable

__all__ = [
    "CONTEXT",
    "DEBUG",
    "TableSource",
    "check_uri",
    "debug_option",
    "external_option",
    "in_debug_mode",
    "json_option",
    "library_option",
    "pairs",
    "prefixed_pairs",
    "refuse_extra_arguments",
    "scan_options",
    "storage_option",
    "table_command",
    "where_option",
]

F = TypeVar("F", bound="Callable[..., Any] | click.Command")

DEBUG = "lazydelta.debug"
# See `refuse_extra_arguments`.
CONTEXT = {"allow_extra_args": True}


@dataclass(frozen=True, slots=True)
class TableSource:
    """Which table, at which version, how to reach it, and for whom to print."""

    uri: str
    version: int | None
    timestamp: str | None
    storage_options: dict[str, str]
    options: dict[str, str]
    as_json: bool
    external_locations: dict[str, dict[str, str]]

    def open(self) -> DeltaTable:
        """Open the table."""
        from lazydelta.delta_table import DeltaTable  # noqa: PLC0415 - loaded by whoever runs the command, not by its help

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
    """Add ``--debug``, which is the same before and after the subcommand."""
    return click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_remember_debug,
        help="Show the trace of an error and what the library logs.",
    )(function)


def in_debug_mode(ctx: click.Context) -> bool:
    """Tell whether ``--debug`` was given anywhere on the command line."""
    return bool(ctx.meta.get(DEBUG))


def pairs(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Read the values of an option that is given as key=value, any number of times."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            # What was given is not repeated in the message: it may be a secret.
            raise click.BadParameter("write it as key=value.", ctx, parameter)
        found[key.strip()] = value
    return found


def prefixed_pairs(
    ctx: click.Context, parameter: click.Parameter, given: tuple[tuple[str, str], ...]
) -> dict[str, dict[str, str]]:
    """Read the values of an option that is given as a prefix and key=value, any number of times for each prefix."""
    found: dict[str, dict[str, str]] = {}
    for prefix, pair in given:
        found.setdefault(prefix, {}).update(pairs(ctx, parameter, (pair,)))
    return found


storage_option = click.option(
    "--storage-option",
    multiple=True,
    metavar="K=V",
    callback=pairs,
    help="Credentials and settings of the store; repeatable. Values are never shown.",
)
external_option = click.option(
    "--external-location",
    "external_location",
    multiple=True,
    type=(str, str),
    metavar="PREFIX K=V",
    callback=prefixed_pairs,
    help="A folder of another account or bucket that the log may lead to, and an option of its own; repeatable.",
)
library_option = click.option(
    "--option",
    multiple=True,
    metavar="K=V",
    callback=pairs,
    help="An option of lazydelta such as delta.commit.parallelism; repeatable.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for programs instead of text for people."
)


def check_uri(uri: str) -> None:
    """Refuse what the shell passed if it is no text: stores name objects by text."""
    try:
        uri.encode()
    except UnicodeEncodeError:
        message = f"The URI {printable(uri)} is not valid Unicode"
        raise OptionError(message, hint="rename the folder, or check the terminal's encoding") from None


def refuse_extra_arguments() -> None:
    """Refuse arguments that are left over, in our words.

    Click would print them, and `--storage-option key = secret` leaves a secret over.
    """
    ctx = click.get_current_context()
    if ctx.args:
        message = f"{len(ctx.args)} argument(s) too many; quote a value that holds spaces."
        raise click.UsageError(message, ctx)


def table_command(function: Callable[Concatenate[TableSource, ...], None]) -> Callable[..., None]:
    """Give a command its table: the URI and the options that all table commands share."""

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
            raise click.UsageError("--version and --timestamp exclude each other.", click.get_current_context())
        function(TableSource(uri, version, timestamp, storage_option, option, as_json, external_location), **rest)

    decorators: list[Callable[[Callable[..., None]], Callable[..., None]]] = [
        click.argument("uri"),
        click.option("--version", type=click.IntRange(min=0), metavar="N", help="Read this version of the table."),
        click.option(
            "--timestamp",
            metavar="T",
            help="Read the version of this moment: ISO 8601, UTC unless it has a zone.",
        ),
        storage_option,
        external_option,
        library_option,
        json_option,
        debug_option,
    ]
    decorated: Callable[..., None] = command
    for decorate in reversed(decorators):
        decorated = decorate(decorated)
    return decorated


def scan_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that shape a scan of files."""
    for decorate in (
        click.option(
            "--strategy",
            type=click.Choice(["auto", "reverse", "forward"]),
            default="auto",
            show_default=True,
            help="Newest files first, highest throughput, or whatever fits the question.",
        ),
        click.option(
            "--within-retention",
            is_flag=True,
            help="Refuse a version that was replaced so long ago that VACUUM may have deleted files of it.",
        ),
        click.option(
            "--row-limit",
            type=click.IntRange(min=0),
            metavar="N",
            help="Stop when the files found hold this many matching rows for certain.",
        ),
        click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after this many files."),
        click.option("--strict", is_flag=True, help="Refuse a condition by which no file can be left out."),
        click.option(
            "--last",
            metavar="SPAN",
            help="Only files that may hold rows of the last 1h, 30m, 2d, … of the table's time, back from now.",
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


def _remember_debug(ctx: click.Context, _parameter: click.Parameter, given: bool) -> None:  # noqa: FBT001 - click's call
    # `meta` is one dictionary for the whole chain of contexts.
    if given:
        ctx.meta[DEBUG] = True

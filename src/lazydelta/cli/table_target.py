"""The table that a command changes or looks after: its URI and how it is reached, declared once for all of them."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, TypeAlias

import click

from lazydelta.cli.output import Output, output
from lazydelta.cli.parameters import (
    check_uri,
    debug_option,
    json_option,
    library_option,
    refuse_extra_arguments,
    storage_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from lazydelta.handle import TableHandle

    Command: TypeAlias = Callable[..., None]

__all__ = ["TableTarget", "target_command"]


@dataclass(frozen=True, slots=True)
class TableTarget:
    """Which table, how to reach it, and where to report."""

    uri: str
    storage_options: dict[str, str]
    options: dict[str, str]
    out: Output

    @property
    def handle(self) -> TableHandle:
        """Open the table, which need not exist."""
        from lazydelta.handle import TableHandle  # noqa: PLC0415 - loaded by whoever runs the command, not by its help

        return TableHandle.open(self.uri, self.storage_options or None, self.options or None)


def target_command(
    *, library_options: bool = True
) -> Callable[[Callable[Concatenate[TableTarget, ...], None]], Command]:
    """Give a command its table, and the options that all such commands share; not all of them take ``--option``."""

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
        for each in (*shared, click.argument("uri")):
            decorated = each(decorated)
        return decorated

    return decorate

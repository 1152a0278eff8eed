"""Groups of commands: their list is never cut off, and a command is loaded when it is named."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CommandGroup"]

# Click would end a description where the line ends; ours are one sentence and may take two lines.
_WHOLE = 1000


class CommandGroup(click.Group):
    """A group whose commands may live in modules that are not loaded yet.

    ``homes`` has the module for the name of each such command. There it has the same name, or one with an underscore
    where the command has a hyphen.
    """

    def __init__(self, *args: Any, homes: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._homes = dict(homes or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order they were given: what people do first comes first."""
        return [*self._homes, *(name for name in super().list_commands(ctx) if name not in self._homes)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, loaded."""
        home = self._homes.get(cmd_name)
        if home is None:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(home), cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands with whole sentences."""
        rows = [
            (name, command.get_short_help_str(_WHOLE))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

"""The group ``bench``; its commands live with the benchmarks and are loaded when one is named."""

from __future__ import annotations

import importlib
import importlib.util

import click

from lazydelta.cli.parameters import debug_option

__all__ = ["bench"]

_MODULE = "lazydelta.showcase.bench.command"
_COMMANDS = {"make-table": "make_table"}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS) if _is_there() else []

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS or not _is_there():
            return None
        command = getattr(importlib.import_module(_MODULE), _COMMANDS[cmd_name])
        if not isinstance(command, click.Command):
            raise TypeError(f"{_MODULE}.{_COMMANDS[cmd_name]} is not a command")
        if all("--debug" not in each.opts for each in command.params):
            command = debug_option(command)
        return command


def _is_there() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("lazydelta.showcase.bench", _MODULE))


@click.group("bench", cls=_Lazy)
def bench() -> None:
    """Make tables to measure with."""

"""Commands that change a table or look after it take the same options, in the same words."""

from __future__ import annotations

import click
import pytest

from lazydelta.cli.maintenance import optimize, vacuum
from lazydelta.cli.sidecar import sidecar
from lazydelta.cli.write import append, checkpoint, create, log

COMMANDS = [optimize, vacuum, append, checkpoint, create, *log.commands.values(), *sidecar.commands.values()]
SHARED = ["uri", "storage_option", "as_json", "debug"]


def described(command: click.Command) -> list[tuple[object, ...]]:
    return [
        (each.name, each.opts, each.metavar, getattr(each, "help", None), each.multiple if each.nargs == 1 else None)
        for each in command.params
        if each.name in SHARED
    ]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_a_command_takes_its_table_as_all_do(command: click.Command) -> None:
    assert [name for name, *_ in described(command)] == SHARED
    assert described(command) == described(optimize)
    assert command.params[0].name == "uri"

"""The page on the command line cannot rot: every command and every option has its place in it."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from lazydelta.cli.app import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


def _commands(group: click.Group, prefix: str) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        path = f"{prefix} {name}"
        if not isinstance(command, click.Group) or command.invoke_without_command:
            found.append((path, command))
        if isinstance(command, click.Group):
            found += _commands(command, path)
    return found


COMMANDS = _commands(cli, "lazydelta")
SHARED = {
    "--version",
    "--timestamp",
    "--json",
    "--storage-option",
    "--external-location",
    "--option",
    "--debug",
    "--help",
}


def _section(heading: str) -> str:
    match = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, f"docs/cli.md has no section '## {heading}'"
    return match[1]


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_a_command_has_its_section_with_all_its_options(name: str, command: click.Command) -> None:
    section, shared = _section(f"`{name}`"), _section("Options of every table command")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            for option in _spellings(parameter):
                place = section + shared if option in SHARED else section
                assert f"`{option}" in place, f"docs/cli.md does not say what {option} of `{name}` does"


def _spellings(parameter: click.Parameter) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]


def test_no_section_is_about_a_command_that_does_not_exist() -> None:
    documented = set(re.findall(r"^## `(lazydelta [^`]+)`$", PAGE, re.MULTILINE))
    assert documented == {name for name, _ in COMMANDS}


def test_no_option_is_documented_that_no_command_has() -> None:
    known = {option for _, command in COMMANDS for each in command.params for option in _spellings(each)}
    known |= {option for each in cli.params for option in each.opts} | {"--help"}
    assert set(re.findall(r"`(--[a-z-]+)", PAGE)) <= known


def test_every_command_and_option_has_a_help_text() -> None:
    for name, command in COMMANDS:
        assert command.help, name
        assert [each.name for each in command.params if isinstance(each, click.Option) and not each.help] == []

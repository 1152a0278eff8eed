"""``lazydelta demo``: what makes the table and tells the story is loaded only when somebody asks for it."""

from __future__ import annotations

import sys

import click

from lazydelta.cli.parameters import debug_option

__all__ = ["demo"]


@click.command("demo")
@click.option(
    "--path",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Make the table in this folder: a new or empty one, or one of an earlier demo. Default: a temporary one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end.")
@debug_option
def demo(path: str | None, *, as_json: bool) -> None:
    """Make a real table and show what lazydelta does with it.

    The table is written by deltalake, in well under a minute, and left where it is, to play with.
    """
    from lazydelta.cli.demo_output import run  # noqa: PLC0415

    if not run(path, as_json=as_json):
        sys.exit(1)

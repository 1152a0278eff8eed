"""``lazydelta demo`` and ``lazydelta bench``: what they show and measure is loaded when somebody asks for it."""

from __future__ import annotations

import importlib.util
import sys

import click

from lazydelta.cli.command_group import CommandGroup
from lazydelta.cli.parameters import debug_option
from lazydelta.errors import OptionError

__all__ = ["bench", "demo"]

# Enough for every hour to have rows of every device that the questions are about.
_LEAST_ROWS = 2_000


@click.command("demo")
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Work in this folder: a new or empty one, or one of an earlier demo. Default: a temporary one.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=_LEAST_ROWS),
    default=240_000,
    show_default=True,
    metavar="N",
    help="How many rows of telemetry arrive.",
)
@click.option(
    "--files",
    type=click.IntRange(min=0),
    default=300_000,
    show_default=True,
    metavar="N",
    help="Files of the table without data on which discovery is compared at scale; 0 leaves it out.",
)
@click.option(
    "--keep", is_flag=True, help="Keep also what arrived, the stream's checkpoint and the table without data."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the end.")
@debug_option
def demo(*, folder: str | None, rows: int, files: int, keep: bool, as_json: bool) -> None:
    """Stream telemetry into a real table and show what lazydelta does with it.

    Spark runs on this machine and needs Java. The table is left where it is, to play with.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise OptionError("The demo needs PySpark, which is not installed", hint="pip install 'lazydelta[spark]'")
    from lazydelta.showcase.demo.printer import printer  # noqa: PLC0415
    from lazydelta.showcase.demo.story import tell  # noqa: PLC0415

    if not tell(printer(as_json=as_json), folder=folder, rows=rows, files=files, keep=keep):
        sys.exit(1)


class _Benchmarks(CommandGroup):
    """Commands that live with the benchmarks, which do not know the options of this command line."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is not None and all("--debug" not in each.opts for each in command.params):
            command = debug_option(command)
        return command


@click.group("bench", cls=_Benchmarks, homes={"make-table": "lazydelta.showcase.bench.command"})
def bench() -> None:
    """Make tables to measure with."""

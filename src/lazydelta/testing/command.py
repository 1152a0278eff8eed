"""``lazydelta bench make-table``: the generator on the command line."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, get_args

import click

from lazydelta.testing.make_table import Checkpoint, Compression, MadeTable, Order, Stats
from lazydelta.testing.make_table import make_table as make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["make_table"]


def _pairs(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    if any(not key or not equals for key, equals, _ in pairs):
        # The value may be a secret, so it is not repeated.
        raise click.BadParameter("write KEY=VALUE.")
    return {key: value for key, _, value in pairs}


@click.command("make-table")
@click.argument("uri")
@click.option("--files", type=click.IntRange(min=1), default=100_000, show_default=True, help="Files in the base.")
@click.option("--columns", type=click.IntRange(min=1), default=8, show_default=True, help="Columns with statistics.")
@click.option("--hours", type=click.IntRange(min=1), default=720, show_default=True, help="Partitions of an hour each.")
@click.option(
    "--order",
    type=click.Choice(get_args(Order)),
    default="random",
    show_default=True,
    help="How the files follow each other in the checkpoint.",
)
@click.option("--tail", type=click.IntRange(min=0), default=0, show_default=True, help="Commits after the checkpoint.")
@click.option("--adds-per-commit", type=click.IntRange(min=0), default=10, show_default=True, help="Files each adds.")
@click.option(
    "--removes", type=click.IntRange(min=0), default=0, show_default=True, help="Files that the tail removes."
)
@click.option(
    "--deletion-vectors",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Fraction of files with a deletion vector.",
)
@click.option(
    "--checkpoint",
    type=click.Choice(get_args(Checkpoint)),
    default="v1",
    show_default=True,
    help="Kind of checkpoint; none: commits of --adds-per-commit files instead.",
)
@click.option(
    "--parts", type=click.IntRange(min=1), default=4, show_default=True, help="Files of a multi-part or V2 checkpoint."
)
@click.option(
    "--row-group-size", type=click.IntRange(min=1), metavar="ROWS", help="Rows in a row group.  [default: all in one]"
)
@click.option(
    "--compression",
    type=click.Choice(get_args(Compression)),
    default="snappy",
    show_default=True,
    help="Codec of the checkpoint.",
)
@click.option(
    "--stats",
    type=click.Choice(get_args(Stats)),
    default="json",
    show_default=True,
    help="How the checkpoint holds statistics.",
)
@click.option("--checksum", is_flag=True, help="Write the version checksum of the newest version.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Same seed, same table.")
@click.option(
    "--storage-option",
    "storage_options",
    multiple=True,
    metavar="K=V",
    callback=_pairs,
    help="Credentials and settings of the store; repeatable. Values are never shown.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def make_table(*, uri: str, as_json: bool, **recipe: Any) -> None:
    """Make a table at URI that has a log and no data.

    For tests and benchmarks of file discovery: a million files take some seconds and 200 MB.
    """
    started = time.perf_counter()
    total = recipe["files"] + recipe["tail"] * recipe["adds_per_commit"]
    with _progress(total) as advance:
        made = make(uri, progress=advance, **recipe)
    if as_json:
        click.echo(json.dumps(made.as_dict()))
    else:
        click.echo(_sentence(made, time.perf_counter() - started))


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console  # noqa: PLC0415 - only the command line needs it
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    console = Console(stderr=True)
    columns = (TextColumn("making files"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.update(task, advance=count)


def _sentence(made: MadeTable, seconds: float) -> str:
    return (
        f"{made.uri}: version {made.version}, {made.num_files:,} files in the hours {made.first_hour} to "
        f"{made.last_hour}, made in {seconds:.1f} s"
    )

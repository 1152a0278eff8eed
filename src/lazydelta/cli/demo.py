"""``lazydelta demo`` and ``lazydelta bench``: their implementations are loaded when they run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec
import pyarrow as pa
from rich import box
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lazydelta.cli import wording as text
from lazydelta.cli.app import CommandGroup
from lazydelta.cli.console import ConsoleOutput
from lazydelta.cli.output import JsonOutput
from lazydelta.cli.parameters import debug_option
from lazydelta.cli.tables import console, explanation
from lazydelta.errors import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from lazydelta.demo.pipeline import Growth
    from lazydelta.demo.queries import Comparison, Query
    from lazydelta.demo.story import Ending, Ingested, Printer

__all__ = ["printer"]


# Enough for every hour to have rows of every device in the queries.
_LEAST_ROWS = 2_000


@click.command("demo")
@click.option(
    "--folder",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="The working folder: new, empty, or of an earlier demo. Default: a temporary folder.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=_LEAST_ROWS),
    default=240_000,
    show_default=True,
    metavar="N",
    help="The number of telemetry rows to stream.",
)
@click.option(
    "--files",
    type=click.IntRange(min=0),
    default=300_000,
    show_default=True,
    metavar="N",
    help="The number of files in the metadata-only table that compares discovery at scale; 0 skips it.",
)
@click.option("--keep", is_flag=True, help="Also keep the input, the stream's checkpoint and the metadata-only table.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document at the finished.")
@debug_option
def demo(*, folder: str | None, rows: int, files: int, keep: bool, as_json: bool) -> None:
    """Stream telemetry into a real table and show what lazydelta does with it.

    Spark runs on this machine and needs Java. The table is kept for you to explore.
    """
    require("spark", "pyspark")
    from lazydelta.demo.story import tell  # noqa: PLC0415

    if not tell(printer(as_json=as_json), folder=folder, rows=rows, files=files, keep=keep):
        sys.exit(1)


class _Benchmarks(CommandGroup):
    """Commands that live with the benchmarks, which do not know the options of this command line."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is not None and all("--debug" not in each.opts for each in command.params):
            command = debug_option(command)
        return command


@click.group("bench", cls=_Benchmarks, homes={"make-table": "lazydelta.testing.command"})
def bench() -> None:
    """Create tables for benchmarks."""


# Demo output: step by step for people, one document at the end for programs.


_SHOWN_BATCHES = 12
_SHOWN_ROWS = 6
_GROWTH = ("micro-batch", "rows", "files", "size", "version", "checkpoints", "sidecars", "after")
_WIDTHS = (11, 9, 7, 9, 7, 12, 12, 7)
# The first part of `explain`. The command that is shown prints the rest.
_FACTS = ("strategy", "tier", "files_emitted", "files_pruned", "row_groups_read", "row_groups_pruned", "requests")
_EVEN = 1.05


def printer(*, as_json: bool) -> Printer:
    """Return the printer for programs or for people."""
    return _Document() if as_json else _Story(console())


class _Document:
    """Collects everything into one JSON document."""

    def __init__(self) -> None:
        self._document: dict[str, Any] = {"growth": [], "queries": [], "comparisons": []}

    def begin(self, folder: str, rows: int, files: int) -> None:
        self._document |= {"folder": folder, "generated": {"rows": rows, "files": files}}

    def growth(self, steps: Iterator[Growth]) -> None:
        self._document["growth"] = list(steps)

    def ingested(self, ingested: Ingested) -> None:
        self._document["ingested"] = msgspec.structs.asdict(ingested) | {"is_complete": ingested.is_complete}

    def query(self, query: Query) -> None:
        self._document["queries"].append(query)

    def making(self, files: int) -> None:
        pass

    def comparisons(self, title: str, found: list[Comparison]) -> None:  # noqa: ARG002 - for people
        self._document["comparisons"] += found

    def end(self, ending: Ending) -> None:
        document = self._document | msgspec.structs.asdict(ending)
        JsonOutput(sys.stdout).tell(document)


class _Story:
    """Prints each step as it happens."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._tables = ConsoleOutput(width=out.width)
        self._shown: list[str] = []

    def begin(self, folder: str, rows: int, files: int) -> None:
        self._say("Telemetry streams into a Delta table with Spark, and questions are put to it.", style="bold")
        self._say(f"Everything is in {text.printable(folder)}", style="dim")
        self._title(
            f"{rows:,} rows arrive in {files} files; each micro-batch is one commit of files that hold one hour"
        )
        self._say("Spark is starting on this machine ...", style="dim")

    def growth(self, steps: Iterator[Growth]) -> None:
        if not self._out.is_terminal:
            self._say(_line(_GROWTH))
            for step in steps:
                self._say(_line(_cells(step)))
            return
        seen: list[Growth] = []
        with Live(console=self._out, auto_refresh=False) as live:
            for step in steps:
                seen = [*seen, step][-_SHOWN_BATCHES:]
                live.update(_grown(seen), refresh=True)

    def ingested(self, ingested: Ingested) -> None:
        arrived, table = ingested.arrived, ingested.table
        self._say(
            f"{arrived.rows:,} rows arrived: {arrived.late:,} of them late, each now in the hour that it belongs to; "
            f"{arrived.without_time:,} without a time, now in the table of rejected rows with the reason."
        )
        self._say(
            f"deltalake reads {ingested.rows_by_deltalake:,} rows, and {ingested.rejected_by_deltalake:,} rejected: "
            + ("every row that arrived, once." if ingested.is_complete else "NOT the rows that arrived.")
        )
        self._say(
            f"Checkpoints at versions {_versions(table.checkpoints)}, sidecars at {_versions(table.sidecars)}; "
            "a process of its own made them while the stream went on."
        )

    def query(self, query: Query) -> None:
        self._title(f"{query.title}: {_plural(query.num_rows, 'row')} in {text.duration(query.milliseconds)}")
        self._tables.rows(pa.Table.from_pylist(query.rows[:_SHOWN_ROWS]).to_batches(), [])
        if query.num_rows > _SHOWN_ROWS:
            self._say(f"... and {query.num_rows - _SHOWN_ROWS:,} more")
        self._say("deltalake agrees." if query.same_as_deltalake else "deltalake DISAGREES.")
        self._say(f"$ {text.printable(query.command)}", style="cyan")
        self._tables.tell({"scan": _brief(query.explanation)}, explanation)

    def making(self, files: int) -> None:
        self._say("")
        self._say(f"Making the log of a table of {files:,} files, and its sidecar ...", style="dim")

    def comparisons(self, title: str, found: list[Comparison]) -> None:
        self._title(f"{title}, lazydelta beside deltalake")
        self._say("Each a fresh process that opens the table; medians of 3, imports not counted.", style="dim")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        table.add_column("question")
        for name in ("files", "lazydelta", "memory", "deltalake", "memory", "lazydelta is"):
            table.add_column(name, justify="right")
        for each in found:
            sides = [cell for side in (each.lazydelta, each.deltalake) for cell in _side(side)]
            table.add_row(each.question, text.count(each.lazydelta.files), *sides, _verdict(each.faster))
        self._out.print(table)

    def end(self, ending: Ending) -> None:
        self._say("")
        self._say(f"Shown in {text.duration(ending.seconds * 1000)}:", style="bold")
        for title in self._shown:
            self._say(f"  - {title}")
        if ending.agrees:
            self._say("lazydelta and deltalake agree on every answer.", style="bold green")
        else:
            self._say("lazydelta and deltalake DISAGREE; please report this.", style="bold red")
        self._say("The tables are yours to play with:")
        for path in filter(None, (ending.table, ending.rejected_table, ending.kept)):
            self._say(f"  {text.printable(path)}", style="cyan")

    def _title(self, title: str) -> None:
        self._shown.append(title)
        self._say("")
        self._say(f"{len(self._shown)}. {title}", style="bold green")

    def _say(self, line: str, style: str = "") -> None:
        self._out.print(Text(line, style=style), soft_wrap=True)
        self._out.file.flush()


def _cells(step: Growth) -> tuple[str, ...]:
    return (
        str(step.micro_batch),
        text.count(step.rows),
        text.count(step.files),
        text.size(step.bytes),
        str(step.version),
        _versions(step.checkpoints),
        _versions(step.sidecars),
        f"{step.seconds:.1f} s",
    )


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _grown(steps: list[Growth]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")  # fits into 80 columns
    for name in _GROWTH:
        table.add_column(name, justify="right")
    for step in steps:
        table.add_row(*_cells(step))
    return table


def _versions(versions: list[int]) -> str:
    return ", ".join(map(str, versions)) or "-"


def _brief(explanation: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for section in explanation.values():
        for name, fact in section.items():
            key = name.removeprefix("delta.lazy.")
            if key in _FACTS or key == "reason":
                found.setdefault(key, fact)
    return found


def _side(side: Any) -> tuple[str, str]:
    return text.duration(side.milliseconds), text.size(max(0, side.peak_bytes))


def _verdict(faster: float) -> str:
    if faster >= _EVEN:
        return f"{faster:,.1f} times faster"
    return f"{1 / faster:,.1f} times slower" if faster <= 1 / _EVEN else "as fast"


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

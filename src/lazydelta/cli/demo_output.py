"""Printing the demo: step by step for people, one document at the end for programs."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from rich import box
from rich.table import Table
from rich.text import Text

from lazydelta.cli import text
from lazydelta.cli.console_output import ConsoleOutput, console
from lazydelta.cli.demo import Comparison, Explained, Files, Info, Rows, Same, Step, steps
from lazydelta.cli.demo_table import Made, deltalake, folder_for, make_table
from lazydelta.cli.json_output import JsonOutput
from lazydelta.cli.values import records

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["run"]


class _Printer(Protocol):
    def begin(self, folder: str) -> None: ...
    def made(self, made: Made, seconds: float) -> None: ...
    def step(self, step: Step) -> None: ...
    def end(self, made: Made, seconds: float) -> bool: ...


def run(path: str | None, *, as_json: bool) -> bool:
    """Make the table in ``path`` and show the steps; return whether deltalake agrees with us."""
    printer: _Printer = _Document() if as_json else _Story(console(), console(stderr=True))
    started = time.monotonic()
    deltalake()  # before a folder is made for nothing
    folder = folder_for(path)
    printer.begin(str(folder))
    made = make_table(folder)
    printer.made(made, time.monotonic() - started)
    for step in steps(made):
        printer.step(step)
    return printer.end(made, time.monotonic() - started)


class _Document:
    """Collects everything into one JSON document."""

    def __init__(self) -> None:
        self._steps: list[dict[str, Any]] = []
        self._agrees = False

    def begin(self, folder: str) -> None:
        pass

    def made(self, made: Made, seconds: float) -> None:
        pass

    def step(self, step: Step) -> None:
        shown: Any
        match step.shown:
            case Info(info):
                shown = info
            case Files(batches):
                shown = [record for batch in batches for record in batch]
            case Rows(batches):
                shown = [record for batch in batches for record in records(batch)]
            case Explained(explanation):
                shown = explanation
            case Same(comparisons):
                shown = comparisons
                self._agrees = _agrees(comparisons)
        self._steps.append({"title": step.title, "command": step.command, "shown": shown})

    def end(self, made: Made, seconds: float) -> bool:
        document = {
            "table": made,
            "steps": self._steps,
            "agrees_with_deltalake": self._agrees,
            "seconds": round(seconds, 3),
        }
        JsonOutput(sys.stdout).document(msgspec.to_builtins(document))
        return self._agrees


class _Story:
    """Prints each step as it happens."""

    def __init__(self, out: Console, err: Console) -> None:
        self._out = out
        self._tables = ConsoleOutput(out, err, shorten=True)
        self._titles: list[str] = []
        self._agrees = False

    def begin(self, folder: str) -> None:
        self._say("Making a table of telemetry with deltalake, 60 commits ...", style="bold")
        self._say(text.printable(folder), style="dim")

    def made(self, made: Made, seconds: float) -> None:
        self._say(
            f"{made.commits} commits, {made.rows:,} rows, a delete at version {made.delete_version}, "
            f"a checkpoint at version {made.checkpoint_version}: {seconds:.1f} s"
        )

    def step(self, step: Step) -> None:
        self._titles.append(step.title)
        self._say("")
        self._say(f"{len(self._titles)}. {step.title}", style="bold green")
        if step.command is not None:
            self._say(f"$ {text.printable(step.command)}", style="cyan")
        match step.shown:
            case Info(info):
                self._tables.info(info)
            case Files(batches):
                self._tables.files(batches)
            case Rows(batches):
                self._tables.rows(batches, [])
            case Explained(explanation):
                self._tables.explanation(explanation)
            case Same(comparisons):
                self._agrees = _agrees(comparisons)
                self._comparisons(comparisons)

    def end(self, made: Made, seconds: float) -> bool:
        self._say("")
        self._say(f"Shown in {seconds:.1f} s:", style="bold")
        for title in self._titles:
            self._say(f"  - {title}")
        if self._agrees:
            self._say("lazydelta and deltalake agree on every file list.", style="bold green")
        else:
            self._say("lazydelta and deltalake DISAGREE; please report this.", style="bold red")
        self._say("The table is yours to play with:")
        self._say(f"  {text.printable(made.path)}", style="cyan")
        return self._agrees

    def _comparisons(self, comparisons: list[Comparison]) -> None:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        table.add_column("files of")
        for reader in ("lazydelta", "deltalake"):
            table.add_column(reader, justify="right")
        table.add_column("")
        for each in comparisons:
            verdict = Text("equal", style="green") if each.equal else Text("different", style="bold red")
            table.add_row(each.question, text.count(each.lazydelta), text.count(each.deltalake), verdict)
        self._out.print(table)

    def _say(self, line: str, style: str = "") -> None:
        self._out.print(Text(line, style=style), soft_wrap=True)
        self._out.file.flush()


def _agrees(comparisons: list[Comparison]) -> bool:
    return all(each.equal for each in comparisons)

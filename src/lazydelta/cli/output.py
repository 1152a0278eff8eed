"""What a command has to say, apart from how it is said: one renderer for people, one for programs.

A command hands over what it found, as data, and the function that puts it into words (``sentences``, ``tables``). The
renderer for people prints the words, the one for programs the data. Streams are handed over as iterators of batches,
so that either prints what is found while the scan goes on.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from rich.console import RenderableType

    from lazydelta.cli.values import Record

__all__ = ["INTERRUPTED", "Output", "note", "output"]

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

R = TypeVar("R")


class Output(Protocol):
    """How a command speaks."""

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show ``describe()`` now and then while the block runs, where somebody would see it."""

    def tell(self, result: R, words: Callable[[R], Iterable[RenderableType]]) -> None:
        """Print what the command has done or found: ``result``, or the lines and tables that ``words`` makes of it."""

    def step(self, result: R, words: Callable[[R], Iterable[RenderableType]] | None = None) -> None:
        """Print one result of many that come over time; without ``words`` people have the line of progress for that."""

    def sum_up(self, result: R, words: Callable[[R], Iterable[RenderableType]]) -> None:
        """Print what all steps came to; programs were told of each."""

    def files(self, batches: Iterable[Iterable[Record]], *, with_counts: bool = False) -> None:
        """Print files while they are found; ``with_counts`` adds how many rows each has."""

    def changes(self, batches: Iterable[Iterable[Record]]) -> None:
        """Print what was added and removed, as it comes."""

    def rows(self, batches: Iterable[pa.RecordBatch], names: list[str]) -> None:
        """Print rows while they are found; ``names`` are their columns, for when there is none."""


def output(*, as_json: bool) -> Output:
    """Return the renderer for programs or for people."""
    if as_json:
        from lazydelta.cli.json_output import JsonOutput  # noqa: PLC0415 - one of the two is needed

        return JsonOutput(sys.stdout)
    from lazydelta.cli.console_output import ConsoleOutput  # noqa: PLC0415

    return ConsoleOutput()


def note(line: str) -> None:
    """Say something about the course of things, on standard error."""
    click.echo(line, err=True)

"""Separates results from their presentation: one renderer for people, one for programs.

A command passes its result as data, together with a function that formats it (``sentences``, ``tables``). The
renderer for people prints the formatted result, the one for programs the data. Streams are passed as iterators of
batches, so both renderers print results while the scan runs.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

import click
import msgspec

from lazydelta.runtime.results import Record, plain, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa
    from rich.console import RenderableType

__all__ = ["INTERRUPTED", "TERMINATED", "JsonOutput", "Output", "note", "output", "write_csv"]


INTERRUPTED, TERMINATED = 130, 143
"""The exit codes after Ctrl-C and SIGTERM."""

R = TypeVar("R")


class Output(Protocol):
    """The interface of renderers."""

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show ``describe()`` from time to time while the block runs, if the output is interactive."""

    def write(self, text: str) -> None:
        """Print text that is formatted already, such as CSV."""

    def tell(self, result: R, words: Callable[[R], Iterable[RenderableType]]) -> None:
        """Print the result of a command: ``result`` itself, or the lines and tables that ``words`` makes of it."""

    def step(self, result: R, words: Callable[[R], Iterable[RenderableType]] | None = None) -> None:
        """Print one of many results over time. Without ``words``, people see the progress line instead."""

    def sum_up(self, result: R, words: Callable[[R], Iterable[RenderableType]]) -> None:
        """Print the total of all steps for people. Programs have received each step."""

    def files(self, batches: Iterable[Iterable[Record]], *, with_counts: bool = False) -> None:
        """Print files while they are found. ``with_counts`` adds the number of rows in each."""

    def changes(self, batches: Iterable[Iterable[Record]]) -> None:
        """Print added and removed files as they arrive."""

    def rows(self, batches: Iterable[pa.RecordBatch], names: list[str]) -> None:
        """Print rows while they are found. ``names`` are their columns, in case there are no rows."""


def output(*, as_json: bool) -> Output:
    """Return the renderer for programs or for people."""
    if as_json:
        return JsonOutput(sys.stdout)
    from lazydelta.cli.console import ConsoleOutput  # noqa: PLC0415

    return ConsoleOutput()


def note(line: str) -> None:
    """Print a note on standard error."""
    click.echo(line, err=True)


def write_csv(out: Output, batches: Iterable[pa.RecordBatch], names: list[str]) -> None:
    """Write rows as comma-separated values under a header, flushed after each batch. Nested values are JSON."""
    import csv  # noqa: PLC0415 - one of several formats

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    out.write(buffer.getvalue())
    for batch in batches:
        buffer.seek(0)
        buffer.truncate()
        for record in records(batch):
            cells = [plain(value) for value in record.values()]
            writer.writerow([json.dumps(cell) if isinstance(cell, dict | list) else cell for cell in cells])
        out.write(buffer.getvalue())


# For programs: one JSON document, or one JSON object per line for streams.
#
# Non-ASCII characters are escaped. The bytes are therefore the same in every terminal encoding, and paths that cannot
# be encoded (a lone surrogate) are preserved.


class JsonOutput:
    """An ``Output`` that writes JSON."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._encode = json.JSONEncoder(default=plain, allow_nan=False, separators=(",", ":")).encode

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:  # noqa: ARG002 - no progress
        """Show nothing."""
        return nullcontext()

    def write(self, text: str) -> None:
        """Write the text."""
        self._out.write(text)
        self._out.flush()

    def tell(self, result: object, words: object = None) -> None:  # noqa: ARG002 - words are for people
        """Write one document, indented for people who read it."""
        self.write(json.dumps(_document(result), indent=2, allow_nan=False) + "\n")

    def step(self, result: object, words: object = None) -> None:  # noqa: ARG002 - words are for people
        """Write one object on a line."""
        self._lines([_document(result)])

    def sum_up(self, result: object, words: object) -> None:
        """Write nothing: each step has its own line."""

    def files(self, batches: Iterable[Iterable[Record]], *, with_counts: bool = False) -> None:  # noqa: ARG002 - always
        """Write one object per file, flushed after each batch."""
        for batch in batches:
            self._lines(batch)

    def changes(self, batches: Iterable[Iterable[Record]]) -> None:
        """Write one object per change, flushed after each batch."""
        self.files(batches)

    def rows(self, batches: Iterable[pa.RecordBatch], names: list[str]) -> None:  # noqa: ARG002 - each row has them
        """Write one object per row, flushed after each batch."""
        for batch in batches:
            self._lines(records(batch))

    def _lines(self, batch: Iterable[Record]) -> None:
        self.write("".join([f"{self._encode(record)}\n" for record in batch]))


def _document(result: object) -> Any:
    """Return a result of the library, a struct or plain values, as plain values."""
    return plain(msgspec.to_builtins(result, enc_hook=plain))

"""For people: plain aligned lines for what streams, sentences and tables for what is known at once.

Rich lays out tables and the line of progress. It is loaded when there is one: it takes longer to load than most
answers take to find.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

import click
import pyarrow as pa

from lazydelta.cli import wording as text
from lazydelta.cli.progress import Progress
from lazydelta.cli.values import Record, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import RenderableType

__all__ = ["ConsoleOutput"]

R = TypeVar("R")

_WIDEST_CELL = 40
_SAMPLE = 100
_NARROWEST = 8


class ConsoleOutput:
    """An ``Output`` for the terminal.

    ``width`` makes lines fit into that many characters, for a look; without it they are whole, to be copied.
    """

    def __init__(self, *, width: int | None = None) -> None:
        self._out = sys.stdout
        self._width = width
        self._progress: Progress | None = None

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show a line of progress on standard error."""
        self._progress = Progress(sys.stderr, describe)
        return self._progress

    def tell(self, result: R, words: Callable[[R], Iterable[RenderableType]]) -> None:
        """Print the words; lines of text as they are, however long."""
        for each in words(result):
            if isinstance(each, str):
                self._lines([each])
            else:
                from lazydelta.cli.tables import console  # noqa: PLC0415 - see above

                console().print(each)

    def step(self, result: R, words: Callable[[R], Iterable[RenderableType]] | None = None) -> None:
        """Print the words, if there are any: usually the line of progress has it."""
        if words is not None:
            self.tell(result, words)

    def sum_up(self, result: R, words: Callable[[R], Iterable[RenderableType]]) -> None:
        """Print the words."""
        self.tell(result, words)

    def files(self, batches: Iterable[Iterable[Record]], *, with_counts: bool = False) -> None:
        """Print one line a file; the path comes last, so that no width has to be known before the first line."""
        rows = f"{'rows':>11}  " if with_counts else ""
        self._head(f"{'size':>8}  {rows}{'modified (UTC)':19}  {'version':>7}  path")
        width = self._width
        for batch in batches:
            lines = (_file_line(record, with_counts=with_counts) for record in batch)
            self._lines(lines if width is None else (_fitting(line, width) for line in lines))

    def changes(self, batches: Iterable[Iterable[Record]]) -> None:
        """Print one line a change, with the path last."""
        self._head(f"{'version':>7}  {'committed (UTC)':19}  {'action':8}  {'size':>8}  path")
        for batch in batches:
            self._lines(map(_change_line, batch))

    def rows(self, batches: Iterable[pa.RecordBatch], names: list[str]) -> None:
        """Print one line a row; widths are taken from the first rows and kept."""
        from rich.cells import cell_len  # noqa: PLC0415 - see above

        widths: list[int] | None = None
        for batch in batches:
            names = batch.schema.names
            right = [_is_number(field.type) for field in batch.schema]
            cells = ([text.value(each) for each in record.values()] for record in records(batch))
            if widths is None:
                heads = [text.printable(name) for name in names]
                sample = [row for _, row in zip(range(_SAMPLE), cells, strict=False)]
                widths = [min(_WIDEST_CELL, max(map(cell_len, column))) for column in zip(heads, *sample, strict=True)]
                widths = widths if self._width is None else _narrowed(widths, self._width)
                heads, right = heads[: len(widths)], right[: len(widths)]
                self._head(_aligned(heads, widths, right))
                self._lines(_aligned(row, widths, right) for row in sample)
            self._lines(_aligned(row, widths, right) for row in cells)
        if widths is None:
            self._head("  ".join(map(text.printable, names)))

    def _head(self, header: str) -> None:
        is_bold = self._out.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}
        self._lines([click.style(header.rstrip(), bold=True) if is_bold else header.rstrip()])

    def _lines(self, lines: Iterable[str]) -> None:
        # Not through Rich: laying out a line costs it a tenth of a millisecond, and there may be ten million.
        written = "".join([f"{line}\n" for line in lines])
        if written:
            with nullcontext() if self._progress is None else self._progress.aside():
                self._out.write(written)
                self._out.flush()


def _file_line(record: Record, *, with_counts: bool) -> str:
    path = record.get("uri") or record["path"]
    version = record["version"]
    rows = f"{text.count(record['num_records']):>11}  " if with_counts else ""
    line = (
        f"{text.size(record['size']):>8}  {rows}{text.moment(record['modification_time']):19}  "
        f"{'base' if version is None else version:>7}  {text.printable(path)}"
    )
    # Most writers name the partition in the path; with column mapping they do not.
    unnamed = [f"{key}={value}" for key, value in record["partition_values"].items() if f"{key}=" not in path]
    return f"{line}  [{text.printable(', '.join(unnamed))}]" if unnamed else line


def _change_line(record: Record) -> str:
    # What a rewrite moved is no news to whoever waits for rows.
    moved = "  (moved)" if record["data_change"] is False else ""
    size = "" if record["size"] is None else text.size(record["size"])
    named = text.printable(record["path"] or "")
    vector = "  (with a deletion vector)" if record["deletion_vector"] is not None else ""
    line = (
        f"{record['version']:>7}  {text.moment(record['timestamp']):19}  {record['action']:8}  {size:>8}  "
        f"{named}{vector}{moved}"
    )
    return line.rstrip()


def _fitting(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _narrowed(widths: list[int], total: int) -> list[int]:
    """Return widths that fit a line: the widest become narrower, and columns that still do not fit are left out."""
    widths = list(widths)
    while sum(widths) + 2 * (len(widths) - 1) > total:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] > _NARROWEST:
            widths[widest] -= 1
        elif len(widths) > 1:
            widths.pop()
        else:
            break
    return widths


def _aligned(cells: list[str], widths: list[int], right: list[bool]) -> str:
    from rich.cells import cell_len, set_cell_size  # noqa: PLC0415 - see above

    parts = []
    for cell, width, is_right in zip(cells, widths, right, strict=False):  # columns may be left out for want of room
        length = cell_len(cell)
        if length > width:
            parts.append(set_cell_size(cell, width - 3) + "...")
        else:
            padding = " " * (width - length)
            parts.append(padding + cell if is_right else cell + padding)
    return "  ".join(parts).rstrip()


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

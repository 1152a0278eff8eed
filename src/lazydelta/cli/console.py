"""Output for people: aligned lines for streams, sentences and tables for complete results.

Rich lays out tables and the progress line. It is loaded only when needed, because loading takes longer than most
queries.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Self, TextIO, TypeVar

import click
import pyarrow as pa

from lazydelta.cli import wording as text
from lazydelta.cli.wording import duration
from lazydelta.runtime.results import Record, records
from lazydelta.runtime.threads import Flag, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from rich.console import RenderableType

__all__ = ["ConsoleOutput"]


# A line on standard error that shows the progress of a long scan.
#
# It appears only on a terminal and after one second. It disappears while results are printed, because both streams
# usually end in the same window.


_PATIENCE_S = 1.0
_TICK_S = 0.2


class Progress:
    """Shows ``describe()`` and the elapsed time, from a thread, while its ``with`` block runs."""

    def __init__(self, stream: TextIO, describe: Callable[[], str]) -> None:
        self._stream = stream
        self._describe = describe
        self._lock = threading.Lock()
        self._done = Flag()
        self._shown = False
        self._last_output = 0.0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._stream.isatty():
            self._thread = start_thread(self._run, "lazydelta-progress")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._clear()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the line while the caller prints."""
        with self._lock:
            self._clear()
            yield
            self._last_output = time.monotonic()

    def _run(self) -> None:
        started = time.monotonic()
        while not self._done.wait(_TICK_S):
            now = time.monotonic()
            # A steady flow of results is progress enough.
            if now - max(started, self._last_output) < _PATIENCE_S and not self._shown:
                continue
            with self._lock:
                if not self._done.is_set():
                    self._clear()
                    line = paced(self._describe(), now - started)
                    _print_dim(line)
                    self._shown = True

    def _clear(self) -> None:
        if self._shown:
            _erase_line()
            self._shown = False


def paced(told: str, seconds: float) -> str:
    """Return a line of progress with the time so far, and for ``N of M`` in it also the rate and the time left."""
    found = re.search(r"([\d,]+) of ([\d,]+)", told)
    line = f"{told}, {duration(seconds * 1000)}"
    if found is None or seconds <= 0:
        return line
    done, total = (int(each.replace(",", "")) for each in found.groups())
    if not 0 < done < total:
        return line
    rate = done / seconds
    return f"{line}, {rate:,.0f} a second, {duration((total - done) / rate * 1000)} left"


# The thread that shows the first line loads Rich, so commands that finish within a second do not load it.


def _print_dim(line: str) -> None:
    from rich.text import Text  # noqa: PLC0415

    from lazydelta.cli.tables import console  # noqa: PLC0415

    console(stderr=True).print(Text(line, style="dim", no_wrap=True, overflow="crop"), end="")


def _erase_line() -> None:
    from rich.control import Control  # noqa: PLC0415
    from rich.segment import ControlType  # noqa: PLC0415

    from lazydelta.cli.tables import console  # noqa: PLC0415

    console(stderr=True).control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))


R = TypeVar("R")

_WIDEST_CELL = 40
_SAMPLE = 100
_NARROWEST = 8


class ConsoleOutput:
    """An ``Output`` for the terminal.

    ``width`` fits lines into that many characters, for viewing. Without it lines are complete, for copying.
    """

    def __init__(self, *, width: int | None = None) -> None:
        self._out = sys.stdout
        self._width = width
        self._progress: Progress | None = None

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show a progress line on standard error."""
        self._progress = Progress(sys.stderr, describe)
        return self._progress

    def write(self, text: str) -> None:
        """Print the text, with the progress line out of the way."""
        if text:
            with nullcontext() if self._progress is None else self._progress.aside():
                self._out.write(text)
                self._out.flush()

    def tell(self, result: R, words: Callable[[R], Iterable[RenderableType]]) -> None:
        """Print what ``words`` makes of the result. Lines of text are not wrapped."""
        for each in words(result):
            if isinstance(each, str):
                self._lines([each])
            else:
                from lazydelta.cli.tables import console  # noqa: PLC0415 - see above

                console().print(each)

    def step(self, result: R, words: Callable[[R], Iterable[RenderableType]] | None = None) -> None:
        """Print what ``words`` makes of the result, if given. Usually the progress line shows the step."""
        if words is not None:
            self.tell(result, words)

    def sum_up(self, result: R, words: Callable[[R], Iterable[RenderableType]]) -> None:
        """Print what ``words`` makes of the result."""
        self.tell(result, words)

    def files(self, batches: Iterable[Iterable[Record]], *, with_counts: bool = False) -> None:
        """Print one line per file. The path comes last, so no width must be known before the first line."""
        rows = f"{'rows':>11}  " if with_counts else ""
        self._head(f"{'size':>8}  {rows}{'modified (UTC)':19}  {'version':>7}  path")
        width = self._width
        for batch in batches:
            lines = (_file_line(record, with_counts=with_counts) for record in batch)
            self._lines(lines if width is None else (_fitting(line, width) for line in lines))

    def changes(self, batches: Iterable[Iterable[Record]]) -> None:
        """Print one line per change, with the path last."""
        self._head(f"{'version':>7}  {'committed (UTC)':19}  {'action':8}  {'size':>8}  path")
        for batch in batches:
            self._lines(map(_change_line, batch))

    def rows(self, batches: Iterable[pa.RecordBatch], names: list[str]) -> None:
        """Print one line per row. The first rows determine the column widths."""
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
        # Not through Rich: it takes a tenth of a millisecond per line, and there may be ten million.
        self.write("".join([f"{line}\n" for line in lines]))


def _file_line(record: Record, *, with_counts: bool) -> str:
    path = record.get("uri") or record["path"]
    version = record["version"]
    rows = f"{text.count(record['num_records']):>11}  " if with_counts else ""
    line = (
        f"{text.size(record['size']):>8}  {rows}{text.timestamp(record['modification_time']):19}  "
        f"{'base' if version is None else version:>7}  {text.printable(path)}"
    )
    # Most writers include the partition in the path, but not with column mapping.
    unnamed = [f"{key}={value}" for key, value in record["partition_values"].items() if f"{key}=" not in path]
    return f"{line}  [{text.printable(', '.join(unnamed))}]" if unnamed else line


def _change_line(record: Record) -> str:
    # Files that a rewrite moved contain no new rows.
    moved = "  (moved)" if record["data_change"] is False else ""
    size = "" if record["size"] is None else text.size(record["size"])
    named = text.printable(record["path"] or "")
    vector = "  (with a deletion vector)" if record["deletion_vector"] is not None else ""
    line = (
        f"{record['version']:>7}  {text.timestamp(record['timestamp']):19}  {record['action']:8}  {size:>8}  "
        f"{named}{vector}{moved}"
    )
    return line.rstrip()


def _fitting(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _narrowed(widths: list[int], total: int) -> list[int]:
    """Return widths that fit a line: the widest are narrowed, and columns that still do not fit are dropped."""
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
    for cell, width, is_right in zip(cells, widths, right, strict=False):  # columns may be dropped for lack of space
        length = cell_len(cell)
        if length > width:
            parts.append(set_cell_size(cell, width - 3) + "...")
        else:
            padding = " " * (width - length)
            parts.append(padding + cell if is_right else cell + padding)
    return "  ".join(parts).rstrip()


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

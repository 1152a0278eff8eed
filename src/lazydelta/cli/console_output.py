"""For people: Rich tables for what is known at once, plain aligned lines for what streams."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lazydelta.cli import wording as text
from lazydelta.cli.progress import Progress
from lazydelta.cli.values import Record, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lazydelta.cli.output import TableInfo

__all__ = ["ConsoleOutput", "console"]

# A pipe has no width: lines there are as long as they need to be, for grep and cut.
_ENDLESS = 4000
_WIDEST_CELL = 40
_SAMPLE = 100
_METRICS = "delta.lazy."


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to the command, which knows the exit code; Rich would exit here."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Return a console on a standard stream that takes text literally: paths are full of brackets and colons."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _ENDLESS
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


class ConsoleOutput:
    """An ``Output`` for the terminal.

    ``shorten`` makes paths fit the width, for a look; without it they are whole, to be copied.
    """

    def __init__(self, out: Console, err: Console, *, shorten: bool = False) -> None:
        self._out = out
        self._err = err
        self._shorten = shorten
        self._progress: Progress | None = None

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show a line of progress on standard error."""
        self._progress = Progress(self._err, describe)
        return self._progress

    def info(self, info: TableInfo) -> None:
        """Print names and values, then the columns."""
        facts = _facts()
        commit = [text.moment(info.timestamp), info.operation or ""] if info.timestamp is not None else []
        protocol = f"reader {info.min_reader_version}, writer {info.min_writer_version}"
        features = dict.fromkeys([*info.reader_features, *info.writer_features])
        commits = f"{text.count(info.tail_commits)} commits"
        known = info.checkpoint_version
        log = f"{commits}, no checkpoint" if known is None else f"checkpoint {known} and {commits} after it"
        for name, fact in (
            ("table", info.uri),
            ("name", info.name),
            ("description", info.description),
            ("id", info.id),
            ("version", text.count(info.version)),
            ("committed", "  ".join(filter(None, commit))),
            ("created", text.moment(info.created_time) if info.created_time is not None else None),
            ("partitioned by", ", ".join(info.partition_columns)),
            ("protocol", protocol),
            ("features", ", ".join(features)),
            ("log", log),
        ):
            if fact:
                facts.add_row(name, text.printable(fact))
        for name, setting in sorted(info.properties.items()):
            facts.add_row(text.printable(name), text.value(setting))
        self._out.print(facts)
        columns = _table("column", "type", "nullable")
        for column in info.columns:
            nullable = "" if column.nullable else "no"
            columns.add_row(text.printable(column.name), text.printable(column.type), nullable)
        self._out.print(columns)

    def history(self, versions: list[dict[str, Any]]) -> None:
        """Print one line a version."""
        table = _table("version", "committed (UTC)", "operation", "what it did", right=("version",))
        for each in versions:
            operation = text.printable(str(each.get("operation") or "-"))
            table.add_row(str(each.get("version")), text.moment(each.get("timestamp")), operation, _deeds(each))
        self._out.print(table)

    def files(self, batches: Iterable[Iterable[Record]], *, with_counts: bool = False) -> None:
        """Print one line a file; the path comes last, so that no width has to be known before the first line."""
        rows = f"{'rows':>11}  " if with_counts else ""
        self._head(f"{'size':>8}  {rows}{'modified (UTC)':19}  {'version':>7}  path")
        for batch in batches:
            lines = (_file_line(record, with_counts=with_counts) for record in batch)
            self._lines((_fitting(line, self._out.width) for line in lines) if self._shorten else lines)

    def rows(self, batches: Iterable[pa.RecordBatch], names: list[str]) -> None:
        """Print one line a row; widths are taken from the first rows and kept."""
        widths: list[int] | None = None
        for batch in batches:
            names = batch.schema.names
            right = [_is_number(field.type) for field in batch.schema]
            cells = ([text.value(each) for each in record.values()] for record in records(batch))
            if widths is None:
                heads = [text.printable(name) for name in names]
                sample = [row for _, row in zip(range(_SAMPLE), cells, strict=False)]
                widths = [min(_WIDEST_CELL, max(map(cell_len, column))) for column in zip(heads, *sample, strict=True)]
                self._head(_aligned(heads, widths, right))
                self._lines(_aligned(row, widths, right) for row in sample)
            self._lines(_aligned(row, widths, right) for row in cells)
        if widths is None:
            self._head("  ".join(map(text.printable, names)))

    def explanation(self, explanation: dict[str, Any]) -> None:
        """Print the plan, then what the scan did."""
        facts = _facts()
        for name, fact in _flat(explanation).items():
            label = name.removesuffix("_ms").removesuffix("_bytes").replace("_", " ")
            facts.add_row(label, text.printable(_measure(name, fact)))
        self._out.print(facts)

    def _head(self, header: str) -> None:
        with self._aside():
            self._out.print(Text(header.rstrip(), style="bold"), soft_wrap=True)
            self._out.file.flush()

    def _lines(self, lines: Iterable[str]) -> None:
        # Not through Rich: laying out a line costs it a tenth of a millisecond, and there may be ten million.
        written = "".join([f"{line}\n" for line in lines])
        if written:
            with self._aside():
                self._out.file.write(written)
                self._out.file.flush()

    def _aside(self) -> AbstractContextManager[None]:
        return nullcontext() if self._progress is None else self._progress.aside()


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


def _fitting(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 3]}..."


def _aligned(cells: list[str], widths: list[int], right: list[bool]) -> str:
    parts = []
    for cell, width, is_right in zip(cells, widths, right, strict=True):
        length = cell_len(cell)
        if length > width:
            parts.append(set_cell_size(cell, width - 3) + "...")
        else:
            padding = " " * (width - length)
            parts.append(padding + cell if is_right else cell + padding)
    return "  ".join(parts).rstrip()


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _facts() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


# What operations report, by the names that Delta-Spark and delta-rs use.
_DEEDS = (
    ("+{} files", ("numFiles", "numAddedFiles", "num_added_files", "numFilesAdded")),
    ("-{} files", ("numRemovedFiles", "num_removed_files", "numFilesRemoved", "numDeletedFiles")),
    ("+{} rows", ("numOutputRows", "num_added_rows", "num_output_rows")),
    ("-{} rows", ("numDeletedRows", "num_deleted_rows")),
)


def _deeds(version: dict[str, Any]) -> str:
    metrics = version.get("operationMetrics")
    if not isinstance(metrics, dict):
        return ""
    parts = []
    for form, names in _DEEDS:
        number = next((str(metrics[name]) for name in names if name in metrics), "0")
        if number != "0":
            parts.append(form.format(text.printable(number)))
    return ", ".join(parts)


def _flat(explanation: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return plan and metrics in one list, without what is empty and without what both have."""
    facts: dict[str, Any] = {}
    for section in explanation.values():
        for name, fact in section.items():
            if fact is not None and fact != []:
                facts.setdefault(name.removeprefix(_METRICS), fact)
    return facts


def _measure(name: str, fact: Any) -> str:
    if isinstance(fact, bool | str | list):
        return ", ".join(map(str, fact)) if isinstance(fact, list) else str(fact)
    if name.endswith("_ms"):
        return text.duration(fact)
    if "bytes" in name:
        return text.size(fact)
    return text.count(fact) if isinstance(fact, int) else str(fact)

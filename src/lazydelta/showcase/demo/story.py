"""What the demo does, step by step; a printer shows it."""

from __future__ import annotations

import importlib
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from lazydelta.errors import OptionError
from lazydelta.showcase.bench import make_table
from lazydelta.showcase.demo.comparison import Comparison, compare
from lazydelta.showcase.demo.folders import Folders, folders_in
from lazydelta.showcase.demo.pipeline import Growth, pipeline
from lazydelta.showcase.demo.queries import Query, queries
from lazydelta.showcase.demo.sensors import Arrived, Telemetry
from lazydelta.sidecar import build

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Ending", "Ingested", "Printer", "tell"]


class Ingested(msgspec.Struct, frozen=True):
    """What arrived, and where deltalake finds it: every row is in one of the two tables."""

    arrived: Arrived
    table: Growth
    rows_by_deltalake: int
    rejected_by_deltalake: int

    @property
    def is_complete(self) -> bool:
        """Tell whether every row that arrived is in a table, and none twice."""
        arrived, rejected = self.arrived, self.rejected_by_deltalake
        return rejected == arrived.without_time and self.rows_by_deltalake == arrived.rows - rejected


class Ending(msgspec.Struct, frozen=True):
    """How the demo ended; ``agrees`` tells whether deltalake found every answer to be right."""

    table: str
    rejected_table: str
    kept: str | None
    agrees: bool
    seconds: float


class Printer(Protocol):
    """Shows the steps as they happen."""

    def begin(self, folder: str, rows: int, files: int) -> None:
        """Say what is about to happen."""

    def growth(self, steps: Iterator[Growth]) -> None:
        """Show the table while it grows."""

    def ingested(self, ingested: Ingested) -> None:
        """Show what has become of what arrived."""

    def query(self, query: Query) -> None:
        """Show a question and its answer."""

    def making(self, files: int) -> None:
        """Say that a large table is being made."""

    def comparisons(self, title: str, found: list[Comparison]) -> None:
        """Show both libraries side by side."""

    def end(self, ending: Ending) -> None:
        """Say what was shown, and where the table is."""


def tell(printer: Printer, *, folder: str | None, rows: int, files: int, keep: bool) -> bool:
    """Run the demo; return whether every answer was right."""
    began = time.monotonic()
    deltalake = _deltalake()  # before a folder is made for nothing
    folders = folders_in(folder)
    try:
        agrees = _run(printer, folders, deltalake, rows=rows, files=files)
    finally:
        if not keep:
            shutil.rmtree(folders.scratch, ignore_errors=True)
    kept = str(folders.scratch) if keep else None
    printer.end(Ending(str(folders.table), str(folders.rejected), kept, agrees, round(time.monotonic() - began, 1)))
    return agrees


def _run(printer: Printer, folders: Folders, deltalake: Any, *, rows: int, files: int) -> bool:
    uri = str(folders.table)
    telemetry = Telemetry(rows)
    printer.begin(str(folders.root), rows, telemetry.files)
    with pipeline(folders, telemetry) as running:
        printer.growth(running.grow())
        table = running.finish_maintenance()
    ingested = Ingested(running.arrived, table, _count(deltalake, folders.table), _count(deltalake, folders.rejected))
    printer.ingested(ingested)
    agrees = ingested.is_complete
    for query in queries(uri, deltalake):
        printer.query(query)
        agrees &= query.same_as_deltalake
    found = compare(uri, table.files, _some_hour(deltalake, folders.table))
    printer.comparisons("Finding files of this table", found)
    if files:
        printer.making(files)
        made = make_table(folders.large, files=files, checksum=True)
        build(str(folders.large))
        large = compare(str(folders.large), made.num_files, made.last_hour)
        printer.comparisons(f"The same for {made.num_files:,} files (a log without data)", large)
        found += large
    return agrees and all(each.lazydelta.files == each.deltalake.files for each in found)


def _deltalake() -> Any:
    """Return the deltalake package; it is not one of ours, so it may be absent."""
    try:
        return importlib.import_module("deltalake")
    except ImportError as error:
        message = "The demo compares with deltalake, which is not installed"
        raise OptionError(message, hint="pip install deltalake") from error


def _count(deltalake: Any, table: Path) -> int:
    if not table.exists():
        return 0
    number: int = deltalake.DeltaTable(str(table)).to_pyarrow_table(columns=[]).num_rows
    return number


def _some_hour(deltalake: Any, table: Path) -> str:
    hours = [each["_event_hour"] for each in deltalake.DeltaTable(str(table)).partitions()]
    return str(max(hours))

"""The steps of the demo, shown by a printer."""

from __future__ import annotations

import importlib
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from lazydelta.demo.pipeline import Arrived, Growth, Telemetry, pipeline
from lazydelta.demo.queries import Comparison, Query, compare, queries
from lazydelta.errors import OptionError
from lazydelta.sidecar import build
from lazydelta.testing import make_table

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Ending", "Folders", "Ingested", "Printer", "tell"]


# The demo's folder: temporary, or one that is new, empty or from an earlier demo. No other folder is touched.


_MARKER = ".lazydelta-demo"
_TABLE = "telemetry"


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of the demo. ``scratch`` holds nothing worth keeping."""

    root: Path

    @property
    def table(self) -> Path:
        """Return the table."""
        return self.root / _TABLE

    @property
    def rejected(self) -> Path:
        """Return the table of rejected rows."""
        return self.root / f"{_TABLE}_rejected"

    @property
    def scratch(self) -> Path:
        """Return the folder for the rest: arriving files, the stream's checkpoint, a large table to compare with."""
        return self.root / "scratch"

    @property
    def arriving(self) -> Path:
        """Return the folder where telemetry arrives."""
        return self.scratch / "arriving"

    @property
    def checkpoint(self) -> Path:
        """Return the checkpoint folder of the stream."""
        return self.scratch / "stream-checkpoint"

    @property
    def log(self) -> Path:
        """Return Spark's log file."""
        return self.root / "spark.log"

    @property
    def large(self) -> Path:
        """Return the large table, which has a log and no data."""
        return self.scratch / "large"

    def checkpoints(self) -> list[int]:
        """Return the versions that have a checkpoint. Incomplete ones still have other names."""
        found = (self.table / "_delta_log").glob("[0-9]*.checkpoint.parquet")
        return sorted(int(each.name.partition(".")[0]) for each in found)

    def sidecars(self) -> list[int]:
        """Return the versions whose checkpoints have a sidecar."""
        found = (self.table / "_delta_log" / "_sidecars").glob("v[0-9]*.manifest.json")
        return sorted(int(each.name.partition(".")[0][1:]) for each in found)

    def clear(self) -> None:
        """Delete everything that a demo creates."""
        for each in (self.table, self.rejected, self.scratch):
            shutil.rmtree(each, ignore_errors=True)
        self.log.unlink(missing_ok=True)


def folders_in(chosen: str | None) -> Folders:
    """Return empty folders. A folder that does not belong to the demo is never emptied."""
    if chosen is None:
        root = Path(tempfile.mkdtemp(prefix="lazydelta-demo-"))
    else:
        root = Path(chosen).expanduser().absolute()
    folders = Folders(root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()) and not (root / _MARKER).is_file():
            message = f"{root} is not empty and was not made by the demo"
            raise OptionError(message, path=str(root), hint="pass a new or empty folder as --folder")
        (root / _MARKER).write_text("This folder belongs to `lazydelta demo`, which replaces what it made.\n", "utf-8")
        folders.clear()
        folders.arriving.mkdir(parents=True)
    except OSError as error:
        message = f"The demo cannot use {root}: {error.strerror or error}"
        raise OptionError(message, path=str(root), hint="pass a writable folder as --folder") from error
    return folders


class Ingested(msgspec.Struct, frozen=True):
    """The rows that arrived, and where deltalake finds them: every row is in one of the two tables."""

    arrived: Arrived
    table: Growth
    rows_by_deltalake: int
    rejected_by_deltalake: int

    @property
    def is_complete(self) -> bool:
        """Return whether every row that arrived is in a table exactly once."""
        arrived, rejected = self.arrived, self.rejected_by_deltalake
        return rejected == arrived.without_time and self.rows_by_deltalake == arrived.rows - rejected


class Ending(msgspec.Struct, frozen=True):
    """The result of the demo. ``agrees`` is set if deltalake confirmed every query result."""

    table: str
    rejected_table: str
    kept: str | None
    agrees: bool
    seconds: float


class Printer(Protocol):
    """Shows the steps as they happen."""

    def begin(self, folder: str, rows: int, files: int) -> None:
        """Announce the demo."""

    def growth(self, steps: Iterator[Growth]) -> None:
        """Show the table while it grows."""

    def ingested(self, ingested: Ingested) -> None:
        """Show where the rows that arrived ended up."""

    def query(self, query: Query) -> None:
        """Show a query and its result."""

    def making(self, files: int) -> None:
        """Announce that a large table is being generated."""

    def comparisons(self, title: str, found: list[Comparison]) -> None:
        """Show both libraries next to each other."""

    def end(self, ending: Ending) -> None:
        """Summarize the demo and show where the table is."""


def tell(printer: Printer, *, folder: str | None, rows: int, files: int, keep: bool) -> bool:
    """Run the demo. Return whether every result was right."""
    began = time.monotonic()
    deltalake = _deltalake()  # before a folder is created for nothing
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
    """Return the deltalake package. It is not a dependency, so it may be absent."""
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

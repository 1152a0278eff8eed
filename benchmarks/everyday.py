"""Work that no table is too small for: wide tables, small ones, many commits, deletions, beside deltalake.

What gates is that none of it takes more CPU time than deltalake does, in a process that has done such work before.
Times by the clock are in the saved results; deltalake spreads some of the work over all cores.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import numpy as np
import pyarrow as pa

from benchmarks import everyday_work
from benchmarks.discovery import Case, Contender, Gate
from benchmarks.tables import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["GATED_COLUMNS", "cases"]

GATED_COLUMNS = 4_000
_NOT_SLOWER = Gate(1.0, smaller=0.0, of_cpu=True)
_NOR_LARGER = Gate(1.0, smaller=1.0, of_cpu=True)
_IMPORTS = ("lazydelta", "deltalake", "pyarrow.dataset", "benchmarks.everyday_warm")
_SMALL_FILES = 180
_SMALL_COMMITS = 100
_ROWS = 3_000_000
_DEVICE = "sensor-7"


def cases(columns: int) -> list[Case]:
    """Return the cases for tables of this many columns; other sizes grow and shrink with it."""
    commits, adds = 5 * columns, 250 * columns
    folder = cache_folder() / f"everyday-{columns}-1"
    folder.mkdir(parents=True, exist_ok=True)
    wide = _made(folder / "wide", lambda place: _wide_table(place, columns))
    wider = _made(folder / "wider", lambda place: _wide_table(place, columns * 5 // 2))
    many = _made(folder / "commits", lambda place: _log(place, ([each] for each in range(commits))))
    large = _made(folder / "adds", lambda place: _log(place, [range(adds)]))
    small = _made(folder / "small", lambda place: _log(place, ([each] for each in range(_SMALL_FILES))))
    one = _made(folder / "one", lambda place: _rows_table(place, 1))
    eight = _made(folder / "eight", lambda place: _rows_table(place, 8))
    hundred = _made(folder / "hundred", lambda place: everyday_work.commits("deltalake", str(place), _SMALL_COMMITS))
    work = folder / f"work-{os.getpid()}"  # two runs side by side have one each
    atexit.register(shutil.rmtree, work, ignore_errors=True)
    left = json.loads((one / "left.json").read_text())

    def case(
        name: str, work_name: str, source: Path | None, expected: int, *given: object, gate: Gate = _NOT_SLOWER
    ) -> Case:
        def before() -> None:
            shutil.rmtree(work, ignore_errors=True)
            if source is not None:
                shutil.copytree(source, work)

        ours, theirs = (
            Contender("everyday", work_name, (by, str(work), *given), _IMPORTS, before)
            for by in ("lazydelta", "deltalake")
        )
        return Case(name, ours, theirs, gate, expected)

    return [
        case(f"write {columns:,} columns", "write", None, 1, columns),
        case(f"append {columns:,} columns", "write", wide, 2, columns),
        case(f"read {columns:,} columns", "read", wide, 3),
        case(f"DELETE in {columns:,} columns", "delete", wide, 2, "c5 = 2"),
        case(f"write {columns * 5 // 2:,} columns", "write", None, 1, columns * 5 // 2),
        case(f"read {columns * 5 // 2:,} columns", "read", wider, 3),
        case("DELETE in one file", "delete", one, left["1"], f"device = '{_DEVICE}'"),
        case("DELETE in eight files", "delete", eight, left["8"], f"device = '{_DEVICE}'"),
        case(f"list {_SMALL_FILES} files", "listing", small, _SMALL_FILES),
        case(f"{_SMALL_COMMITS} commits", "commits", None, 100 * _SMALL_COMMITS, _SMALL_COMMITS),
        case(f"read {_SMALL_COMMITS} files", "read", hundred, 100 * _SMALL_COMMITS),
        case(f"OPTIMIZE of {_SMALL_COMMITS} files", "optimize", hundred, 100 * _SMALL_COMMITS),
        case(f"history of {_SMALL_COMMITS} commits", "history", hundred, _SMALL_COMMITS),
        case(f"checkpoint of {commits:,} commits", "checkpoint", many, commits, gate=_NOR_LARGER),
        case(f"list one commit of {adds:,} files", "listing", large, adds),
        case(f"checkpoint of one commit of {adds:,} files", "checkpoint", large, adds),
    ]


def _made(place: Path, make: Callable[[Path], object]) -> Path:
    """Return the table at a place, which is made now if it is not there whole."""
    if not (place / "made").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        make(place)
        (place / "made").touch()
    return place


def _wide_table(place: Path, columns: int) -> None:
    deltalake.write_deltalake(place, pa.table({f"c{number}": [1, 2, 3] for number in range(columns)}))


def _rows_table(place: Path, files: int) -> None:
    random = np.random.default_rng(1)
    left = 0
    for _ in range(files):
        number = _ROWS // files
        devices = random.integers(0, 1000, number)
        left += int((devices != 7).sum())  # all but the device that is deleted
        rows = {
            "id": np.arange(number),
            "value": random.normal(size=number),
            "text": [f"text {each}" for each in random.integers(0, 1 << 30, number)],
            "device": [f"sensor-{each}" for each in devices],
        }
        deltalake.write_deltalake(place, pa.table(rows), mode="append")
    known = place.parent / "one" / "left.json"
    found = json.loads(known.read_text()) if known.exists() else {}
    known.write_text(json.dumps(found | {str(files): left}))


def _log(place: Path, commits: Iterable[Iterable[int]]) -> None:
    """Write a log of files that do not exist: each commit adds those with its numbers."""
    log = place / "_delta_log"
    log.mkdir()
    fields = [("id", "long"), ("value", "double"), ("text", "string"), ("part", "string")]
    schema = {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields],
    }
    metadata = {
        "id": "everyday",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": ["part"],
        "configuration": {},
        "createdTime": 1_770_000_000_000,
    }
    for version, numbers in enumerate(commits):
        with (log / f"{version:020}.json").open("w") as file:
            info = {"timestamp": 1_770_000_000_000 + version, "operation": "WRITE", "operationParameters": {}}
            file.write(json.dumps({"commitInfo": info}) + "\n")
            if version == 0:
                file.write(json.dumps({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}) + "\n")
                file.write(json.dumps({"metaData": metadata}) + "\n")
            file.writelines(_adds(numbers))


def _adds(numbers: Iterable[int]) -> Iterator[str]:
    for number in numbers:
        low, high = ({"id": number, "value": 0.5, "text": f"{side}{number}"} for side in "ab")
        nulls = {"id": 0, "value": 0, "text": 0}
        stats = {"numRecords": 100, "minValues": low, "maxValues": high, "nullCount": nulls}
        action = {
            "path": f"part=x{number % 24}/part-{number:08}-0123456789abcdef.c000.zstd.parquet",
            "partitionValues": {"part": f"x{number % 24}"},
            "size": 1000 + number,
            "modificationTime": 1_770_000_000_000 + number,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
        yield json.dumps({"add": action}) + "\n"

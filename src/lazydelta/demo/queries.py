"""Three queries on the demo's table, each with how its files were found. deltalake checks the results."""

from __future__ import annotations

import importlib
import json
import resource
import shlex
import statistics
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from lazydelta.demo.pipeline import HOURS, START, device
from lazydelta.errors import LazyDeltaError
from lazydelta.runtime import compute as pc
from lazydelta.runtime.results import Record, records
from lazydelta.table.delta_table import DeltaTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Comparison", "Query", "compare", "queries"]


_TAKEN = 100
_DEVICE = device(7)
_FORMAT = "%Y%m%d%H"
_LAST_HOUR = (START + timedelta(hours=HOURS - 1)).strftime(_FORMAT)
_DAY = [(START + timedelta(hours=hour)).strftime(_FORMAT) for hour in (24, 47)]


class Query(msgspec.Struct, frozen=True):
    """A query with its result. ``command`` shows the explanation again."""

    title: str
    command: str
    rows: list[Record]
    num_rows: int
    milliseconds: float
    explanation: dict[str, Any]
    same_as_deltalake: bool


def queries(uri: str, deltalake: Any) -> Iterator[Query]:
    """Run the queries, each after the result of the previous one was consumed."""
    theirs = deltalake.DeltaTable(uri)
    hour = f"_event_hour >= '{_LAST_HOUR}'"
    of_device = f"{hour} AND device_id = '{_DEVICE}'"
    yield _query(
        f"The last hour of {_DEVICE}",
        uri,
        {"where": of_device},
        lambda table: pa.Table.from_batches(table.rows(where=of_device), table.schema().to_arrow()),
        lambda found: _same(
            found,
            theirs.to_pyarrow_table(filters=[("_event_hour", ">=", _LAST_HOUR), ("device_id", "=", _DEVICE)]),
        ),
    )
    yield _query(
        f"Any {_TAKEN} rows",
        uri,
        {"row_limit": _TAKEN},
        _take,
        lambda found: found.num_rows == _TAKEN and _are_among(found, theirs.to_pyarrow_table()),
    )
    of_day = f"_event_hour BETWEEN '{_DAY[0]}' AND '{_DAY[1]}' AND sensor = 'temperature'"
    yield _query(
        "The temperature of a day, hour by hour",
        uri,
        {"where": of_day},
        lambda table: _averages(
            pa.Table.from_batches(table.rows(["_event_hour", "value"], of_day), _only(table, "_event_hour", "value"))
        ),
        lambda found: _same(
            found,
            _averages(
                theirs.to_pyarrow_table(
                    columns=["_event_hour", "value"],
                    filters=[
                        ("_event_hour", ">=", _DAY[0]),
                        ("_event_hour", "<=", _DAY[1]),
                        ("sensor", "=", "temperature"),
                    ],
                )
            ),
        ),
    )


def _query(
    title: str,
    uri: str,
    scan: dict[str, Any],
    answer: Callable[[DeltaTable], pa.Table],
    is_right: Callable[[pa.Table], bool],
) -> Query:
    began = time.perf_counter()
    found = answer(DeltaTable(uri))
    milliseconds = (time.perf_counter() - began) * 1000
    with DeltaTable(uri).files(**scan) as stream:
        for _ in stream.batches():
            pass
        explanation = stream.explain().as_dict()
    shown = [record for batch in found.to_batches() for record in records(batch)]
    words = [word for name, value in scan.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return Query(
        title, _typed("explain", uri, *words), shown, found.num_rows, milliseconds, explanation, is_right(found)
    )


def _take(table: DeltaTable) -> pa.Table:
    """Read some rows. No further file is opened after them."""
    taken: list[pa.RecordBatch] = []
    wanted = _TAKEN
    for batch in table.rows():
        taken.append(batch.slice(0, wanted))
        wanted -= taken[-1].num_rows
        if not wanted:
            break
    return pa.Table.from_batches(taken, table.schema().to_arrow())


def _averages(rows: pa.Table) -> pa.Table:
    grouped = rows.group_by("_event_hour").aggregate([("value", "mean"), ("value", "count")]).sort_by("_event_hour")
    # The last digits depend on the order of summation.
    mean = pc.round(grouped.column("value_mean"), 6)
    return pa.table({"hour": grouped.column("_event_hour"), "average": mean, "rows": grouped.column("value_count")})


def _only(table: DeltaTable, *names: str) -> pa.Schema:
    return pa.schema([table.schema().to_arrow().field(name) for name in names])


def _same(ours: pa.Table, theirs: pa.Table) -> bool:
    return _rows(ours) == _rows(theirs.select(ours.column_names))


def _are_among(ours: pa.Table, theirs: pa.Table) -> bool:
    return set(_rows(ours)) <= set(_rows(theirs.select(ours.column_names)))


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _typed(*words: str) -> str:
    # A predicate in double quotes is easier to read than one with escaped single quotes.
    return " ".join(["lazydelta", *(f'"{word}"' if "'" in word else shlex.quote(word) for word in words)])


# File discovery compared with deltalake: the same query to both, each time in a new process.
#
# A child imports the library, notes the time and its peak memory, opens the table, finds the files and reports. Startup
# and imports are therefore not counted for either, and only the machine's page cache is warm, for both.


_ROUNDS = 3
_LIMIT = 100
_SECONDS = 300


class Side(msgspec.Struct, frozen=True):
    """The medians of one library. ``peak_bytes`` is the growth of its peak memory."""

    files: int
    milliseconds: float
    peak_bytes: int


class Comparison(msgspec.Struct, frozen=True):
    """One query to both libraries. ``faster`` is the speedup of lazydelta, below 1 if it was slower."""

    question: str
    table_files: int
    lazydelta: Side
    deltalake: Side
    faster: float


def compare(uri: str, table_files: int, hour: str) -> list[Comparison]:
    """Find the files of one hour, and any hundred files, with both libraries."""
    return [
        _compared("the files of one hour", "hour", uri, table_files, hour),
        _compared(f"any {_LIMIT} files", "any", uri, table_files, hour),
    ]


def _compared(question: str, kind: str, uri: str, table_files: int, hour: str) -> Comparison:
    runs: dict[str, list[Side]] = {"lazydelta": [], "deltalake": []}
    for number in range(_ROUNDS):
        # Alternate the order, so that a machine that slows down favours neither.
        for library in sorted(runs, reverse=number % 2 == 0):
            runs[library].append(_measured(library, kind, uri, hour))
    ours, theirs = (_median(runs[library]) for library in ("lazydelta", "deltalake"))
    return Comparison(question, table_files, ours, theirs, round(theirs.milliseconds / ours.milliseconds, 2))


def _median(sides: list[Side]) -> Side:
    return Side(
        sides[0].files,
        statistics.median(side.milliseconds for side in sides),
        int(statistics.median(side.peak_bytes for side in sides)),
    )


def _measured(library: str, kind: str, uri: str, hour: str) -> Side:
    task = json.dumps({"library": library, "kind": kind, "uri": uri, "hour": hour})
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", __name__, task], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        raise LazyDeltaError(f"{library} could not be measured on {uri}: {detail}", path=uri) from error
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Side)


def _ask(module: Any, library: str, kind: str, uri: str, hour: str) -> int:
    table = module.DeltaTable(uri)
    if kind == "hour":
        return len(table.file_uris(partition_filters=[("_event_hour", "=", hour)]))
    if library == "lazydelta":
        return sum(batch.num_rows for batch in table.files(limit=_LIMIT).batches())
    return len(table.file_uris()[:_LIMIT])  # deltalake cannot be asked for fewer


def _peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        found = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(found.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _child(task: dict[str, str]) -> None:
    module = importlib.import_module(task["library"])
    importlib.import_module("pyarrow.parquet")
    before, began = _peak(), time.perf_counter()
    files = _ask(module, **task)
    milliseconds = (time.perf_counter() - began) * 1000
    sys.stdout.write(msgspec.json.encode(Side(files, milliseconds, _peak() - before)).decode() + "\n")


if __name__ == "__main__":
    _child(json.loads(sys.argv[1]))

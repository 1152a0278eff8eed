"""Three questions to the demo's table, each with how its files were found; deltalake checks the answers."""

from __future__ import annotations

import shlex
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.cli.values import Record, records
from lazydelta.delta_table import DeltaTable
from lazydelta.showcase.demo.sensors import HOURS, START, device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Query", "queries"]

_TAKEN = 100
_DEVICE = device(7)
_FORMAT = "%Y%m%d%H"
_LAST_HOUR = (START + timedelta(hours=HOURS - 1)).strftime(_FORMAT)
_DAY = [(START + timedelta(hours=hour)).strftime(_FORMAT) for hour in (24, 47)]


class Query(msgspec.Struct, frozen=True):
    """A question with its answer; ``command`` shows the explanation again."""

    title: str
    command: str
    rows: list[Record]
    num_rows: int
    milliseconds: float
    explanation: dict[str, Any]
    same_as_deltalake: bool


def queries(uri: str, deltalake: Any) -> Iterator[Query]:
    """Put the questions, one when the answer to the one before was taken."""
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
    """Take some rows; no file is opened after them."""
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
    # The last digits depend on the order in which values were added.
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
    # A predicate in double quotes is easier to read than one whose single quotes are escaped.
    return " ".join(["lazydelta", *(f'"{word}"' if "'" in word else shlex.quote(word) for word in words)])

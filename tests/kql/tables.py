"""Delta tables to ask, with everything that translations get wrong: nulls, NaN, empty texts, mixed case.

They are written by deltalake; the same rows as Arrow tables are for DuckDB, which knows nothing of us.
"""

# ruff: noqa: E501 - a query is read best on one line

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["NOW", "SCHEMAS", "devices", "telemetry", "write_tables"]

NOW = datetime(2026, 2, 10, 6, 0, tzinfo=UTC)
HOURS = [f"20260210{hour:02}" for hour in range(6)]
ROWS_AN_HOUR = 40
DEVICES = ["sensor-1", "Sensor-1", "sensor-42", "SENSOR 42", "pump a", "Pump-A", "", None, "ünïcode", "a'b\"c"]

SCHEMAS = {
    "Telemetry": "(device_id:string, timestamp:datetime, value:real, n:long, i:int, small:real, flag:bool, day:datetime,"
    " amount:decimal, info:dynamic, _event_hour:string)",
    "Devices": "(device_id:string, site:string, capacity:long, Rank:int)",
}
"""What Microsoft's analyser is told of the tables."""


def telemetry() -> pa.Table:
    """Return the rows of the large table, hour by hour."""
    choose = random.Random(42)
    rows = []
    for number, hour in enumerate(HOURS):
        for minute in range(ROWS_AN_HOUR):
            timestamp = datetime(2026, 2, 10, number, minute, choose.randrange(60), 250_000, tzinfo=UTC)
            rows.append(
                {
                    "device_id": choose.choice(DEVICES),
                    "timestamp": choose.choice([timestamp] * 12 + [None]),
                    "value": choose.choice([None, float("nan"), 0.0, -2.5, 2.5, choose.uniform(-9, 9), number + 0.5]),
                    "n": choose.choice([None, 0, -7, choose.randrange(-20, 20), number * 10]),
                    "i": choose.choice([None, number, -number]),
                    "small": choose.choice([None, 0.1, 0.5, float("nan")]),
                    "flag": choose.choice([None, True, False]),
                    "day": choose.choice([None, date(2026, 2, 10) - timedelta(days=number)]),
                    "amount": choose.choice([None, Decimal("1.25"), Decimal(number) / 4]),
                    "info": choose.choice([None, {"kind": "A", "level": number}, {"kind": None, "level": None}]),
                    "_event_hour": hour,
                }
            )
    schema = pa.schema(
        [
            pa.field("device_id", pa.string()),
            pa.field("timestamp", pa.timestamp("us", "UTC")),
            pa.field("value", pa.float64()),
            pa.field("n", pa.int64()),
            pa.field("i", pa.int32()),
            pa.field("small", pa.float32()),
            pa.field("flag", pa.bool_()),
            pa.field("day", pa.date32()),
            pa.field("amount", pa.decimal128(12, 4)),
            pa.field("info", pa.struct([pa.field("kind", pa.string()), pa.field("level", pa.int64())])),
            pa.field("_event_hour", pa.string()),
        ]
    )
    return pa.Table.from_pylist(rows, schema=schema)


def devices() -> pa.Table:
    """Return the rows of the small table: keys that repeat, that are missing, and that differ in case alone."""
    return pa.table(
        {
            "device_id": ["sensor-1", "sensor-1", "Sensor-1", "sensor-42", "", None, "unknown"],
            "site": ["north", "South", None, "north", "", "west", "East"],
            "capacity": pa.array([10, 20, None, 40, 50, 60, 70], pa.int64()),
            "Rank": pa.array([1, 2, 3, None, 5, 6, 7], pa.int32()),
        }
    )


def write_tables(folder: Path) -> dict[str, Path]:
    """Write both tables, a file for each hour of the large one, and return where they are."""
    large, small = folder / "telemetry", folder / "devices"
    rows = telemetry()
    for number in range(len(HOURS)):
        part = rows.slice(number * ROWS_AN_HOUR, ROWS_AN_HOUR)
        write_deltalake(large, part, mode="append", partition_by=["_event_hour"])
    write_deltalake(small, devices())
    return {"Telemetry": large, "Devices": small}

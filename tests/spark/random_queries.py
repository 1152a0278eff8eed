"""Queries as users write them, made at random over a view, and a table of ours and of deltalake's to ask them of."""

from __future__ import annotations

import datetime as dt
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from lazydelta import write_arrow

ZONES = ("UTC", "America/New_York", "Asia/Kolkata", "Pacific/Auckland")

# A condition of Spark's, and the same in our SQL; None where Spark tells a scan nothing or little of it.
CONDITIONS: tuple[tuple[str, str | None], ...] = (
    *(
        (each, each)
        for each in (
            "id BETWEEN {low} AND {high}",
            "s = 'k{key}'",
            "s LIKE 'k{digit}%'",
            "f > {low}",
            "f IS NULL OR f < {low}",
            "NOT (f <= {low})",
            "d >= {low}.5 AND d < {high}",
            "ts >= '{year}-01-01T00:00:00Z'",
            "day < date'{year}-06-01'",
            "p IN ({digit4}, 9)",
            "p = {digit4} AND (id < {low} OR s = 'k{key}')",
            "st.x < {low}",
            "st.y.z IS NULL",
            "s IS NOT NULL AND NOT s IN ('k1', 'k{key}')",
            "NOT (id < {low} OR s IS NULL)",
            "id IN ({many})",
        )
    ),
    ("n > timestamp_ntz'2020-03-0{digit1} 00:00:00'", "n > '2020-03-0{digit1}T00:00:00'"),
    ("ts < '{year}-03-29 02:30:00'", None),
    ("p = {digit4} OR id > {low}", None),
    ("NOT (p = {digit4} AND id < {low})", None),
    ("p <=> {digit4} AND NOT (s <=> null)", None),
    ("year(ts) > {year} AND id % 7 = 3", None),
    ("coalesce(s, 'x') = 'x' OR isnan(f)", None),
    ("b = cast('b{low}' as binary)", None),
    ("date_trunc('hour', ts) >= '{year}-01-01'", None),
    ("st.x IN ({many}) AND day IS NOT NULL", None),
)
SHAPES = (
    "SELECT id, s, f, ts, st FROM {t} WHERE {one}",
    "SELECT p, count(*), sum(d), max(ts), min(s) FROM {t} WHERE {one} GROUP BY p",
    "SELECT l.id, r.s FROM {t} l JOIN {t} r ON l.id = r.id + 1 WHERE {one_l} AND {two_r}",
    "SELECT id, p FROM {t} WHERE {one} UNION ALL SELECT id, p FROM {t} WHERE {two}",
    "SELECT id FROM {t} WHERE {one} AND id IN (SELECT id FROM {t} WHERE {two})",
    "SELECT id FROM {t} WHERE id > (SELECT min(id) FROM {t} WHERE {one}) AND p = 1",
    "SELECT id, r FROM (SELECT *, row_number() OVER (PARTITION BY p ORDER BY id) r FROM {t} WHERE {one}) WHERE r < 9",
    "SELECT id FROM {t} WHERE {one} ORDER BY id DESC LIMIT 7",
    "WITH c AS (SELECT * FROM {t} WHERE {one}) SELECT a.p, count(*) FROM c a JOIN c b ON a.p = b.p GROUP BY a.p",
    "SELECT l.id FROM {t} l LEFT ANTI JOIN (SELECT id FROM {t} WHERE {two}) r ON l.id = r.id WHERE {one_l}",
    "SELECT id FROM {t} l WHERE EXISTS (SELECT 1 FROM {t} r WHERE r.id = l.id + 7 AND {two_r}) AND {one_l}",
    "SELECT count(DISTINCT s), count(f), approx_count_distinct(id) FROM {t} WHERE {one} AND {two}",
)


class Query:
    """A query over the view ``{t}``. ``ours`` has the conditions of its scans, if all of them prune."""

    def __init__(self, rng: random.Random) -> None:
        low = rng.randrange(0, 600)
        values = {
            "low": low,
            "high": low + rng.randrange(1, 200),
            "key": rng.randrange(50),
            "digit": rng.randrange(10),
            "digit1": rng.randrange(1, 10),
            "digit4": rng.randrange(4),
            "year": rng.choice([1500, 1800, 1999, 2020, 2090]),
            "many": ", ".join(str(low + 3 * each) for each in range(15)),
        }
        chosen = rng.sample(CONDITIONS, 2)
        conditions = {name: f"({condition})" for name, (condition, _) in zip(("one", "two"), chosen, strict=True)}
        conditions |= {f"{name}_{table}": _of(text, table) for name, text in conditions.items() for table in "lr"}
        shape = rng.choice(SHAPES)
        self.text = shape.format(t="{t}", **conditions).replace("{t}", "\0").format(**values).replace("\0", "{t}")
        asked = [ours for name, (_, ours) in zip(("{one", "{two"), chosen, strict=True) if name in shape]
        asked += ["p = 1"] * ("p = 1" in shape)
        self.ours = [each.format(**values) for each in asked if each is not None] if None not in asked else []


def _of(condition: str, table: str) -> str:
    """Name the table of each column, as a query over two of them has to."""
    return re.sub(r"(?<![\w.'])(id|s|f|d|ts|n|day|b|st|p)(?![\w'(])", rf"{table}.\1", condition)


def _rows(ids: range) -> pa.Table:
    start, epoch = dt.datetime(1490, 3, 1, 1, 2, 3, 4, tzinfo=dt.UTC), dt.datetime(2020, 2, 29, 12, tzinfo=dt.UTC)
    columns: dict[str, Any] = {
        "id": pa.array(ids),
        "s": pa.array([None if each % 7 == 0 else f"k{each % 50}" for each in ids]),
        "f": pa.array([float("nan") if each % 11 == 0 else None if each % 13 == 0 else each * 1.5 for each in ids]),
        "d": pa.array([Decimal(each) * Decimal("1.001") for each in ids], pa.decimal128(20, 3)),
        "ts": pa.array([start + dt.timedelta(days=365 * each) for each in ids], pa.timestamp("us", "UTC")),
        "n": pa.array([(epoch + dt.timedelta(days=each)).replace(tzinfo=None) for each in ids], pa.timestamp("us")),
        "day": pa.array([dt.date(1400, 1, 1) + dt.timedelta(days=300 * each) for each in ids]),
        "b": pa.array([f"b{each}".encode() for each in ids]),
        "st": pa.array([{"x": each, "y": None if each % 3 == 0 else {"z": str(each)}} for each in ids]),
        "p": pa.array([each % 4 for each in ids], pa.int32()),
    }
    return pa.table(columns)


def write_ours(table: Path) -> None:
    """Write a table in four commits of ours."""
    for start in range(0, 480, 120):
        write_arrow(table, _rows(range(start, start + 120)), partition_by=["p"])


def write_by_deltalake(table: Path) -> None:
    """Write a table in four commits of deltalake's, without partitions, with a checkpoint."""
    for start in range(0, 480, 120):  # not slices of one table: deltalake 1.6 aborts on structs in slices
        deltalake.write_deltalake(table, _rows(range(start, start + 120)), mode="append")
    deltalake.DeltaTable(table).create_checkpoint()

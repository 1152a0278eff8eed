"""Columns of every type that Delta has, partition columns and deleted rows, with pruning and without.

What a condition keeps is told by Python over the same rows, null by null.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lazydelta import DeltaTable
from lazydelta.kql.execution.query import run
from tests.maintenance.deleted_rows import delete_rows

NAN = math.nan
LARGE = Decimal("12345678901234567890.123456")
UTC = dt.UTC
SCHEMA = pa.schema(
    [
        pa.field(
            "s",
            pa.struct(
                [("a", pa.float64()), ("b", pa.list_(pa.int64())), ("it's", pa.struct([("day", pa.date32())]))],
            ),
        ),
        pa.field("l", pa.list_(pa.float64())),
        pa.field("m", pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
        pa.field("z", pa.float64()),
        pa.field("f", pa.float32()),
        pa.field("dec", pa.decimal128(38, 6)),
        pa.field("raw", pa.binary()),
        pa.field("d", pa.date32()),
        pa.field("ntz", pa.timestamp("us")),
        pa.field("b", pa.int8()),
        pa.field("pi", pa.int32()),
        pa.field("pd", pa.date32()),
        pa.field("ps", pa.string()),
        pa.field("pb", pa.bool_()),
        pa.field("pt", pa.timestamp("us", "UTC")),
    ]
)
PARTITIONS = ["pi", "pd", "ps", "pb", "pt"]
HOUR = dt.datetime(2020, 1, 1, tzinfo=UTC)


def rows() -> list[dict[str, Any]]:
    """Return the rows, three to a partition."""
    made: list[dict[str, Any]] = []
    for part in range(4):
        shared: dict[str, Any] = {
            "pi": part if part < 3 else None,
            "pd": dt.date(2020, 1, part + 1) if part < 3 else None,
            "ps": ["", "A", "a", None][part],
            "pb": [True, False, None, True][part],
            "pt": HOUR + dt.timedelta(hours=part),
        }
        made += [
            {
                "s": {"a": 1.5, "b": [1, 2], "it's": {"day": dt.date(2020, 1, 1)}},
                "l": [1.0, NAN, None],
                "m": [("k", HOUR), ("z", None)],
                "z": -0.0,
                "f": 0.1,
                "dec": LARGE + part,
                "raw": b"\x00\xff",
                "d": dt.date(2020, 1, 1),
                "ntz": dt.datetime(2020, 1, 1, 10),  # noqa: DTZ001 - the column has no zone
                "b": part,
                **shared,
            },
            {
                "s": {"a": NAN, "b": [], "it's": None},
                "l": None,
                "m": None,
                "z": 0.0 if part else NAN,
                "f": -0.0,
                "dec": Decimal(-1),
                "raw": b"",
                "d": dt.date(1969, 12, 31),
                "ntz": None,
                "b": -128,
                **shared,
            },
            {
                "s": None,
                "l": [],
                "m": [],
                "z": None if part else NAN,
                "f": NAN,
                "dec": None,
                "raw": None,
                "d": None,
                "ntz": dt.datetime(1950, 1, 1),  # noqa: DTZ001
                "b": None,
                **shared,
            },
        ]
    return made


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DeltaTable]:
    """Return the table, a file a partition."""
    folder = tmp_path_factory.mktemp("odd")
    write_deltalake(folder, pa.Table.from_pylist(rows(), SCHEMA), partition_by=PARTITIONS)
    return {"T": DeltaTable(folder)}


def answer(text: str, tables: dict[str, DeltaTable], *, pushdown: bool = True) -> list[tuple[Any, ...]]:
    with run(text, tables, pushdown=pushdown) as result:
        return list(zip(*(column.to_pylist() for column in result.read_all().columns), strict=True))


Keep = Callable[[dict[str, Any]], bool | None]
# A condition, which rows it keeps, and whether it prunes: all but those that look inside a value.
CONDITIONS: list[tuple[str, Keep, bool]] = [
    ("z == 0", lambda r: r["z"] == 0, True),
    ("z == -0.0", lambda r: r["z"] == 0, True),
    ("z >= 0", lambda r: r["z"] is not None and r["z"] >= 0, True),
    ("z < 0", lambda r: r["z"] is not None and r["z"] < 0, True),
    ("z != 0", lambda r: r["z"] != 0, True),
    ("not(z > -1)", lambda r: r["z"] is not None and not r["z"] > -1, True),
    ("z in (0.0)", lambda r: r["z"] == 0, True),
    ("z !in (0.0)", lambda r: r["z"] != 0, True),
    ("isnull(z)", lambda r: r["z"] is None, True),
    ("f > 0.05", lambda r: r["f"] > 0.05, True),
    ("f == 0.1", lambda _: False, True),
    ("f == 0", lambda r: r["f"] == 0, True),
    ("dec == decimal(12345678901234567890.123456)", lambda r: r["dec"] == LARGE, True),
    ("dec != decimal(12345678901234567891.123456)", lambda r: r["dec"] != LARGE + 1, True),
    ("dec < 0", lambda r: r["dec"] is not None and r["dec"] < 0, True),
    ("dec in (decimal(-1))", lambda r: r["dec"] == -1, True),
    ("raw == 'AP8='", lambda r: r["raw"] == b"\x00\xff", False),
    ("isempty(raw)", lambda r: not r["raw"], False),
    ("d == datetime(2020-01-01)", lambda r: r["d"] == dt.date(2020, 1, 1), True),
    ("d > datetime(2020-01-01 00:00:01)", lambda _: False, True),
    ("d >= datetime(2019-12-31 23:00)", lambda r: r["d"] == dt.date(2020, 1, 1), True),
    ("d != datetime(2020-01-01)", lambda r: r["d"] != dt.date(2020, 1, 1), True),
    ("d < datetime(1970-01-01)", lambda r: r["d"] is not None and r["d"].year < 1970, True),
    ("ntz == datetime(2020-01-01 10:00)", lambda r: r["ntz"] is not None and r["ntz"].hour == 10, True),
    ("bin(ntz, 1d) == datetime(1950-01-01)", lambda r: r["ntz"] is not None and r["ntz"].year == 1950, True),
    ("b == -128", lambda r: r["b"] == -128, True),
    ("b == 1.5", lambda _: False, True),
    ("b > 1000", lambda _: False, True),
    ("b != 1", lambda r: r["b"] != 1, True),
    ("pi != 1", lambda r: r["pi"] != 1, True),
    ("pi !in (1)", lambda r: r["pi"] != 1, True),
    ("not(pi > 0)", lambda r: r["pi"] is not None and not r["pi"] > 0, True),
    ("pi > 0.5", lambda r: r["pi"] is not None and r["pi"] > 0.5, True),
    ("pi == 1 or isnull(pi)", lambda r: r["pi"] in {1, None}, True),
    ("pd >= datetime(2020-01-02 12:00)", lambda r: r["pd"] is not None and r["pd"].day > 2, True),
    ("startofmonth(pd) == datetime(2020-01-01)", lambda r: r["pd"] is not None, True),
    ("isnull(pd)", lambda r: r["pd"] is None, True),
    ("ps == ''", lambda r: not r["ps"], True),
    ("ps != 'a'", lambda r: r["ps"] != "a", True),
    ("ps =~ 'A'", lambda r: r["ps"] in {"a", "A"}, False),
    ("ps in ('', 'A')", lambda r: r["ps"] != "a", True),
    ("ps < 'a'", lambda r: r["ps"] != "a", True),
    ("isnull(ps)", lambda _: False, True),
    ("isempty(ps)", lambda r: not r["ps"], True),
    ("pb", lambda r: r["pb"], True),
    ("not(pb)", lambda r: r["pb"] is False, True),
    ("pb != true", lambda r: r["pb"] is not True, True),
    ("pb == 1", lambda r: r["pb"], False),
    ("pb in (0)", lambda r: r["pb"] is False, False),
    ("pt > datetime(2020-01-01 01:30)", lambda r: r["pt"].hour > 1, True),
    ("hourofday(pt) == 2", lambda r: r["pt"].hour == 2, False),
    ("s.a > 1", lambda r: bool(r["s"]) and r["s"]["a"] > 1, False),
    ("isnull(s)", lambda r: r["s"] is None, False),
    ("s.b[1] == 2", lambda r: bool(r["s"]) and r["s"]["b"] == [1, 2], False),
    ("array_length(l) == 0", lambda r: r["l"] == [], False),
    ("todatetime(m.k) == datetime(2020-01-01)", lambda r: bool(r["m"]), False),
]


@pytest.mark.parametrize(("condition", "keeps", "prunes"), CONDITIONS, ids=[each[0] for each in CONDITIONS])
def test_a_condition_keeps_the_rows_that_python_keeps(
    condition: str,
    keeps: Keep,
    prunes: bool,  # noqa: FBT001 - a parameter of the test
    odd: dict[str, DeltaTable],
) -> None:
    expected = sum(bool(keeps(row)) for row in rows())
    text = f"T | where {condition} | count"
    assert answer(text, odd) == answer(text, odd, pushdown=False) == [(expected,)]
    with run(text, odd) as result:
        assert (result.explain()["tables"][0]["where"] is not None) is prunes


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def test_nested_values_are_json_that_every_reader_takes(odd: dict[str, DeltaTable]) -> None:
    found = answer("T | where pi == 1 | project s, l, m", odd)
    values = [[each and json.loads(each, parse_constant=_no_constant) for each in row] for row in found]
    day = "2020-01-01T00:00:00.0000000Z"
    assert values == [
        [{"a": 1.5, "b": [1, 2], "it's": {"day": day}}, [1.0, "NaN", None], {"k": day, "z": None}],
        [{"a": "NaN", "b": [], "it's": None}, None, None],
        [None, [], {}],
    ]
    ((listed,),) = answer("T | where pi == 1 | summarize make_list(s)", odd)
    assert json.loads(listed, parse_constant=_no_constant) == [row[0] for row in values if row[0] is not None]


def test_parts_of_nested_values_have_their_types_back(odd: dict[str, DeltaTable]) -> None:
    text = "T | where pi == 1 | project todouble(s.a), tolong(s.b[-1]), todatetime(s['it\\'s'].day), todouble(l[1])"
    first, second, third = answer(text, odd)
    assert first[:3] == (1.5, 2, HOUR)
    assert math.isnan(first[3])
    assert math.isnan(second[0])
    assert second[1:] == (None, None, None)
    assert third == (None, None, None, None)


def test_values_of_columns_come_through(odd: dict[str, DeltaTable]) -> None:
    (found,) = answer("T | where pi == 1 and z == 0 and b == 1 | project raw, d, ntz, b, pd, pb, dec, ps", odd)
    ntz = dt.datetime(2020, 1, 1, 10, tzinfo=UTC)
    day = dt.datetime(2020, 1, 2, tzinfo=UTC)
    assert found == (base64.b64encode(b"\x00\xff").decode(), HOUR, ntz, 1, day, False, LARGE + 1, "A")


def test_deleted_rows_are_in_no_answer(tmp_path: Path) -> None:
    for hour in range(3):
        part = pa.table({"h": [hour] * 10, "n": pa.array(range(10), pa.int64())})
        write_deltalake(tmp_path / "t", part, mode="append", partition_by=["h"])
    victim = next(file for file in DeltaTable(tmp_path / "t").files() if file.partition_values["h"] == "1")
    delete_rows(tmp_path / "t", victim, [0, 3, 9])
    tables = {"T": DeltaTable(tmp_path / "t")}
    for pushdown in (True, False):
        assert answer("T | summarize count(), sum(n) by h | sort by h asc", tables, pushdown=pushdown) == [
            (0, 10, 45),
            (1, 7, 33),
            (2, 10, 45),
        ]
        assert answer("T | where h == 1 | take 8 | count", tables, pushdown=pushdown) == [(7,)]
        assert answer("T | where h == 1 and n in (0, 3, 4) | project n", tables, pushdown=pushdown) == [(4,)]
        assert answer("T | take 25 | count", tables, pushdown=pushdown) == [(25,)]
        assert answer("T | count", tables, pushdown=pushdown) == [(27,)]

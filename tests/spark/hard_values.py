"""A table of values that are hard to prune by, and random conditions on them in Spark's SQL."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from lazydelta import write_arrow

# Around the hours that clocks repeat or leave out in some zone, the epoch, and the ends of the calendar.
_TIMES = [
    dt.datetime(2021, 11, 7, 5, 30, tzinfo=dt.UTC),
    dt.datetime(2021, 11, 7, 6, 30, tzinfo=dt.UTC),
    dt.datetime(2021, 3, 14, 7, 0, tzinfo=dt.UTC),
    dt.datetime(2021, 9, 25, 14, 30, tzinfo=dt.UTC),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
    dt.datetime(1883, 11, 18, 17, 0, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 31, 10, tzinfo=dt.UTC),
    dt.datetime(1, 1, 3, 0, 0, 0, 1, tzinfo=dt.UTC),
]
_FLOATS = [math.nan, -0.0, 0.0, 1.5, -1.5, math.inf, -math.inf]
_VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [1 - 2**31, -1, 0, 1, 5, 2**31 - 1]),
    "y": (pa.int8(), [-128, -1, 0, 1, 127]),
    "l": (pa.int64(), [1 - 2**63, -1, 0, 1, 2**53 + 1, 2**63 - 1]),
    "f": (pa.float64(), [*_FLOATS, 1e300, 5e-324]),
    "g": (pa.float32(), [*_FLOATS, 16777216.0]),
    "d": (pa.decimal128(10, 2), [Decimal("0.00"), Decimal("-0.01"), Decimal("1.10"), Decimal("99999999.99")]),
    "e": (pa.decimal128(38, 10), [Decimal("0.0000000001"), Decimal(-1), Decimal(2**63)]),
    "ts": (pa.timestamp("us", "UTC"), _TIMES),
    "n": (pa.timestamp("us"), [each.replace(tzinfo=None) for each in _TIMES]),
    "day": (pa.date32(), [dt.date(1970, 1, 1), dt.date(2021, 11, 7), dt.date(9999, 12, 31), dt.date(1, 1, 1)]),
    "s": (pa.string(), ["a", "ab", "a%", "b_", "ä", "\uffff", "\U0001f600", "z" * 40, "z" * 39 + "\U0001f600", "A"]),
    "b": (pa.binary(), [b"a", b"\xff\xff", b"\x00"]),
    "o": (pa.bool_(), [True, False]),
}
_NUMBERS = ("i", "y", "l", "f", "g", "d", "e")
_INNER = pa.struct([("z", pa.string()), ("when", pa.timestamp("us", "UTC"))])
_STRUCT = pa.struct([("x", pa.int64()), ("in", _INNER)])


def _rows(rng: random.Random, ids: range) -> pa.Table:
    """Return rows with few different values a column, so that the bounds of a file rule out something."""
    columns: dict[str, pa.Array] = {"id": pa.array(ids)}
    for name, (kind, values) in _VALUES.items():
        chosen: list[Any] = rng.sample(values, rng.choice([1, 1, 2, len(values)]))
        chosen += [None] * rng.choice([0, 0, 1])
        columns[name] = pa.array([rng.choice(chosen) for _ in ids], kind)
    low = rng.randrange(3)
    inner = [None, {"z": rng.choice(["a", "b", None]), "when": rng.choice(_TIMES[:4])}]
    structs = [{"x": rng.choice([None, low, low + 1]), "in": rng.choice(inner)} for _ in ids]
    columns["st"] = pa.array([rng.choice([None, each, each, each]) for each in structs], _STRUCT)
    return pa.table(columns)


def write_hard_values(table: Path, writer: str) -> None:
    """Write a table by a writer: deltalake's, or ours with these partition columns."""
    rng = random.Random(writer)
    for start in range(0, 120, 10):
        rows = _rows(rng, range(start, start + 10))
        if writer == "deltalake":
            deltalake.write_deltalake(table, rows, mode="append")
        else:
            write_arrow(table, rows, partition_by=writer.split() or None)


def _literal(name: str, value: Any) -> str:
    match name:
        case "s":
            return f"'{value}'"
        case "b":
            return f"X'{value.hex()}'"
        case "ts" | "n":
            kind, zone = ("timestamp", "Z") if name == "ts" else ("timestamp_ntz", "")
            return f"{kind}'{value.year:04}-{value:%m-%dT%H:%M:%S.%f}{zone}'"
        case "day":
            return f"date'{value.year:04}-{value:%m-%d}'"
        case "f" | "g":
            return f"{'double' if name == 'f' else 'float'}('{value!r}')"
        case "d" | "e":
            return f"{value:f}BD"
        case "l":
            return f"{value}L"
    return str(value)


def condition(rng: random.Random, depth: int = 3) -> str:
    """Return a condition of any shape; NULL, NaN and types that do not fit included."""
    pick = rng.random()
    if depth == 0 or pick < 0.35:
        return _leaf(rng)
    if pick < 0.5:
        return f"NOT ({condition(rng, depth - 1)})"
    parts = (condition(rng, depth - 1) for _ in range(rng.choice([2, 2, 3])))
    return f"({(' AND ' if pick < 0.75 else ' OR ').join(parts)})"


def _leaf(rng: random.Random) -> str:
    name, op = rng.choice([*_VALUES, "s", "f", "ts", "st"]), rng.choice(["=", "<", "<=", ">", ">=", "!=", "<=>"])
    if name == "st":
        lower = _literal("ts", rng.choice(_TIMES[:4]))
        fields = ["st IS NULL", "st.in IS NOT NULL", "st.in.z IS NOT NULL", "st.x IN (0, 1)", "st.x IS NULL"]
        return rng.choice([*fields, f"st.x {op} 1", f"st.in.z {op} 'a'", f"st.in.when {op} {lower}", f"st.x {op} NULL"])
    values = _VALUES[name][1]

    def value() -> str:
        return _literal(name, rng.choice(values))

    every = ", ".join(_literal(name, each) for each in values)
    forms = [
        f"{name} {op} {value()}",
        f"{value()} {op} {name}",
        f"{name} IS NULL",
        f"{name} IS NOT NULL",
        f"{name} IN ({value()}, {value()})",
        f"{name} NOT IN ({value()}, {value()})",
        f"{name} {rng.choice(['', 'NOT'])} IN ({value()}, NULL)",
        f"{name} IN ({every}{rng.choice(['', ', NULL'])})",
        f"{name} BETWEEN {value()} AND {value()}",
        f"{name} {op} NULL",
        f"coalesce({name}, {value()}) {op} {value()}",
    ]
    own: list[str] = _OWN[name](rng, op) if name in _OWN else []
    return rng.choice(forms + own)


def _of_numbers(rng: random.Random, op: str, name: str) -> list[str]:
    other = rng.choice(_NUMBERS)
    plain = rng.choice(["0", "1.5", "-1", "1e0", "2147483648", "0.1", "9223372036854775807"])
    many = ", ".join(map(str, range(-3, 14)))
    found = [f"{name} {op} {plain}", f"{name} {op} {other}", f"{name} IN ({many})", f"isnan(double({name}))"]
    return [*found, f"try_cast({name} AS {rng.choice(['double', 'bigint', 'decimal(20,4)'])}) {op} 1"]


def _of_times(rng: random.Random, op: str, name: str) -> list[str]:
    day, hour = rng.randrange(5, 9), rng.randrange(1, 7)
    shifted = _literal(name, rng.choice(_TIMES[:5]))
    return [
        f"{name} {op} '2021-11-07 0{hour}:30:00'",
        f"cast({name} AS date) {op} date'2021-11-0{day}'",
        f"date_trunc('hour', {name}) {op} {shifted}",
        f"{name} {op} date'2021-03-14'",
        f"year({name}) {op} 2021",
        f"hour({name}) {op} 1",
        f"{name} {op} {shifted} + interval 1 hour",
    ]


def _of_strings(rng: random.Random, op: str) -> list[str]:
    pattern, long = rng.choice(["a", "ab", "", "z", "ä", "a_", "%b", "a%b"]), "z" * rng.choice([1, 32, 33, 40, 41])
    return [
        f"s {rng.choice(['', 'NOT'])} LIKE '{pattern}%'",
        f"startswith(s, '{long}')",
        f"s {op} '{long}'",
        "s ILIKE 'a%'",
    ]


def _of_days(_: random.Random, op: str) -> list[str]:
    return [f"day {op} timestamp'2021-11-07 01:30:00'", f"day {op} '2021-11-07'", f"year(day) {op} 2021"]


_OWN: dict[str, Callable[[random.Random, str], list[str]]] = {
    **{name: lambda rng, op, name=name: _of_numbers(rng, op, name) for name in _NUMBERS},  # type: ignore[misc]
    **{name: lambda rng, op, name=name: _of_times(rng, op, name) for name in ("ts", "n")},  # type: ignore[misc]
    "s": _of_strings,
    "day": _of_days,
    "o": lambda _, op: ["o", "NOT o", f"o {op} true"],
}

"""Random rows, statistics as writers log them, and predicates with a plain three-valued judge.

Nothing here uses the code under test, except to name types: predicates are tuples of this module, judged row by row
in Python, and written out in each input form.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import operator
import random
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.protocol.schema import TableSchema

Row = dict[str, Any]
Node = tuple[Any, ...]

UTC = dt.UTC
TYPES: dict[str, Any] = {
    "i": "long",
    "tiny": "byte",
    "s": "string",
    "long_s": "string",
    "d": "date",
    "t": "timestamp",
    "ntz": "timestamp_ntz",
    "m": "decimal(9,2)",
    "big": "decimal(18,2)",
    "huge": "decimal(38,4)",
    "b": "boolean",
    "f": "double",
    "single": "float",
}
PARTITIONS: dict[str, Any] = {"p": "integer", "q": "string", "r": "date", "u": "timestamp", "v": "decimal(20,3)"}
OPS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def schema() -> TableSchema:
    """Return a schema with a column of each type, nested ``n.i`` among them."""
    fields = [_field(name, kind) for name, kind in {**TYPES, **PARTITIONS}.items()]
    fields.append(_field("n", {"type": "struct", "fields": [_field("i", "long")]}))
    return TableSchema.parse(json.dumps({"type": "struct", "fields": fields}), partition_columns=tuple(PARTITIONS))


def _field(name: str, kind: object) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


STEMS = ["", "a", "ab", "b", "é", "😀", "zz"]
LONG = ["x" * 31, "x" * 32, "x" * 40, "x" * 32 + "~", "x" * 32 + "😀", "x" * 33 + "\ufffdz", "😀" * 16, "😀" * 16 + "z"]


def value(rng: random.Random, column: str) -> Any:
    """Draw a value of the column's type, from few enough that literals often hit."""
    if column in {"i", "n.i"}:
        return rng.choice([rng.randint(-5, 5), rng.randint(-5, 5), 2**53 + rng.randint(0, 3), -(2**63), 2**63 - 1])
    if column in {"tiny", "p"}:
        return rng.randint(-4, 4)
    if column in {"s", "q"}:
        return rng.choice([stem for stem in STEMS if stem or column == "s"]) + rng.choice(["", "c", "%", "'_"])
    if column == "long_s":
        return rng.choice(LONG) + rng.choice(["", "a", "é", "😀"])
    if column in {"d", "r"}:
        return dt.date(2026, 2, 8) + dt.timedelta(days=rng.randint(-3, 3))
    if column in {"t", "ntz", "u"}:
        zone = None if column == "ntz" else UTC
        base = rng.choice([dt.datetime(2026, 2, 8, 10, tzinfo=zone), dt.datetime(1969, 12, 31, 23, tzinfo=zone)])
        return base + dt.timedelta(microseconds=rng.choice([0, 1, 500, 999, 1000, 1001, 1500, 2000, 3_000_000]))
    if column == "m":
        return Decimal(rng.randint(-500, 500)).scaleb(-2)
    if column == "v":
        return Decimal(rng.randint(-3, 3) + rng.choice([0, 10**16])).scaleb(-3)
    if column == "big":
        return (
            Decimal(rng.choice([1, 9007199254740993, 123456789012345678, -123456789012345678]) + rng.randint(-3, 3))
            / 100
        )
    if column == "huge":
        return Decimal(str(rng.choice([3, 10**20, -(10**30)]) + rng.randint(-2, 2))) + Decimal(
            rng.randint(0, 3)
        ).scaleb(-4)
    if column == "b":
        return rng.random() < 0.5
    number = rng.choice([0.0, -0.0, 0.1, 1.5, -2.5, 1e300, math.inf, -math.inf, math.nan, float(rng.randint(-3, 3))])
    if column == "single":
        return struct.unpack(
            "<f", struct.pack("<f", min(max(number, -3e38), 3e38) if math.isfinite(number) else number)
        )[0]
    return number


def rows(rng: random.Random, count: int) -> list[Row]:
    """Draw the rows of one file: partition values are the same in all of them."""
    shared = {name: None if rng.random() < 0.2 else value(rng, name) for name in PARTITIONS}
    nulls = {name: rng.choice([0.0, 0.0, 0.3, 1.0]) for name in [*TYPES, "n.i"]}
    spread = {name: [value(rng, name) for _ in range(rng.randint(1, 3))] for name in nulls}
    return [
        shared | {name: None if rng.random() < nulls[name] else rng.choice(spread[name]) for name in nulls}
        for _ in range(count)
    ]


def partition_text(item: Any) -> str | None:
    """Write a partition value as Delta does."""
    if item is None:
        return None
    if isinstance(item, dt.datetime):
        return item.strftime("%Y-%m-%d %H:%M:%S.%f")
    return str(item)


def logged(rng: random.Random, file: list[Row]) -> str | None:
    """Write the statistics of a file as one of the known writers would, with or without parts of them."""
    if rng.random() < 0.05:
        return None
    style = rng.choice(["exact", "spark", "rust"])
    tight = rng.random() < 0.7
    stats: dict[str, Any] = {"numRecords": len(file), "minValues": {}, "maxValues": {}, "nullCount": {}}
    if not tight:
        stats["tightBounds"] = False
    for name in [*TYPES, "n.i"]:
        present = [row[name] for row in file if row[name] is not None]
        nulls = len(file) - len(present)
        if not tight and 0 < nulls < len(file):
            nulls = rng.randint(1, len(file) - 1)
        if rng.random() < 0.95:
            _put(stats["nullCount"], name, nulls)
        ordered = [item for item in present if item == item]  # noqa: PLR0124 - NaN is in no bound
        if not ordered:
            continue
        low, high = min(ordered), max(ordered)
        if not tight:
            others = [item for item in (value(rng, name) for _ in range(2)) if item == item]  # noqa: PLR0124
            low, high = min([low, *others]), max([high, *others])
        if rng.random() < 0.95:
            _put(stats["minValues"], name, _logged(low, style, up=False))
        if rng.random() < 0.95:
            _put(stats["maxValues"], name, _logged(high, style, up=True))
    return _dump(stats)


def _put(section: dict[str, Any], name: str, item: object) -> None:
    if name == "n.i":
        section["n"] = {"i": item}
    else:
        section[name] = item


def _logged(item: Any, style: str, *, up: bool) -> Any:
    if isinstance(item, dt.datetime):
        digits = "milliseconds" if style == "spark" else "microseconds"
        return item.isoformat(timespec=digits).replace("+00:00", "Z")
    if isinstance(item, dt.date):
        return item.isoformat()
    if isinstance(item, Decimal):
        return float(item) if style == "rust" else item
    if isinstance(item, float) and not math.isfinite(item):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}[item]
    if isinstance(item, str) and style != "exact":
        return _cut(item, tie=style == "spark" and up, utf16=style == "spark")
    return item


def _cut(text: str, *, tie: bool, utf16: bool) -> str:
    """Cut to 32 characters; Delta-Spark's UTF-16 units and its tie-breaker are the awkward ones."""
    if not utf16 or not tie:
        return text[:32]
    units = text.encode("utf-16-le")
    if len(units) <= 64:
        return text
    kept, rest = units[:64], units[64:]
    while rest and int.from_bytes(rest[:2], "little") >= 0xFFFD:
        kept, rest = kept + rest[:2], rest[2:]
    return kept.decode("utf-16-le", "ignore") + "\ufffd"


def _dump(stats: dict[str, Any]) -> str:
    exact: dict[str, str] = {}

    def default(item: Decimal) -> str:
        exact[f"@{len(exact)}@"] = str(item)
        return f"@{len(exact) - 1}@"

    text = json.dumps(stats, default=default, ensure_ascii=False)
    for mark, digits in exact.items():
        text = text.replace(f'"{mark}"', digits)
    return text


def literal(rng: random.Random, column: str) -> Any:
    """Draw a literal: mostly a value of the column, sometimes one that its type cannot hold."""
    drawn = value(rng, column)
    if rng.random() < 0.8:
        return drawn
    if column in {"i", "n.i", "tiny", "p"}:
        return rng.choice([1.5, -2.5, 2**70, -(2**70), 300, Decimal("0.1"), 2**63])
    if column in {"m", "big", "huge", "v"}:
        return rng.choice([Decimal("1.00501"), Decimal("-0.00001"), 3, 10**40, drawn + Decimal("0.00001")])
    if column in {"f", "single"}:
        return rng.choice([1, 2**60 + 1, Decimal("0.1"), Decimal("1.5"), 0.1])
    if column == "d":
        return dt.datetime(2026, 2, 8, rng.choice([0, 12]), tzinfo=UTC)
    return drawn


def predicate(rng: random.Random, columns: list[str], depth: int = 3) -> Node:
    """Draw a predicate tree."""
    kind = rng.random()
    if depth and kind < 0.35:
        parts = [predicate(rng, columns, depth - 1) for _ in range(rng.randint(2, 3))]
        return (rng.choice(["and", "or"]), parts)
    if depth and kind < 0.5:
        return ("not", predicate(rng, columns, depth - 1))
    column = rng.choice(columns)
    if kind < 0.6:
        return ("null", column)
    if kind < 0.7:
        size = rng.choice([1, 2, 3, 3, 50])
        return ("in", column, [literal(rng, column) for _ in range(size)])
    if kind < 0.8 and column in {"s", "long_s", "q"}:
        drawn = value(rng, column)
        return ("prefix", column, drawn[: rng.randint(1, max(1, len(drawn)))] or "a")
    return ("cmp", column, rng.choice(list(OPS)), literal(rng, column))


def judge(node: Node, row: Row) -> bool | None:
    """Tell whether ``node`` is true, false or unknown for ``row``."""
    match node:
        case ("and", parts):
            truths = [judge(part, row) for part in parts]
            return False if False in truths else None if None in truths else True
        case ("or", parts):
            truths = [judge(part, row) for part in parts]
            return True if True in truths else None if None in truths else False
        case ("not", part):
            truth = judge(part, row)
            return None if truth is None else not truth
        case ("null", column):
            return row[column] is None
        case ("prefix", column, prefix):
            return None if row[column] is None else row[column].startswith(prefix)
        case ("in", column, items):
            truths = [_compare(row[column], "=", item) for item in items]
            return True if True in truths else None if None in truths else False
        case ("cmp", column, op, item):
            return _compare(row[column], op, item)
    raise AssertionError(node)


def _compare(left: Any, op: str, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, dt.date) and not isinstance(left, dt.datetime) and isinstance(right, dt.datetime):
        left = dt.datetime(left.year, left.month, left.day, tzinfo=UTC)
    if isinstance(left, float) and isinstance(right, int | Decimal):
        right = float(right)  # As SQL engines do.
    return bool(OPS[op](left, right))


def to_json(node: Node) -> dict[str, Any]:
    """Write a predicate as a JSON-able dict."""
    match node:
        case ("and" | "or" as word, parts):
            return {word: [to_json(part) for part in parts]}
        case ("not", part):
            return {"not": to_json(part)}
        case ("null", column):
            return {column: None}
        case ("prefix", column, prefix):
            return {column: {"like": _escape(prefix) + "%"}}
        case ("in", column, items):
            return {column: {"in": items}}
        case ("cmp", column, op, item):
            return {column: {op: item}}
    raise AssertionError(node)


def to_sql(node: Node) -> str:
    """Write a predicate as SQL."""
    match node:
        case ("and" | "or" as word, parts):
            return "(" + f" {word.upper()} ".join(to_sql(part) for part in parts) + ")"
        case ("not", part):
            return f"NOT ({to_sql(part)})"
        case ("null", column):
            return f"{column} IS NULL"
        case ("prefix", column, prefix):
            return f"{column} LIKE {_sql(_escape(prefix) + '%')}"
        case ("in", column, items):
            return f"{column} IN ({', '.join(map(_sql, items))})"
        case ("cmp", column, op, item):
            return f"{column} {op} {_sql(item)}"
    raise AssertionError(node)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _sql(item: Any) -> str:
    if isinstance(item, str):
        return "'" + item.replace("'", "''") + "'"
    if isinstance(item, dt.datetime):
        return f"TIMESTAMP '{item.replace(tzinfo=None).isoformat(' ')}'"
    if isinstance(item, dt.date):
        return f"DATE '{item.isoformat()}'"
    if isinstance(item, float) and not math.isfinite(item):
        return f"'{item}'"
    if isinstance(item, Decimal):
        return format(item, "f")
    return str(item).upper() if isinstance(item, bool) else repr(item)


def to_expression(node: Node) -> pc.Expression:
    """Write a predicate as a PyArrow expression (``in`` as a chain of =, because is_in knows no unknown)."""
    match node:
        case ("and", parts):
            joined = to_expression(parts[0])
            for part in parts[1:]:
                joined &= to_expression(part)
            return joined
        case ("or", parts):
            joined = to_expression(parts[0])
            for part in parts[1:]:
                joined |= to_expression(part)
            return joined
        case ("not", part):
            return ~to_expression(part)
        case ("null", column):
            return pc.field(*column.split(".")).is_null()
        case ("prefix", column, prefix):
            return pc.starts_with(pc.field(column), prefix)
        case ("in", column, items):
            return to_expression(("or", [("cmp", column, "=", item) for item in items]))
        case ("cmp", column, op, item):
            return OPS[op](pc.field(*column.split(".")), pa.scalar(item))
    raise AssertionError(node)


def to_table(file: list[Row], table: TableSchema) -> pa.Table:
    """Return rows as an Arrow table of the table's schema."""
    nested = [{**{k: v for k, v in row.items() if k != "n.i"}, "n": {"i": row["n.i"]}} for row in file]
    return pa.Table.from_pylist(nested, schema=table.to_arrow())

"""Which files a predicate may keep and must keep, told file by file from what was logged about them.

Plain Python, one file and one column at a time, and nothing of the code under test. Two answers bracket the right one:
``must_keep`` (no known writer could have logged this about a file without a matching row) and ``may_keep`` (the
statistics, widened as far as any writer forces a reader to, do not exclude the file). For integers, dates, booleans,
short strings, decimals of few digits and partition values the two are the same, so the answer is exact.

Predicates are the trees of ``tests.predicates.worlds``.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
import struct
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tests.oracle.checkpoints import physical_name
from tests.predicates.worlds import Node, _compare

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.oracle.replay import Json, Snapshot

_BITS = {"byte": 7, "short": 15, "integer": 31, "long": 63}
_FLOATS = {"float", "double"}
_TIMES = {"timestamp", "timestamp_ntz"}
_MILLISECOND = dt.timedelta(milliseconds=1)
_CUT, _CUT_WIDE = 32, 16
_EXACT_DIGITS = 15
_OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True)
class Fact:
    """What the log says of one column of one file; None is unknown. ``contradicts`` itself: nothing is decided."""

    kind: str
    low: Any = None
    high: Any = None
    all_null: bool = False
    no_null: bool = False
    partition: bool = False
    contradicts: bool = False

    @property
    def is_nonsense(self) -> bool:
        """Whether the bounds are mutually exclusive; cutting a maximum in the middle of a character can do that."""
        return self.low is not None and self.high is not None and bool(self.low > self.high)


@dataclass(frozen=True)
class Facts:
    """What the log says of one file."""

    columns: dict[str, Fact]
    records: int | None

    @classmethod
    def of(cls, add: Json, snapshot: Snapshot) -> Facts:
        """Read the statistics and partition values of an add action, under logical names, nested ones dotted."""
        assert snapshot.metadata is not None
        stats = _parsed(add.get("stats"))
        records = stats.get("numRecords")
        columns: dict[str, Fact] = {}
        for field in snapshot.fields:
            if field["name"] in snapshot.metadata["partitionColumns"]:
                columns[field["name"]] = _partition(add["partitionValues"], field)
                continue
            for name, path, kind in _leaves(field):
                columns[name] = _fact(stats, path, kind)
        return cls(columns, records if type(records) is int else None)


def must_keep(node: Node, facts: Facts) -> bool:
    """Tell whether dropping the file would lose a row that some writer could have put there."""
    return facts.records != 0 and _some(node, facts, negated=False, wide=False)


def may_keep(node: Node, facts: Facts) -> bool:
    """Tell whether a reader may keep the file; where not, the statistics exclude it."""
    return _some(node, facts, negated=False, wide=True)


def must_prove(node: Node, facts: Facts) -> bool:
    """Tell whether the statistics plainly say that every row passes: such files count for a limit of rows."""
    return _every(node, facts, negated=False)


# What was logged, typed.


def _parsed(text: str | None) -> Json:
    try:
        stats = json.loads(text or "{}", parse_float=Decimal)
    except json.JSONDecodeError:
        return {}
    return stats if isinstance(stats, dict) else {}


def _leaves(field: Json) -> Iterable[tuple[str, tuple[str, ...], str]]:
    kind = field["type"]
    if isinstance(kind, dict):
        for child in kind["fields"]:
            for name, path, leaf in _leaves(child):
                yield f"{field['name']}.{name}", (physical_name(field), *path), leaf
    else:
        yield field["name"], (physical_name(field),), kind


def _fact(stats: Json, path: tuple[str, ...], kind: str) -> Fact:
    low, high, nulls = (_dig(stats, (section, *path)) for section in ("minValues", "maxValues", "nullCount"))
    records = stats.get("numRecords")
    nulls = nulls if type(nulls) is int else None
    # Bounds of booleans are not believed: some writers log them wrong.
    low, high = (None, None) if kind == "boolean" else (typed(low, kind), typed(high, kind))
    all_null = nulls is not None and type(records) is int and nulls == records > 0
    contradicts = all_null and (low is not None or high is not None)
    return Fact(kind, low, high, all_null, nulls == 0, contradicts=contradicts)


def _dig(stats: Json, path: tuple[str, ...]) -> Any:
    found: Any = stats
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _partition(values: dict[str, str | None], field: Json) -> Fact:
    kind, name = field["type"], physical_name(field)
    if name not in values:
        return Fact(kind)
    text = values[name]
    if text in (None, ""):
        return Fact(kind, all_null=True, partition=True)
    value: Any = int(text) if kind in _BITS else typed(text, kind)
    return Fact(kind, value, value, no_null=True, partition=True)


def typed(value: Any, kind: str) -> Any:
    """Turn a logged value into the Python value of its type; None where it is not of that type."""
    if value is None:
        return None
    if kind in _BITS:
        return value if type(value) is int else None
    if kind in _FLOATS:
        return float(value)
    if kind.startswith("decimal"):
        return Decimal(value)
    if kind == "date":
        return dt.date.fromisoformat(value)
    if kind in _TIMES:
        timestamp = dt.datetime.fromisoformat(value)
        return timestamp.replace(tzinfo=dt.UTC) if kind == "timestamp" and timestamp.tzinfo is None else timestamp
    return value


# The walk.


def _some(node: Node, facts: Facts, *, negated: bool, wide: bool) -> bool:
    match node:
        case ("and" | "or" as word, parts):
            answers = [_some(part, facts, negated=negated, wide=wide) for part in parts]
            return all(answers) if (word == "and") is not negated else any(answers)
        case ("not", part):
            return _some(part, facts, negated=not negated, wide=wide)
    fact = facts.columns[node[1]]
    if fact.contradicts:
        return wide
    if node[0] == "null":
        return not (fact.all_null if negated else fact.no_null)
    if wide and fact.is_nonsense:
        fact = replace(fact, low=None, high=None)
    return not fact.all_null and _Leaf(fact, wide=wide).some(node, negated=negated)


def _every(node: Node, facts: Facts, *, negated: bool) -> bool:
    match node:
        case ("and" | "or" as word, parts):
            answers = [_every(part, facts, negated=negated) for part in parts]
            return all(answers) if (word == "and") is not negated else any(answers)
        case ("not", part):
            return _every(part, facts, negated=not negated)
    fact = facts.columns[node[1]]
    if fact.contradicts:
        return False
    if node[0] == "null":
        return fact.no_null if negated else fact.all_null
    known = fact.no_null and fact.low is not None and fact.high is not None
    return known and _Leaf(fact, wide=True).is_exact and not _Leaf(fact, wide=True).some(node, negated=not negated)


@dataclass(frozen=True)
class _Leaf:
    """One condition over one column that is not all null."""

    fact: Fact
    wide: bool

    @property
    def is_exact(self) -> bool:
        """Whether logged bounds of this type are the values themselves."""
        fact = self.fact
        if fact.partition:
            return True
        if isinstance(fact.high, str):
            return len(fact.high) < _CUT_WIDE
        return fact.kind not in _FLOATS | _TIMES and not self._many_digits

    @property
    def _many_digits(self) -> bool:
        return self.fact.kind.startswith("decimal") and _digits(self.fact.kind)[0] > _EXACT_DIGITS

    @property
    def _cut(self) -> int | None:
        """After how many characters the upper bound may have been cut."""
        high = self.fact.high
        if self.fact.partition or not isinstance(high, str):
            return None
        if len(high) >= _CUT or (len(high) >= _CUT_WIDE and max(high) > "\uffff"):
            return _CUT_WIDE
        return None

    def some(self, node: Node, *, negated: bool) -> bool:
        match node:
            case ("prefix", _, prefix):
                return self._no_prefix(prefix) if negated else self._prefix(prefix)
            case ("in", _, items):
                fitting = [item for item in items if _fits(item, self.fact.kind)]
                return not any(map(self._only, fitting)) if negated else any(map(self._reaches, fitting))
            case ("cmp", _, op, item):
                return self._compare(op, item, negated=negated)
        raise AssertionError(node)

    def _compare(self, op: str, item: Any, *, negated: bool) -> bool:
        if negated and self.fact.kind in _FLOATS and op not in {"=", "!="} and not self.fact.partition:
            return True  # NaN passes, and no bound tells of it
        op = _OPPOSITE[op] if negated else op
        if item != item:  # noqa: PLR0124 - no row compares with NaN, and all differ from it
            return op == "!="
        if op in {"=", "!="}:
            if not _fits(item, self.fact.kind):
                return op == "!="
            return self._reaches(item) if op == "=" else not self._only(item)
        return self._above(op, item) if op in {">", ">="} else self._below(op, item)

    def _reaches(self, item: Any) -> bool:
        return self._below("<=", item) and self._above(">=", item)

    def _only(self, item: Any) -> bool:
        fact = self.fact
        if fact.low is None or fact.high is None:
            return False
        if not self.is_exact and (self.wide or fact.kind in _FLOATS | _TIMES or self._cut is not None):
            return False
        return bool(_compare(fact.low, "=", item) and _compare(fact.high, "=", item))

    def _below(self, op: str, item: Any) -> bool:
        low = self.fact.low
        if low is None:
            low = _domain(self.fact.kind)[0]
            unknown = low is None or (self.wide and _fits(item, self.fact.kind))
            return unknown or bool(_compare(low, op, item))
        if self.wide and self._many_digits and not self.fact.partition:
            low -= _margin(low, self.fact.kind)
        return bool(_compare(low, op, item))

    def _above(self, op: str, item: Any) -> bool:
        high, cut = self.fact.high, self._cut
        if high is None:
            high = _domain(self.fact.kind)[1]
            unknown = high is None or (self.wide and _fits(item, self.fact.kind))
            return unknown or bool(_compare(high, op, item))
        if cut is not None and self.wide:
            return bool(high[:cut] >= item[:cut])
        if self.fact.kind in _TIMES and not self.fact.partition and high.microsecond % 1000 == 0:
            high += _MILLISECOND if self.wide else _MILLISECOND - dt.timedelta(microseconds=1)
        elif self.wide and self._many_digits and not self.fact.partition:
            high += _margin(high, self.fact.kind)
        return bool(_compare(high, op, item))

    def _prefix(self, prefix: str) -> bool:
        low = self.fact.low
        return (low is None or low < prefix or low.startswith(prefix)) and self._above(">=", prefix)

    def _no_prefix(self, prefix: str) -> bool:
        low, high = self.fact.low, self.fact.high
        if low is None or high is None or (self.wide and self._cut is not None):
            return True
        return not (low.startswith(prefix) and high.startswith(prefix))


def _digits(kind: str) -> tuple[int, int]:
    found = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)
    assert found is not None
    return int(found[1]), int(found[2])


def _margin(value: Decimal, kind: str) -> Decimal:
    return 2 * Decimal(1).scaleb(-_digits(kind)[1]) + abs(value) * Decimal("1e-15")


def _domain(kind: str) -> tuple[Any, Any]:
    """Return the least and the greatest value that a column can hold, where its type has such."""
    if kind in _BITS:
        return -(2 ** _BITS[kind]), 2 ** _BITS[kind] - 1
    if kind.startswith("decimal"):
        precision, scale = _digits(kind)
        return -(10**precision - 1) / Decimal(10**scale), (10**precision - 1) / Decimal(10**scale)
    return None, None


def _fits(item: Any, kind: str) -> bool:
    """Tell whether a column can hold this very value."""
    if kind in _BITS:
        low, high = _domain(kind)
        return bool(item == int(item) and low <= item <= high)
    if kind.startswith("decimal"):
        low, high = _domain(kind)
        scaled = Decimal(item) * 10 ** _digits(kind)[1]
        return bool(scaled == int(scaled) and low <= item <= high)
    if kind == "double":
        return True
    if kind == "float":
        number = float(item)
        if not math.isfinite(number):
            return True
        return abs(number) < 3.5e38 and bool(struct.unpack("<f", struct.pack("<f", number))[0] == number)
    if kind == "date" and isinstance(item, dt.datetime):
        return item.time() == dt.time(0)
    return True

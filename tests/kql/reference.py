"""The examples that Microsoft's KQL reference prints with their output, compared by value.

``python -m tests.kql.reference [WORD]`` prints which of them agree, differ or are refused, by page and by operator, and
details of those whose page contains WORD. The examples (CC BY 4.0) are no part of the repository: they are read from
``../shared/kql/documented.jsonl``.
"""

# ruff: noqa: T201 - a program that prints

from __future__ import annotations

import datetime as dt
import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from lazydelta.errors import LazyDeltaError
from lazydelta.kql import query

__all__ = ["EXAMPLES", "Example", "Outcome", "examples", "outcome"]

EXAMPLES = Path(__file__).resolve().parents[3] / "shared" / "kql" / "documented.jsonl"
_NOTHING = {"", "null", "(null)"}
_TIMESTAMP = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)(?:[T ](\d\d?):(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?\s*Z?")
_SPAN = re.compile(r"(-)?(?:(\d+)\.)?(\d+):(\d\d):(\d\d)(?:\.(\d+))?")
_SORTED = re.compile(r"\|\s*(?:sort|order|top)\b[^|]*(?:\|\s*(?:project|extend|take|limit|render|where)[^|]*)*$")
_SPECIAL = {"∞": math.inf, "-∞": -math.inf, "nan": math.nan, "infinity": math.inf, "-infinity": -math.inf}


class Example(NamedTuple):
    """An example: its page and number on it, the query, and the result as the page prints it."""

    page: str
    number: int
    query: str
    columns: list[str]
    rows: list[list[str]]


class Outcome(NamedTuple):
    """``agrees``, ``differs`` or ``refused``, and what was found."""

    word: str
    detail: str


def examples() -> list[Example]:
    """Return all examples, in the order of the file."""
    numbers: Counter[str] = Counter()
    found = []
    for line in EXAMPLES.read_text(encoding="utf-8").splitlines():
        each = json.loads(line)
        numbers[each["page"]] += 1
        found.append(Example(each["page"], numbers[each["page"]], each["query"], each["columns"], each["rows"]))
    return found


def outcome(example: Example) -> Outcome:
    """Run an example and compare its result."""
    try:
        with query(example.query) as result:
            kinds, table = result.kinds, result.read_all()
    except LazyDeltaError as error:
        return Outcome("refused", str(error))
    names = table.column_names
    rows = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    if len(names) != len(example.columns):
        return Outcome("differs", f"columns {names}, not {example.columns}")
    # Columns are matched by name where the page prints the same names, and by position where it renamed some.
    order = (
        [names.index(each) for each in example.columns] if set(names) == set(example.columns) else [*range(len(names))]
    )
    kind_list = [list(kinds.values())[index] for index in order]
    found = [[row[index] for index in order] for row in rows]
    loose = bool(re.search(r"set|bag_keys|h3cells", example.query))
    same = _same_rows(found, example.rows, kind_list, loose=loose, is_sorted=bool(_SORTED.search(example.query)))
    return Outcome("agrees", "") if same else Outcome("differs", f"{found[:8]}, not {example.rows[:8]}")


def _same_rows(
    found: list[list[Any]], expected: list[list[str]], kinds: list[str], *, loose: bool, is_sorted: bool
) -> bool:
    if len(found) != len(expected):
        return False

    def same(row: list[Any], printed: list[str]) -> bool:
        # A page leaves empty cells at the end of a row out.
        cells = printed + [""] * (len(row) - len(printed))
        pairs = zip(kinds, row, cells, strict=True)
        return all(_same(*each, loose=loose) for each in pairs)

    if all(same(*pair) for pair in zip(found, expected, strict=True)):
        return True
    if is_sorted:
        return False
    left = list(expected)
    for row in found:
        match = next((each for each in left if same(row, each)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _same(kind: str, value: Any, printed: str, *, loose: bool) -> bool:
    printed = printed.strip()
    if value is None or value == "":
        return printed in _NOTHING
    if kind == "bool":
        return {"true": True, "1": True, "false": False, "0": False}.get(printed.lower()) is value
    if kind in {"int", "long", "real", "decimal"}:
        return _close(float(value), _number(printed))
    if kind == "datetime":
        return bool(_timestamp(printed) == value)
    if kind == "timespan":
        return bool(_span(printed) == value)
    if kind == "dynamic" or printed[:1] in {"[", "{"}:
        return _alike(_json(str(value)), _json(printed), loose=loose)
    return " ".join(str(value).split()) == " ".join(printed.split()) or _close(_number(str(value)), _number(printed))


def _number(text: str) -> float | None:
    try:
        return _SPECIAL[text.lower()] if text.lower() in _SPECIAL else float(text.replace(",", ""))
    except ValueError:
        return None


def _close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return False
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)


def _timestamp(text: str) -> dt.datetime | None:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        for form in ("%m/%d/%Y, %I:%M:%S %p", "%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y"):
            try:
                return dt.datetime.strptime(text, form).replace(tzinfo=dt.UTC)
            except ValueError:
                continue
        return None
    *whole, fraction = match.groups()
    parts = [int(each or 0) for each in whole]
    return dt.datetime(*parts, int((fraction or "0").ljust(6, "0")[:6]), tzinfo=dt.UTC)  # type: ignore[misc,arg-type]


def _span(text: str) -> dt.timedelta | None:
    match = _SPAN.fullmatch(text)
    if match is None:
        return None
    sign, days, hours, minutes, seconds, fraction = match.groups()
    micros = int((fraction or "0").ljust(6, "0")[:6])
    whole = dt.timedelta(int(days or 0), int(seconds), micros, 0, int(minutes), int(hours))
    return -whole if sign else whole


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _alike(one: Any, other: Any, *, loose: bool) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key], loose=loose) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return False
        if loose:
            one, other = (sorted(each, key=str) for each in (one, other))
        return all(_alike(*pair, loose=loose) for pair in zip(one, other, strict=True))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return _close(float(one), float(other))
    if isinstance(one, str) and isinstance(other, str):
        timestamps = _timestamp(one), _timestamp(other)
        return " ".join(one.split()) == " ".join(other.split()) or (
            timestamps[0] is not None and timestamps[0] == timestamps[1]
        )
    return bool(one == other) or {str(one), str(other)} <= {"None", ""} or str(one) == str(other)


def main(word: str = "") -> None:
    """Print the outcomes."""
    counts: Counter[str] = Counter()
    pages: dict[str, Counter[str]] = {}
    operators: dict[str, Counter[str]] = {}
    for each in examples():
        found = outcome(each)
        counts[found.word] += 1
        pages.setdefault(each.page, Counter())[found.word] += 1
        for operator in set(re.findall(r"\|\s*([a-z][a-z-]*)", each.query)):
            operators.setdefault(operator, Counter())[found.word] += 1
        if found.word != "agrees" and word in each.page:
            print(f"--- {each.page} {each.number}: {found.word}: {found.detail[:600]}")
            if word:
                print(each.query)
    for title, table in (("page", pages), ("operator", operators)):
        print(f"\n{title}: agrees, differs, refused")
        for name, outcomes in sorted(table.items()):
            print(f"{name}: {outcomes['agrees']}, {outcomes['differs']}, {outcomes['refused']}")
    print(dict(counts))


if __name__ == "__main__":
    main(*sys.argv[1:2])

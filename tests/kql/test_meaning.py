"""Where the meaning of KQL is easily lost: order in aggregates, folding of case, null beside NaN, materialize()."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lazydelta import DeltaTable, write_arrow
from lazydelta.errors import KqlError
from lazydelta.kql import query
from tests.rows.watching import watch

# More rows than DuckDB gives to one thread: it divides an aggregate among threads by row groups of 122,880 rows.
MANY = 400_000


def value_of(text: str, tables: Any = None) -> Any:
    ((found,),) = (row.values() for row in query(text, tables).read_all().to_pylist())
    return found


@pytest.mark.parametrize(
    "summary",
    [
        "sort by x desc | summarize make_list(x)",
        "sort by x desc | summarize make_list(x, 1000)",
        "sort by x desc | where y >= 0 | extend z = x | project z | summarize make_list(z)",
        "sort by y asc, x desc | summarize make_list_if(x, y >= 0)",
        f"top {MANY} by x desc | summarize make_list(x)",
        "sort by x desc | take 350000 | summarize make_list(x)",
        "sort by x desc | summarize make_list(x) by y | project-away y",
        "sort by x desc | summarize l = make_list(x), n = count() | project l",
    ],
)
def test_a_list_made_after_sort_is_in_its_order(summary: str) -> None:
    found = json.loads(value_of(f"range x from 1 to {MANY} step 1 | extend y = 0 | {summary}"))
    assert len(found) >= 1000
    assert found == list(range(MANY, MANY - len(found), -1))


def test_rows_after_sort_stay_in_order_through_where_and_extend() -> None:
    text = f"range x from 1 to {MANY} step 1 | sort by x desc | where x % 2 == 0 | extend y = x + 1 | project y"
    found = query(text).read_all()["y"].to_pylist()
    assert found == list(range(MANY + 1, 2, -2))
    assert value_of(f"{text} | take 1") == MANY + 1
    assert value_of(f"print toscalar({text})") == MANY + 1


def test_a_list_after_sort_puts_nan_and_nulls_where_sort_does() -> None:
    rows = "datatable(r: real, n: long) [2.0, 1, real(nan), 2, real(null), 3, 1.0, 4]"
    assert json.loads(value_of(f"{rows} | sort by r desc | summarize make_list(n)")) == [1, 4, 2, 3]
    assert json.loads(value_of(f"{rows} | sort by r asc | summarize make_list(n)")) == [3, 2, 4, 1]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("2 in (dynamic([1, [2, 3]]))", True),
        ("3 in (dynamic([1, [2, [3]]]))", True),
        ("3 in (1, dynamic([2, [3]]))", True),
        ("4 !in (dynamic([1, [2, 3]]))", True),
        ("'B' in~ (dynamic(['a', ['b']]))", True),
        ("'x b y' has_any (dynamic(['a', ['b']]))", True),
        ("'x b y' has_all (dynamic(['x', ['b', ['z']]]))", False),
        ("2 in (print dynamic([1, [2]]))", True),
        ("1 in (dynamic([null, [null]]))", False),
    ],
)
def test_lists_inside_a_list_are_flattened(test: str, expected: bool) -> None:  # noqa: FBT001 - a value of the table
    assert value_of(f"print {test}") is expected


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("'ABC' =~ 'abc'", True),
        ("'ÄBC' =~ 'Äbc'", True),
        ("'Ä' =~ 'ä'", False),
        ("'Ä' !~ 'ä'", True),
        ("'K' =~ '\\u212a'", False),  # the sign for Kelvin
        ("'Ä' in~ ('b', 'ä')", False),
        ("'Ä' !in~ ('ä')", True),
        ("'äB' in~ ('b', 'äb')", True),
        ("'Ä' in~ (datatable(s: string) ['ä'])", False),
        ("'xÄy' contains 'ä'", False),
        ("'xÄY' contains 'Äy'", True),
        ("'Äy' startswith 'ä'", False),
        ("'ÄY' startswith 'Äy'", True),
        ("'yÄ' endswith 'ä'", False),
        ("'YÄ' endswith 'yÄ'", True),
        ("'x Ä y' has 'ä'", False),
        ("'x FOO y' has 'foo'", True),
        ("'foo\\u017f' has 'FOO'", True),  # the long s is no letter of ASCII
        ("'Äfoo' hasprefix 'äf'", False),
        ("'x Ä y' has_any ('ä', 'b')", False),
        ("'x Ä Y' has_all ('Ä', 'y')", True),
        ("tolower('Ä') == 'ä'", True),
    ],
)
def test_case_is_ignored_for_ascii_only(test: str, expected: bool) -> None:  # noqa: FBT001 - as above
    assert value_of(f"print {test}") is expected
    # The same of a column, whose value DuckDB does not know before it runs.
    left, *rest = test.split(" ", 1) if not test.startswith(("'x ", "tolower")) else (test, "")
    if rest[0]:
        assert value_of(f"datatable(c: string) [{left}] | project c {rest[0]}") is expected


@pytest.mark.parametrize("left", ["real(nan)", "real(null)", "1.0"])
@pytest.mark.parametrize("right", ["real(nan)", "real(null)", "1.0"])
@pytest.mark.parametrize("computed", [False, True])
def test_nan_is_in_no_order_and_null_makes_order_null(left: str, right: str, computed: bool) -> None:  # noqa: FBT001
    a, b = ("a", "b") if computed else (left, right)
    columns = ", ".join(f"{a} {op} {b}" for op in ("<", "<=", ">", ">=", "==", "!="))
    columns += f", {a} in ({b}), {a} !in ({b})" if not computed else ""
    (row,) = query(f"datatable(a: real, b: real) [{left}, {right}] | project {columns}").read_all().to_pylist()
    below, at_most, above, at_least, same, other, *listed = row.values()
    if "null" in left or "null" in right:
        assert (below, at_most, above, at_least) == (None,) * 4
        expected = (None, None) if left == right else (False, True)
    else:
        equal = left == right == "1.0"
        assert (below, at_most, above, at_least) == (False, equal, False, equal)
        expected = (equal, not equal)
    if not (left == right == "real(null)"):
        assert (same, other) == expected
    assert listed in ([], [left == right == "1.0", not left == right == "1.0"])


def test_nan_in_a_list_prunes_no_partition(tmp_path: Path) -> None:
    rows = pa.table({"f": [1.0, float("nan")], "n": [1, 2]})
    write_arrow(tmp_path / "t", rows, partition_by=["f"])
    tables = {"T": DeltaTable(tmp_path / "t")}
    assert value_of("T | where f !in (real(nan)) | summarize sum(n)", tables) == 3
    assert value_of("T | where f in (real(nan), 1.0) | summarize sum(n)", tables) == 1
    assert value_of("T | where f in (range x from 1 to 2000 step 1 | project todouble(x)) | count", tables) == 1
    names = "range x from 1 to 2000 step 1 | project iff(x > 1000, real(nan), todouble(x))"
    assert value_of(f"T | where f in ({names}) | count", tables) == 1


@pytest.mark.parametrize(
    "chosen", ["sample 1", "take 1", "summarize take_any(x)", "where x > 5 | sample 1 | extend y = x"]
)
def test_materialize_is_the_same_rows_wherever_it_is_used(chosen: str) -> None:
    text = f"let one = materialize(range x from 1 to {MANY} step 1 | {chosen}); let two = one | project x;"
    assert value_of(f"{text} union one, one, two | summarize dcount(x)") == 1
    assert value_of(f"{text} two | join kind=inner one on x | count") == 1
    assert value_of(f"{text} one | where x == toscalar(two) | count") == 1
    assert value_of(f"{text} one | where x in (two) | count") == 1


def test_materialize_of_a_function_is_made_for_each_call() -> None:
    text = "let f = (n: long) { materialize(range x from 1 to 100 step 1 | take n) }; union f(1), f(2), f(1) | count"
    assert value_of(text) == 4


def test_materialize_that_always_gives_the_same_rows_prunes_as_before(tmp_path: Path) -> None:
    for number in range(4):
        write_arrow(tmp_path / "t", pa.table({"n": [number]}))
    with watch() as watched:
        asked = "let a = materialize(T | extend m = n); a | where m == 3 | count"
        assert value_of(asked, {"T": DeltaTable(tmp_path / "t")}) == 1
    assert len(watched.files) == 1


# The formats that Kusto documents for the scalar type datetime.
DATES = ["8 Nov 14", "08-Nov-14", "Sat, 8 Nov 14", "Saturday, 08-Nov-14", "8 Nov 2014", "08-Nov-2014", "2014-11-08"]


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("clock", ["15:05:02", "15:05"])
@pytest.mark.parametrize("zone", ["", " GMT"])
def test_timestamps_are_read_in_every_documented_form(date: str, clock: str, zone: str) -> None:
    text = f"{date} {clock}{zone}"
    expected = f"datetime(2014-11-08 {clock})"
    assert value_of(f"print todatetime('{text}') == {expected}") is True
    assert value_of(f"datatable(s: string) ['{text}'] | project todatetime(s) == {expected}") is True
    assert value_of(f"print datetime({text}) == {expected}") is True


@pytest.mark.parametrize(
    "text", ["Sat, 8 Nov 14", "8 Foo 14 15:05", "31 Feb 14 15:05", "Some, 8 Nov 14 15:05", "8 Nov 14 25:05"]
)
def test_what_is_no_timestamp_is_null_and_no_literal(text: str) -> None:
    assert value_of(f"print isnull(todatetime('{text}'))") is True
    with pytest.raises(KqlError, match="is not a timestamp"):
        query(f"print datetime({text})")


def test_one_table_is_called_t_and_now_may_be_a_string() -> None:
    rows = pa.table({"x": [dt.datetime(2026, 2, day, tzinfo=dt.UTC) for day in (9, 11)]})
    with query("T | where x < now() | count", rows, now="2026-02-10") as result:
        assert result.read_all().to_pylist() == [{"Count": 1}]

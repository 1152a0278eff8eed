"""Random pipelines over arrays, sequences and groups give the rows of plain Python, whether or not files are pruned."""

# ruff: noqa: D102 - a method is named after the operator that it adds

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lazydelta import DeltaTable
from lazydelta.kql.execution.query import run

Row = dict[str, Any]
FILES, ROWS_A_FILE = 5, 8


def source_rows() -> list[Row]:
    """Return rows with everything that arrays and texts get wrong: nulls, empty arrays, texts that do not match."""
    choose = random.Random(3)
    rows = []
    for number in range(FILES * ROWS_A_FILE):
        length = choose.choice([None, 0, 1, 2, 4])
        rows.append(
            {
                "id": number,
                "k": choose.choice(["a", "b", "B", ""]),
                "n": choose.choice([None, choose.randrange(-9, 9)]),
                "xs": None if length is None else [choose.randrange(9) for _ in range(length)],
                "t": choose.choice(
                    [f"user={number % 7} took {number * 3}ms!", f"user=x took {number}ms!", "nothing", ""]
                ),
            }
        )
    return rows


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    """Return the rows as a table of several files, each with its own range of ids."""
    path = tmp_path_factory.mktemp("pipelines") / "rows"
    _written(path)
    return DeltaTable(path)


def _written(path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("k", pa.string()),
            pa.field("n", pa.int64()),
            pa.field("xs", pa.list_(pa.int64())),
            pa.field("t", pa.string()),
        ]
    )
    rows = pa.Table.from_pylist(source_rows(), schema=schema)
    for number in range(FILES):
        write_deltalake(path, rows.slice(number * ROWS_A_FILE, ROWS_A_FILE), mode="append")


class Pipeline:
    """A query, and the rows that it should give; ``key`` has the columns whose values no two rows share."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.text = "T"
        self.rows = source_rows()
        self.key = ["id"]
        self.numbers = ["id", "n"]
        self.names = 0
        self.has_array = self.has_text = True

    def grow(self) -> None:
        steps: list[Callable[[], None]] = [self.where, self.extend, self.numbered, self.summed, self.top]
        steps += [
            self.scan_of_parts,
            self.partition,
            self.scan,
            self.where,
            self.copied,
            self.series,
            self.sessions,
            self.looked_up,
        ]
        if self.has_text:
            steps += [self.parsed, self.pairs, self.anywhere]
        if self.has_array:
            steps += [self.expand, self.apply, self.apply_top]
        if self.key == ["id"]:
            steps += [self.newest, self.nested]
        if self.has_array and self.key == ["id"]:
            steps.append(self.union)
        self.choose.choice(steps)()

    def fresh(self) -> str:
        self.names += 1
        return f"x{self.names}"

    def where(self) -> None:
        name = self.choose.choice(self.numbers)
        limit = self.choose.randrange(-3, 30)
        op = self.choose.choice(["<", ">=", "==", "!="])
        tests: dict[str, Callable[[Any], bool]] = {
            "<": lambda value: value is not None and value < limit,
            ">=": lambda value: value is not None and value >= limit,
            "==": lambda value: value == limit,
            "!=": lambda value: value != limit,
        }
        self.text += f" | where {name} {op} {limit}"
        self.rows = [row for row in self.rows if tests[op](row[name])]

    def extend(self) -> None:
        name, new = self.choose.choice(self.numbers), self.fresh()
        self.text += f" | extend {new} = {name} * 2 + 1"
        self.rows = [row | {new: None if row[name] is None else row[name] * 2 + 1} for row in self.rows]
        self.numbers.append(new)

    def copied(self) -> None:
        """Copy a column, and drop one of the two or a third."""
        name, new = self.choose.choice(self.numbers), self.fresh()
        self.text += f" | extend {new} = {name}"
        self.rows = [row | {new: row[name]} for row in self.rows]
        self.numbers.append(new)
        gone = self.choose.choice([each for each in self.numbers if each not in {*self.key, "xs"}])
        self.text += f" | project-away {gone}"
        self.rows = [{key: value for key, value in row.items() if key != gone} for row in self.rows]
        self.numbers.remove(gone)

    def _sorted(self) -> None:
        self.text += f" | sort by {', '.join(f'{name} asc' for name in self.key)}"
        self.rows.sort(key=lambda row: [row[name] for name in self.key])

    def numbered(self) -> None:
        self._sorted()
        number, before, after = self.fresh(), self.fresh(), self.fresh()
        name = self.choose.choice(self.numbers)
        restart = self.choose.random() < 0.5
        again = ", k != prev(k)" if restart else ""
        self.text += (
            f" | extend {number} = row_number(1{again}), {before} = prev({name}, 2, -1), {after} = next({name})"
        )
        count, made = 0, []
        for place, row in enumerate(self.rows):
            count = 1 if restart and place and self.rows[place - 1]["k"] != row["k"] else count + 1
            earlier = self.rows[place - 2][name] if place > 1 else -1
            later = self.rows[place + 1][name] if place + 1 < len(self.rows) else None
            made.append(row | {number: count, before: earlier, after: later})
        self.rows = made
        self.numbers += [number, before, after]

    def summed(self) -> None:
        self._sorted()
        name, total, rank = self.choose.choice(self.numbers), self.fresh(), self.fresh()
        self.text += f" | extend {total} = row_cumsum({name}, k != prev(k)), {rank} = row_rank_dense(k)"
        made, known, place = [], None, 0
        for index, row in enumerate(self.rows):
            changed = index == 0 or self.rows[index - 1]["k"] != row["k"]
            known, place = (None, place + 1) if changed else (known, place)
            known = known if row[name] is None else (known or 0) + row[name]
            made.append(row | {total: known, rank: place})
        self.rows = made
        self.numbers += [total, rank]

    def scan(self) -> None:
        self._sorted()
        total = self.fresh()
        self.text += f" | scan declare ({total}:long=0) with (step s: id >= 0 => {total} = id + s.{total};)"
        sums = itertools.accumulate(row["id"] for row in self.rows)
        self.rows = [row | {total: value} for row, value in zip(self.rows, sums, strict=True)]
        self.numbers.append(total)

    def scan_of_parts(self) -> None:
        total = self.fresh()
        order = ", ".join(f"{name} asc" for name in self.key)
        step = f"step s: true => {total} = id + s.{total};"
        self.text += f" | partition by k (sort by {order} | scan declare ({total}:long=0) with ({step}))"
        sums: dict[str, int] = {}
        made = []
        for row in sorted(self.rows, key=lambda row: [row[name] for name in self.key]):
            sums[row["k"]] = sums.get(row["k"], 0) + row["id"]
            made.append(row | {total: sums[row["k"]]})
        self.rows = made
        self.numbers.append(total)

    def parsed(self) -> None:
        user, time = self.fresh(), self.fresh()
        word = self.choose.choice(["parse", "parse-where"])
        self.text += f' | {word} t with "user=" {user}:long " took " {time}:long "ms" *'
        made = []
        for row in self.rows:
            start, _, rest = row["t"].partition(" took ")
            number, unit, _ = rest.partition("ms")
            fits = start.startswith("user=") and start[5:].isdigit() and number.isdigit() and bool(unit)
            if fits or word == "parse":
                made.append(row | {user: int(start[5:]) if fits else None, time: int(number) if fits else None})
        self.rows = made
        self.numbers += [user, time]

    def top(self) -> None:
        count = self.choose.randrange(1, 30)
        name = self.key[0] if len(self.key) == 1 else None
        if name is None:
            return self.where()
        self.text += f" | top {count} by {name} asc"
        self.rows = sorted(self.rows, key=lambda row: row[name])[:count]
        return None

    def partition(self) -> None:
        if len(self.key) > 1:
            return self.where()
        (name,) = self.key
        count = self.choose.randrange(1, 4)
        self.text += f" | partition by k (top {count} by {name} desc)"
        groups: dict[str, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: -row[name]):
            groups.setdefault(row["k"], []).append(row)
        self.rows = [row for group in groups.values() for row in group[:count]]
        return None

    def expand(self) -> None:
        place = self.fresh()
        self.text += f" | mv-expand with_itemindex={place} xs to typeof(long)"
        made = []
        for row in self.rows:
            values = [None] if row["xs"] is None else row["xs"]
            made += [row | {"xs": value, place: index} for index, value in enumerate(values)]
        self.rows = made
        self.key.append(place)
        self.numbers += ["xs", place]
        self.has_array = False

    def _left_with(self, columns: list[str], numbers: list[str]) -> None:
        """Drop all columns but these, the array and the text among them."""
        self.rows = [{name: row[name] for name in columns} for row in self.rows]
        self.numbers = numbers
        self.has_array = self.has_text = False

    def series(self) -> None:
        name, total, count = self.choose.choice(self.numbers), self.fresh(), self.fresh()
        step = self.choose.choice([7, 8, 40])
        ordinal = f" | mv-expand id to typeof(long), {total} to typeof(long), {count} to typeof(long)"
        made = f"{total} = sum({name}) default=-1, {count} = count()"
        self.text += f" | make-series {made} on id from 0 to 40 step {step} by k{ordinal}"
        bins: dict[tuple[str, int], list[Any]] = {}
        for row in self.rows:
            bins.setdefault((row["k"], row["id"] // step * step), []).append(row[name])
        self.rows = []
        for group in {row for row, _ in bins}:
            for start in range(0, 40, step):
                values = bins.get((group, start))
                found = -1 if values is None else sum(value for value in values if value is not None)
                self.rows.append({"k": group, "id": start, total: found, count: len(values or [])})
        self.key = ["k", "id"]
        self._left_with(["k", "id", total, count], ["id", total, count])

    def sessions(self) -> None:
        self._sorted()
        start = self.fresh()
        longest, gap = self.choose.randrange(1, 12), self.choose.randrange(1, 4)
        zero = "datetime(2020-01-01)"
        session = f"row_window_session({zero} + id * 1s, {longest}s, {gap}s, k != prev(k))"
        self.text += f" | extend {start} = tolong(({session} - {zero}) / 1s)"
        made: list[Row] = []
        for place, row in enumerate(self.rows):
            before = self.rows[place - 1] if place else None
            first = made[-1][start] if made else 0
            new = before is None or before["k"] != row["k"] or row["id"] - first > longest
            new = new or (before is not None and row["id"] - before["id"] > gap)
            made.append(row | {start: row["id"] if new else first})
        self.rows = made
        self.numbers.append(start)

    def looked_up(self) -> None:
        kind = self.choose.choice(["leftouter", "inner", "leftsemi", "leftanti"])
        new, divisor = self.fresh(), self.choose.randrange(1, 5)
        right = f"(T | where id % {divisor} == 0 | project id, {new} = id * 10)"
        operator = "join" if kind.startswith(("lefts", "lefta")) else "lookup"
        self.text += f" | {operator} kind={kind} {right} on id"
        found = {number: number * 10 for number in range(0, FILES * ROWS_A_FILE, divisor)}
        if operator == "join":
            self.rows = [row for row in self.rows if (row["id"] in found) == (kind == "leftsemi")]
            return
        rows = [row | {new: found.get(row["id"])} for row in self.rows]
        self.rows = [row for row in rows if kind == "leftouter" or row[new] is not None]
        self.numbers.append(new)

    def pairs(self) -> None:
        self.text += " | parse-kv t as (user:long) with (pair_delimiter=' ', kv_delimiter='=')"
        made = []
        for row in self.rows:
            given = row["t"].split(" ")[0].removeprefix("user=")
            made.append(row | {"user": int(given) if given.isdigit() else None})
        self.rows = made
        self.numbers += ["user"] if "user" not in self.numbers else []

    def anywhere(self) -> None:
        word = self.choose.choice(["took", "nothing"])
        self.text += f' | where * has "{word}"'
        self.rows = [row for row in self.rows if word in row["t"]]

    def newest(self) -> None:
        self.text += " | summarize arg_max(id, *) by k"
        last = {row["k"]: row for row in sorted(self.rows, key=lambda row: row["id"])}
        self.rows = list(last.values())

    def nested(self) -> None:
        count, most = self.fresh(), self.fresh()
        limit = self.choose.randrange(1, 4)
        self.text += f" | top-nested of k by {count} = count(), top-nested {limit} of id by {most} = max(id)"
        groups: dict[str, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: -row["id"]):
            groups.setdefault(row["k"], []).append(row)
        self.rows = [row | {count: len(group), most: row["id"]} for group in groups.values() for row in group[:limit]]
        self._left_with(["k", count, "id", most], ["id", count, most])

    def union(self) -> None:
        limit = self.choose.randrange(FILES * ROWS_A_FILE)
        self.text += f" | where id < {limit} | union (T | where id >= {limit})"
        kept = [row for row in self.rows if row["id"] < limit]
        added = [row for row in source_rows() if row["id"] >= limit]
        names: Row = dict.fromkeys(("id", "k", "xs", "t", *self.numbers, "n"))
        self.rows = [names | row for row in (*kept, *added)]
        self.numbers += ["n"] if "n" not in self.numbers else []

    def apply(self) -> None:
        total, count = self.fresh(), self.fresh()
        limit = self.choose.randrange(0, 6)
        inner = f"where e >= {limit} | summarize {total} = sum(e), {count} = count()"
        self.text += f" | mv-apply e = xs to typeof(long) on ({inner})"
        made = []
        for row in self.rows:
            values = [value for value in row["xs"] or [] if value >= limit]
            made += [row | {total: sum(values), count: len(values)}] if values else []
        self.rows = made
        self.numbers += [total, count]

    def apply_top(self) -> None:
        name = self.fresh()
        self.text += f" | mv-apply {name} = xs to typeof(long) on (where isnotnull({name}) | top 1 by {name})"
        self.rows = [row | {name: max(row["xs"])} for row in self.rows if row["xs"]]
        self.numbers.append(name)


def _canonical(rows: list[Row]) -> list[str]:
    plain = (row | ({"xs": json.loads(row["xs"])} if isinstance(row.get("xs"), str) else {}) for row in rows)
    return sorted(json.dumps(row, sort_keys=True) for row in plain)


def _agree(seed: int, count: int, table: DeltaTable) -> int:
    choose = random.Random(seed)
    pruned = 0
    for _ in range(count):
        pipeline = Pipeline(choose)
        for _ in range(choose.randrange(1, 6)):
            pipeline.grow()
        expected = _canonical(pipeline.rows)
        for pushdown in (True, False):
            with run(pipeline.text, {"T": table}, pushdown=pushdown) as result:
                asked = result.explain()["tables"]
                found = result.read_all().to_pylist()
            assert _canonical(found) == expected, pipeline.text
            pruned += any(each["where"] is not None for each in asked)
            if all(each["where"] is None and each["row_limit"] is None for each in asked):
                break  # the plan without pushdown is the same
    return pruned


def test_random_pipelines_give_the_rows_of_plain_python(table: DeltaTable) -> None:
    assert _agree(1, 80, table) > 15


@pytest.mark.parametrize(
    "steps",
    [
        "mv-expand xs",
        'parse t with "user=" user:long " took " *',
        "parse-kv t as (user:string) with (pair_delimiter=' ', kv_delimiter='=')",
        "serialize",
        "as Same",
        "mv-apply e = xs to typeof(long) on (where e > 1)",
    ],
)
def test_conditions_reach_the_table_through_an_operator(steps: str, table: DeltaTable) -> None:
    with run(f"T | {steps} | where id >= 32 | count", {"T": table}) as result:
        (asked,) = result.explain()["tables"]
    assert asked["where"] == {"id": {">=": 32}}


@pytest.mark.parametrize(
    "steps",
    [
        *(f"mv-expand {name} to typeof({kind})" for name in ("l", "r", "s") for kind in ("long", "real", "string")),
        "mv-expand with_itemindex=i a = l to typeof(long), s to typeof(string) limit 2",
        "where id > 0 | extend b = l, n = array_length(l) | mv-expand l to typeof(long) | where isnull(l) or l > 0",
        "mv-apply l to typeof(long) on (summarize sum(l))",
    ],
)
def test_arrays_of_a_table_expand_as_their_json_does(steps: str, tmp_path: Path) -> None:
    rows = pa.table(
        {
            "id": pa.array([0, 1, 2, 3]),
            "l": pa.array([[1, None, -3], None, [], [1 << 62]], pa.list_(pa.int64())),
            "r": pa.array([[1.5, None, math.nan], None, [], [math.inf, -0.0, 1e300]], pa.list_(pa.float64())),
            "s": pa.array([["a", None, '7"'], None, [], ["", "é"]], pa.list_(pa.string())),
        }
    )
    write_deltalake(tmp_path / "T", rows)
    found = []
    # After a sort the arrays are JSON.
    for before in ("", "sort by id asc | "):
        with run(f"T | {before}{steps}", {"T": DeltaTable(tmp_path / "T")}) as result:
            found.append(sorted(map(repr, result.read_all().to_pylist())))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ("serialize n = row_number()", "neighbours"),
        ("scan with (step s: true;)", "depend on each other"),
        ("partition by k (top 1 by id)", "take or top"),
        ("mv-expand id = xs to typeof(long)", "element"),
    ],
)
def test_a_condition_that_would_change_rows_stays_above_an_operator(steps: str, reason: str, table: DeltaTable) -> None:
    with run(f"T | sort by id asc | {steps} | where id >= 32 | count", {"T": table}) as result:
        (asked,) = result.explain()["tables"]
    assert asked["where"] is None
    assert any(reason in (each["why"] or "") for each in asked["conditions"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_thousands_of_random_pipelines_give_the_rows_of_plain_python(seed: int, table: DeltaTable) -> None:
    _agree(100 + seed, 500, table)

"""Pipelines of random operators give the same rows whether or not their conditions reach the tables."""

# ruff: noqa: D102 - a method is named after the operator that it adds

from __future__ import annotations

import random

import pytest

from lazydelta import DeltaTable
from lazydelta.kql.execution.query import run
from tests.kql.tables import NOW
from tests.kql.test_against_sql import plain

LITERALS = {
    "string": ["'sensor-1'", "''", "'Pump-A'", "'2026021003'", "'2026021001'"],
    "long": ["0", "-7", "10", "3", "1.5"],
    "int": ["0", "3", "-2"],
    "real": ["0.0", "2.5", "-2.5", "1", "real(nan)"],
    "datetime": ["datetime(2026-02-10 02:30)", "ago(2h)", "startofday(now())", "datetime(2026-02-08)"],
    "bool": ["true", "false"],
}
ORDERED = ["==", "!=", "<", "<=", ">", ">="]


class Pipeline:
    """A query that grows operator by operator, with the columns that it has so far."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.text = "Telemetry"
        self.columns = {
            "device_id": "string",
            "timestamp": "datetime",
            "value": "real",
            "n": "long",
            "i": "int",
            "flag": "bool",
            "day": "datetime",
            "_event_hour": "string",
        }
        self.text += f" | project {', '.join(self.columns)}"
        self.names = 0

    def grow(self) -> None:
        """Add one operator."""
        kinds = [self.where, self.where, self.extend, self.rename, self.summarize, self.join, self.union, self.sort]
        self.choose.choice(kinds)()

    def fresh(self) -> str:
        self.names += 1
        return f"x{self.names}"

    def condition(self, depth: int = 2) -> str:
        if depth and self.choose.random() < 0.4:
            word = self.choose.choice(["and", "or"])
            both = f"({self.condition(depth - 1)}) {word} ({self.condition(depth - 1)})"
            return f"not({both})" if self.choose.random() < 0.3 else both
        name, kind = self.choose.choice(list(self.columns.items()))
        literal = self.choose.choice(LITERALS[kind])
        tests = [f"{name} {self.choose.choice(ORDERED if kind != 'bool' else ORDERED[:2])} {literal}"]
        tests += [f"isnull({name})", f"not(isempty({name}))", f"{name} in ({', '.join(LITERALS[kind][:2])})"]
        if kind in {"long", "int"}:
            tests += [f"bin({name}, 4) {self.choose.choice(ORDERED)} 4", f"{name} !between (-3 .. 5)"]
        if kind == "datetime":
            tests += [f"bin({name}, 1h) {self.choose.choice(ORDERED)} {literal}", f"startofday({name}) <= {literal}"]
        if kind == "string":
            tests += [f"{name} startswith_cs 's'", f"{name} has 'sensor'", f"{name} !in~ ('SENSOR-1')"]
        found = self.choose.choice(tests)
        return f"not({found})" if self.choose.random() < 0.2 else found

    def where(self) -> None:
        self.text += f" | where {self.condition()}"

    def extend(self) -> None:
        name, kind = self.choose.choice(list(self.columns.items()))
        new = self.choose.choice([self.fresh(), name])
        same = {"long": f"{name} + 1", "int": f"{name} * 2", "string": f"tolower({name})", "real": f"abs({name})"}
        computed = self.choose.choice([name, same.get(kind, name)])
        self.columns[new] = "long" if kind == "int" and computed != name else kind
        self.text += f" | extend {new} = {computed}"

    def rename(self) -> None:
        name = self.choose.choice(list(self.columns))
        new = self.fresh()
        self.columns = {(new if each == name else each): kind for each, kind in self.columns.items()}
        self.text += f" | project-rename {new} = {name}"

    def summarize(self) -> None:
        keys = self.choose.sample(list(self.columns), min(2, len(self.columns)))
        numbers = [name for name, kind in self.columns.items() if kind in {"long", "int"} and name not in keys]
        new = self.fresh()
        total = f"sum({self.choose.choice(numbers)})" if numbers else "count()"
        self.columns = {name: self.columns[name] for name in keys} | {new: "long"}
        self.text += f" | summarize {new} = {total} by {', '.join(keys)}"

    def join(self) -> None:
        texts = [name for name, kind in self.columns.items() if kind == "string"]
        if not texts:
            return self.where()
        kind = self.choose.choice(
            ["inner", "leftouter", "rightouter", "fullouter", "leftsemi", "leftanti", "rightanti"]
        )
        right, capacity = self.fresh(), self.fresh()
        side = f"(Devices | project {right} = device_id, {capacity} = capacity)"
        self.text += f" | join kind={kind} {side} on $left.{self.choose.choice(texts)} == $right.{right}"
        added = {right: "string", capacity: "long"}
        if kind.startswith("right") and kind != "rightouter":
            self.columns = added
        elif kind in {"inner", "leftouter", "rightouter", "fullouter"}:
            self.columns |= added
        return None

    def union(self) -> None:
        longs = [name for name, kind in self.columns.items() if kind == "long"]
        column = self.choose.choice(longs) if longs else self.fresh()
        self.text += f" | union (Devices | where capacity > 15 | project {column} = capacity)"
        self.columns[column] = "long"

    def sort(self) -> None:
        self.text += f" | sort by {self.choose.choice(list(self.columns))}"


def _same_rows(seed: int, count: int, tables: dict[str, DeltaTable]) -> int:
    pushed = 0
    choose = random.Random(seed)
    for _ in range(count):
        pipeline = Pipeline(choose)
        for _ in range(choose.randrange(2, 7)):
            pipeline.grow()
        pipeline.where()
        answers = []
        for pushdown in (True, False):
            with run(pipeline.text, tables, now=NOW, pushdown=pushdown) as result:
                pushed += any(each["where"] is not None for each in result.explain()["tables"])
                table = result.read_all()
            answers.append(sorted(tuple(map(plain, row)) for row in zip(*map(pa_values, table.columns), strict=True)))
        assert answers[0] == answers[1], pipeline.text
    return pushed


def pa_values(column: object) -> list[object]:
    """Return a column as Python values."""
    values: list[object] = column.to_pylist()  # type: ignore[attr-defined]
    return values


def test_random_pipelines_give_the_same_rows_with_and_without_pushdown(tables: dict[str, DeltaTable]) -> None:
    assert _same_rows(7, 40, tables) > 20


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_random_pipelines_give_the_same_rows(seed: int, tables: dict[str, DeltaTable]) -> None:
    _same_rows(100 + seed, 100, tables)

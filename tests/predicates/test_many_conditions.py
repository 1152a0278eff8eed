"""Thousands of conditions joined by OR: what is done grows with their number, not with its square."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest

from lazydelta import DeltaTable
from lazydelta.rows import file_rows
from tests.rows.made_table import MadeTable, make_table

FEW, MANY = 300, 1200


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_table(tmp_path_factory.mktemp("many") / "t", files=2, rows=3)


def sql(number: int) -> str:
    return " or ".join(f"id = {each}" for each in range(number))


def mixed_sql(number: int) -> str:
    return " or ".join(f"(id = {each} and text <> 'a')" for each in range(number))


def tuples(number: int) -> list[Any]:
    return [[("id", "=", each)] for each in range(number)]


def mapping(number: int) -> dict[str, Any]:
    return {"or": [{"id": each} for each in range(number)]}


def expression(number: int) -> pc.Expression:
    return functools.reduce(operator.or_, [pc.field("id") == each for each in range(number)])


def calls(work: Callable[[], object]) -> int:
    """Return how many functions this thread calls, in Python and in C."""
    number = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal number
        number += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return number


@pytest.mark.parametrize("form", [sql, mixed_sql, tuples, mapping, expression], ids=lambda each: each.__name__)
def test_work_grows_with_the_number_of_conditions(made: MadeTable, form: Callable[[int], Any]) -> None:
    def read(number: int) -> None:
        where = form(number)
        assert len(list(DeltaTable(made.uri).files(where))) == 2
        assert DeltaTable(made.uri).rows(where=where).read_all().num_rows == 6

    read(2 * 3)  # what is done once
    assert calls(lambda: read(MANY)) <= 1.1 * MANY / FEW * calls(lambda: read(FEW))


def test_expressions_that_pyarrow_is_given_stay_small(made: MadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the square of the conditions that it is given at once."""
    given: list[int] = []
    original = file_rows._passed

    def counted(batch: Any, condition: pc.Expression) -> Any:
        given.append(str(condition).count("match_like"))
        return original(batch, condition)

    monkeypatch.setattr(file_rows, "_passed", counted)
    for number in (FEW, MANY):
        given.clear()
        where = " or ".join(f"text like '%{each:019d}%'" for each in range(number))
        assert DeltaTable(made.uri).rows(where=where).read_all()["id"].to_pylist() == [3, 4, 5, 0, 1, 2]
        assert max(given) <= 64
        assert sum(given) == 2 * number

"""The examples of Microsoft's documentation, and that they leave out no operator that we have."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from lazydelta.kql import query
from lazydelta.kql.language.parser import OPERATORS
from tests.kql.documented import CASES, Case
from tests.kql.test_operators import CASES as OPERATOR_CASES


def comparable(value: Any) -> Any:
    """Return a value that equals itself, NaN too, and sorts beside None."""
    if isinstance(value, float):
        value = "NaN" if math.isnan(value) else round(value, 12)
    return (value is not None, str(type(value).__name__), str(value))


def rows_of(text: str, tables: Any = None) -> tuple[list[str], list[tuple[Any, ...]]]:
    table = query(text, tables).read_all()
    return table.column_names, list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.page}: {case.query[:60]}")
def test_a_query_of_the_documentation_gives_the_documented_rows(case: Case) -> None:
    names, rows = rows_of(case.query)
    found, expected = ([tuple(map(comparable, row)) for row in each] for each in (rows, case.rows))
    if not case.ordered:
        found, expected = sorted(found), sorted(expected)
    assert found == expected
    if case.names is not None:
        assert names == case.names


def test_every_operator_has_a_documented_case() -> None:
    texts = [*(case.query for case in CASES), *(text for text, _ in OPERATOR_CASES)]
    used = set(re.findall(r"\|\s*([a-z-]+)", " ".join(texts)))
    used |= {"union"} if any(case.query.split("\n")[-1].startswith("union") for case in CASES) else set()
    assert set(OPERATORS) - used - {"union"} == set()

"""Queries as people write them: Microsoft's analyser agrees, and pruning changes nothing."""

from __future__ import annotations

from typing import Any

from lazydelta import DeltaTable
from lazydelta.kql.execution.query import KqlResult, run
from tests.kql.analyser import analysed
from tests.kql.dashboards import DASHBOARDS
from tests.kql.tables import NOW, SCHEMAS
from tests.kql.test_against_sql import plain


def _rows(result: KqlResult) -> list[Any]:
    found = zip(*(each.to_pylist() for each in result.read_all().columns), strict=True)
    return sorted(tuple(map(plain, row)) for row in found)


def test_results_have_the_columns_that_the_analyser_expects_and_the_same_rows_without_pruning(
    tables: dict[str, DeltaTable],
) -> None:
    assert len(DASHBOARDS) > 150
    pruned = 0
    for text, opinion in zip(DASHBOARDS, analysed(DASHBOARDS, SCHEMAS), strict=True):
        assert opinion.errors == [], text
        with run(text, tables, now=NOW) as result:
            assert list(result.kinds.items()) == opinion.columns, text
            reached = result.explain()["tables"]
            rows = _rows(result)
        if any(each["where"] is not None or each["row_limit"] is not None for each in reached):
            pruned += 1
            with run(text, tables, now=NOW, pushdown=False) as result:
                assert _rows(result) == rows, text
    assert pruned > 60

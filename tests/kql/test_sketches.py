"""Sketches of values: their estimates beside exact counts and ranks, and that they can be joined and stored."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lazydelta.errors import KqlError
from lazydelta.kql import query
from tests.kql.analyser import analysed


def one(text: str, **tables: pa.Table) -> dict[str, Any]:
    with query(text, tables) as result:
        (row,) = result.read_all().to_pylist()
        return dict(row)


@pytest.mark.parametrize(("accuracy", "error"), [(0, 0.05), (1, 0.03), (4, 0.01)])
def test_different_values_are_estimated(accuracy: int, error: float) -> None:
    text = f"range x from 1 to 60000 step 1 | summarize h = hll(x % 20000, {accuracy}) | project n = dcount_hll(h)"
    assert one(text)["n"] == pytest.approx(20_000, rel=error)


def test_few_values_are_counted_exactly() -> None:
    text = (
        "range x from 1 to 300 step 1 | extend s = strcat('name ', x % 40)"
        " | summarize a = dcount_hll(hll(s)), b = dcount_hll(hll_if(s, x <= 10)), c = dcount_hll(hll(s, 3))"
    )
    assert one(text) == {"a": 40, "b": 10, "c": 40}


def test_joined_sketches_are_the_sketch_of_all_rows() -> None:
    """Also where they are not equally fine, and from a table that stores them."""
    parts = "range x from 1 to 9000 step 1 | summarize h = hll(x, {}) by g = x % 3"
    with query(parts.format(2)) as result:
        stored = result.read_all()
    text = (
        "let whole = toscalar(range x from 1 to 9000 step 1 | summarize hll(x));"
        f"let fine = {parts.format(2)};"
        "let coarse = range x from 1 to 9000 step 1 | summarize h = hll(x, 1) by g = x % 2 + 10;"
        "union fine, coarse | summarize joined = hll_merge(h)"
        " | project same = dcount_hll(joined) == dcount_hll(whole)"
    )
    assert one(text) == {"same": True}
    text = "Stored | extend h = parse_json(h) | summarize n = dcount_hll(hll_merge(h))"
    assert one(text, Stored=stored)["n"] == pytest.approx(9000, rel=0.02)


def test_percentiles_of_few_values_are_exact() -> None:
    text = (
        "range x from 1 to 1000 step 1 | summarize t = tdigest(x)"
        " | project a = percentile_tdigest(t, 25, typeof(long)),"
        " b = percentiles_array_tdigest(t, 1, 50, 100), c = rank_tdigest(t, 685), d = percentrank_tdigest(t, 250)"
    )
    assert one(text) == {"a": 250, "b": "[10,500,1000]", "c": 685.0, "d": 25.0}


def test_percentiles_of_many_values_are_near() -> None:
    text = (
        "range x from 1 to 50000 step 1 | extend y = (x * 7919) % 50000 | summarize t = tdigest(y) by g = y % 4"
        " | summarize t = tdigest_merge(t) | project a = percentile_tdigest(t, 10, typeof(real)),"
        " b = percentile_tdigest(t, 99, typeof(real)), c = rank_tdigest(t, 12500.0)"
    )
    found = one(text)
    assert found == {
        "a": pytest.approx(5000, abs=250),
        "b": pytest.approx(49_500, abs=250),
        "c": pytest.approx(12_500, abs=250),
    }


def test_digests_keep_the_type_and_weights() -> None:
    text = (
        "datatable(t: datetime, w: long) [datetime(2024-01-01), 1, datetime(2024-01-02), 8, datetime(2024-01-03), 1]"
        " | summarize a = tdigest(t, w), b = tdigest(w * 1h)"
        " | project percentile_tdigest(a, 50), percentile_tdigest(b, 100), percentile_tdigest(a, 5, typeof(datetime))"
    )
    first, second, third = one(text).values()
    assert (first, second) == ('"2024-01-02T00:00:00.0000000Z"', '"08:00:00"')
    assert third.date().isoformat() == "2024-01-01"


def test_nothing_and_no_sketch() -> None:
    text = "range x from 1 to 0 step 1 | summarize a = hll(x), b = tdigest(x), c = buildschema(pack('x', x))"
    assert one(text) == {"a": None, "b": None, "c": None}
    text = "print x = int(null) | summarize a = dcount_hll(hll(x)), b = percentile_tdigest(tdigest(x), 50)"
    assert one(text) == {"a": 0, "b": None}
    assert one("print a = dcount_hll(dynamic([1])), b = rank_tdigest(dynamic({}), 5)") == {"a": None, "b": None}
    with pytest.raises(KqlError, match="not an accuracy"):
        query("range x from 1 to 3 step 1 | summarize hll(x, 9)")
    with pytest.raises(KqlError, match="not defined"):
        query("print s = 'a' | summarize tdigest(s)")


def test_columns_are_named_as_the_analyser_names_them() -> None:
    queries = [
        "T | summarize hll(l), hll_if(s, b), tdigest(l), hll_merge(x), tdigest_merge(x)",
        "T | summarize merge_tdigest(x), dcount_hll(hll_merge(x)), percentile_tdigest(merge_tdigest(x), 90)",
        "T | project hll_merge(x, x), merge_tdigest(x, x), dcount_hll(x), percentile_tdigest(x, 50, typeof(long))",
        "T | project percentiles_array_tdigest(x, 50, 60), rank_tdigest(x, 1), percentrank_tdigest(x, l)",
    ]
    table = "datatable(x: dynamic, l: long, s: string, b: bool) [dynamic(null), 1, '', true]"
    for text, opinion in zip(
        queries, analysed(queries, {"T": "(x: dynamic, l: long, s: string, b: bool)"}), strict=True
    ):
        assert opinion.errors == []
        with query(f"let T = {table}; {text}") as result:
            assert list(result.kinds.items()) == opinion.columns

"""Tuples mean what they mean to PyArrow and deltalake, which people write them for."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.errors import PredicateError
from lazydelta.predicates import all_match, may_match, parse_predicate, to_arrow_expression
from lazydelta.protocol.schema import TableSchema
from lazydelta.stats import ranges_from_json

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {"i": "long", "s": "string", "f": "double"}
SCHEMA = TableSchema.parse(
    json.dumps(
        {
            "type": "struct",
            "fields": [{"name": n, "type": k, "nullable": True, "metadata": {}} for n, k in KINDS.items()],
        }
    )
)
VALUES: dict[str, list[Any]] = {
    "i": [1, 2, 3, -7, None],
    "s": ["a", "b", "", "zz", None],
    "f": [0.5, 1.5, -2.0, math.inf, math.nan, None],
}


def condition(rng: random.Random) -> tuple[Any, ...]:
    """Draw a filter that PyArrow takes."""
    column = rng.choice(list(KINDS))
    op = rng.choice(["=", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "in", "not in"])
    values = VALUES[column]
    if op in {"in", "not in"}:
        return (column, op, rng.choices(values, k=rng.randint(1, 3)))
    return (column, op, rng.choice([value for value in values if value is not None]))


@pytest.mark.parametrize("seed", range(4))
def test_tuples_keep_the_rows_that_pyarrow_keeps_and_prune_no_file_that_has_one(seed: int) -> None:
    rng = random.Random(seed)
    rows = [{name: rng.choice(VALUES[name]) for name in KINDS} for _ in range(60)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA.to_arrow()).append_column("row", pa.array(range(60)))
    stats = [logged(rows[start : start + 2]) for start in range(0, 60, 2)]
    for _ in range(60):
        filters = [[condition(rng) for _ in range(rng.randint(1, 2))] for _ in range(rng.randint(1, 2))]
        typed = [[(c, op, typed_values(c, value)) for c, op, value in each] for each in filters]
        expected = table.filter(pq.filters_to_expression(typed))["row"].to_pylist()
        predicate = parse_predicate(filters, SCHEMA)
        assert predicate is not None
        assert table.filter(to_arrow_expression(predicate, SCHEMA))["row"].to_pylist() == expected, filters
        known = ranges_from_json(pa.array(stats), [SCHEMA.column(name) for name in KINDS])
        found = {row // 2 for row in expected}
        whole = {number for number in found if {2 * number, 2 * number + 1} <= set(expected)}
        may, surely = may_match(predicate, known).to_pylist(), all_match(predicate, known).to_pylist()
        assert found <= {number for number, keep in enumerate(may) if keep}, filters
        assert {number for number, proof in enumerate(surely) if proof} <= whole, filters


def typed_values(column: str, value: Any) -> Any:
    """Give PyArrow a list with the column's type: of nulls alone it would not know."""
    return pa.array(value, SCHEMA.column(column).type.to_arrow()) if isinstance(value, list) else value


def logged(file: list[dict[str, Any]]) -> str:
    """Write the statistics of a file, NaN in no bound."""
    stats: dict[str, Any] = {"numRecords": len(file), "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in KINDS:
        present = [row[name] for row in file if row[name] is not None]
        stats["nullCount"][name] = len(file) - len(present)
        ordered = [item for item in present if item == item]  # noqa: PLR0124 - NaN
        if ordered:
            low, high = ("Infinity" if end == math.inf else end for end in (min(ordered), max(ordered)))
            stats["minValues"][name], stats["maxValues"][name] = low, high
    return json.dumps(stats)


@pytest.mark.parametrize(
    ("column", "filters"),
    [
        ("q", [("q", "=", 3)]),
        ("q", [("q", "!=", 3)]),
        ("q", [("q", "in", [3, 4])]),
        ("q", [("q", "not in", [3, "4"])]),
        ("q", [("q", "=", dt.date(2026, 2, 8))]),
        ("q", [("q", "=", True)]),
        ("p", [("p", "=", 3)]),
        ("p", [("p", "=", "3")]),
        ("p", [("p", "in", ["3", "4"])]),
        ("q", "q = 3"),
        ("q", "q != 3 AND n >= 0"),
        ("q", "q IN (3, 4)"),
        ("q", "q NOT IN (3, 20)"),
        ("q", "NOT (q = 4)"),
        ("q", "4 = q"),
    ],
)
def test_partition_filters_find_the_files_that_deltalake_finds(tmp_path: Path, column: str, filters: Any) -> None:
    texts = ["3", "4", "2026-02-08", "true", "x"]
    rows = pa.table({"q": texts, "p": pa.array([3, 4, 5, 6, 7], pa.int32()), "n": range(5)})
    deltalake.write_deltalake(tmp_path / "t", rows, partition_by=[column])
    theirs = deltalake.DeltaTable(tmp_path / "t").file_uris(file_pruning_predicate=filters)
    ours = DeltaTable(tmp_path / "t").file_uris(file_pruning_predicate=filters)
    assert len(theirs) in {1, 2, 3, 4}
    assert sorted(ours) == sorted(theirs)


@pytest.mark.parametrize("text", ["q > 2", "q BETWEEN 2 AND 4", "q = 2.5", "q = true"])
def test_sql_does_not_guess_how_texts_are_ordered_as_numbers(tmp_path: Path, text: str) -> None:
    deltalake.write_deltalake(tmp_path / "t", pa.table({"q": ["2", "12"], "n": [1, 2]}), partition_by=["q"])
    with pytest.raises(PredicateError, match="cannot be compared with column 'q' of type string"):
        DeltaTable(tmp_path / "t").files(text)


@pytest.mark.parametrize("text", ["q > 2", "q <= 2", "q BETWEEN 2 AND 4", "3 > q"])
def test_numbers_beside_a_partition_of_strings_mean_what_deltalake_takes_them_for(tmp_path: Path, text: str) -> None:
    """Under deltalake's own name of the argument only: they are compared as strings."""
    values = ["2", "12", "3", "30"]
    deltalake.write_deltalake(tmp_path / "t", pa.table({"q": values, "n": range(4)}), partition_by=["q"])
    theirs = deltalake.DeltaTable(tmp_path / "t").file_uris(file_pruning_predicate=text)
    assert 0 < len(theirs) < 4
    assert sorted(DeltaTable(tmp_path / "t").file_uris(file_pruning_predicate=text)) == sorted(theirs)


def test_a_number_beside_a_text_that_is_no_partition_is_its_digits_in_sql_or_a_mistake() -> None:
    assert parse_predicate("s = 3", SCHEMA) == parse_predicate("s = '3'", SCHEMA)
    assert parse_predicate("s NOT IN (3, 4)", SCHEMA) == parse_predicate("s NOT IN ('3', '4')", SCHEMA)
    for where in ("s > 3", [("s", "=", 3)]):
        with pytest.raises(PredicateError, match="3 cannot be compared with column 's' of type string"):
            parse_predicate(where, SCHEMA)
    with pytest.raises(PredicateError, match="3 cannot be compared"):  # a CHECK constraint, in which Spark casts
        parse_predicate("s = 3", SCHEMA, numbers_as_text=False)

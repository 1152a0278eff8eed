"""CHECK constraints of a table: enforced where we decide them as Spark does, otherwise refused by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lazydelta import DeltaTable, write_arrow
from lazydelta.errors import UnsupportedFeatureError, WriteError
from tests.scan.hand_log import HandLog

if TYPE_CHECKING:
    from pathlib import Path

_KINDS = {"id": "long", "name": "string", "x": "double", "at": "timestamp", "day": "date"}


def constrained(table: Path, **constraints: str) -> HandLog:
    configuration = {f"delta.constraints.{name}": text for name, text in constraints.items()}
    log = HandLog(table, _KINDS, features=[], configuration=configuration)
    log.protocol = lambda: {"protocol": {"minReaderVersion": 1, "minWriterVersion": 3}}  # type: ignore[method-assign]
    log.commit()
    return log


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("id > 0", [1, 2], [0]),
        ("id > 0", [1], [None]),  # null is not true, and Delta-Spark refuses it too
        ("id > 0 OR id IS NULL", [1, None], [-1]),
        ("id BETWEEN 1 AND 3 AND id != 2", [1, 3], [2]),
        ("`id` IN (1, 2)", [1, 2], [3]),
        ("x > 0", [1.0, float("nan")], [float("-inf")]),  # NaN is Spark's largest number
        ("name LIKE 'a%'", ["a", "ab"], ["b"]),
        ("name IS NOT NULL", [""], [None]),
    ],
)
def test_rows_that_break_a_constraint_do_not_go_in(
    tmp_path: Path, text: str, good: list[object], bad: list[object]
) -> None:
    log = constrained(tmp_path / "t", rule=text)
    column = next(name for name in _KINDS if name in text)
    kind = {"id": pa.int64(), "name": pa.string(), "x": pa.float64()}[column]

    def of(values: list[object]) -> pa.Table:
        return pa.table({column: pa.array(values, kind)})

    write_arrow(log.table, of(good), maintain=False)
    with pytest.raises(WriteError, match=r"1 rows break the table's CHECK constraint 'rule': .*omit such rows"):
        write_arrow(log.table, of([*good, *bad]), maintain=False)
    assert DeltaTable(log.table).version() == 1
    assert DeltaTable(log.table).count() == len(good)


@pytest.mark.parametrize(
    "text", ["length(name) > 3", "id > x", "at > '2026-01-01'", "day <= current_date()", "no_column > 1", "id >"]
)
def test_a_constraint_that_we_cannot_decide_is_refused_by_name_before_anything_is_written(
    tmp_path: Path, text: str
) -> None:
    log = constrained(tmp_path / "t", fine="id > 0", odd=text)
    with pytest.raises(UnsupportedFeatureError, match=r"CHECK constraint 'odd'.*DROP CONSTRAINT odd"):
        write_arrow(log.table, pa.table({"id": [1]}), maintain=False)
    assert not list(log.table.rglob("*.parquet"))


def test_a_constraint_that_the_protocol_does_not_have_is_refused(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", configuration={"delta.constraints.c": "id > 0"})
    log.commit()
    with pytest.raises(UnsupportedFeatureError, match="checkConstraints"):
        write_arrow(log.table, pa.table({"id": [1], "name": ["x"]}), maintain=False)


def test_optimize_packs_a_table_with_constraints_whatever_they_are(tmp_path: Path) -> None:
    """Rows that are only moved have been judged before."""
    log = constrained(tmp_path / "t", rule="id > 0")
    for number in (1, 2, 3):
        write_arrow(log.table, pa.table({"id": [number]}), maintain=False)
    log.configuration["delta.constraints.odd"] = "length(name) > 3"
    log.version = 3
    log.commit(log.metadata())
    table = DeltaTable(log.table)
    table.optimize.compact()
    assert len(table.files().collect()) == 1
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == [1, 2, 3]


@pytest.mark.parametrize(("kind", "longest"), [("varchar(3)", "äöü"), ("char(3)", "abc"), ("VARCHAR( 3 )", "a c")])
def test_texts_are_no_longer_than_spark_lets_the_column_have(tmp_path: Path, kind: str, longest: str) -> None:
    log = limited(tmp_path / "t", "string", kind)
    write_arrow(log.table, pa.table({"name": [longest, None, ""]}), maintain=False)
    with pytest.raises(
        WriteError, match=r"(?i)The column 'name' is .*char.*3.*, and a row has a string of 4 characters"
    ):
        write_arrow(log.table, pa.table({"name": ["ab", f"{longest}x"]}), maintain=False)
    assert DeltaTable(log.table).count() == 3


def test_lengths_within_nested_columns_are_refused_by_name(tmp_path: Path) -> None:
    nested = {"type": "array", "elementType": "string", "containsNull": True}
    log = limited(tmp_path / "t", nested, "array<varchar(3)>")
    with pytest.raises(UnsupportedFeatureError, match=r"The column 'name' is array<varchar\(3\)>, whose lengths"):
        write_arrow(log.table, pa.table({"name": [["a"]]}), maintain=False)


def limited(table: Path, kind: object, note: str) -> HandLog:
    """Make a table as Delta-Spark does for ``VARCHAR(3)``: a text, and a note on its column."""
    log = HandLog(table, {"name": kind}, features=[])
    log.protocol = lambda: {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}  # type: ignore[method-assign]
    log.commit()
    first = table / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(each) for each in first.read_text().splitlines()]
    for each in lines:
        if "metaData" in each:
            schema = json.loads(each["metaData"]["schemaString"])
            schema["fields"][0]["metadata"] = {"__CHAR_VARCHAR_TYPE_STRING": note}
            each["metaData"]["schemaString"] = json.dumps(schema)
    first.write_text("\n".join(map(json.dumps, lines)))
    return log

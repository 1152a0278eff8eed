"""Rows that leave the scanner are those that were written, judged by Python over the rows themselves."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, PredicateWarning
from lazydelta.errors import OptionError, UnknownColumnError
from lazydelta.predicates import parse_predicate, to_arrow_expression
from lazydelta.rows.request import can_be_masked, row_mask
from tests.rows.made_table import SCHEMA, MadeTable, make_rich_table, make_table

Row = dict[str, Any]


def shown(rows: list[Row]) -> list[str]:
    """Rows as texts: NaN equals itself there, and -0.0 is not 0.0."""
    return sorted(map(repr, rows))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_rich_table(tmp_path_factory.mktemp("rich"), seed=7, files=12, rows=80)


def test_all_rows_come_as_they_were_written(made: MadeTable) -> None:
    table = DeltaTable(made.uri).to_pyarrow_table()
    table.validate(full=True)
    assert table.schema == SCHEMA
    assert shown(table.to_pylist()) == shown(made.rows)


def test_rows_keep_the_order_of_files_and_within_them(made: MadeTable) -> None:
    files = {path: index for index, path in enumerate(made.files)}
    order = [file.path for file in DeltaTable(made.uri).files(strategy="reverse")]
    assert order == sorted(order, key=lambda path: -files[path])
    found = [row["id"] for batch in DeltaTable(made.uri).rows(["id"], limit=10**6) for row in batch.to_pylist()]
    assert sorted(found) == sorted(row["id"] for row in made.rows)
    # ids count up through the files, so newest files first means descending runs of ascending ids.
    runs = [found[0]]
    for before, after in itertools.pairwise(found):
        if after < before:
            runs.append(after)
    assert runs == sorted(runs, reverse=True)
    assert len(runs) > 1


def _conditions(rng: random.Random) -> tuple[tuple[Any, ...], Callable[[Row], bool | None]]:
    """Return one condition as our tuple and as Python's own judgement of a row."""
    name, value = rng.choice(
        [
            ("id", rng.randrange(400)),
            ("hour", rng.choice(["2026021022", "2026021023", "2026021100", "1999"])),
            ("n", rng.randrange(-6, 21)),
            ("x", rng.choice([-2.25, 0.0, -0.0, 1.5, 5.0, 1e300, float("inf")])),
            ("s", rng.choice(["", "a", "abc", "m", "x" * 40])),
            ("price", Decimal(rng.randrange(-600, 600)) / 100),
            ("place.row", rng.randrange(6)),
            ("place.name", "abc"),
            ("place.later", rng.randrange(7)),
            ("grown", rng.randrange(1200)),
            ("late", rng.randrange(100)),
        ]
    )

    def get(row: Row) -> Any:
        found: Any = row
        for part in name.split("."):
            found = None if found is None else found[part]
        return found

    op = rng.choice(["=", "!=", "<", "<=", ">", ">=", "in", "is null", "is not null"])
    if op == "is null":
        return (name, op, None), lambda row: get(row) is None
    if op == "is not null":
        return (name, op, None), lambda row: get(row) is not None
    if op == "in":
        values = [value, value]
        return (name, op, values), lambda row: None if get(row) is None else get(row) == value
    judge: dict[str, Callable[[Any], bool]] = {
        "=": lambda found: found == value,
        "!=": lambda found: found != value,
        "<": lambda found: found < value,
        "<=": lambda found: found <= value,
        ">": lambda found: found > value,
        ">=": lambda found: found >= value,
    }
    return (name, op, value), lambda row: None if get(row) is None else judge[op](get(row))


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.one_in(5)
def test_filters_pass_exactly_the_rows_that_python_passes(made: MadeTable, seed: int) -> None:
    rng = random.Random(seed)
    alternatives = [[_conditions(rng) for _ in range(rng.randrange(1, 3))] for _ in range(rng.randrange(1, 3))]
    where = [[condition for condition, _ in each] for each in alternatives]
    columns = rng.choice([None, ["id"], ["x", "id"], ["place.name", "hour", "id"], ["tags", "late"]])
    expected = [row for row in made.rows if any(all(judge(row) for _, judge in each) for each in alternatives)]
    table = DeltaTable(made.uri).to_pyarrow_table(columns=columns, filters=where)
    table.validate(full=True)
    assert shown(table.to_pylist()) == shown([_picked(row, columns) for row in expected])
    assert DeltaTable(made.uri).rows(where=where).count() == len(expected)


def _picked(row: Row, columns: list[str] | None) -> Row:
    if columns is None:
        return row
    place = row["place"]
    return {
        name.split(".")[0]: (None if place is None else {"name": place["name"]}) if "." in name else row[name]
        for name in columns
    }


def test_nested_columns_are_structs_with_the_fields_asked_for(made: MadeTable) -> None:
    stream = DeltaTable(made.uri).rows(["place.later", "id", "place.row"])
    assert stream.schema == pa.schema(
        [("place", pa.struct([("row", pa.int64()), ("later", pa.int64())])), ("id", pa.int64())]
    )
    expected = [
        {
            "place": None if (place := row["place"]) is None else {"row": place["row"], "later": place["later"]},
            "id": row["id"],
        }
        for row in made.rows
    ]
    assert shown(stream.read_all().to_pylist()) == shown(expected)


def test_an_expression_that_we_cannot_read_still_filters_rows(made: MadeTable) -> None:
    odd = pc.equal(pc.bit_wise_and(pc.field("id"), pc.scalar(1)), pc.scalar(1))
    with pytest.warns(PredicateWarning, match="No file can be left out"):
        found = DeltaTable(made.uri).to_pyarrow_table(columns=["s"], filters=odd)
    assert shown(found.to_pylist()) == shown([{"s": row["s"]} for row in made.rows if row["id"] % 2])


@pytest.mark.parametrize("limit", [0, 1, 7, 100, 10**6])
def test_a_limit_gives_that_many_rows_or_all(made: MadeTable, limit: int) -> None:
    found = [row for batch in DeltaTable(made.uri).rows(limit=limit) for row in batch.to_pylist()]
    assert len(found) == min(limit, len(made.rows))
    assert set(shown(found)) <= set(shown(made.rows))


def test_a_limit_with_a_filter_counts_rows_that_pass(made: MadeTable) -> None:
    found = DeltaTable(made.uri).rows(where="n > 10", limit=5).read_all().to_pylist()
    assert len(found) == 5
    assert all(row["n"] > 10 for row in found)


def test_what_makes_no_sense_is_an_error_of_ours(made: MadeTable) -> None:
    table = DeltaTable(made.uri)
    with pytest.raises(OptionError, match="limit"):
        table.rows(limit=-1)
    with pytest.raises(UnknownColumnError, match="nowhere"):
        table.rows(["place.nowhere"])
    with pytest.raises(OptionError, match="named twice"):
        table.rows(["id", "id"])


@pytest.mark.parametrize("seed", range(8))
def test_tables_of_any_shape_read_whole(tmp_path: Path, seed: int) -> None:
    made = make_rich_table(tmp_path / "t", seed=seed, files=4, rows=40)
    table = DeltaTable(made.uri)
    assert shown(table.to_pyarrow_table().to_pylist()) == shown(made.rows)
    assert table.count() == len(made.rows)


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_judged_alike_condition_by_condition_and_by_pyarrows_expression(made: MadeTable, seed: int) -> None:
    rng = random.Random(seed)
    table = DeltaTable(made.uri)
    rows = made.table().combine_chunks()
    alternatives = [[_conditions(rng)[0] for _ in range(rng.randrange(1, 4))] for _ in range(rng.randrange(1, 4))]
    words = ["n not in (1, 2, 3)", "x in (0.0, 1.5)", "not (x > 1.0)", "s like 'a%'", "s not like 'a%'", "x = 'NaN'"]
    for where in (alternatives, f"({rng.choice(words)}) or not ({rng.choice(words)} and {rng.choice(words)})"):
        schema = table._snapshot.schema
        predicate = parse_predicate(where, schema)
        assert predicate is not None
        assert can_be_masked(predicate)
        mask = row_mask(predicate, lambda column: _nested(rows, column.path), rows.num_rows)
        assert repr(rows.filter(mask).to_pylist()) == repr(
            rows.filter(to_arrow_expression(predicate, schema)).to_pylist()
        )


def _nested(rows: pa.Table, path: tuple[str, ...]) -> pa.Array:
    found = rows[path[0]].combine_chunks()
    return pc.struct_field(found, list(path[1:])) if len(path) > 1 else found


@pytest.mark.parametrize(
    ("where", "judge"),
    [
        ("text = 'b'", lambda text: text == "b"),
        ("text != 'b'", lambda text: text is not None and text != "b"),
        ("text in ('a', 'unique 7')", lambda text: text in {"a", "unique 7"}),
        ("text not in ('a', 'b')", lambda text: text is not None and text not in {"a", "b"}),
        ("text like 'unique%'", lambda text: text is not None and text.startswith("unique")),
        ("text not like 'a%'", lambda text: text is not None and not text.startswith("a")),
        ("text is null", lambda text: text is None),
        ("text = 'b' or text is null", lambda text: text is None or text == "b"),
        ("text > 'a' and not (text = 'c')", lambda text: text is not None and text > "a" and text != "c"),
    ],
)
@pytest.mark.parametrize("columns", [["id"], ["text", "id"]])
def test_texts_that_repeat_are_judged_as_all_others(
    tmp_path: Path, where: str, judge: Callable[[str | None], bool], columns: list[str]
) -> None:
    """Row groups of one file in which texts repeat, do not, and repeat again; nulls in all of them."""
    texts: list[str | None] = [[None, "a", "b", "c"][number % 4] for number in range(400)]
    texts += [None if number % 5 == 0 else f"unique {number}" for number in range(400)]
    texts += [[None, "a", "b", "unique 7"][number % 4] for number in range(400)]
    made = make_table(tmp_path, files=1, rows=1, stats=False)
    rows = [{"id": number, "part": 0, "text": text} for number, text in enumerate(texts)]
    pq.write_table(pa.Table.from_pylist(rows, schema=made.schema), made.path / made.files[0], row_group_size=400)
    found = DeltaTable(made.uri).rows(columns, where).read_all()
    assert found.schema == pa.schema([made.schema.field(name) for name in columns])
    assert found["id"].to_pylist() == [number for number, text in enumerate(texts) if judge(text)]
    if "text" in columns:
        assert found["text"].to_pylist() == [text for text in texts if judge(text)]


@pytest.mark.parametrize(("where", "all_pass"), [("1 = 1", True), ("1 = 2", False), ("id = id or 1 = 1", True)])
def test_a_filter_that_names_no_column_passes_all_rows_or_none(made: MadeTable, where: str, all_pass: bool) -> None:  # noqa: FBT001 - a parameter of the test
    found = DeltaTable(made.uri).rows(["id", "s"], where).read_all()
    assert found.num_rows == (len(made.rows) if all_pass else 0)
    assert found.schema.names == ["id", "s"]


def test_an_expression_that_names_no_column_passes_all_rows(made: MadeTable) -> None:
    found = DeltaTable(made.uri).to_pyarrow_dataset().to_table(columns=["s"], filter=pc.scalar(value=True))
    assert found.num_rows == len(made.rows)

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lazydelta
from lazydelta.errors import SchemaMismatchError
from lazydelta.write.create import create_table
from lazydelta.write.evolution import Conformer, grown_schema


def conformed(values: pa.Array, wanted: pa.DataType, *, nullable: bool = True) -> list[Any]:
    """Bring a column to a type, whole and as a slice, and check that the arrays are valid."""
    table = pa.schema([pa.field("c", wanted, nullable=nullable)])
    source = pa.schema([("c", values.type)])
    conform = Conformer(table, source)
    for start in (1, 0):
        batch = conform(pa.RecordBatch.from_arrays([values.slice(start)], schema=source))
        batch.validate(full=True)
        assert batch.schema.equals(table)
        assert batch.num_rows == len(values) - start
    found: list[Any] = batch.column(0).to_pylist()
    return found


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.int8(), pa.int16()),
        (pa.int16(), pa.int32()),
        (pa.int32(), pa.int64()),
        (pa.uint8(), pa.int16()),
        (pa.uint32(), pa.int64()),
        (pa.int16(), pa.float32()),
        (pa.int32(), pa.float64()),
        (pa.int64(), pa.decimal128(19, 0)),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.int8(), pa.decimal128(5, 2)),
        (pa.float16(), pa.float32()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(9, 2), pa.decimal128(12, 3)),
        (pa.decimal256(9, 2), pa.decimal128(9, 2)),
    ],
    ids=str,
)
def test_a_number_is_cast_to_a_type_that_holds_all_its_values(given: pa.DataType, wanted: pa.DataType) -> None:
    assert conformed(pa.array([1, None, 2], pa.int8()).cast(given), wanted) == [1, None, 2]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.int64(), pa.int32()),
        (pa.uint32(), pa.int32()),
        (pa.uint64(), pa.int64()),
        (pa.int64(), pa.float64()),
        (pa.int32(), pa.float32()),
        (pa.int64(), pa.decimal128(18, 0)),
        (pa.float64(), pa.float32()),
        (pa.float64(), pa.int64()),
        (pa.decimal128(9, 2), pa.decimal128(9, 3)),
        (pa.decimal128(9, 2), pa.decimal128(9, 1)),
        (pa.decimal128(9, 2), pa.float64()),
        (pa.bool_(), pa.int8()),
        (pa.int64(), pa.string()),
        (pa.string(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.binary(), pa.string()),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.list_(pa.int64()), pa.list_(pa.int32())),
        (pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int32())])),
        (pa.int64(), pa.struct([("x", pa.int64())])),
        (pa.map_(pa.string(), pa.int64()), pa.list_(pa.int64())),
    ],
    ids=str,
)
def test_a_type_that_cannot_hold_all_values_is_refused_by_name(given: pa.DataType, wanted: pa.DataType) -> None:
    """Before any row is looked at."""
    with pytest.raises(SchemaMismatchError, match=r"Column 'c.*cast the column to"):
        Conformer(pa.schema([("c", wanted)]), pa.schema([("c", given)]))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_text_comes_in_any_encoding(kind: pa.DataType) -> None:
    assert conformed(pa.array(["a", None, "b"]).cast(kind), pa.string()) == ["a", None, "b"]


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view(), pa.binary(1)], ids=str)
def test_binary_comes_in_any_encoding(kind: pa.DataType) -> None:
    assert conformed(pa.array([b"a", None, b"b"], kind), pa.binary()) == [b"a", None, b"b"]


def test_runs_are_decoded() -> None:
    assert conformed(pc.run_end_encode(pa.array([1, 1, None])), pa.int64()) == [1, 1, None]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_an_instant_keeps_its_timestamp_whatever_its_unit_and_zone(unit: str) -> None:
    timestamp = dt.datetime(1965, 3, 1, 12, tzinfo=dt.UTC)
    given = pa.array([timestamp, None], pa.timestamp(unit, "America/New_York"))
    assert conformed(given, pa.timestamp("us", "UTC")) == [timestamp, None]


def test_a_timestamp_finer_than_a_microsecond_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match=r"'c' is timestamp\[ns\] in the data.*would lose data"):
        conformed(pa.array([1000, 1001], pa.timestamp("ns")), pa.timestamp("us"))


def test_a_column_of_nothing_but_nulls_fits_any_type() -> None:
    for wanted in (pa.int64(), pa.list_(pa.int64()), pa.struct([("x", pa.int64())])):
        assert conformed(pa.nulls(2), wanted) == [None, None]


STRUCT = pa.struct([("b", pa.int32()), ("A", pa.large_string())])
WANTED = pa.struct([("a", pa.string()), ("b", pa.int64()), ("c", pa.float64())])
GIVEN = [{"A": "x", "b": 1}, None, {"A": None, "b": 2}]
FOUND = [{"a": "x", "b": 1, "c": None}, None, {"a": None, "b": 2, "c": None}]


def test_fields_of_structs_are_found_by_name_and_missing_ones_are_null() -> None:
    assert conformed(pa.array(GIVEN, STRUCT), WANTED) == FOUND


@pytest.mark.parametrize(
    "kind",
    [pa.list_(STRUCT), pa.large_list(STRUCT), pa.list_view(STRUCT), pa.large_list_view(STRUCT)],
    ids=["list", "large list", "list view", "large list view"],
)
def test_lists_are_cast_by_their_elements(kind: pa.DataType) -> None:
    given = pa.array([GIVEN, None, [], GIVEN[:1]], kind)
    assert conformed(given, pa.list_(pa.field("element", WANTED))) == [FOUND, None, [], FOUND[:1]]


def test_lists_of_fixed_size_become_lists() -> None:
    given = pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2))
    assert conformed(given, pa.list_(pa.int64())) == [[1, 2], None, [3, None]]


def test_maps_are_cast_by_their_keys_and_values() -> None:
    given = pa.array([[("k", GIVEN[0])], None, [], [("l", None)]], pa.map_(pa.large_string(), STRUCT))
    assert conformed(given, pa.map_(pa.string(), WANTED)) == [[("k", FOUND[0])], None, [], [("l", None)]]


def test_a_null_in_a_column_without_nulls_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="1 rows have no value in column 'c', which the table has without"):
        conformed(pa.array([1, None]), pa.int64(), nullable=False)


REQUIRED = pa.field("x", pa.int64(), nullable=False)


@pytest.mark.parametrize(
    ("given", "wanted", "place"),
    [
        (pa.array([{"x": None}]), pa.struct([REQUIRED]), "c.x"),
        (pa.array([[1, None]]), pa.list_(REQUIRED), "c.element"),
        (
            pa.array([[("k", None)]], pa.map_(pa.string(), pa.int64())),
            pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False)),
            "c.value",
        ),
    ],
    ids=["struct", "list", "map"],
)
def test_a_null_inside_a_column_is_refused_where_it_may_not_be(
    given: pa.Array, wanted: pa.DataType, place: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=f"'{place}'"):
        conformed(pa.concat_arrays([given, given]), wanted)


def test_a_field_below_a_null_struct_may_be_null() -> None:
    given = pa.array([{"x": 1}, None], pa.struct([("x", pa.int64())]))
    assert conformed(given, pa.struct([REQUIRED])) == [{"x": 1}, None]


TABLE = pa.schema([pa.field("id", pa.int64(), nullable=False), ("Name", pa.string()), ("d", pa.decimal128(5, 2))])


def test_columns_are_found_by_name_without_regard_to_case_or_order() -> None:
    data = pa.table({"NAME": ["a"], "id": pa.array([1], pa.int32())})
    (batch,) = data.to_batches()
    assert Conformer(TABLE, data.schema)(batch).to_pylist() == [{"id": 1, "Name": "a", "d": None}]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"Name": ["a"]}, r"lacks the column 'id', which the table has as int64 without nulls.*add the column"),
        ({"id": [1], "e": [1]}, r"has the column 'e' of type int64, which the table does not.*schema_mode='merge'"),
        ({"id": [1], "e": [1], "f": [2]}, r"'e' of type int64 \(and 1 more\)"),
        ({"id": [1], "ID": [2]}, r"has the column 'ID' twice"),
        ({"id": ["1"]}, r"'id' is string in the data and int64 in the table"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        Conformer(TABLE, pa.table(columns).schema)


def test_data_that_does_not_fit_leaves_no_file(tmp_path: Path) -> None:
    create_table(tmp_path, TABLE)
    with pytest.raises(SchemaMismatchError):
        lazydelta.write_arrow(tmp_path, pa.table({"id": ["1"]}))
    with pytest.raises(SchemaMismatchError):
        lazydelta.write_arrow(tmp_path, pa.table({"id": pa.array([1, None])}))
    assert list(tmp_path.glob("*.parquet")) == []
    assert lazydelta.DeltaTable(tmp_path).version() == 0


def test_a_new_column_is_added_only_where_it_is_asked_for(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, pa.table({"a": [1]}))
    wider = pa.table({"b": pa.array(["x"]), "a": pa.array([2], pa.int32())})
    with pytest.raises(SchemaMismatchError, match="has the column 'b'"):
        lazydelta.write_arrow(tmp_path, wider)
    assert lazydelta.write_arrow(tmp_path, wider, schema_mode="merge") == 1
    table = lazydelta.DeltaTable(tmp_path)
    assert table.schema() == pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert sorted(table.to_pyarrow_table().to_pylist(), key=repr) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_merging_what_adds_nothing_changes_no_metadata(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, pa.table({"a": [1], "b": ["x"]}))
    lazydelta.write_arrow(tmp_path, pa.table({"B": ["y"]}), schema_mode="merge")
    lines = (tmp_path / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    assert [key for line in lines for key in json.loads(line)] == ["commitInfo", "add"]


def test_a_column_of_the_table_keeps_its_type_when_others_are_merged(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, pa.table({"a": pa.array([1], pa.int32())}))
    with pytest.raises(SchemaMismatchError, match="'a' is int64 in the data and int32 in the table"):
        lazydelta.write_arrow(tmp_path, pa.table({"a": [1], "b": [2]}), schema_mode="merge")


def test_a_wall_clock_that_is_merged_into_a_table_brings_its_feature(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, pa.table({"a": [1]}))
    clock = pa.table({"a": [1], "t": pa.array([0], pa.timestamp("us"))})
    lazydelta.write_arrow(tmp_path, clock, schema_mode="merge")
    table = lazydelta.DeltaTable(tmp_path)
    assert table.protocol().reader_features == ["timestampNtz"]
    assert table.to_pyarrow_table().column("t").null_count == 1


def test_structs_grow_at_any_depth_and_keep_what_the_table_notes_about_them() -> None:
    known = {
        "type": "struct",
        "fields": [
            {
                "name": "s",
                "nullable": True,
                "metadata": {"comment": "kept"},
                "type": {
                    "type": "array",
                    "containsNull": True,
                    "elementType": {
                        "type": "struct",
                        "fields": [{"name": "x", "type": "long", "nullable": False, "metadata": {"comment": "too"}}],
                    },
                },
            }
        ],
    }
    inner = pa.struct([("X", pa.int64()), pa.field("y", pa.decimal128(5, 2), nullable=False)])
    grown = grown_schema(json.dumps(known), pa.schema([("S", pa.large_list(inner))]))
    assert grown is not None
    (field,) = json.loads(grown)["fields"]
    assert field["metadata"] == {"comment": "kept"}
    old, new = field["type"]["elementType"]["fields"]
    assert old == known["fields"][0]["type"]["elementType"]["fields"][0]  # type: ignore[index]
    assert new == {"name": "y", "type": "decimal(5,2)", "nullable": True, "metadata": {}}


def test_a_struct_that_grew_is_read_back(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, pa.table({"s": [{"x": 1}]}))
    lazydelta.write_arrow(tmp_path, pa.table({"s": [{"y": Decimal("1.50")}]}), schema_mode="merge")
    found = lazydelta.DeltaTable(tmp_path).to_pyarrow_table().to_pylist()
    assert sorted(found, key=repr) == [{"s": {"x": 1, "y": None}}, {"s": {"x": None, "y": Decimal("1.50")}}]

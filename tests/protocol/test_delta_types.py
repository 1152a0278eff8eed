"""The schema as an object: deltalake's own classes, given the same, answer the same."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import deltalake.schema as theirs
import polars as pl
import pyarrow as pa
import pytest

import lazydelta.schema as ours
from lazydelta import DeltaTable, create_table

if TYPE_CHECKING:
    from pathlib import Path

PRIMITIVES = [
    *("string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date"),
    *("timestamp", "timestamp_ntz", "void", "decimal(10,2)", "decimal(38,0)"),
]
NOTHING: dict[str, Any] = {}
NOTED = {"comment": "of whom", "number": 3, "flag": True, "nested": {"y": [1, None]}}


def made(package: Any) -> Any:
    """Return a schema with every kind of type, made by a package's classes."""
    primitives = [package.Field(f"c{index}", name) for index, name in enumerate(PRIMITIVES)]
    inner = package.StructType([package.Field("x", "integer", nullable=False), package.Field("when", "timestamp")])
    return package.Schema(
        [
            *primitives,
            package.Field("noted", "string", metadata=NOTED),
            package.Field("list", package.ArrayType(inner, contains_null=False)),
            package.Field("map", package.MapType("string", package.ArrayType("long"), value_contains_null=False)),
            package.Field("struct", inner, nullable=False),
            package.Field("variant", package.VariantType()),
        ]
    )


def test_a_schema_of_every_type_has_the_json_and_the_text_of_deltalakes() -> None:
    mine, expected = made(ours), made(theirs)
    assert json.loads(mine.to_json()) == json.loads(expected.to_json())
    without_notes = [index for index, each in enumerate(mine.fields) if each.name != "noted"]
    assert [repr(mine.fields[index]) for index in without_notes] == [
        repr(expected.fields[index]) for index in without_notes
    ]
    assert mine.fields[len(PRIMITIVES)].metadata == expected.fields[len(PRIMITIVES)].metadata


def test_each_reads_the_others_json() -> None:
    mine, expected = made(ours), made(theirs)
    assert ours.Schema.from_json(expected.to_json()) == mine
    assert theirs.Schema.from_json(mine.to_json()) == expected
    for index, field in enumerate(mine.fields):
        assert ours.Field.from_json(expected.fields[index].to_json()) == field
        assert type(field.type).from_json(field.type.to_json()) == field.type


def test_the_arrow_schema_is_the_one_that_deltalake_gives() -> None:
    mine, expected = made(ours).to_arrow(), pa.schema(made(theirs).to_arrow())
    # The names inside of maps are Arrow's business, and the two libraries have different ones.
    kept = [name for name in mine.names if name != "map"]
    assert [mine.field(name) for name in kept] == [expected.field(name) for name in kept]
    assert [mine.field(name).metadata or {} for name in kept] == [expected.field(name).metadata or {} for name in kept]
    assert mine.field("map").type == pa.map_(pa.string(), pa.field("value", pa.list_(pa.int64()), nullable=False))


def test_the_schema_is_taken_by_whoever_takes_arrows_schemas() -> None:
    schema = ours.Schema([ours.Field("a", "long"), ours.Field("b", ours.ArrayType("string"))])
    assert pa.schema(schema) == schema.to_arrow() == schema.to_pyarrow()
    assert dict(pl.Schema(schema)) == {"a": pl.Int64, "b": pl.List(pl.String)}
    assert theirs.Schema.from_arrow(schema) == theirs.Schema.from_json(schema.to_json())
    assert ours.Schema.from_arrow(theirs.Schema.from_json(schema.to_json())) == schema
    assert pa.field(schema.fields[0]) == pa.field("a", pa.int64())


def test_large_types_are_those_of_deltalake() -> None:
    fields = [ours.Field(*each) for each in (("a", "string"), ("b", "binary"), ("c", "long"))]
    mine = ours.Schema([*fields, ours.Field("l", ours.ArrayType("string"))])
    expected = theirs.Schema.from_json(mine.to_json())
    assert mine.to_arrow(as_large_types=True) == pa.schema(expected.to_arrow(as_large_types=True))


@pytest.mark.parametrize("name", ["int", "decimal", "decimal()", "decimal(39,1)", "decimal(1,39)", "", "array"])
def test_a_name_that_is_no_type_is_a_value_error_of_both(name: str) -> None:
    for package in (ours, theirs):
        with pytest.raises(ValueError):  # noqa: PT011 - the words are each package's own
            package.PrimitiveType(name)


def test_another_type_than_asked_for_is_a_type_error_of_both() -> None:
    for package in (ours, theirs):
        with pytest.raises(TypeError, match="not an array"):
            package.ArrayType.from_arrow(pa.int64())
        with pytest.raises(TypeError, match=r"not primitive|not a primitive"):
            package.PrimitiveType.from_arrow(pa.list_(pa.int64()))
        with pytest.raises(ValueError, match=r"dunder|__arrow_c_schema__"):
            package.Field.from_arrow(3)
        with pytest.raises(ValueError, match=r"EOF|JSON"):
            package.Schema.from_json("{")


def test_equality_looks_at_all_there_is() -> None:
    field = ours.Field("x", "integer", metadata={"a": "b"})
    assert field == ours.Field("x", "integer", metadata={"a": "b"})
    different = [
        ours.Field("y", "integer", metadata={"a": "b"}),
        ours.Field("x", "long", metadata={"a": "b"}),
        ours.Field("x", "integer", nullable=False, metadata={"a": "b"}),
        ours.Field("x", "integer"),
    ]
    assert all(field != each and ours.Schema([field]) != ours.Schema([each]) for each in different)
    assert ours.StructType([field]) != ours.Schema([field])
    assert ours.PrimitiveType("long") != "long"


def test_schemas_travel_between_processes() -> None:
    schema = made(ours)
    assert pickle.loads(pickle.dumps(schema)) == schema  # noqa: S301 - our own bytes


def test_what_a_table_notes_of_its_fields_is_written_back_as_it_was(tmp_path: Path) -> None:
    """Shown as text, as deltalake does, but not lost to those who write the schema."""
    noted = {"delta.typeChanges": [{"fromType": "integer", "toType": "long"}], "comment": "x"}
    text = json.dumps(
        {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": noted}]}
    )
    schema = ours.Schema.from_json(text)
    assert json.loads(schema.to_json()) == json.loads(text)
    assert json.loads(schema.fields[0].metadata["delta.typeChanges"]) == noted["delta.typeChanges"]
    create_table(tmp_path, ours.Schema([ours.Field("a", "long", metadata={"comment": "x"})]))
    assert DeltaTable(tmp_path).schema().fields[0].metadata == {"comment": "x"}


def test_invariants_are_found_at_every_depth() -> None:
    rule = json.dumps({"expression": {"expression": "x > 3"}})
    inner = ours.StructType([ours.Field("x", "long", metadata={"delta.invariants": rule})])
    schema = ours.Schema([ours.Field("s", inner), ours.Field("plain", "long")])
    assert schema.invariants == [("s.x", "x > 3")]

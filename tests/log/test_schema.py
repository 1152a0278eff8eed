"""The table schema: types, names, and the columns that a name means."""

from __future__ import annotations

import json
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from lazydelta.errors import CorruptLogError, UnknownColumnError, UnsupportedFeatureError
from lazydelta.protocol.schema import Decimal, Primitive, TableSchema

Json = dict[str, Any]


def field(name: str, kind: Any, *, nullable: bool = True, **mapping: object) -> Json:
    """Return a field of a schema; ``physical`` and ``id`` map it."""
    keys = {"physical": "delta.columnMapping.physicalName", "id": "delta.columnMapping.id"}
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {keys[k]: v for k, v in mapping.items()}}


def struct(*fields: Json) -> Json:
    return {"type": "struct", "fields": list(fields)}


def array(element: Any, *, nulls: bool = True) -> Json:
    return {"type": "array", "elementType": element, "containsNull": nulls}


def mapping(key: Any, value: Any, *, nulls: bool = True) -> Json:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nulls}


def parse(*fields: Json, partitions: tuple[str, ...] = (), mode: str = "none") -> TableSchema:
    """Parse a schema of these fields."""
    return TableSchema.parse(json.dumps(struct(*fields)), partition_columns=partitions, column_mapping=mode)


# --- types


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("string", pa.string()),
        ("long", pa.int64()),
        ("integer", pa.int32()),
        ("short", pa.int16()),
        ("byte", pa.int8()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("boolean", pa.bool_()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("void", pa.null()),
        ("null", pa.null()),
        ("decimal(38,18)", pa.decimal128(38, 18)),
        ("decimal( 5 , 0 )", pa.decimal128(5, 0)),
        ("decimal", pa.decimal128(10, 0)),
        ("char(3)", pa.string()),
        ("varchar(300)", pa.string()),
    ],
)
def test_every_primitive_type_has_its_arrow_type(name: str, type_: pa.DataType) -> None:
    assert parse(field("a", name)).to_arrow() == pa.schema([pa.field("a", type_)])


def test_nested_types_keep_names_and_nullability() -> None:
    schema = parse(
        field("s", struct(field("x", "long", nullable=False), field("y", "string"))),
        field("l", array("integer", nulls=False), nullable=False),
        field("m", mapping("string", array(struct(field("z", "date"))), nulls=False)),
    )
    inner = pa.list_(pa.field("element", pa.struct([pa.field("z", pa.date32())])))
    assert schema.to_arrow() == pa.schema(
        [
            pa.field("s", pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.string())])),
            pa.field("l", pa.list_(pa.field("element", pa.int32(), nullable=False)), nullable=False),
            pa.field("m", pa.map_(pa.string(), pa.field("value", inner, nullable=False))),
        ]
    )


def test_a_user_defined_type_is_read_as_its_sql_type() -> None:
    kind = {"type": "udt", "class": "org.example.Point", "sqlType": array("double", nulls=False)}
    assert parse(field("p", kind)).field("p").to_arrow().type == pa.list_(
        pa.field("element", pa.float64(), nullable=False)
    )


def test_what_a_schema_leaves_out_is_nullable() -> None:
    text = json.dumps(struct({"name": "a", "type": {"type": "array", "elementType": "long"}}))
    (only,) = TableSchema.parse(text).to_arrow()
    assert only.nullable
    assert only.type.value_field.nullable


def test_the_arrow_schema_is_that_of_deltalake() -> None:
    fields = pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("b", pa.list_(pa.field("element", pa.float32()))),
            pa.field("c", pa.struct([pa.field("d", pa.decimal128(20, 3))])),
            pa.field("e", pa.timestamp("us", "UTC")),
            pa.field("f", pa.timestamp("us")),
            pa.field("g", pa.date32()),
        ]
    )
    text = deltalake.Schema.from_arrow(fields).to_json()
    assert TableSchema.parse(text).to_arrow() == fields


def test_types_print_as_people_write_them() -> None:
    schema = parse(field("s", struct(field("m", mapping("string", array("decimal(5,2)"))))))
    assert str(schema.field("s").type) == "struct<m:map<string,array<decimal(5,2)>>>"


# --- columns


NESTED = (
    field("id", "long"),
    field("a", struct(field("b", struct(field("c", "integer"))), field("d", "string"))),
    field("x.y", "date"),
    field("x", struct(field("y", "double"), field("q.r", "byte"))),
    field("Case", "long"),
    field("day", "date"),
)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("id", ("id",)),
        ("a.b.c", ("a", "b", "c")),
        ("a.d", ("a", "d")),
        ("x.y", ("x.y",)),
        ("`x.y`", ("x.y",)),
        ("x.`y`", ("x", "y")),
        ("x.`q.r`", ("x", "q.r")),
        ("case", ("Case",)),
        ("ID", ("id",)),
        ("A.B.C", ("a", "b", "c")),
        (("x", "y"), ("x", "y")),
    ],
)
def test_a_column_is_found_by_its_dotted_name(name: str | tuple[str, ...], path: tuple[str, ...]) -> None:
    assert parse(*NESTED).column(name).path == path


@pytest.mark.parametrize("name", ["nothing", "a.nothing", "id.x", "a.b.c.d", "", ".", "x."])
def test_a_column_that_is_not_there_is_an_error_that_names_those_that_are(name: str) -> None:
    schema = parse(*NESTED)
    if name == "x.":
        assert schema.column(name).path == ("x",)
        return
    with pytest.raises(UnknownColumnError, match=r"no column.*id, a, x\.y"):
        schema.column(name)


def test_an_exact_name_wins_over_one_in_another_case_and_two_others_are_ambiguous() -> None:
    schema = parse(field("name", "long"), field("NAME", "string"))
    assert (schema.field("name").type, schema.field("NAME").type) == (Primitive("long"), Primitive("string"))
    with pytest.raises(UnknownColumnError):
        schema.field("Name")


def test_partition_columns_are_marked() -> None:
    schema = parse(*NESTED, partitions=("day",))
    assert (schema.column("day").is_partition, schema.column("id").is_partition) == (True, False)
    assert [column.name for column in schema.leaves() if column.is_partition] == ["day"]


def test_leaves_are_all_columns_but_structs_depth_first() -> None:
    schema = parse(*NESTED, field("l", array(struct(field("no", "long")))))
    assert [column.path for column in schema.leaves()] == [
        ("id",),
        ("a", "b", "c"),
        ("a", "d"),
        ("x.y",),
        ("x", "y"),
        ("x", "q.r"),
        ("Case",),
        ("day",),
        ("l",),
    ]


# --- column mapping


MAPPED = (
    field("id", "long", physical="col-1", id=1),
    field("a", struct(field("b", "long", physical="col-3", id=3)), physical="col-2", id=2),
    field("day", "date", physical="col-4", id=4),
)


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_are_stored_under_physical_names(mode: str) -> None:
    schema = parse(*MAPPED, partitions=("day",), mode=mode)
    assert schema.column("a.b").physical_path == ("col-2", "col-3")
    assert schema.physical_partition_columns == ("col-4",)
    assert schema.to_arrow().names == ["id", "a", "day"]
    assert [each.field_id for each in schema.fields] == [1, 2, 4]


def test_physical_names_do_not_count_where_mapping_is_off() -> None:
    schema = parse(*MAPPED, partitions=("day",))
    assert schema.column("a.b").physical_path == ("a", "b")
    assert schema.physical_partition_columns == ("day",)


@pytest.mark.parametrize("mapping", [{"physical": 7}, {"physical": "x", "id": "one"}], ids=str)
def test_a_mapping_of_a_wrong_type_is_corrupt(mapping: Json) -> None:
    with pytest.raises(CorruptLogError, match="column mapping for field 'a'"):
        parse(field("a", "long", **mapping), mode="name")


# --- damage


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        '"long"',
        '{"type": "array", "elementType": "long"}',
        '{"type": "struct"}',
        '{"type": "struct", "fields": {}}',
        '{"type": "struct", "fields": [7]}',
        '{"type": "struct", "fields": [{"type": "long"}]}',
        '{"type": "struct", "fields": [{"name": "a"}]}',
        '{"type": "struct", "fields": [{"name": "a", "type": 7}]}',
        '{"type": "struct", "fields": [{"name": "a", "type": {"type": "tensor"}}]}',
        '{"type": "struct", "fields": [{"name": "a", "type": "long", "metadata": [1]}]}',
        '{"type": "struct", "fields": [{"name": "a", "type": "decimal(39,0)"}]}',
        '{"type": "struct", "fields": [{"name": "a", "type": "decimal(5,6)"}]}',
        '{"type": "struct", "fields": [{"name": "a", "type": "decimal(5,-1)"}]}',
        '{"type": "struct", "fields": [{"name": "a", "type": "decimal(0,0)"}]}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:80],
)
def test_a_schema_that_cannot_be_read_is_corrupt_and_its_origin_named(text: str) -> None:
    with pytest.raises(CorruptLogError, match=r"7\.json") as caught:
        TableSchema.parse(text, origin="7.json")
    assert caught.value.path == "7.json"


def test_a_schema_nested_without_end_is_corrupt() -> None:
    kind: Any = "long"
    for _ in range(150):
        kind = array(kind)
    with pytest.raises(CorruptLogError, match="nested more than"):
        parse(field("a", kind))


@pytest.mark.parametrize("kind", ["Variant", "geometry", "interval day", "LONG"])
def test_a_type_that_we_do_not_read_is_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=kind) as caught:
        parse(field("a", kind))
    assert caught.value.features == (kind,)


def test_a_partition_column_that_is_not_in_the_schema_is_corrupt() -> None:
    with pytest.raises(CorruptLogError, match="'day'"):
        parse(field("a", "long"), partitions=("day",))


def test_decimals_are_equal_by_precision_and_scale() -> None:
    assert parse(field("a", "decimal(7,2)")).field("a").type == Decimal(7, 2)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lazydelta.data_files.reader import RowReader
from lazydelta.errors import CorruptLogError, DataFileError
from tests.rows.files import array_of, column, inline_vector, map_of, rows, schema_of, struct_type, write

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.protocol.schema import TableSchema
    from lazydelta.storage import Store

# One table as people see it and as its files keep it: the same ids, other names, fields in another order,
# fields that were dropped from the table (old-…) and one that the files never had (late).
LOGICAL = [
    {
        "n": 1,
        "s": {"x": 1, "late": None, "deep": {"y": "a"}},
        "l": [{"x": 1}, None, {"x": 2}],
        "m": [("k", {"x": 5}), ("l", None)],
        "ll": [[1, None], None, []],
    },
    {"n": 2, "s": None, "l": None, "m": None, "ll": None},
    {"n": 3, "s": {"x": None, "late": None, "deep": None}, "l": [], "m": [], "ll": []},
]


def mapped_schema(mapping: str) -> TableSchema:
    fields = [
        column("n", "long", physical="c1", id_=1),
        column(
            "s",
            struct_type(
                column("x", "long", physical="c3", id_=3),
                column("late", "string", physical="c9", id_=9),
                column("deep", struct_type(column("y", "string", physical="c5", id_=5)), physical="c4", id_=4),
            ),
            physical="c2",
            id_=2,
        ),
        column("l", array_of(struct_type(column("x", "long", physical="c7", id_=7))), physical="c6", id_=6),
        column("m", map_of("string", struct_type(column("x", "long", physical="c11", id_=11))), physical="c10", id_=10),
        column("ll", array_of(array_of("integer")), physical="c12", id_=12),
    ]
    return schema_of(*fields, mapping=mapping)


def stored(name: str, kind: pa.DataType, id_: int, *, ids: bool) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(id_)} if ids else None)


def mapped_file(*, ids: bool, scrambled: bool) -> pa.Table:
    """Write the rows as files keep them; ``scrambled`` names are right by id only."""

    def field(name: str, kind: pa.DataType, id_: int) -> pa.Field:
        return stored(f"q{id_ * 7 % 13}" if scrambled else name, kind, id_, ids=ids)

    deep = pa.struct([field("old-1", pa.int32(), 20), field("c5", pa.string(), 5)])
    inner = pa.struct([field("c4", deep, 4), field("old-2", pa.float64(), 21), field("c3", pa.int64(), 3)])
    listed = pa.list_(pa.struct([field("old-3", pa.bool_(), 22), field("c7", pa.int64(), 7)]))
    mapped = pa.map_(pa.string(), pa.struct([field("c11", pa.int64(), 11), field("old-4", pa.int64(), 23)]))
    fields = [
        field("c12", pa.list_(pa.list_(pa.int32())), 12),
        field("c10", mapped, 10),
        field("c6", listed, 6),
        field("c2", inner, 2),
        field("c1", pa.int64(), 1),
    ]

    def pack(kind: pa.DataType, *values: Any) -> dict[str, Any]:
        return {kind.field(index).name: value for index, value in enumerate(values)}

    columns = [
        [[[1, None], None, []], None, []],
        [[("k", pack(mapped.item_type, 5, 1)), ("l", None)], None, []],
        [[pack(listed.value_type, True, 1), None, pack(listed.value_type, None, 2)], None, []],  # noqa: FBT003
        [pack(inner, pack(deep, 1, "a"), 0.5, 1), None, pack(inner, None, None, None)],
        [1, 2, 3],
    ]
    arrays = [pa.array(values, each.type) for values, each in zip(columns, fields, strict=True)]
    return pa.table(arrays, schema=pa.schema(fields))


def test_name_mode_finds_columns_by_physical_name_at_every_level(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, mapped_file(ids=False, scrambled=False))
    assert rows(store, mapped_schema("name"), file) == LOGICAL


@pytest.mark.parametrize("scrambled", [False, True])
def test_id_mode_finds_columns_by_field_id_at_every_level(store: Store, tmp_path: Path, scrambled: bool) -> None:  # noqa: FBT001
    file = write(tmp_path, mapped_file(ids=True, scrambled=scrambled))
    assert rows(store, mapped_schema("id"), file) == LOGICAL


def test_id_mode_refuses_a_file_without_ids(store: Store, tmp_path: Path) -> None:
    file = write(tmp_path, mapped_file(ids=False, scrambled=False))
    with pytest.raises(DataFileError, match="no field ids"):
        rows(store, mapped_schema("id"), file)


def test_id_mode_does_not_fall_back_to_names(store: Store, tmp_path: Path) -> None:
    schema = schema_of(column("a", "long", physical="c1", id_=1), mapping="id")
    table = pa.table([pa.array([5])], schema=pa.schema([stored("c1", pa.int64(), 2, ids=True)]))
    assert rows(store, schema, write(tmp_path, table)) == [{"a": None}]


def test_id_mode_needs_an_id_for_every_column_of_the_schema(store: Store) -> None:
    schema = schema_of(column("s", struct_type(column("x", "long")), physical="c1", id_=1), mapping="id")
    with pytest.raises(CorruptLogError, match=r"'s\.x'"):
        RowReader(store, schema)


def test_mapped_partition_values_are_found_by_physical_name(store: Store, tmp_path: Path) -> None:
    schema = schema_of(
        column("a", "long", physical="c1", id_=1),
        column("p", "long", physical="c2", id_=2),
        partitions=["p"],
        mapping="name",
    )
    file = write(tmp_path, pa.table({"c1": [1]}))
    file.partition_values = {"c2": "7", "p": "8"}
    assert rows(store, schema, file) == [{"a": 1, "p": 7}]


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_nested_values_survive_small_batches_and_deleted_rows(store: Store, tmp_path: Path, batch_size: int) -> None:
    """Batches are slices and filtered arrays, whose offsets and nulls must be carried along."""
    kind = struct_type(column("x", "long"), column("late", "long"))
    schema = schema_of(
        column("a", array_of(kind)),
        column("m", map_of("integer", array_of(kind))),
        column("s", struct_type(column("v", array_of("long")), column("k", kind))),
    )
    values: list[dict[str, Any]] = []
    for index in range(50):
        item = {"x": index}
        values.append(
            {
                "a": None if index % 7 == 0 else [item if index % 3 else None] * (index % 4),
                "m": None if index % 5 == 0 else [(key, [item, None]) for key in range(index % 3)],
                "s": None
                if index % 6 == 0
                else {"v": None if index % 4 else [index], "k": item if index % 2 else None},
            }
        )
    small = pa.struct([("x", pa.int32())])
    kinds = [
        ("a", pa.list_(small)),
        ("m", pa.map_(pa.int32(), pa.list_(small))),
        ("s", pa.struct([("v", pa.list_(pa.int16())), ("k", small)])),
    ]
    file = write(tmp_path, pa.Table.from_pylist(values, schema=pa.schema(kinds)), row_group_size=13)
    gone = [0, 3, 12, 13, 14, 30, 49]
    file.deletion_vector = inline_vector(gone)

    def late(item: dict[str, Any] | None) -> dict[str, Any] | None:
        return None if item is None else {**item, "late": None}

    expected = [
        {
            "a": None if each["a"] is None else [late(item) for item in each["a"]],
            "m": None if each["m"] is None else [(key, [late(item) for item in items]) for key, items in each["m"]],
            "s": None if each["s"] is None else {"v": each["s"]["v"], "k": late(each["s"]["k"])},
        }
        for index, each in enumerate(values)
        if index not in gone
    ]
    assert rows(store, schema, file, batch_size=batch_size) == expected


def test_a_struct_of_which_the_file_has_no_field_is_null_only_where_the_file_says_so(
    store: Store, tmp_path: Path
) -> None:
    schema = schema_of(column("s", struct_type(column("new", "long"))))
    file = write(tmp_path, pa.table({"s": [{"old": 1, "older": 2}, None, {"old": None, "older": None}]}))
    assert rows(store, schema, file) == [{"s": {"new": None}}, {"s": None}, {"s": {"new": None}}]


def test_fields_of_a_struct_that_are_not_in_the_table_are_not_read(store: Store, tmp_path: Path) -> None:
    schema = schema_of(column("s", struct_type(column("x", "long"))))
    table = pa.table({"s": [{"big": str(index) * 200_000, "x": index} for index in range(20)]})
    file = write(tmp_path, table, compression="none", use_dictionary=False)
    before = store.counters.bytes_read
    assert rows(store, schema, file) == [{"s": {"x": index}} for index in range(20)]
    assert store.counters.bytes_read - before < file.size / 4


@pytest.mark.parametrize("kind", [pa.large_list(pa.int32()), pa.list_(pa.int32(), 2)], ids=str)
def test_lists_of_other_layouts_become_plain_lists(store: Store, tmp_path: Path, kind: pa.DataType) -> None:
    schema = schema_of(column("a", array_of("long")))
    file = write(tmp_path, pa.table({"a": pa.array([[1, 2], None, [3, None]], kind)}))
    assert rows(store, schema, file) == [{"a": [1, 2]}, {"a": None}, {"a": [3, None]}]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (struct_type(column("x", "long")), [1]),
        (array_of("long"), [1]),
        ("long", [[1]]),
        (map_of("string", "long"), [{"x": 1}]),
        (array_of(struct_type(column("x", "long"))), [[{"x": "text"}]]),
    ],
    ids=["struct", "list", "primitive", "map", "inside a list"],
)
def test_another_shape_in_the_file_is_an_error_that_names_column_file_and_types(
    store: Store, tmp_path: Path, kind: object, values: list[object]
) -> None:
    schema = schema_of(column("a", kind))
    file = write(tmp_path, pa.table({"a": values}))
    with pytest.raises(DataFileError, match=r"Column 'a.*part-0\.parquet has type .* cannot be read as "):
        rows(store, schema, file)

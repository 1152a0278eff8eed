"""Columns of type variant: handed on as the two binaries that they are stored as, or refused, never half read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lazydelta
from lazydelta.errors import DataFileError, PredicateError, UnknownColumnError, UnsupportedFeatureError
from lazydelta.protocol.features import READER_FEATURES
from tests.oracle.rows import plain_rows, plain_types
from tests.rows.files import array_of, column, map_of, rows, schema_of, struct_type, write
from tests.scan.hand_log import HandLog, add

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.storage import Store

STORED = pa.struct([pa.field("value", pa.binary(), nullable=False), pa.field("metadata", pa.binary(), nullable=False)])
SHOWN = pa.struct([pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)])
ONE = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x01"}
NULL = {"metadata": b"\x01\x00\x00", "value": b"\x00"}
SHREDDED = pa.struct([("metadata", pa.binary()), ("value", pa.binary()), ("typed_value", pa.int64())])


def variants(*values: Any, kind: pa.DataType = STORED) -> pa.Array:
    return pa.array(list(values), kind)


def variant_table(folder: Path, table: pa.Table, stats: dict[str, Any] | None = None) -> str:
    """Log a table of one file whose columns are ``id`` and the variant ``v``."""
    log = HandLog(folder, {"id": "long", "v": "variant"}, features=["variantType"])
    pq.write_table(table, folder / "part.parquet")
    logged = add("part.parquet", records=table.num_rows, stats=stats)
    logged["add"]["size"] = (folder / "part.parquet").stat().st_size
    log.commit(logged)
    return str(folder)


def test_a_variant_comes_as_metadata_and_value_wherever_it_stands(store: Store, tmp_path: Path) -> None:
    """At the top, in a struct, a list and a map, with nulls, and in files without the column."""
    inner = pa.struct([("v", STORED)])
    file = write(
        tmp_path,
        pa.table(
            {
                "v": variants(ONE, None, NULL),
                "s": pa.array([{"v": ONE}, {"v": None}, None], inner),
                "l": pa.array([[ONE, None], [], None], pa.list_(STORED)),
                "m": pa.array([[("k", ONE)], [("k", None)], None], pa.map_(pa.string(), STORED)),
            }
        ),
    )
    schema = schema_of(
        column("v", "variant"),
        column("s", struct_type(column("v", "variant"))),
        column("l", array_of("variant")),
        column("m", map_of("string", "variant")),
        column("later", "variant"),
    )
    assert schema.to_arrow().field("v").type == SHOWN
    assert rows(store, schema, file) == [
        {"v": ONE, "s": {"v": ONE}, "l": [ONE, None], "m": [("k", ONE)], "later": None},
        {"v": None, "s": {"v": None}, "l": [], "m": [("k", None)], "later": None},
        {"v": NULL, "s": None, "l": None, "m": None, "later": None},
    ]


def test_fields_that_begin_with_an_underscore_are_ignored(store: Store, tmp_path: Path) -> None:
    """The protocol lets writers add such fields."""
    kind = pa.struct([("_note", pa.int32()), *SHOWN])
    file = write(tmp_path, pa.table({"v": variants({**ONE, "_note": 3}, kind=kind)}))
    assert rows(store, schema_of(column("v", "variant")), file) == [{"v": ONE}]


def test_a_shredded_variant_is_refused_when_it_is_read_and_only_then(store: Store, tmp_path: Path) -> None:
    """Half of its values lie in typed columns: the other half alone would be a wrong answer."""
    table = pa.table({"v": variants({**ONE, "typed_value": 7}, kind=SHREDDED), "a": [1]})
    file = write(tmp_path, table)
    schema = schema_of(column("v", "variant"), column("a", "long"))
    with pytest.raises(UnsupportedFeatureError, match=r"'v' of data file part-0\.parquet is a shredded") as caught:
        rows(store, schema, file)
    assert caught.value.features == ("variantShredding",)
    assert rows(store, schema, file, columns=["a"]) == [{"a": 1}]


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        (pa.struct([("value", pa.binary())]), {"value": b"\x00"}, "cannot be read as variant"),
        (pa.struct([("value", pa.int64()), ("metadata", pa.binary())]), {"value": 1}, "cannot be read as variant"),
        (pa.string(), "{}", "cannot be read as variant"),
        (pa.struct([("value", pa.binary()), ("metadata", pa.binary())]), {"value": b"\x00"}, "without value or"),
    ],
    ids=["no metadata", "a number for the value", "text", "a null inside"],
)
def test_what_is_no_variant_is_an_error(
    store: Store, tmp_path: Path, kind: pa.DataType, value: Any, named: str
) -> None:
    """The error names the column and the file."""
    file = write(tmp_path, pa.table({"v": pa.array([value], kind)}))
    with pytest.raises(DataFileError, match=rf"'v' of data file part-0\.parquet.*{named}"):
        rows(store, schema_of(column("v", "variant")), file)


def test_rows_and_types_are_those_of_deltalake(tmp_path: Path) -> None:
    """It shows the same struct, in the same order of fields."""
    uri = variant_table(tmp_path, pa.table({"id": [1, 2, 3], "v": variants(ONE, None, NULL)}))
    ours, theirs = lazydelta.DeltaTable(uri).to_pyarrow_table(), deltalake.DeltaTable(uri).to_pyarrow_table()
    assert plain_types(ours.schema) == plain_types(theirs.schema)
    assert plain_rows(ours) == plain_rows(theirs)
    assert ours.schema.field("v").type == SHOWN


@pytest.mark.parametrize("base", ["tail", "checkpoint", "struct"])
def test_bounds_of_a_variant_prune_nothing(base: str, tmp_path: Path) -> None:
    """Writers that shred log bounds in a text encoding of their own."""
    log = HandLog(tmp_path, {"id": "long", "v": "variant"}, features=["variantType", "variantShredding"])
    stats = {
        "minValues": {"id": 1, "v": "0rr910"},
        "maxValues": {"id": 5, "v": "0rr911"},
        "nullCount": {"id": 0, "v": 1},
    }
    log.commit(add("one", records=3, stats=stats), add("two"))
    if base != "tail":
        log.checkpoint(stats="json" if base == "checkpoint" else "both")
    table = lazydelta.DeltaTable(str(tmp_path))
    assert {file.path for file in table.files("v IS NULL AND id = 3")} == {"one", "two"}
    assert {file.path for file in table.files("v IS NOT NULL")} == {"one", "two"}
    assert {file.path for file in table.files("id > 9")} == {"two"}
    with pytest.raises(PredicateError, match="'v' of type variant"):
        table.files("v = 'x'")
    with pytest.raises(UnknownColumnError):
        table.files("v.metadata IS NULL")
    batch = next(iter(table.files(stats_columns=["v", "id"]).batches()))
    known = {row["path"]: row for row in batch.to_pylist()}["one"]
    assert (known["min.v"], known["max.v"], known["null_count.v"], known["max.id"]) == (None, None, 1, 5)


def test_a_variant_in_a_sidecar_has_no_range(tmp_path: Path) -> None:
    """The sidecar of such a table builds, verifies, and finds the same files."""
    log = HandLog(tmp_path, {"id": "long", "v": "variant"}, features=["variantType"])
    stats = {"minValues": {"id": 1}, "maxValues": {"id": 5}, "nullCount": {"id": 0, "v": 1}}
    log.commit(add("one", records=3, stats=stats), add("two", ids=(7, 9)))
    log.checkpoint()
    lazydelta.sidecar.build(tmp_path)
    assert lazydelta.sidecar.verify(tmp_path).problems == []
    stream = lazydelta.DeltaTable(str(tmp_path)).files("id < 6 AND v IS NULL")
    assert [file.path for file in stream] == ["one"]
    assert stream.metrics.tier == 1


def test_a_table_that_deltalake_makes_with_deletion_vectors_is_read(tmp_path: Path) -> None:
    """It lists variantType in every table of reader version 3, whatever its columns."""
    rows = pa.table({"id": range(10)})
    deltalake.write_deltalake(tmp_path, rows, configuration={"delta.enableDeletionVectors": "true"})
    table = lazydelta.DeltaTable(tmp_path)
    assert "variantType" in (table.protocol().reader_features or ())
    assert plain_rows(table.to_pyarrow_table()) == plain_rows(rows)


def test_such_a_table_is_written_to_as_well_unless_it_has_a_variant(tmp_path: Path) -> None:
    """A feature that no column uses asks nothing of a writer; a column that uses it is refused by name."""
    rows = pa.table({"id": range(10)})
    deltalake.write_deltalake(tmp_path / "plain", rows, configuration={"delta.enableDeletionVectors": "true"})
    lazydelta.write_arrow(tmp_path / "plain", rows)
    theirs = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(tmp_path / "plain"))
    assert pa.table(theirs.execute("select * from t")).num_rows == 20
    uri = variant_table(tmp_path / "variants", pa.table({"id": [1], "v": variants(ONE)}))
    with pytest.raises(UnsupportedFeatureError, match=r"variantType \(the column 'v'\)") as caught:
        lazydelta.write_arrow(uri, pa.table({"id": [2]}))
    assert caught.value.features == ("variantType",)
    nested = HandLog(tmp_path / "nested", {"id": "long", "l": json.loads(json.dumps(array_of("variant")))})
    nested.features = ["variantType"]
    nested.commit()
    with pytest.raises(UnsupportedFeatureError, match=r"variantType \(the column 'l'\)"):
        lazydelta.write_arrow(tmp_path / "nested", pa.table({"id": [2]}))


def test_every_name_of_the_feature_is_known() -> None:
    """The previews went by names of their own."""
    names = {f"variant{what}{end}" for what in ("Type", "Shredding") for end in ("", "-preview")}
    assert names <= READER_FEATURES

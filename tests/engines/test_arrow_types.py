"""Every Arrow type that a writer may name in a file's Arrow schema is read by every way in, or refused by name."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, write_deltalake
from lazydelta.errors import DataFileError, PredicateError
from tests.engines.engine_queries import over_datafusion, over_duckdb
from tests.rows.files import array_of, column, inline_vector, map_of, struct_type

UTC = dt.UTC
pytestmark = pytest.mark.filterwarnings("ignore::lazydelta.warned.PredicateWarning")

AT = dt.datetime(2026, 2, 10, 12, tzinfo=UTC)
DAY = dt.date(2026, 2, 10)


class Case(NamedTuple):
    """A type as a file names it, the table's type, three values; ``plain`` where PyArrow can write only that."""

    named: pa.DataType
    wanted: Any
    values: list[Any]
    plain: pa.DataType | None = None


READ = [
    Case(pa.string_view(), "string", ["ab", "", None]),
    Case(pa.large_string(), "string", ["ab", "", None]),
    Case(pa.binary_view(), "binary", [b"ab", b"", None]),
    Case(pa.large_binary(), "binary", [b"ab", b"", None]),
    Case(pa.binary(2), "binary", [b"ab", b"cd", None]),
    *(
        Case(pa.dictionary(codes, pa.string()), "string", ["ab", "", None])
        for codes in (pa.int8(), pa.int32(), pa.int64())
    ),
    Case(pa.dictionary(pa.uint16(), pa.large_string()), "string", ["ab", "", None]),
    Case(pa.dictionary(pa.int32(), pa.string_view()), "string", ["ab", "", None], pa.string()),
    Case(pa.dictionary(pa.int32(), pa.binary()), "binary", [b"ab", b"", None]),
    Case(pa.dictionary(pa.int32(), pa.int64()), "long", [1, 2, None]),
    Case(pa.run_end_encoded(pa.int32(), pa.string()), "string", ["ab", "", None], pa.string()),
    Case(pa.run_end_encoded(pa.int16(), pa.int64()), "long", [1, 2, None], pa.int64()),
    Case(pa.float16(), "float", [1.5, -0.25, None]),
    Case(pa.float16(), "double", [1.5, -0.25, None]),
    Case(pa.float32(), "double", [1.5, -0.25, None]),
    Case(pa.uint8(), "short", [1, 255, None]),
    Case(pa.uint32(), "long", [1, 2**32 - 1, None]),
    Case(pa.date64(), "date", [DAY, dt.date(1969, 12, 31), None]),
    Case(pa.timestamp("s", "Europe/Berlin"), "timestamp", [AT, AT, None]),
    Case(pa.timestamp("ns", "UTC"), "timestamp", [AT, AT, None]),
    Case(pa.timestamp("ns"), "timestamp_ntz", [AT.replace(tzinfo=None), AT.replace(tzinfo=None), None]),
    Case(pa.decimal32(6, 2), "decimal(6,2)", [Decimal("1.25"), Decimal("-9.50"), None]),
    Case(pa.decimal64(12, 2), "decimal(12,2)", [Decimal("1.25"), Decimal("-9.50"), None]),
    Case(pa.decimal256(20, 2), "decimal(20,2)", [Decimal("1.25"), Decimal("-9.50"), None]),
    Case(pa.json_(), "string", ["{}", "[1]", None]),
    Case(pa.uuid(), "binary", [b"0123456789abcdef", b"fedcba9876543210", None]),
    Case(pa.null(), "string", [None, None, None]),
    Case(pa.large_list(pa.string()), array_of("string"), [["a"], [], None]),
    Case(pa.list_(pa.string(), 1), array_of("string"), [["a"], ["b"], None]),
    Case(pa.list_view(pa.string()), array_of("string"), [["a", "b"], [], None]),
    Case(pa.large_list_view(pa.int64()), array_of("long"), [[1, 2], [], None]),
    Case(pa.list_(pa.string_view()), array_of("string"), [["a"], [], None]),
    Case(
        pa.list_(pa.dictionary(pa.int32(), pa.string())), array_of("string"), [["a"], [], None], pa.list_(pa.string())
    ),
    Case(pa.struct([("x", pa.string_view())]), struct_type(column("x", "string")), [{"x": "a"}, {"x": None}, None]),
    Case(pa.map_(pa.string_view(), pa.string_view()), map_of("string", "string"), [[("a", "b")], [], None]),
]
REFUSED = [
    Case(pa.duration("us"), "string", [1, 2, None]),
    Case(pa.time32("ms"), "string", [dt.time(1), dt.time(2), None]),
    Case(pa.time64("us"), "long", [dt.time(1), dt.time(2), None]),
    Case(pa.uint64(), "long", [1, 2**64 - 1, None]),
    Case(pa.decimal256(50, 2), "decimal(38,2)", [Decimal("1.25"), Decimal("2.50"), None]),
    Case(pa.bool8(), "boolean", [1, 0, None]),
]


def _array(case: Case) -> pa.Array:
    if isinstance(case.named, pa.UuidType | pa.Bool8Type):
        return pa.ExtensionArray.from_storage(case.named, pa.array(case.values, case.named.storage_type))
    return pa.array(case.values, case.plain or case.named)


def _write(path: Path, case: Case, first: int) -> None:
    """Write three rows: ids, words that are views, and the case's column, under the Arrow schema of the case."""
    words = pa.array(["a", "b", "cb"], pa.string_view())
    table = pa.table({"id": pa.array(range(first, first + 3)), "word": words, "v": _array(case)})
    named = table.schema.set(2, pa.field("v", case.named))
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"ARROW:schema": base64.b64encode(named.serialize().to_pybytes()).decode()})


def _make(folder: Path, case: Case) -> str:
    """Make a table of two files by hand: ids 0 to 2, and 3 to 5 without 4, which a deletion vector has."""
    fields = struct_type(column("id", "long"), column("word", "string"), column("v", case.wanted))
    metadata = {
        "id": "0",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(fields),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 0,
    }
    features = ["deletionVectors", "timestampNtz"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    lines: list[dict[str, Any]] = [{"protocol": protocol}, {"metaData": metadata}]
    (folder / "_delta_log").mkdir(parents=True)
    for number, deleted in enumerate([[], [1]]):
        path = folder / f"part-{number}.parquet"
        _write(path, case, 3 * number)
        add: dict[str, Any] = {
            "path": path.name,
            "size": path.stat().st_size,
            "partitionValues": {},
            "modificationTime": 0,
            "dataChange": True,
            "stats": '{"numRecords":3}',
        }
        if deleted:
            vector = inline_vector(deleted)
            add["deletionVector"] = {
                "storageType": vector.storage_type,
                "pathOrInlineDv": vector.path_or_inline_dv,
                "sizeInBytes": vector.size_in_bytes,
                "cardinality": vector.cardinality,
            }
        lines.append({"add": add})
    (folder / "_delta_log" / f"{0:020}.json").write_text("\n".join(json.dumps(each) for each in lines))
    return str(folder)


def _deleted(uri: str) -> pa.Table:
    DeltaTable(uri).delete("word like '%b' and id >= 5")
    return DeltaTable(uri).rows().read_all()


def _updated(uri: str) -> pa.Table:
    DeltaTable(uri).update({"word": "'new'"}, predicate="word = 'cb'")
    found = DeltaTable(uri).rows().read_all()
    assert sorted(found["word"].to_pylist()) == ["a", "a", "b", "new"]
    return found


def _optimized(uri: str) -> pa.Table:
    assert DeltaTable(uri).optimize.compact()["numFilesAdded"] == 1
    return DeltaTable(uri).rows().read_all()


# How the table is read, and the ids that are found; what changes the table comes last, one after the other.
WAYS: list[tuple[str, Callable[[str], pa.Table], set[int]]] = [
    ("rows", lambda uri: DeltaTable(uri).rows().read_all(), {0, 1, 2, 3, 5}),
    # A pattern that begins with a wildcard is left to an expression, the comparison is judged by kernels.
    ("rows by an expression", lambda uri: DeltaTable(uri).rows(where="word like '%b'").read_all(), {1, 2, 5}),
    ("rows by a comparison", lambda uri: DeltaTable(uri).rows(where="word >= 'b'").read_all(), {1, 2, 5}),
    ("rows by the column", lambda uri: DeltaTable(uri).rows(where="v is not null").read_all(), {0, 1, 3}),
    ("dataset", lambda uri: DeltaTable(uri).to_pyarrow_dataset().to_table(), {0, 1, 2, 3, 5}),
    ("duckdb", lambda uri: over_duckdb(DeltaTable(uri), "SELECT * FROM t WHERE word > 'a'"), {1, 2, 5}),
    ("datafusion", lambda uri: over_datafusion(DeltaTable(uri), "SELECT * FROM t WHERE word > 'a'"), {1, 2, 5}),
    ("polars", lambda uri: DeltaTable(uri).to_polars().collect().to_arrow(), {0, 1, 2, 3, 5}),
    ("delete", _deleted, {0, 1, 2, 3}),
    ("update", _updated, {0, 1, 2, 3}),
    ("optimize", _optimized, {0, 1, 2, 3}),
]


@pytest.mark.parametrize("case", READ, ids=lambda case: f"{case.named} as {case.wanted}"[:60])
def test_a_type_of_the_files_arrow_schema_is_read(tmp_path: Path, case: Case) -> None:
    uri = _make(tmp_path, case)
    for way, read, ids in WAYS:
        found = {row["id"]: _shown(row["v"], case) for row in read(uri).to_pylist()}
        known = {id_ for id_ in ids if way != "rows by the column" or case.values[id_ % 3] is not None}
        assert found == {id_: case.values[id_ % 3] for id_ in known}, way


def _shown(value: Any, case: Case) -> Any:
    # Polars has no maps: it shows lists of structs.
    if value is not None and pa.types.is_map(case.named):
        return [tuple(each.values()) if isinstance(each, dict) else each for each in value]
    return value


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.named} as {case.wanted}")
def test_a_type_that_the_table_cannot_have_is_refused_by_name(tmp_path: Path, case: Case) -> None:
    uri = _make(tmp_path, case)
    for way, read, _ in WAYS:
        with pytest.raises(Exception, match=r"Column 'v' of data file part-\d.parquet .* cannot be read as") as caught:
            read(uri)
        # Engines wrap what a source raises in errors of their own.
        assert way in {"duckdb", "datafusion", "polars"} or isinstance(caught.value, DataFileError), way
    assert DeltaTable(uri).version() == 0


def test_a_column_and_a_maximum_named_like_the_arrow_schema_are_left_alone(tmp_path: Path) -> None:
    # The footer has the name of the column, and a maximum beside a minimum that looks like an Arrow schema.
    table = pa.table({"ARROW:schema": ["/////w", "ARROW:schema"], "n": [1, 2]})
    write_deltalake(str(tmp_path), table)
    found = DeltaTable(str(tmp_path)).rows(where="`ARROW:schema` >= 'ARROW:schema'").read_all()
    assert found.to_pylist() == [{"ARROW:schema": "ARROW:schema", "n": 2}]


def test_a_long_text_that_is_not_ascii_can_be_looked_for_and_deleted(tmp_path: Path) -> None:
    # PyArrow cuts it in the middle of a character to show the expression.
    long = "a" + "ü" * 60
    write_deltalake(str(tmp_path), pa.table({"s": [long, "b", None]}))
    table = DeltaTable(str(tmp_path))
    for where in (pc.field("s").isin([long, "x"]), pc.match_substring(pc.field("s"), long) | (pc.field("s") == "x")):
        assert table.to_pyarrow_dataset().to_table(filter=where).to_pylist() == [{"s": long}]
    with pytest.raises(PredicateError, match="cannot be applied"):
        table.rows(where=pc.greater(pc.add(pc.field("s"), long), 1)).read_all()
    table.delete(pc.field("s").isin([long, "x"]))
    assert sorted(table.rows().read_all()["s"].to_pylist(), key=str) == [None, "b"]

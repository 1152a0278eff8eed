"""The sidecar as another team would read it: plain Parquet with native statistics, and a manifest with a schema."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lazydelta.sidecar.format.columns import FORMAT_VERSION, ColumnRole, SidecarColumn, SidecarLayout, SortColumn
from lazydelta.sidecar.format.manifest import json_schema
from lazydelta.sidecar.format.part_file import PartFooter
from lazydelta.sidecar.format.rows import key_at, ranges_of
from tests.scan.hand_log import HandLog, add, remove, vector
from tests.sidecar.conftest import Split
from tests.sidecar.sidecars import DISABLED, ZEROS, Place, checkpoint, hourly, rows

DOCS = Path(__file__).parents[2] / "docs"
UTC = dt.UTC

PRIMITIVES: dict[str, tuple[str, Any, Any, pa.DataType, Any, Any]] = {
    # column: Delta type, logged bounds, Arrow type, native bounds
    "t_byte": ("byte", -128, 127, pa.int8(), -128, 127),
    "t_short": ("short", -32768, 32767, pa.int16(), -32768, 32767),
    "t_integer": ("integer", -(2**31), 2**31 - 1, pa.int32(), -(2**31), 2**31 - 1),
    "t_long": ("long", -(2**63), 2**63 - 1, pa.int64(), -(2**63), 2**63 - 1),
    "t_float": ("float", -1.5, 3.25, pa.float32(), -1.5, 3.25),
    "t_double": ("double", -1e300, 0.1, pa.float64(), -1e300, 0.1),
    "t_decimal": ("decimal(9,2)", -1.25, 7.5, pa.decimal128(9, 2), Decimal("-1.25"), Decimal("7.50")),
    "t_string": ("string", "", "z\u00e9", pa.string(), "", "z\u00e9"),
    "t_boolean": ("boolean", False, True, pa.bool_(), False, True),
    "t_date": ("date", "1969-12-31", "2026-02-10", pa.date32(), dt.date(1969, 12, 31), dt.date(2026, 2, 10)),
    "t_timestamp": (
        "timestamp",
        "1969-12-31T23:59:59.999Z",
        "2026-02-10T14:00:00.123456Z",
        pa.timestamp("us", "UTC"),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
        dt.datetime(2026, 2, 10, 14, 0, 0, 123456, UTC),
    ),
    "t_timestamp_ntz": (
        "timestamp_ntz",
        "1969-12-31T23:59:59.999",
        "2026-02-10T14:00:00.123456",
        pa.timestamp("us"),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999000),  # noqa: DTZ001 - the type has no zone
        dt.datetime(2026, 2, 10, 14, 0, 0, 123456),  # noqa: DTZ001
    ),
}


def sidecar_table(place: Place) -> tuple[pa.Table, pq.FileMetaData]:
    """Read the single file of a sidecar with nothing but PyArrow."""
    (path,) = place.parquets()
    file = pq.ParquetFile(Path(place.uri) / path, page_checksum_verification=True)
    return file.read(), file.metadata


def wide_log(table: Path, stats: list[Any], **files: Any) -> Place:
    """Write a table with a column of each type and one file for each of ``stats``; build its sidecar."""
    inner = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
    columns: dict[str, Any] = {name: kind for name, (kind, *_) in PRIMITIVES.items()}
    columns |= {"t_binary": "binary", "nested": inner, "p": "integer"}
    log = HandLog(table, columns, partitions=["p"], features=["timestampNtz"])
    log.commit(
        *(add(f"f{n}", records=10, partition={"p": str(n)}, stats=each, **files) for n, each in enumerate(stats))
    )
    checkpoint(log)
    place = Place(str(table))
    assert place.build() == "built"
    return place


def test_the_statistics_of_every_primitive_are_native(tmp_path: Path) -> None:
    """Minimum, maximum and null count, in the column's own type, exactly as logged; nested columns are dotted."""
    full = {
        "minValues": {name: low for name, (_, low, *_) in PRIMITIVES.items()} | {"nested": {"x": 1}},
        "maxValues": {name: high for name, (_, _, high, *_) in PRIMITIVES.items()} | {"nested": {"x": 2}},
        "nullCount": dict.fromkeys(PRIMITIVES, 3) | {"nested": {"x": 4}, "t_binary": 5},
    }
    table, _ = sidecar_table(wide_log(tmp_path / "t", [full, None]))
    for name, (_, _, _, kind, low, high) in PRIMITIVES.items():
        assert table.schema.field(f"min.{name}").type == kind, name
        assert table.schema.field(f"max.{name}").type == kind, name
        assert table.column(f"min.{name}").to_pylist() == [low, None], name
        assert table.column(f"max.{name}").to_pylist() == [high, None], name
        assert table.column(f"null_count.{name}").to_pylist() == [3, None], name
    assert table.column("min.nested.x").to_pylist() == [1, None]
    assert table.column("max.nested.x").to_pylist() == [2, None]
    assert table.column("null_count.nested.x").to_pylist() == [4, None]
    assert table.column("null_count.t_binary").to_pylist() == [5, None]
    assert not {"min.t_binary", "max.t_binary"} & set(table.schema.names)
    assert table.column("num_records").to_pylist() == [10, None]
    assert table.schema.field("p").type == pa.int32()
    assert table.column("p").to_pylist() == [0, 1]


@pytest.mark.parametrize(
    ("column", "logged"),
    [
        ("t_long", 1.5),
        ("t_long", "1"),
        ("t_long", 2**63),
        ("t_long", True),
        ("t_byte", 128),
        ("t_short", -32769),
        ("t_integer", 2**31),
        ("t_double", "many"),
        ("t_decimal", "x"),
        ("t_decimal", 12345678.9),
        ("t_string", 7),
        ("t_boolean", 1),
        ("t_date", "2026-13-01"),
        ("t_timestamp", "yesterday"),
        ("t_timestamp_ntz", 7),
    ],
)
def test_a_statistic_that_is_not_of_the_columns_type_is_missing(column: str, logged: object, tmp_path: Path) -> None:
    """A JSON 1.5 for a long is no 2, and no other column of the file suffers for it."""
    odd = {"minValues": {column: logged, "nested": {"x": 1}}, "maxValues": {column: logged}, "nullCount": {}}
    table, _ = sidecar_table(wide_log(tmp_path / "t", [odd]))
    assert table.column(f"min.{column}").to_pylist() == [None]
    assert table.column(f"max.{column}").to_pylist() == [None]
    assert table.column("min.nested.x").to_pylist() == [1]
    assert table.column("num_records").to_pylist() == [10]


def test_rows_are_the_active_files_sorted_by_partition_and_path(split: Split, tmp_path: Path) -> None:
    """Missing values last, then paths in byte order; vectors and logged partition values as they were."""
    split(7, 100)
    log = hourly(tmp_path / "t")
    place = Place(str(tmp_path / "t"))
    place.build(0)
    table, metadata = sidecar_table(place)
    assert set(table.column("path").to_pylist()) == {f"f{n:05d}" for n in range(120)}
    assert log.version == 3  # what came later is not in the sidecar of version 0
    assert metadata.num_row_groups == -(-120 // 7)
    places = [
        (row["hour"] is None, row["hour"] or "", row["path"].encode())
        for row in table.select(["hour", "path"]).to_pylist()
    ]
    assert places == sorted(places)
    vectors = {row["path"]: row["dv.pathOrInlineDv"] for row in table.to_pylist()}
    assert vectors["f00004"] == vector("v4")["pathOrInlineDv"]
    assert vectors["f00005"] is None
    logged = {row["path"]: dict(row["partition_values"]) for row in table.to_pylist()}
    assert logged["f00003"] == {"hour": None}


def test_odd_fields_of_an_add_are_kept(tmp_path: Path) -> None:
    """Tags, row ids and the clustering provider are available to readers that need them."""
    log = HandLog(tmp_path / "t", {"id": "long"})
    odd = add("a", ids=(1, 2))
    odd["add"]["tags"] = {"k": "v", "n": None}
    log.commit(odd, add("b"))
    log.checkpoint()
    place = Place(str(tmp_path / "t"))
    place.build()
    table, _ = sidecar_table(place)
    assert [None if each is None else dict(each) for each in table.column("tags").to_pylist()] == [
        {"k": "v", "n": None},
        None,
    ]
    for name in ("base_row_id", "default_row_commit_version", "clustering_provider"):
        assert table.column(name).null_count == 2


def test_the_map_of_columns_is_all_that_a_reader_needs(tmp_path: Path) -> None:
    """Each Parquet column has an entry with its role and physical path; equal names are told apart by it."""
    inner = {"type": "struct", "fields": [{"name": "b", "type": "long", "nullable": True, "metadata": {}}]}
    log = HandLog(tmp_path / "t", {"size": "string", "a.b": "long", "a": inner}, partitions=["size"])
    bounds = {"a.b": 1, "a": {"b": 2}}
    stats = {"minValues": bounds, "maxValues": bounds, "nullCount": {"a.b": 0, "a": {"b": 0}}}
    log.commit(add("f", partition={"size": "big"}, stats=stats))
    log.checkpoint()
    place = Place(str(tmp_path / "t"))
    place.build()
    table, metadata = sidecar_table(place)
    entries = json.loads(metadata.metadata[b"lazydelta.columns"])
    assert [each["name"] for each in entries] == table.schema.names
    assert len(set(table.schema.names)) == len(table.schema.names)
    by_meaning = {(each["role"], tuple(each["path"])): each["name"] for each in entries}
    assert len(by_meaning) == len(entries)
    assert table.column(by_meaning["size", ()]).to_pylist() == [10]
    assert table.column(by_meaning["partition", ("size",)]).to_pylist() == ["big"]
    assert table.column(by_meaning["min", ("a.b",)]).to_pylist() == [1]
    assert table.column(by_meaning["min", ("a", "b")]).to_pylist() == [2]


def test_columns_without_values_are_known_and_left_unread(split: Split, tmp_path: Path) -> None:
    split(2, 100)
    log = HandLog(tmp_path / "t")
    files = [add(f"f{n}", ids=(n, n), vector=vector("v") if n in {2, 5} else None) for n in range(8)]
    tight = json.loads(files[5]["add"]["stats"]) | {"tightBounds": False}
    files[5]["add"]["stats"] = json.dumps(tight)
    log.commit(*files)
    checkpoint(log)
    place = Place(str(log.table))
    place.build()
    (path,) = place.parquets()
    data = place.store.get(path)
    footer = PartFooter(data[-int.from_bytes(data[-8:-4], "little") - 8 :])
    vectors = {f"dv.{name}" for name in ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")}
    absent = [footer.absent([index]) for index in range(4)]
    assert absent == [vectors | {"tight_bounds"}, {"tight_bounds"}, set(), vectors | {"tight_bounds"}]
    assert footer.absent([0, 3]) == vectors | {"tight_bounds"}
    assert footer.absent([0, 1]) == {"tight_bounds"}
    found, metrics = rows(place.open(), stats_columns=["id"])
    assert (found, metrics.tier) == (place.answer(stats_columns=["id"]), 1)


def test_the_core_of_a_row_group_is_one_range_of_bytes(split: Split, tmp_path: Path) -> None:
    """The manifest's offsets and lengths are those of the file, the core first; statistics only say what is absent."""
    split(30, 100)
    hourly(tmp_path / "t")
    place = Place(str(tmp_path / "t"))
    place.build()
    table, metadata = sidecar_table(place)
    manifest = json.loads(place.store.get("_delta_log/_sidecars/v0.manifest.json"))
    core = ["path", "size", "modification_time", "hour", "num_records", "tight_bounds"]
    core += [f"dv.{name}" for name in ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")]
    for group in manifest["row_groups"]:
        columns = [metadata.row_group(group["index"]).column(i) for i in range(metadata.num_columns)]
        starts = [min(filter(None, (each.dictionary_page_offset, each.data_page_offset))) for each in columns]
        ends = [start + each.total_compressed_size for start, each in zip(starts, columns, strict=True)]
        names = [each.path_in_schema for each in columns]
        last = max(i for i, name in enumerate(names) if name in core or name.startswith("partition_values."))
        assert set(core) <= set(names[: last + 1])
        assert group["byte_offset"] == starts[0]
        assert group["core_byte_length"] == ends[last] - starts[0]
        assert group["byte_length"] == ends[-1] - starts[0]
        assert all(each.compression == "ZSTD" for each in columns)
        counted = {each.path_in_schema: each.statistics.null_count for each in columns if each.is_stats_set}
        vectors = table.column("dv.storageType").slice(30 * group["index"], group["num_rows"])
        assert counted == {"tight_bounds": group["num_rows"], "dv.storageType": vectors.null_count}


def test_every_page_has_a_checksum(tmp_path: Path) -> None:
    """A bit that flips inside a page is found by any Parquet reader that verifies checksums."""
    hourly(tmp_path / "t")
    place = Place(str(tmp_path / "t"))
    place.build()
    (path,) = place.parquets()
    file = Path(place.uri) / path
    data = bytearray(file.read_bytes())
    metadata = pq.read_metadata(file)
    found = 0
    for index in range(metadata.num_columns):
        column = metadata.row_group(0).column(index)
        last = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
        last += column.total_compressed_size - 1  # the last byte of a chunk lies in a page, not in its header
        data[last] ^= 1
        with pytest.raises(OSError, match=r"(?i)crc|checksum"):
            pq.ParquetFile(pa.BufferReader(bytes(data)), page_checksum_verification=True).read()
        data[last] ^= 1
        found += 1
    assert found > 15


def test_the_footer_and_the_manifest_carry_their_own_digest(split: Split, tmp_path: Path) -> None:
    """Each can be checked as the specification says: with 64 zeros in place of the digest."""
    split(20, 2)
    hourly(tmp_path / "t")
    place = Place(str(tmp_path / "t"))
    place.build()
    text = place.store.get("_delta_log/_sidecars/v0.manifest.json")
    manifest = json.loads(text)
    digest = manifest["sha256"]
    assert hashlib.sha256(text.replace(digest.encode(), ZEROS.encode())).hexdigest() == digest
    assert len(manifest["parts"]) == 3
    for part in manifest["parts"]:
        data = place.store.get(part["file"])
        assert len(data) == part["size"]
        footer = data[part["footer_offset"] :]
        assert len(footer) == part["footer_length"]
        assert hashlib.sha256(footer).hexdigest() == part["footer_sha256"]
        sealed = pq.read_metadata(pa.BufferReader(data)).metadata[b"lazydelta.footer_sha256"]
        assert hashlib.sha256(footer.replace(sealed, ZEROS.encode())).hexdigest().encode() == sealed


def test_key_value_metadata_describes_the_table(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", {"id": "long", "hour": "string"}, partitions=["hour"])
    log.commit({"txn": {"appId": "app", "version": 7}}, add("a", ids=(1, 2), partition={"hour": "h"}), add("gone"))
    log.commit(remove("gone"))
    log.checkpoint()
    place = Place(str(tmp_path / "t"))
    place.build()
    _, metadata = sidecar_table(place)
    values = {name.decode(): value.decode() for name, value in metadata.metadata.items()}
    metadata_action = log.metadata()["metaData"]
    assert values["lazydelta.format_version"] == str(FORMAT_VERSION)
    assert values["lazydelta.table_id"] == "hand"
    assert values["lazydelta.version"] == "1"
    assert values["lazydelta.num_files"] == "1"
    assert values["lazydelta.schema_hash"] == hashlib.sha256(metadata_action["schemaString"].encode()).hexdigest()
    assert json.loads(values["lazydelta.sort"]) == [{"role": "partition", "path": ["hour"]}]
    state = json.loads(values["lazydelta.state"])
    assert state["metaData"]["schemaString"] == metadata_action["schemaString"]
    assert [(each["appId"], each["version"]) for each in state["txn"]] == [("app", 7)]
    name = f"{1:020d}.checkpoint.parquet"
    data = (log.log / name).read_bytes()
    [checkpoint] = state["checkpoint"]
    assert (checkpoint["name"], checkpoint["size"], checkpoint["tail_length"]) == (name, len(data), len(data))
    assert checkpoint["tail_sha256"] == hashlib.sha256(data).hexdigest()
    [listed] = [each for each in place.store.list("_delta_log") if each.path.endswith(name)]
    assert (checkpoint["etag"], checkpoint["last_modified"]) == (listed.etag, listed.last_modified)


def test_ranges_in_the_manifest_are_those_of_the_files(split: Split, tmp_path: Path) -> None:
    """The hour's range of each row group, and has_missing wherever a file lacks a bound."""
    split(10, 100)
    hourly(tmp_path / "t")
    place = Place(str(tmp_path / "t"))
    place.build()
    table, _ = sidecar_table(place)
    manifest = json.loads(place.store.get("_delta_log/_sidecars/v0.manifest.json"))
    start = 0
    for group in manifest["row_groups"]:
        rows = table.slice(start, group["num_rows"]).to_pylist()
        start += group["num_rows"]
        hours = [row["hour"] for row in rows if row["hour"] is not None]
        assert group["event_hour_min"] == min(hours, default=None)
        assert group["event_hour_max"] == max(hours, default=None)
        assert group["first"] == [rows[0]["hour"], rows[0]["path"]]
        assert group["last"] == [rows[-1]["hour"], rows[-1]["path"]]
        known = group["ranges"]["id"]
        missing = any(row["min.id"] is None or row["max.id"] is None for row in rows)
        assert known.get("has_missing", False) is missing
        lows = [row["min.id"] for row in rows if row["min.id"] is not None]
        assert known.get("min") == (str(min(lows)) if lows else None)
    assert start == table.num_rows == manifest["num_files"]


def test_the_documented_schema_is_the_manifests() -> None:
    """docs/manifest.schema.json is generated; after a change of the manifest it is generated again."""
    assert json.loads((DOCS / "manifest.schema.json").read_text(encoding="utf-8")) == json.loads(
        json.dumps(json_schema())
    )


@pytest.mark.parametrize("groups", [100, 2], ids=["single", "parts"])
def test_manifests_are_valid_by_the_documented_schema(groups: int, split: Split, tmp_path: Path) -> None:
    split(20, groups)
    hourly(tmp_path / "t")
    place = Place(str(tmp_path / "t"))
    place.build()
    schema = json.loads((DOCS / "manifest.schema.json").read_text(encoding="utf-8"))
    manifest = json.loads(place.store.get("_delta_log/_sidecars/v0.manifest.json"))
    _validate(manifest, schema, schema["$defs"])
    del manifest["parts"][0]["size"]
    with pytest.raises(AssertionError, match="size"):
        _validate(manifest, schema, schema["$defs"])


_KINDS: dict[str, Any] = {
    "string": str,
    "integer": int,
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def _validate(value: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Check a value by the words of JSON Schema that the manifest's schema uses; any other word is an error."""
    if "$ref" in schema:
        _validate(value, definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return
    if "anyOf" in schema:
        fitting = [each for each in schema["anyOf"] if _fits(value, each, definitions)]
        assert fitting, (value, schema)
        return
    unknown = schema.keys() - {
        *("$defs", "title", "description", "type", "properties", "required", "items", "minimum", "maximum"),
        *("additionalProperties", "default", "prefixItems", "minItems", "maxItems", "enum"),
    }
    assert not unknown, f"this check does not know {unknown}"
    if "enum" in schema:
        assert value in schema["enum"]
    if "type" in schema:
        kind = _KINDS[schema["type"]]
        assert isinstance(value, kind), (value, schema)
        assert kind is not int or not isinstance(value, bool)
    if "minimum" in schema:
        assert schema["minimum"] <= value <= schema.get("maximum", value)
    for name in schema.get("required", ()):
        assert name in value, f"{name} is missing"
    if isinstance(value, list) and schema.get("items"):
        for each in value:
            _validate(each, schema["items"], definitions)
    if isinstance(value, dict):
        further = schema.get("additionalProperties", True)
        for name, each in value.items():
            inner = schema.get("properties", {}).get(name, further)
            if isinstance(inner, dict):
                _validate(each, inner, definitions)


def _fits(value: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> bool:
    try:
        _validate(value, schema, definitions)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()], ids=str)
@pytest.mark.parametrize("value", [2**30, -(2**30)])
def test_a_range_that_cannot_be_written_prunes_nothing(kind: pa.DataType, value: int) -> None:
    """Years above 9999 and below 1, which Python has no name for, do not fail a build."""
    days = pa.array([value, 0], pa.int32())
    timestamps = days.view(kind) if kind == pa.date32() else pc.multiply(days.cast(pa.int64()), 10**9).view(kind)
    stats = {"min.t": timestamps, "max.t": timestamps, "null_count.t": pa.array([0, 0], pa.int64())}
    table = pa.table({"path": ["a", "b"], "num_records": pa.array([1, 1], pa.int64())} | stats)
    columns = [SidecarColumn(role, role) for role in (ColumnRole.PATH, ColumnRole.NUM_RECORDS)]
    columns += [
        SidecarColumn(f"{role}.t", role, ("t",)) for role in (ColumnRole.MIN, ColumnRole.MAX, ColumnRole.NULL_COUNT)
    ]
    layout = SidecarLayout(tuple(columns), (SortColumn(ColumnRole.MIN, ("t",)),))
    assert ranges_of(table, layout, [("t",)])["t"].has_missing
    assert key_at(table, 0, layout) == (None, "a")


PLAIN: dict[str, tuple[dict[str, str], list[dict[str, str | None]], bool]] = {
    "text": ({"p": "string"}, [{"p": "a"}, {"p": "b"}, {"p": "é"}], True),
    "a null": ({"p": "string"}, [{"p": "a"}, {"p": None}], True),
    "empty text": ({"p": "string"}, [{"p": "a"}, {"p": ""}], False),
    "no entry": ({"p": "string"}, [{"p": "a"}, {}], False),
    "another entry": ({"p": "string"}, [{"p": "a"}, {"p": "b", "q": "c"}], False),
    "another entry and none": ({"p": "string"}, [{"p": "a", "q": "c"}, {}], False),
    "another name": ({"p": "string"}, [{"q": "a"}], False),
    "a number": ({"p": "long"}, [{"p": "1"}, {"p": "02"}], False),
    "two columns": ({"p": "string", "q": "string"}, [{"p": "a", "q": "b"}], False),
}


@pytest.mark.parametrize("case", PLAIN)
def test_partition_values_are_as_logged_whether_their_map_is_decoded_or_made(case: str, tmp_path: Path) -> None:
    types, maps, plain = PLAIN[case]
    log = HandLog(tmp_path / "t", {"id": "long"} | types, partitions=list(types))
    log.commit(*(add(f"f{number}", ids=(1, 2), partition=each) for number, each in enumerate(maps * 3)))
    checkpoint(log)
    place = Place(str(tmp_path / "t"))
    assert place.build() == "built"
    _, metadata = sidecar_table(place)
    assert metadata.metadata[b"lazydelta.plain_partitions"] == (b"true" if plain else b"false")
    found, metrics = rows(place.open())
    assert (found, metrics.tier) == (place.answer(), 1)
    files = {file.path: file.partition_values for file in place.open().files()}
    assert files == {file.path: file.partition_values for file in place.open(**DISABLED).files()}

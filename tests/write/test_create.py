"""Creating tables: schemas, protocols, properties, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

import lazydelta
from lazydelta.errors import (
    CommitConflictError,
    LazyDeltaError,
    OptionError,
    SchemaMismatchError,
    UnsupportedFeatureError,
    WriteError,
)
from lazydelta.protocol.actions import Metadata
from lazydelta.protocol.arrow_types import to_schema_string
from lazydelta.protocol.properties import TableProperties, parse_interval, split_columns
from lazydelta.protocol.schema import TableSchema
from lazydelta.storage import open_store
from lazydelta.write.create import create_table, new_metadata, stage_creation
from tests.write.commits import append, begin, new_table, put_file, rows

if TYPE_CHECKING:
    from pathlib import Path

EVERYTHING = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("byte", pa.int8()),
        ("short", pa.int16()),
        ("integer", pa.int32()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("boolean", pa.bool_()),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("decimal", pa.decimal128(38, 9)),
        ("list", pa.list_(pa.field("element", pa.int32(), nullable=False))),
        ("map", pa.map_(pa.string(), pa.field("value", pa.float64(), nullable=True))),
        ("struct", pa.struct([("inner", pa.struct([("leaf", pa.list_(pa.string()))]))])),
    ]
)


def test_a_table_with_every_type_is_read_back_as_it_was_given(tmp_path: Path) -> None:
    assert create_table(tmp_path, EVERYTHING, partition_by=["date", "string"]) == 0
    schema = lazydelta.DeltaTable(tmp_path).schema().to_arrow()
    assert schema.names == EVERYTHING.names
    assert [str(field.type).replace("item", "element") for field in schema] == [
        str(field.type).replace("item", "element") for field in EVERYTHING
    ]
    assert [field.nullable for field in schema] == [field.nullable for field in EVERYTHING]
    theirs = deltalake.DeltaTable(tmp_path)
    assert [field.name for field in theirs.schema().fields] == EVERYTHING.names
    assert theirs.metadata().partition_columns == ["date", "string"]


@pytest.mark.parametrize(
    ("kind", "delta"),
    [
        (pa.uint8(), "short"),
        (pa.uint16(), "integer"),
        (pa.uint32(), "long"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.float16(), "float"),
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.large_binary(), "binary"),
        (pa.binary(16), "binary"),
        (pa.date64(), "date"),
        (pa.timestamp("ns", tz="Europe/Berlin"), "timestamp"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.decimal256(38, 38), "decimal(38,38)"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.large_list(pa.int8()), "array<byte>"),
        (pa.list_(pa.int8(), 3), "array<byte>"),
    ],
)
def test_an_arrow_type_becomes_the_delta_type_that_holds_it(kind: pa.DataType, delta: str) -> None:
    schema = TableSchema.parse(to_schema_string(pa.schema([("x", kind)])))
    assert str(schema.fields[0].type) == delta


@pytest.mark.parametrize(
    "kind",
    [pa.time64("us"), pa.duration("us"), pa.month_day_nano_interval(), pa.null(), pa.decimal256(60, 2)],
)
def test_a_type_that_delta_does_not_have_is_refused_by_the_columns_name(kind: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match=r"'s\.x'"):
        to_schema_string(pa.schema([("s", pa.struct([("x", kind)]))]))


def test_two_columns_may_not_differ_by_case_alone() -> None:
    with pytest.raises(SchemaMismatchError, match="twice"):
        to_schema_string(pa.schema([("id", pa.int64()), ("ID", pa.int64())]))


@pytest.mark.parametrize(
    ("kind", "properties", "expected"),
    [
        (pa.int64(), {}, (1, 2, None, None)),
        (pa.int64(), {"delta.appendOnly": "true"}, (1, 2, None, None)),
        (pa.timestamp("us"), {}, (3, 7, ("timestampNtz",), ("timestampNtz",))),
        (pa.list_(pa.timestamp("us")), {}, (3, 7, ("timestampNtz",), ("timestampNtz",))),
        (
            pa.int64(),
            {"delta.enableInCommitTimestamps": "true"},
            (1, 7, None, ("inCommitTimestamp",)),
        ),
        (
            pa.int64(),
            {"delta.enableDeletionVectors": "true", "delta.appendOnly": "true"},
            (3, 7, ("deletionVectors",), ("appendOnly", "deletionVectors")),
        ),
        (
            pa.int64(),
            {"delta.feature.domainMetadata": "supported"},
            (1, 7, None, ("domainMetadata",)),
        ),
    ],
)
def test_the_protocol_is_the_lowest_that_serves(
    tmp_path: Path, kind: pa.DataType, properties: dict[str, str], expected: tuple[Any, ...]
) -> None:
    create_table(tmp_path, pa.schema([("x", kind)]), properties=properties)
    protocol = lazydelta.DeltaTable(tmp_path).protocol()
    found = (
        protocol.min_reader_version,
        protocol.min_writer_version,
        None if protocol.reader_features is None else tuple(protocol.reader_features),
        None if protocol.writer_features is None else tuple(protocol.writer_features),
    )
    assert found == expected
    assert deltalake.DeltaTable(tmp_path).version() == 0
    append_version = begin(open_store(tmp_path)).commit().version
    assert append_version == 1


def test_name_description_and_properties_are_kept(tmp_path: Path) -> None:
    create_table(
        tmp_path,
        pa.schema([("x", pa.int64())]),
        name="telemetry",
        description="what the devices say",
        properties={"delta.checkpointInterval": "5", "owner": "me"},
    )
    metadata = lazydelta.DeltaTable(tmp_path).metadata()
    assert (metadata.name, metadata.description) == ("telemetry", "what the devices say")
    assert metadata.configuration == {"delta.checkpointInterval": "5", "owner": "me"}
    assert metadata.created_time is not None


def test_a_table_is_not_created_twice(tmp_path: Path) -> None:
    new_table(tmp_path)
    with pytest.raises(WriteError, match="already"):
        create_table(tmp_path, pa.schema([("x", pa.int64())]))
    assert create_table(tmp_path, pa.schema([("x", pa.int64())]), mode="ignore") == 0
    assert lazydelta.DeltaTable(tmp_path).schema().names == ["id", "p"]


def test_of_two_creators_one_wins(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    slow = begin(store)
    stage_creation(slow, new_metadata(pa.schema([("late", pa.int64())])))
    new_table(tmp_path)
    with pytest.raises(CommitConflictError, match="created the table"):
        slow.commit()
    assert lazydelta.DeltaTable(tmp_path).schema().names == ["id", "p"]


def test_a_table_can_be_created_with_its_first_files(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    transaction = begin(store)
    stage_creation(transaction, new_metadata(pa.schema([("id", pa.int64()), ("p", pa.string())]), partition_by=["p"]))
    transaction.add(put_file(store, [1, 2]))
    assert transaction.commit().version == 0
    append(store, [3])
    assert rows(store) == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"partition_by": ["nowhere"]}, SchemaMismatchError),
        ({"partition_by": ["s"]}, SchemaMismatchError),
        ({"partition_by": ["id", "id"]}, SchemaMismatchError),
        ({"partition_by": ["id", "s"]}, SchemaMismatchError),
        ({"mode": "append"}, OptionError),
        ({"properties": {"delta.checkpointInterval": "often"}}, WriteError),
        ({"properties": {"delta.checkpointInterval": "0"}}, WriteError),
        ({"properties": {"delta.appendOnly": "yes"}}, WriteError),
        ({"properties": {"delta.logRetentionDuration": "3 months"}}, WriteError),
        ({"properties": {"delta.appendOnly": True}}, WriteError),
        ({"properties": {"delta.minWriterVersion": "8"}}, WriteError),
        ({"properties": {"delta.minReaderVersion": "two"}}, WriteError),
        ({"properties": {"delta.enableRowTracking": "true"}}, UnsupportedFeatureError),
        ({"properties": {"delta.constraints.c": "id > 0"}}, UnsupportedFeatureError),
        ({"properties": {"delta.feature.rowTracking": "supported"}}, UnsupportedFeatureError),
        ({"properties": {"delta.checkpointPolicy": "v2"}}, UnsupportedFeatureError),
    ],
)
def test_what_makes_no_sense_creates_nothing(
    tmp_path: Path, arguments: dict[str, Any], error: type[LazyDeltaError]
) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.int64())]))])
    with pytest.raises(error):
        create_table(tmp_path / "table", schema, **arguments)
    assert not (tmp_path / "table").exists()


def test_a_table_needs_columns_beside_those_it_is_partitioned_by() -> None:
    with pytest.raises(SchemaMismatchError, match="needs columns"):
        new_metadata(pa.schema([]))
    with pytest.raises(SchemaMismatchError, match="Every column"):
        new_metadata(pa.schema([("p", pa.string())]), partition_by=["p"])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("interval 7 days", 7 * 86400),
        ("7 days", 7 * 86400),
        ("INTERVAL 1 WEEK", 7 * 86400),
        ("interval 1 day 2 hours 3 minutes 4 seconds", 86400 + 7200 + 184),
        ("0 hours", 0),
        ("interval", None),
        ("", None),
        ("7", None),
        ("7 moons", None),
        ("interval 7 days and more", None),
    ],
)
def test_intervals_are_read_as_delta_writes_them(text: str, seconds: float | None) -> None:
    found = parse_interval(text)
    assert (None if found is None else found.total_seconds()) == seconds


def test_property_names_do_not_depend_on_case() -> None:
    configuration: dict[str, str | None] = {"DELTA.CheckpointInterval": "3", "delta.datakippingNumIndexedCols": "x"}
    assert TableProperties.of(Metadata(id="x", schema_string="", configuration=configuration)).checkpoint_interval == 3


def test_stats_columns_are_taken_apart_at_commas_outside_backquotes() -> None:
    assert split_columns("a, b.c,`x,y`.z ,d") == ("a", "b.c", "`x,y`.z", "d")

"""``WriterProperties``: files are encoded as the caller says, by either package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lazydelta
from lazydelta.errors import OptionError, UnsupportedOperationError, WriteError
from tests.scan.hand_log import HandLog

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

ROWS = pa.table(
    {
        "id": pa.array(range(1000), pa.int64()),
        "kind": pa.array([f"kind {each % 3}" for each in range(1000)]),
        "inner": pa.array([{"number": each, "text": str(each)} for each in range(1000)]),
        "list": pa.array([[each, each] for each in range(1000)]),
    }
)


@pytest.fixture(params=[lazydelta, deltalake], ids=lambda each: each.__name__)
def package(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def written(place: Path, package: ModuleType, rows: pa.Table = ROWS, **properties: Any) -> pq.FileMetaData:
    """Write rows with these properties and return what the footer of the file says; the rows are there."""
    package.write_deltalake(place, rows, writer_properties=package.WriterProperties(**properties))
    assert deltalake.DeltaTable(place).to_pyarrow_table().sort_by("id").equals(rows)
    (file,) = place.glob("*.parquet")
    return pq.read_metadata(file)


def column(footer: pq.FileMetaData, path: str) -> Any:
    group = footer.row_group(0)
    (found,) = [each for each in map(group.column, range(group.num_columns)) if each.path_in_schema == path]
    return found


def test_a_column_has_the_encoding_that_was_asked_for(tmp_path: Path, package: ModuleType) -> None:
    packed = package.ColumnProperties(encoding="DELTA_BINARY_PACKED")
    footer = written(tmp_path, package, column_properties={"id": packed})
    assert "DELTA_BINARY_PACKED" in column(footer, "id").encodings
    assert all("RLE_DICTIONARY" in column(footer, each).encodings for each in ("kind", "inner.number"))


def test_an_encoding_of_all_columns_is_one_of_each_that_says_nothing_else(tmp_path: Path, package: ModuleType) -> None:
    every, kind = package.ColumnProperties(encoding="PLAIN"), package.ColumnProperties(dictionary_enabled=True)
    footer = written(
        tmp_path,
        package,
        ROWS.select(["id", "kind"]),
        default_column_properties=every,
        column_properties={"kind": kind} if package is lazydelta else None,  # delta-rs cannot have both
    )
    assert not column(footer, "id").has_dictionary_page
    assert column(footer, "kind").has_dictionary_page == (package is lazydelta)


@pytest.mark.parametrize("wanted", [True, False])
def test_dictionaries_are_as_asked_for(tmp_path: Path, package: ModuleType, *, wanted: bool) -> None:
    chosen = package.ColumnProperties(dictionary_enabled=wanted)
    footer = written(tmp_path, package, default_column_properties=chosen)
    assert [column(footer, each).has_dictionary_page for each in ("id", "kind", "inner.number")] == [wanted] * 3


def test_what_is_said_of_a_column_is_said_of_its_parts(tmp_path: Path) -> None:
    plain = lazydelta.ColumnProperties(dictionary_enabled=False)
    kept = lazydelta.ColumnProperties(dictionary_enabled=True)
    footer = written(
        tmp_path, lazydelta, column_properties={"inner": plain, "inner.text": kept, "list": plain, "kind": plain}
    )
    assert not column(footer, "inner.number").has_dictionary_page
    assert column(footer, "inner.text").has_dictionary_page
    assert not column(footer, "list.list.element").has_dictionary_page
    assert not column(footer, "kind").has_dictionary_page


def test_row_groups_have_as_many_rows_as_asked_for(tmp_path: Path, package: ModuleType) -> None:
    footer = written(tmp_path, package, max_row_group_size=300)
    assert [footer.row_group(each).num_rows for each in range(footer.num_row_groups)] == [300, 300, 300, 100]


def test_a_level_of_compression_is_taken(tmp_path: Path, package: ModuleType) -> None:
    stored = written(tmp_path / "a", package, compression="GZIP", compression_level=0)
    packed = written(tmp_path / "b", package, compression="GZIP", compression_level=9)
    size = [column(each, "inner.text").total_compressed_size for each in (stored, packed)]
    assert size[0] > 1.2 * size[1]


def test_pages_and_batches_have_the_size_asked_for(tmp_path: Path) -> None:
    """Seen in the bytes: each page has a header of its own."""
    plain = {"default_column_properties": lazydelta.ColumnProperties(dictionary_enabled=False)}
    sizes = [
        column(written(tmp_path / name, lazydelta, compression="UNCOMPRESSED", **plain, **more), "id")
        for name, more in {
            "whole": {},
            "by bytes": {"data_page_size_limit": 800, "write_batch_size": 10},
            "by rows": {"data_page_row_count_limit": 10, "write_batch_size": 10},
        }.items()
    ]
    whole, by_bytes, by_rows = (each.total_uncompressed_size for each in sizes)
    assert whole < by_bytes < by_rows


def test_a_dictionary_that_outgrows_its_limit_gives_way_to_plain_values(tmp_path: Path, package: ModuleType) -> None:
    wanted = package.ColumnProperties(dictionary_enabled=True)
    footer = written(
        tmp_path, package, default_column_properties=wanted, dictionary_page_size_limit=64, write_batch_size=8
    )
    assert column(footer, "id").total_uncompressed_size > 7000


def test_bloom_filters_and_statistics_of_columns_are_as_asked_for(tmp_path: Path, package: ModuleType) -> None:
    bloom = package.BloomFilterProperties(set_bloom_filter_enabled=True, fpp=0.05, ndv=1000)
    chosen = {
        "id": package.ColumnProperties(bloom_filter_properties=bloom, statistics_enabled="PAGE"),
        "kind": package.ColumnProperties(statistics_enabled="NONE"),
    }
    footer = written(tmp_path, package, ROWS.select(["id", "kind"]), column_properties=chosen)
    assert column(footer, "id").bloom_filter_offset is not None
    assert column(footer, "kind").bloom_filter_offset is None
    assert [column(footer, each).is_stats_set for each in ("id", "kind")] == [True, False]


def test_columns_that_a_table_maps_to_others_are_found_by_their_own_names(tmp_path: Path) -> None:
    columns = {"id": ("long", "p-id", 1), "kind": ("string", "p-kind", 2)}
    configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    HandLog(tmp_path, columns, features=["columnMapping"], configuration=configuration).commit()
    packed = lazydelta.ColumnProperties(encoding="DELTA_BINARY_PACKED")
    properties = lazydelta.WriterProperties(column_properties={"id": packed})
    lazydelta.write_deltalake(tmp_path, ROWS.select(["id", "kind"]), mode="append", writer_properties=properties)
    (file,) = tmp_path.glob("*.parquet")
    first = pq.read_metadata(file).row_group(0).column(0)
    assert first.path_in_schema == "p-id"
    assert "DELTA_BINARY_PACKED" in first.encodings


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"column_properties": {"nonsense": lazydelta.ColumnProperties()}}, "'nonsense'"),
        ({"column_properties": {"inner.nonsense": lazydelta.ColumnProperties()}}, "'inner.nonsense'"),
        ({"column_properties": {"kind": lazydelta.ColumnProperties()}}, "partition columns"),
        ({"column_properties": {"id": lazydelta.ColumnProperties(encoding="NONSENSE")}}, "NONSENSE"),
        ({"column_properties": {"id": lazydelta.ColumnProperties(statistics_enabled="SOME")}}, "SOME"),
        ({"max_row_group_size": 0}, "row_group_rows=0"),
    ],
)
def test_properties_that_make_no_sense_are_refused(tmp_path: Path, properties: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        lazydelta.write_deltalake(
            tmp_path, ROWS, partition_by="kind", writer_properties=lazydelta.WriterProperties(**properties)
        )
    assert list(tmp_path.iterdir()) == []


def test_what_no_setting_of_the_encoder_does_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    for properties in (
        {"statistics_truncate_length": 9},
        {"compression": "LZ4"},
        {"compression": "GZIP", "compression_level": 10},
    ):
        with pytest.raises(UnsupportedOperationError):
            lazydelta.write_deltalake(tmp_path, ROWS, writer_properties=lazydelta.WriterProperties(**properties))
    numbers = lazydelta.ColumnProperties(encoding="DELTA_BINARY_PACKED")
    with pytest.raises(WriteError, match="Parquet"):
        lazydelta.write_deltalake(
            tmp_path, ROWS, writer_properties=lazydelta.WriterProperties(column_properties={"kind": numbers})
        )
    assert not (tmp_path / "_delta_log").exists()
    assert not list(tmp_path.glob("*.parquet"))

"""What deltalake answers about the tables of the compatibility suite, lazydelta answers, too."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

import lazydelta
from tests.support.golden import golden_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = [*golden_names("tables"), *golden_names("more")] or ["absent"]
# Statistics that the two understand differently, and why ours stand.
STATISTICS_DIFFER = {
    "tables/basic-decimal-table": "deltalake reads decimals through doubles",
    "more/basic-decimal-table": "deltalake reads decimals through doubles",
    "tables/decimal-various-scale-precision": "deltalake reads decimals through doubles",
    "tables/canonicalized-paths-normal-a": "deltalake takes two spellings of one path for two files",
    "tables/canonicalized-paths-special-b": "deltalake takes two spellings of one path for two files",
    "more/300k-add-files-100-col-partitioned": "it is large, and nothing in it is not in the others",
}


def opened(path: Path) -> tuple[lazydelta.DeltaTable, deltalake.DeltaTable]:
    """Open the table in both; skip it where deltalake cannot."""
    place = path / "delta" if (path / "delta").is_dir() else path
    try:
        theirs = deltalake.DeltaTable(place)
    except Exception as error:  # noqa: BLE001 - whatever it says, it is no measure then
        pytest.skip(f"deltalake does not open it: {str(error)[:80]}")
    return lazydelta.DeltaTable(place), theirs


@pytest.mark.parametrize("name", NAMES)
def test_what_a_table_says_of_itself_is_what_deltalake_says(name: str, unpack_golden: Callable[[str], Path]) -> None:
    ours, theirs = opened(unpack_golden(name))
    assert json.loads(ours.schema().to_json()) == json.loads(theirs.schema().to_json())
    mine, expected = ours.metadata(), theirs.metadata()
    for fact in ("id", "name", "description", "partition_columns", "created_time", "configuration"):
        assert getattr(mine, fact) == getattr(expected, fact), fact
    reader, writer, writer_features, reader_features = ours.protocol()
    their_reader, their_writer, their_writer_features, their_reader_features = theirs.protocol()
    assert (reader, writer) == (their_reader, their_writer)
    assert (set(writer_features or ()), set(reader_features or ())) == (
        set(their_writer_features or ()),
        set(their_reader_features or ()),
    )


# The checksum of one table was made up by those who made it.
@pytest.mark.filterwarnings("ignore::lazydelta.warned.ChecksumWarning")
@pytest.mark.parametrize("name", [each for each in NAMES if each not in STATISTICS_DIFFER])
@pytest.mark.parametrize("shaped", ["flat", "nested"])
def test_the_add_actions_are_those_of_deltalake(name: str, shaped: str, unpack_golden: Callable[[str], Path]) -> None:
    ours, theirs = opened(unpack_golden(name))
    if ours.schema().fields and "delta.columnMapping.physicalName" in ours.schema().fields[0].metadata:
        pytest.skip("deltalake shows statistics under physical names, which no reader can use")
    flatten = shaped == "flat"
    mine, expected = ours.get_add_actions(flatten=flatten), pa.table(theirs.get_add_actions(flatten=flatten))
    assert shape(mine.schema) == shape(expected.schema)
    assert rows(mine) == rows(expected)


def shape(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return names and types."""
    return [(field.name, str(field.type).replace(" not null", "")) for field in schema]


def rows(table: pa.Table) -> list[Any]:
    """Return the files by path."""
    return sorted(map(known, table.to_pylist()), key=lambda row: os.fspath(row["path"]))


def known(value: Any) -> Any:
    """Return what is known: a struct in which nothing is known is as good as none."""
    if not isinstance(value, dict):
        return value
    found = {key: inner for key, each in value.items() if (inner := known(each)) is not None}
    return found or None

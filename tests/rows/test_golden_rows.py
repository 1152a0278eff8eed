"""Rows of tables that other engines wrote, with deletion vectors and mapped columns."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from lazydelta.data_files.reader import RowReader
from lazydelta.protocol.actions import Metadata, Protocol
from lazydelta.protocol.features import check_readable, column_mapping_mode
from lazydelta.protocol.schema import TableSchema
from lazydelta.storage import open_store
from tests.rows.files import LoggedFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

import msgspec

from lazydelta.protocol.actions import DeletionVector


def active(table: Path) -> tuple[TableSchema, list[LoggedFile]]:
    """Replay the commits plainly: enough for tables whose every commit is still there."""
    files: dict[tuple[str, str], LoggedFile] = {}
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    for commit in sorted((table / "_delta_log").glob("*.json")):
        added: dict[tuple[str, str], LoggedFile] = {}
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if "protocol" in action:
                protocol = msgspec.convert(action["protocol"], Protocol)
            if "metaData" in action:
                metadata = msgspec.convert(action["metaData"], Metadata)
            for kind in ("add", "remove"):
                if kind in action:
                    vector = action[kind].get("deletionVector")
                    known = None if vector is None else msgspec.convert(vector, DeletionVector)
                    key = (action[kind]["path"], known.unique_id if known else "")
                    if kind == "add":
                        values = action[kind]["partitionValues"]
                        added[key] = LoggedFile(action[kind]["path"], action[kind]["size"], values, known)
                    else:
                        files.pop(key, None)
        files |= added
    assert protocol is not None
    assert metadata is not None
    check_readable(protocol, metadata)
    schema = TableSchema.parse(
        metadata.schema_string,
        partition_columns=metadata.partition_columns,
        column_mapping=column_mapping_mode(metadata, protocol),
    )
    return schema, list(files.values())


def read(table: Path) -> list[dict[str, Any]]:
    schema, files = active(table)
    reader = RowReader(open_store(str(table)), schema)
    return [row for file in files for batch in reader.read(file) for row in batch.to_pylist()]


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


@pytest.mark.parametrize(
    "name",
    [
        "dv-partitioned-with-checkpoint",
        "table-with-columnmapping-mode-id",
        "data-reader-timestamp_ntz-id-mode",
        "data-reader-timestamp_ntz-name-mode",
        "data-reader-array-complex-objects",
        "data-reader-map",
        "data-reader-primitives",
        "data-reader-date-types-America",
        "kernel-timestamp-int96",
        "kernel-timestamp-timestamp_millis",
        "decimal-various-scale-precision",
        "parquet-all-types",
    ],
)
def test_rows_equal_those_the_suite_expects(unpack_golden: Callable[[str], Path], name: str) -> None:
    folder = unpack_golden(f"tables/{name}")
    expected = [row for file in (folder / "expected").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    found = read(folder / "delta")
    assert found
    assert in_order(found) == in_order(expected)


def test_a_vector_of_another_engine_hides_the_first_and_last_row(unpack_golden: Callable[[str], Path]) -> None:
    assert sorted(row["value"] for row in read(unpack_golden("more/table-with-dv-small"))) == list(range(1, 9))

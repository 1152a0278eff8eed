"""OPTIMIZE of tables whose columns are mapped: new files have the physical names and ids that the old ones had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, write_arrow
from lazydelta.maintenance.optimize import OptimizeSettings, auto_compact, optimize
from lazydelta.sidecar.handle import TableHandle
from tests.maintenance.deleted_rows import delete_rows
from tests.oracle.replay import replay
from tests.scan.hand_log import HandLog
from tests.write.test_mapped_columns import adds, mapped, rows


@pytest.fixture(params=["name", "id"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> HandLog:
    """Return a table of four commits, of which each has a file in two partitions; one row is deleted."""
    made = mapped(tmp_path / "t", request.param)
    made.features.append("deletionVectors")
    (made.log / f"{0:020}.json").unlink()
    made.version = -1
    made.commit()
    for number in range(4):
        write_arrow(made.table, rows(*range(number * 4, number * 4 + 4)), maintain=False)
    delete_rows(made.table, DeltaTable(made.table).files("part = 'p1' AND nested.inner = 5").collect()[0], [0])
    return made


def _stored(table: Path) -> list[tuple[Any, ...]]:
    """Return the rows of the active files as DuckDB finds them under their physical names; none has a deleted row."""
    state = replay(table / "_delta_log")
    assert all(vector is None for _, vector in state.files)
    paths = [str(table / path) for path, _ in state.files]
    found = (
        duckdb.connect()
        .execute(f"""SELECT "p-id", "p-nested"."p-inner", "p-list" FROM read_parquet({paths})""")
        .fetchall()
    )
    return sorted(found)


def test_files_keep_physical_names_and_ids(log: HandLog) -> None:
    result = optimize(TableHandle.open(log.table), settings=OptimizeSettings(sort_by=["id"]))
    assert (result.removed.count, result.added.count, result.vectors) == (8, 2, 1)
    packed = adds(log, 6)
    assert sorted(each["partitionValues"]["p-part"] for each in packed) == ["p0", "p1"]
    removed = [json.loads(line) for line in (log.log / f"{6:020}.json").read_text().splitlines()]
    assert {each["remove"]["partitionValues"]["p-part"] for each in removed if "remove" in each} == {"p0", "p1"}
    for each in packed:
        stored = pq.read_schema(log.table / each["path"])
        ids = {field.name: field.metadata[b"PARQUET:field_id"] for field in (*stored, *stored.field("p-nested").type)}
        assert ids == {"p-id": b"1", "p-nested": b"3", "p-inner": b"5", "p-list": b"4"}
        assert set(json.loads(each["stats"])["minValues"]) == {"p-id", "p-nested"}
    expected = [each for each in range(16) if each != 5]
    assert _stored(log.table) == [(each, each, [{"p-inner": each}, None]) for each in expected]
    assert sorted(DeltaTable(log.table).to_pyarrow_table()["id"].to_pylist()) == expected
    # Statistics find the file by the name that people know.
    assert len(DeltaTable(log.table).files("nested.inner = 15").collect()) == 1


def test_one_partition_can_be_asked_for_by_its_name(log: HandLog) -> None:
    result = optimize(TableHandle.open(log.table), where="part = 'p0'")
    assert (result.removed.count, result.added.count, result.partitions) == (4, 1, 1)


def test_auto_compaction_finds_the_partitions_that_were_written_to(log: HandLog) -> None:
    done = auto_compact(TableHandle.open(log.table), 5, 64 << 20)
    assert done is not None
    assert len(DeltaTable(log.table).files().collect()) == 2
    assert len(_stored(log.table)) == 15

"""A plan that is made in one place, carried to others, and committed later."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lazydelta
from lazydelta.errors import CommitConflictError, OptionError, SchemaMismatchError, WriteError
from lazydelta.protocol.actions import Add, Metadata, Txn
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Store, open_store
from lazydelta.storage.staged_files import StagedFiles
from lazydelta.write.data_files import DataFileWriter
from lazydelta.write.file_commit import commit_files
from lazydelta.write.plan import WritePlan, schema_of
from lazydelta.write.table_rows import TableRows
from lazydelta.write.transaction import Transaction

UTC = pa.timestamp("us", "UTC")
HOUR = 3_600_000_000
SOURCE = pa.schema([("at", UTC), ("n", pa.int64())])


def batch(*hours: float | None) -> pa.RecordBatch:
    at = [None if hour is None else round(hour * HOUR) for hour in hours]
    return pa.RecordBatch.from_arrays([pa.array(at, UTC), pa.array(range(len(hours)), pa.int64())], schema=SOURCE)


def planned(store: Store, source: pa.Schema = SOURCE, **options: Any) -> tuple[WritePlan, Metadata]:
    with Transaction.begin(TableHandle.of(store), operation="WRITE") as transaction:
        plan = WritePlan.of(**options).settled(transaction.snapshot, source)
        return plan, plan.stage(transaction, plan.incoming(source))


def written(store: Store, plan: WritePlan, metadata: Metadata, *batches: pa.RecordBatch) -> list[Add]:
    rows = TableRows(plan, metadata)
    with DataFileWriter(store, schema_of(metadata).to_arrow(), metadata.partition_columns) as files:
        for each in batches:
            files.write(rows(each))
        return files.close()


def hours(table: Path) -> list[str | None]:
    found = lazydelta.DeltaTable(table).to_pyarrow_table(columns=["_event_hour"])
    return sorted(found["_event_hour"].to_pylist(), key=repr)


def test_files_written_before_anybody_looked_again_are_committed_behind_what_happened_since(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    plan, metadata = pickle.loads(pickle.dumps(planned(store, timestamp_column="at")))  # noqa: S301 - our own
    adds = written(store, plan, metadata, batch(1, 1, 2))
    lazydelta.write_arrow(tmp_path, batch(5), timestamp_column="at")
    done = commit_files(TableHandle.of(store), plan, plan.incoming(SOURCE), metadata, StagedFiles(store), adds)
    assert done.version == 1
    assert hours(tmp_path) == ["1970010101", "1970010101", "1970010102", "1970010105"]


def test_a_column_added_meanwhile_is_no_hindrance(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, batch(1), timestamp_column="at")
    store = open_store(tmp_path)
    plan, metadata = planned(store)
    adds = written(store, plan, metadata, batch(2))
    more = pa.table({"at": pa.array([HOUR], UTC), "n": [1], "more": ["x"]})
    lazydelta.write_arrow(tmp_path, more, schema_mode="merge")
    assert (
        commit_files(TableHandle.of(store), plan, plan.incoming(SOURCE), metadata, StagedFiles(store), adds).version
        == 2
    )
    assert hours(tmp_path) == ["1970010101", "1970010101", "1970010102"]


def test_a_table_that_was_replaced_by_one_with_other_columns_refuses_the_files(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    plan, metadata = planned(store, timestamp_column="at")
    adds = written(store, plan, metadata, batch(1))
    lazydelta.write_arrow(tmp_path, pa.table({"at": ["noon"], "n": [1]}))
    with pytest.raises((CommitConflictError, SchemaMismatchError)):
        commit_files(TableHandle.of(store), plan, plan.incoming(SOURCE), metadata, StagedFiles(store), adds)
    assert lazydelta.DeltaTable(tmp_path).version() == 0


def test_the_same_transaction_is_committed_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    plan, metadata = planned(store, timestamp_column="at")
    incoming = plan.incoming(SOURCE)
    for expected in (False, True):
        adds = written(store, plan, metadata, batch(1))
        done = commit_files(
            TableHandle.of(store),
            plan,
            incoming,
            metadata,
            StagedFiles(store),
            adds,
            txn=Txn(app_id="stream", version=0),
        )
        assert (done.version, done.already_committed) == (0, expected)
    assert hours(tmp_path) == ["1970010101"]


@pytest.mark.parametrize("boundary", ["day", "minute"])
def test_a_table_remembers_how_it_is_aligned(tmp_path: Path, boundary: str) -> None:
    lazydelta.write_arrow(tmp_path, batch(1), timestamp_column="at", boundary=boundary, partition_column="slot")
    lazydelta.write_arrow(tmp_path, batch(30))
    found = lazydelta.DeltaTable(tmp_path).to_pyarrow_table(columns=["slot"])["slot"].to_pylist()
    expected = {"day": ["19700101", "19700102"], "minute": ["197001010100", "197001020600"]}
    assert sorted(found) == expected[boundary]


def test_data_without_the_column_that_the_table_is_aligned_by_is_refused(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, batch(1), timestamp_column="at")
    with pytest.raises(SchemaMismatchError, match="computes its partition column '_event_hour' from 'at'"):
        lazydelta.write_arrow(tmp_path, pa.table({"n": [1]}))
    with pytest.raises(SchemaMismatchError, match=r'expected: \["_event_hour"\], got: \["_event_day"\]'):
        lazydelta.write_arrow(tmp_path, batch(1), timestamp_column="at", boundary="day")
    other = pa.table({"at": pa.array([HOUR], UTC), "n": [1], "seen": pa.array([HOUR], UTC)})
    with pytest.raises(SchemaMismatchError, match="aligned by its column 'at'"):
        lazydelta.write_arrow(tmp_path, other, timestamp_column="seen", schema_mode="merge")


def test_a_column_that_has_no_timestamps_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="not a timestamp"):
        lazydelta.write_arrow(tmp_path / "t", batch(1), timestamp_column="n")
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("most", [0, 1_000, 1 << 20])
def test_rows_set_aside_by_several_writers_make_one_file_a_partition(tmp_path: Path, most: int) -> None:
    store = open_store(tmp_path)
    plan, metadata = planned(store, timestamp_column="at")
    schema, columns = schema_of(metadata).to_arrow(), metadata.partition_columns
    rows = TableRows(plan, metadata)
    adds: list[Add] = []
    with DataFileWriter(store, schema, columns) as gathering:
        for _ in range(3):
            with DataFileWriter(store, schema, columns) as files:
                files.write(rows(batch(1, 2, None)))
                aside = files.set_aside(1 << 20, most)
                for partition, each in aside:
                    gathering.write_partition(partition, each)
                assert files.num_rows + sum(each.num_rows for _, each in aside) == 3
                adds += files.close()
        adds += gathering.close()
    assert len(adds) == (9 if most == 0 else 3)
    commit_files(TableHandle.of(store), plan, plan.incoming(SOURCE), metadata, StagedFiles(store), adds)
    assert hours(tmp_path) == ["1970010101"] * 3 + ["1970010102"] * 3 + [None] * 3


def test_rejected_rows_are_handed_over_with_their_reason_and_the_others_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    plan, metadata = planned(store, timestamp_column="at", null_timestamps="reject")
    handed: list[tuple[Sequence[int], str]] = []
    rows = TableRows(plan, metadata, lambda rejected, reason: handed.append((rejected["n"].to_pylist(), reason)))
    far = 24 * 366 * 9_000
    kept = rows(batch(1, None, 2, far, None))
    assert kept["n"].to_pylist() == [0, 2]
    assert [taken for taken, _ in handed] == [[1, 4], [3]]
    assert "no value" in handed[0][1]
    assert "outside the years" in handed[1][1]
    with pytest.raises(WriteError, match="2 rows have no value"):
        TableRows(plan, metadata)(batch(None, None))

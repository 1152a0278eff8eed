"""Overwrites of what the data has, of columns, and creation that may not meet a table."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lazydelta import DeltaTable, write_arrow
from lazydelta.errors import CommitConflictError, OptionError, TableExistsError
from lazydelta.write.job import WriteJob
from lazydelta.write.options import WriteOptions

if TYPE_CHECKING:
    from pathlib import Path

_KINDS = pa.schema([("id", pa.int64()), ("p", pa.int32()), ("q", pa.string())])


def rows(*given: tuple[int, int | None, str | None]) -> pa.Table:
    return pa.table(dict(zip(["id", "p", "q"], map(list, zip(*given, strict=True)), strict=True)), schema=_KINDS)


def found(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist())


@pytest.mark.parametrize("partition_by", [["p"], ["P", "q"], []], ids=["one", "two", "none"])
@pytest.mark.parametrize("through", ["write_arrow", "job"])
def test_a_dynamic_overwrite_replaces_the_partitions_that_the_data_has(
    tmp_path: Path, partition_by: list[str], through: str
) -> None:
    table = tmp_path / "t"
    old = [(1, 1, "a"), (2, 1, "b"), (3, None, "a"), (4, 2, None), (5, 2, "a")]
    new = [(10, 1, "a"), (11, None, "a"), (12, 7, "x"), (13, 2, None)]
    write_arrow(table, rows(*old), partition_by=partition_by, maintain=False)
    options: dict[str, Any] = {"partition_overwrite_mode": "Dynamic", "maintain": False}
    if through == "write_arrow":
        write_arrow(table, rows(*new), mode="overwrite", **options)
    else:  # as Spark does it: tasks first, then the committer
        data = rows(*new)
        job = WriteJob.prepare(str(table), data.schema, WriteOptions(**options), "overwrite")
        job.commit([job.write(data.slice(0, 2).to_batches(), 0), job.write(data.slice(2).to_batches(), 1)])
    columns = [" pq".index(name.lower()) for name in partition_by]
    touched = {tuple(row[index] for index in columns) for row in new}
    kept = [row[0] for row in old if tuple(row[index] for index in columns) not in touched]
    assert found(table) == sorted([*kept, 10, 11, 12, 13])
    assert DeltaTable(table).history(1)[0]["operationParameters"]["mode"] == "Overwrite"


def test_a_dynamic_overwrite_with_no_rows_replaces_nothing(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_arrow(table, rows((1, 1, "a")), partition_by=["p"], maintain=False)
    write_arrow(table, _KINDS.empty_table(), mode="overwrite", partition_overwrite_mode="dynamic", maintain=False)
    assert found(table) == [1]


def test_overwrite_schema_gives_the_columns_of_the_data_and_user_metadata_is_noted(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_arrow(table, rows((1, 1, "a")), maintain=False, user_metadata="first")
    other = pa.table({"name": ["x"], "id": ["text"]})
    write_arrow(table, other, mode="overwrite", overwrite_schema=True, maintain=False, user_metadata="second")
    assert DeltaTable(table).to_pyarrow_table().to_pylist() == other.to_pylist()
    assert [each["userMetadata"] for each in DeltaTable(table).history()] == ["second", "first"]


@pytest.mark.parametrize(
    "options",
    [
        {"overwrite_schema": True},
        {"partition_overwrite_mode": "dynamic"},
        {"mode": "overwrite", "overwrite_schema": True, "overwrite_where": "p = 1"},
        {"mode": "overwrite", "overwrite_schema": True, "partition_overwrite_mode": "dynamic"},
        {"mode": "overwrite", "partition_overwrite_mode": "some"},
    ],
    ids=str,
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        write_arrow(tmp_path / "t", rows((1, 1, "a")), **options)
    assert not (tmp_path / "t").exists()


def test_who_may_only_create_never_meets_a_table(tmp_path: Path) -> None:
    """Also one that another writer created while the rows were written."""
    table, data = tmp_path / "t", rows((1, 1, "a"))
    job = WriteJob.prepare(str(table), data.schema, WriteOptions(create_only=True))
    result = job.write(data.to_batches())
    write_arrow(table, rows((2, 1, "a")), maintain=False)
    with pytest.raises((TableExistsError, CommitConflictError)):
        job.commit([result])
    assert found(table) == [2]
    assert len(list(table.glob("*.parquet"))) == 1  # what was written in vain is gone
    with pytest.raises(TableExistsError, match="already exists"):
        WriteJob.prepare(str(table), data.schema, WriteOptions(create_only=True))


def test_of_several_creators_one_succeeds(tmp_path: Path) -> None:
    table, data = tmp_path / "t", rows((1, 1, "a"))
    jobs = [WriteJob.prepare(str(table), data.schema, WriteOptions(create_only=True)) for _ in range(4)]
    results = [job.write(data.to_batches()) for job in jobs]
    outcomes: list[str] = []

    def commit(number: int) -> None:
        try:
            jobs[number].commit([results[number]])
            outcomes.append("created")
        except (TableExistsError, CommitConflictError):
            outcomes.append("refused")

    threads = [threading.Thread(target=commit, args=[number]) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(outcomes) == ["created", "refused", "refused", "refused"]
    assert found(table) == [1]

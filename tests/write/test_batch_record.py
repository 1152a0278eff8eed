"""A batch that is repeated is skipped; another one under its number is an error."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import lazydelta
from lazydelta.errors import WriteError
from lazydelta.protocol.actions import Txn
from lazydelta.storage import open_store
from lazydelta.write.batch_record import BATCH_FIELD, BatchRecord, RowCounter, check_repeat, find_batch

UTC = pa.timestamp("us", "UTC")
HOUR = 3_600_000_000


def events(*hours: float | None, first: int = 0) -> pa.Table:
    at = [None if hour is None else round(hour * HOUR) for hour in hours]
    return pa.table({"at": pa.array(at, UTC), "n": pa.array(range(first, first + len(at)), pa.int64())})


def write(table: Path, data: pa.Table, version: int, **options: Any) -> int:
    return lazydelta.write_arrow(table, data, app_id="job", app_version=version, **options)


def numbers(table: Path) -> list[int]:
    return sorted(lazydelta.DeltaTable(table).to_pyarrow_table()["n"].to_pylist())


def recorded(table: Path, version: int) -> dict[str, Any]:
    first = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()[0]
    found: dict[str, Any] = json.loads(first)["commitInfo"][BATCH_FIELD]
    return found


def data_files(table: Path) -> list[Path]:
    return sorted(each for each in table.rglob("*.parquet") if "_delta_log" not in each.parts)


def forget(table: Path, *versions: int) -> None:
    """Take commits away, as a cleanup of the log does."""
    for version in versions:
        for each in (table / "_delta_log").glob(f"{version:020}.*"):
            if ".checkpoint" not in each.name:
                each.unlink()


def test_a_commit_says_what_its_batch_was_and_others_read_the_table(tmp_path: Path) -> None:
    write(tmp_path, events(1, 1.5, 2, None), 0, timestamp_column="at")
    assert recorded(tmp_path, 0) == {
        "rows": 4,
        "rejected": 0,
        "numPartitions": 3,
        "partitions": {
            "_event_hour=1970010101": 2,
            "_event_hour=1970010102": 1,
            "_event_hour=__HIVE_DEFAULT_PARTITION__": 1,
        },
        "moments": ["1970-01-01T01:00:00.000000", "1970-01-01T02:00:00.000000", f"{round(4.5 * HOUR):016x}"],
    }
    assert deltalake.DeltaTable(tmp_path).to_pyarrow_table().num_rows == 4
    lazydelta.write_arrow(tmp_path, events(1))
    assert [BATCH_FIELD in each for each in deltalake.DeltaTable(tmp_path).history()] == [False, True]


@pytest.mark.parametrize("aligned", [False, True])
def test_the_same_batch_again_is_skipped(aligned: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    options = {"timestamp_column": "at"} if aligned else {}
    data = events(1, 2, 2, None, -5)
    write(tmp_path, data, 0, **options)
    before = data_files(tmp_path)
    in_another_order = data.take([4, 2, 0, 1, 3])
    assert write(tmp_path, in_another_order, 0) == 0
    pieces = (each for each in data.to_batches(max_chunksize=2))
    assert lazydelta.write_arrow(tmp_path, pieces, app_id="job", app_version=0, mode="overwrite") == 0
    assert data_files(tmp_path) == before
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (
            events(1, 2, 2, first=7),
            "3 rows, .*with 3 rows, 1 in _event_hour=1970010101 and 2 in _event_hour=1970010102",
        ),
        (events(1, 2), "with 3 rows, .*; another batch has the same number, with 2 rows"),
        (events(1, 1.1, 2), "from 1970-01-01T01:00:00.000000 to 1970-01-01T02:00:00.000000"),
        (events(1, None, 2), "__HIVE_DEFAULT_PARTITION__"),
    ],
    ids=["other hours", "fewer rows", "other times", "no time"],
)
def test_another_batch_under_the_same_number_is_an_error_that_names_both(
    other: pa.Table, what: str, tmp_path: Path
) -> None:
    write(tmp_path, events(1, 1.5, 2), 3, timestamp_column="at")
    with pytest.raises(
        WriteError, match=f"Batch 3 of the application 'job' is in the table.*since version 0, .*{what}"
    ):
        write(tmp_path, other, 3)
    assert numbers(tmp_path) == [0, 1, 2]
    assert len(data_files(tmp_path)) == 2


@pytest.mark.parametrize("options", [{"timestamp_column": "at"}, {}], ids=["aligned", "not aligned"])
def test_a_time_tells_batches_apart_that_have_as_many_rows_an_hour(options: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, events(1, 1.1), 0, **options)
    with pytest.raises(WriteError, match=r"T01:00:00.000000 to 1970-01-01T01:06.*T01:12:00.000000 to 1970-01-01T01:18"):
        write(tmp_path, events(1.2, 1.3), 0)


def test_an_empty_batch_loses_nothing_and_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, events(1), 0)
    assert write(tmp_path, events(), 0) == 0


def test_another_batch_that_is_noticed_at_the_commit_leaves_no_file(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, events(0))

    def slow(hour: float) -> Iterator[pa.RecordBatch]:
        yield from events(1, 2).to_batches()
        write(tmp_path, events(1, hour), 3)

    with pytest.raises(WriteError, match="another batch has the same number"):
        lazydelta.write_arrow(tmp_path, _first(slow(2), events(1).to_batches()), app_id="job", app_version=3)
    assert len(data_files(tmp_path)) == 2
    assert len(numbers(tmp_path)) == 3


def _first(given: Iterator[pa.RecordBatch], more: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from given
    yield from more


# --- batches before the last one


def test_an_older_batch_is_found_in_the_log(tmp_path: Path) -> None:
    for version in range(4):
        write(tmp_path, events(*range(version + 1)), version)
        lazydelta.write_arrow(tmp_path, events(0))
    assert write(tmp_path, events(0, 1), 1) == 7
    with pytest.raises(WriteError, match=r"Batch 1 .* since version 2, with 2 rows, .* with 3 rows, "):
        write(tmp_path, events(0, 1, 2), 1)
    assert lazydelta.DeltaTable(tmp_path).version() == 7


def test_a_number_that_was_left_out_does_not_lose_its_rows(tmp_path: Path) -> None:
    write(tmp_path, events(1), 1)
    write(tmp_path, events(3), 3)
    for missed in (0, 2):
        with pytest.raises(
            WriteError, match=f"has later batches of the application 'job', but never had number {missed}"
        ):
            write(tmp_path, events(2), missed)


def _cleaned(table: Path) -> None:
    """Make a table whose checkpoint knows of the batches 0 and 1, and whose log no longer has their commits."""
    for version in range(2):
        write(table, events(version), version, properties={"delta.checkpointInterval": "2"})
    lazydelta.write_arrow(table, events(5))
    lazydelta.write_arrow(table, events(6))
    forget(table, 0, 1)


def test_a_batch_whose_commit_was_cleaned_up_is_taken_for_done_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _cleaned(tmp_path)
    for version in (0, 1):
        with caplog.at_level(logging.WARNING):
            assert write(tmp_path, events(9), version) == 3
        assert f"Batch {version} of the application 'job'" in caplog.text
    assert len(numbers(tmp_path)) == 4


def test_a_micro_batch_that_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    _cleaned(tmp_path)
    txn, batch = Txn(app_id="job", version=1), BatchRecord(rows=1, is_stream=True)
    with pytest.raises(WriteError, match="its commit is gone, or does not say what it was: now it has 1 rows"):
        check_repeat(open_store(tmp_path), txn, batch, 3)


def test_looking_for_the_last_batch_reads_the_commits_since_then_and_no_more(tmp_path: Path) -> None:
    for version in range(30):
        write(tmp_path, events(version), version)
    store = open_store(tmp_path)
    # Ten commits are asked for at once, and more than one for each that is taken: a long tail is fetched in few rounds.
    for version, most in ((29, 10), (27, 16)):
        before = store.counters.gets
        assert find_batch(store, Txn(app_id="job", version=version), 29).version == version
        assert store.counters.gets - before <= most


# --- what is compared


def test_many_partitions_are_recorded_by_a_digest() -> None:
    many = BatchRecord(rows=100, partitions={f"p={n}": 1 for n in range(100)})
    body = many.body()
    assert "partitions" not in body
    assert body["numPartitions"] == 100
    shuffled = BatchRecord(rows=100, partitions={f"p={n}": 1 for n in reversed(range(100))})
    other = BatchRecord(rows=100, partitions={f"p={n + 1}": 1 for n in range(100)})
    assert (shuffled.is_same(body), other.is_same(body)) == (True, False)


def test_rows_are_counted_as_files_are_written(tmp_path: Path) -> None:
    data = pa.table({"p": ["a", "a/b", None, "", "a"], "q": [1, 1, 1, None, 2], "n": range(5)})
    write(tmp_path, data, 0, partition_by=["p", "q"])
    counter = RowCounter(["p", "q"])
    for batch in data.to_batches(max_chunksize=2):
        counter.write(batch)
    assert dict(counter.partitions) == recorded(tmp_path, 0)["partitions"]
    assert counter.rows == 5


def test_a_batch_of_files_is_known_by_them_although_some_are_gone() -> None:
    files = [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    body = BatchRecord(rows=9).from_sources(files).body()
    assert body["sourceNames"] == ["a", "b", "c"]
    for same in (files, files[:2]):
        assert BatchRecord().from_sources(same).is_same(body)
    for other in ([*files, ("e", 5)], [("a", 2)]):
        assert BatchRecord().from_sources(other).is_same(body) is False
    assert BatchRecord().from_sources(files).is_same({"rows": 9}) is None

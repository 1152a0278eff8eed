"""What opening a table and listing its files asks of the store, counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from lazydelta import DeltaTable
from lazydelta.storage import open_store
from lazydelta.testing.make_table import make_table
from tests.log.support import Log, name_of, paths, requests, spy_on_listings
from tests.log.support_reads import LocalReads, chunks_of, overlap, without_footer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FILES = 60_000
READ_AHEAD = 1 << 20


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open every table as a fresh process would: what another test has read is not remembered."""
    monkeypatch.setenv("DELTA_CACHE_SIZE", "0")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of many files in a checkpoint of one row group, with a tail of three commits."""
    root = tmp_path_factory.mktemp("made")
    make_table(root, files=FILES, tail=3)
    return root


def checkpoint_of(root: Path) -> Path:
    """Return the only checkpoint of a made table."""
    (path,) = (root / "_delta_log").glob("*.checkpoint.parquet")
    return path


# --- listing


def long_log(root: Path, *, hint: bool) -> str:
    """Put a table with a page of commits below its checkpoint at 1100 into an object store; return its URI."""
    log = Log(root).commits(0, 3)
    for version in range(4, 1101):
        log.write(name_of(version), b'{"commitInfo":{}}\n')
    log.checkpoint(1100, hint=hint)
    log.commits(1101, 1103)
    return log.in_memory()


def test_a_valid_hint_lists_from_the_checkpoint_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the older commits is listed, and none of their objects looked at."""
    uri = long_log(tmp_path, hint=True)
    given = spy_on_listings(monkeypatch, open_store(uri), lambda *_: False)
    with requests() as seen:
        files = paths(DeltaTable(uri).files())
    assert files == sorted([f"f{version}" for version in (0, 1, 2, 3, 1101, 1102, 1103)])
    assert seen.lists == 1
    assert all(name >= f"{1100:020}" for name in given)
    assert all(name >= f"{1100:020}" for name in seen.gets if name != "_last_checkpoint")


def test_without_a_hint_every_page_is_listed(tmp_path: Path) -> None:
    """The same log without its hint: what the hint saves."""
    uri = long_log(tmp_path, hint=False)
    with requests() as seen:
        DeltaTable(uri)
    assert seen.lists == 2


def test_opening_reads_the_hint_the_listing_the_tail_and_the_checkpoints_state(made: Path) -> None:
    with requests() as seen:
        table = DeltaTable(made)
    assert (table.version(), seen.lists) == (13, 1)
    assert set(seen.gets) == {
        "_last_checkpoint",
        name_of(10, "checkpoint.parquet"),
        name_of(11),
        name_of(12),
        name_of(13),
    }


def test_a_pinned_table_is_never_listed_again(made: Path) -> None:
    table = DeltaTable(made)
    assert len(table.files().collect()) == FILES + 30  # looks for a sidecar of an older checkpoint, once
    with requests() as seen:
        assert len(table.files().collect()) == FILES + 30
        table.schema()
        table.metadata()
        table.protocol()
        table.version()
    assert seen.lists == 0


def test_a_small_tail_is_read_once_for_opening_and_scanning(tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 6)
    log.checkpoint(2, hint=True)
    with requests() as seen:
        DeltaTable(tmp_path).files().collect()
    tail = [name for name in seen.gets if name.endswith(".json")]
    assert sorted(tail) == [name_of(version) for version in (3, 4, 5, 6)]


def test_nothing_is_read_before_the_first_file_is_asked_for(made: Path) -> None:
    table = DeltaTable(made)
    with requests() as seen:
        stream = table.files()
        stream.explain()
        stream.close()
    assert seen == []


# --- protocol and metadata


@pytest.mark.parametrize("version", [6, 4, 3])
def test_no_checkpoint_is_opened_for_protocol_and_metadata_when_a_checksum_has_them(
    version: int, tmp_path: Path
) -> None:
    """The checksum may be at the version itself, or older with commits between."""
    log = Log(tmp_path).commits(0, 6)
    log.checkpoint(3, hint=True)
    log.checksum(version)
    with requests() as seen:
        table = DeltaTable(tmp_path)
        assert (table.version(), len(table.schema()), table.protocol().min_reader_version) == (6, 1, 1)
    newer = [name_of(each) for each in range(version + 1, 7)]
    assert sorted(seen.gets) == sorted(["_last_checkpoint", name_of(version, "crc"), *newer])


def test_no_checkpoint_is_opened_when_the_tail_has_protocol_and_metadata(tmp_path: Path) -> None:
    log = Log(tmp_path).commits(0, 6)
    log.checkpoint(3, hint=True)
    log.commit(5, *[{name: action} for name, action in _state(log).items()])
    with requests() as seen:
        DeltaTable(tmp_path)
    assert sorted(name for name in seen.gets if "checkpoint.parquet" in name) == []


def _state(log: Log) -> dict[str, Any]:
    snapshot = log.writer(0).snapshot
    return {"protocol": snapshot.protocol, "metaData": snapshot.metadata}


# --- data files


LISTINGS: dict[str, Callable[[DeltaTable], object]] = {
    "files": lambda table: [(f.path, f.uri, f.size, f.partition_values, f.stats) for f in table.files()],
    "batches": lambda table: list(table.files().batches()),
    "predicate": lambda table: table.files("id > 3").collect(),
    "file_uris": lambda table: table.file_uris(file_pruning_predicate=[("part", "=", "a")]),
    "partitions": lambda table: table.partitions(),
    "count": lambda table: table.count(),
    "history": lambda table: table.history(),
    "transaction_version": lambda table: table.transaction_version("nobody"),
}


@pytest.mark.parametrize("listing", LISTINGS)
def test_no_data_file_is_looked_at_to_answer_from_the_log(listing: str, tmp_path: Path) -> None:
    for start in (0, 10, 20):
        rows = pa.table({"id": list(range(start, start + 4)), "part": ["a", "b", "a", "c"]})
        deltalake.write_deltalake(tmp_path, rows, mode="append", partition_by=["part"])
    deltalake.DeltaTable(tmp_path).create_checkpoint()
    deltalake.write_deltalake(tmp_path, rows, mode="append", partition_by=["part"])
    with requests() as seen:
        answer = LISTINGS[listing](DeltaTable(tmp_path))
    assert answer is None or answer
    assert {each.path.partition("/")[0] for each in seen} == {"_delta_log"}
    assert {"PUT", "DELETE"}.isdisjoint(each.verb for each in seen)


# --- statistics


def test_no_byte_of_the_statistics_is_read_to_list_files(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = checkpoint_of(made)
    stats = chunks_of(checkpoint, "add.stats")
    reads = LocalReads.watch(monkeypatch)
    table = DeltaTable(made)
    assert sum(batch.num_rows for batch in table.files().batches()) == FILES + 30
    assert overlap(reads.of(checkpoint), chunks_of(checkpoint, "add.path")) > 0
    assert overlap(reads.of(checkpoint), stats) == 0


def test_on_an_object_store_read_ahead_touches_no_more_than_the_edge_of_the_statistics(made: Path) -> None:
    """The block that holds the end of the column before them, and the block ahead of it; nothing further is read."""
    uri = Log(made).in_memory()
    checkpoint = checkpoint_of(made)
    stats = chunks_of(checkpoint, "add.stats")
    size = sum(end - start for start, end in stats)
    assert size > 4 * READ_AHEAD
    with requests() as seen:
        assert sum(batch.num_rows for batch in DeltaTable(uri).files().batches()) == FILES + 30
    ranges = without_footer(seen.ranges(f"_delta_log/{checkpoint.name}"), checkpoint)
    assert overlap(ranges, chunks_of(checkpoint, "add.path")) >= FILES
    assert overlap(ranges, stats) <= 2 * READ_AHEAD


def test_columns_that_listing_does_not_need_are_not_read(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = checkpoint_of(made)
    table = DeltaTable(made)
    reads = LocalReads.watch(monkeypatch)
    assert sum(batch.num_rows for batch in table.files().batches()) == FILES + 30
    for column in ("add.dataChange", "add.tags", "remove", "txn", "metaData", "protocol"):
        assert overlap(reads.of(checkpoint), chunks_of(checkpoint, column)) == 0, column


def test_statistics_asked_for_afterwards_are_read_once_per_pass(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = checkpoint_of(made)
    stats = chunks_of(checkpoint, "add.stats")
    table = DeltaTable(made)
    reads = LocalReads.watch(monkeypatch)
    files = table.files().collect()
    assert overlap(reads.of(checkpoint), stats) == 0
    assert all(file.stats is not None and file.num_records is not None for file in files)
    assert overlap(reads.of(checkpoint), stats) == sum(end - start for start, end in stats)
    assert all(file.stats is not None for file in files)
    assert overlap(reads.of(checkpoint), stats) == sum(end - start for start, end in stats)


def test_statistics_of_one_early_file_cost_a_part_of_the_column(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = checkpoint_of(made)
    stats = chunks_of(checkpoint, "add.stats")
    table = DeltaTable(made)
    reads = LocalReads.watch(monkeypatch)
    first = next(file for file in table.files(strategy="forward") if file.tier == 3)
    assert first.num_records is not None
    assert 0 < overlap(reads.of(checkpoint), stats) < sum(end - start for start, end in stats) / 2


def test_statistics_are_read_where_a_predicate_needs_them(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counterpart: the watch above does see reads of statistics."""
    checkpoint = checkpoint_of(made)
    stats = chunks_of(checkpoint, "add.stats")
    table = DeltaTable(made)
    column = next(
        field.name
        for field in table.schema().to_arrow()
        if field.name != "_event_hour" and pa.types.is_int64(field.type)
    )
    reads = LocalReads.watch(monkeypatch)
    table.files(f"{column} < -9000000000000000000").collect()
    assert overlap(reads.of(checkpoint), stats) == sum(end - start for start, end in stats)


def test_a_partition_predicate_reads_no_statistics(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = checkpoint_of(made)
    table = DeltaTable(made)
    reads = LocalReads.watch(monkeypatch)
    found = sum(batch.num_rows for batch in table.files([("_event_hour", ">=", "2026021023")]).batches())
    assert 0 < found < FILES
    assert overlap(reads.of(checkpoint), chunks_of(checkpoint, "add.stats")) == 0

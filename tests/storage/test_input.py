"""Random access for pyarrow over ranged reads."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta.errors import ObjectChangedError, ObjectNotFoundError, StorageError
from lazydelta.storage import Request, Store, observe
from lazydelta.storage.bridge import Pending
from lazydelta.storage.input import AdaptiveReads

if TYPE_CHECKING:
    from tests.storage.conftest import Place

COLUMNS = 10


def parquet(rows: int, seed: int = 0) -> bytes:
    """One row group of columns that do not compress."""
    rng = np.random.default_rng(seed)
    table = pa.table({f"c{number}": rng.integers(0, 1 << 62, rows) for number in range(COLUMNS)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=rows, compression="none", use_dictionary=False)
    return bytes(sink.getvalue())


def test_a_parquet_file_reads_back_whole(store: Store) -> None:
    content = parquet(200_000)
    store.put("a", content)
    with store.open_input("a", size=len(content)) as source:
        assert pq.read_table(source).equals(pq.read_table(pa.BufferReader(content)))


def test_ten_rows_of_one_big_row_group_cost_a_small_part_of_it(store: Store) -> None:
    content = parquet(500_000)
    store.put("a", content)
    store.counters.bytes_read = 0
    with store.open_input("a", size=len(content)) as source:
        file = pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 16)
        batch = next(file.iter_batches(batch_size=10, columns=["c1", "c2"]))
        assert batch.num_rows == 10
    assert store.counters.bytes_read < len(content) // 10


@pytest.mark.parametrize("place", ["memory", "s3"], indirect=True)
def test_interleaved_columns_are_read_once_with_growing_blocks(place: Place) -> None:
    store = place.open()
    content = parquet(500_000)
    store.put("a", content)
    store.counters.bytes_read = store.counters.gets = 0
    with store.open_input("a", size=len(content)) as source:
        file = pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 16)
        rows = sum(batch.num_rows for batch in file.iter_batches(batch_size=1_000, use_threads=False))
    assert rows == 500_000
    assert store.counters.bytes_read < len(content) * 1.1
    # Without read-ahead each 64 KiB is a request of its own: more than 600 for this file.
    assert store.counters.gets < 150


def test_an_object_that_is_shorter_than_announced_is_an_error(store: Store) -> None:
    store.put("a", b"123")
    with store.open_input("a", size=10) as source, pytest.raises(StorageError, match=r"announced|shorter"):
        source.read(10)


def test_a_missing_object_is_not_found_by_pyarrow_either(store: Store) -> None:
    with pytest.raises(ObjectNotFoundError), store.open_input("none", size=10) as source:
        source.read(5)


def test_an_object_that_was_replaced_is_not_mixed_with_the_old_one(store: Store) -> None:
    store.put("a", b"old content")
    etag = store.head("a").etag
    store.put("a", b"new content!")
    with pytest.raises(ObjectChangedError), store.open_input("a", size=11, if_match=etag) as source:
        source.read(5)


def test_a_fault_in_the_middle_reaches_the_caller_through_pyarrow(store: Store) -> None:
    content = parquet(100_000)
    store.put("a", content)

    def fail_later(request: Request) -> None:
        if request.verb == "GET" and next(calls) > 2:
            raise ConnectionResetError

    calls = itertools.count()
    with (
        store.open_input("a", size=len(content)) as source,
        observe(fail_later),
        pytest.raises(StorageError, match="GET of"),
    ):
        pq.read_table(source, pre_buffer=False, use_threads=False)


class _Object:
    """An object in memory that counts what is read of it."""

    def __init__(self, size: int) -> None:
        self.content = random.Random(size).randbytes(size)
        self.requests: list[tuple[int, int]] = []

    def fetch(self, start: int, length: int) -> Pending[bytes]:
        assert 0 <= start < len(self.content)
        assert 0 < length <= len(self.content) - start
        self.requests.append((start, length))
        return Pending.done_with(self.content[start : start + length])

    def reads(self, read_ahead: int = 1 << 20) -> AdaptiveReads:
        return AdaptiveReads(self.fetch, len(self.content), read_ahead)


@pytest.mark.parametrize("seed", range(20))
def test_any_pattern_of_reads_gives_the_right_bytes(seed: int) -> None:
    rng = random.Random(seed)
    source = _Object(3_000_000)
    reads = source.reads(rng.choice([1 << 16, 1 << 18, 1 << 20]))
    lanes = [rng.randrange(3_000_000) for _ in range(rng.randrange(1, 12))]
    for _ in range(600):
        lane = rng.randrange(len(lanes))
        if rng.random() < 0.1:
            lanes[lane] = rng.randrange(3_000_000)
        length = rng.choice([1, 100, 5_000, 65_536, 300_000])
        at = lanes[lane]
        assert bytes(reads.read_at(at, length)) == source.content[at : at + length]
        lanes[lane] = min(at + length, 3_000_000)


def test_one_small_read_makes_one_small_request() -> None:
    source = _Object(10_000_000)
    source.reads().read_at(5_000_000, 8)
    assert source.requests == [(5_000_000, 64 << 10)]


def test_a_big_read_is_one_request_of_just_that() -> None:
    source = _Object(10_000_000)
    source.reads().read_at(1_000, 4_000_000)
    assert source.requests == [(1_000, 4_000_000)]


def test_blocks_double_while_reading_goes_on() -> None:
    source = _Object(20 << 20)
    reads = source.reads(1 << 20)
    for at in range(0, 8 << 20, 1 << 14):
        reads.read_at(at, 1 << 14)
    sizes = [length for _, length in source.requests]
    assert sizes[:5] == [1 << 16, 1 << 17, 1 << 17, 1 << 18, 1 << 19]
    assert max(sizes) == 1 << 20
    assert sum(sizes) <= (8 << 20) + (2 << 20)


def test_what_is_held_stays_within_the_budget() -> None:
    source = _Object(64 << 20)
    reads = source.reads(1 << 20)
    lanes = list(range(0, 64 << 20, 1 << 20))
    for step in range(16):
        for lane in lanes:
            reads.read_at(lane + step * (1 << 16), 1 << 16)
            held = sum(one.held for one in reads._lanes)
            assert held <= 8 << 20


def test_a_closed_input_reads_no_more() -> None:
    source = _Object(1 << 20)
    reads = source.reads()
    reads.read_at(0, 10)
    reads.close()
    with pytest.raises(StorageError, match="closed"):
        reads.read_at(0, 10)
    assert len(source.requests) == 1

"""Consumers that take their time between two batches: every way to stream rows and files, with one and two processors.

There is no idle time after which a thread ends. A pause that is longer than any is made by counting: it lasts until no
thread works for the stream any more.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import duckdb
import pyarrow as pa
import pytest

from lazydelta import DeltaTable, QueryBuilder, kql
from lazydelta.engines import duckdb as our_duckdb
from tests.rows.made_table import MadeTable, make_table
from tests.rows.watching import row_threads
from tests.server.serving import connected, serving

FILES, ROWS = 30, 2048
_PATIENCE = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    """Thirty commits of one file each."""
    return make_table(tmp_path_factory.mktemp("slow"), files=FILES, rows=ROWS)


def rows(made: MadeTable) -> Iterator[int]:
    for batch in DeltaTable(made.uri).rows():
        yield batch.num_rows


def filtered_rows(made: MadeTable) -> Iterator[int]:
    for batch in DeltaTable(made.uri).rows(where="id >= 0 and text is not null"):
        yield batch.num_rows


def dataset(made: MadeTable) -> Iterator[int]:
    for batch in DeltaTable(made.uri).to_pyarrow_dataset().to_batches():
        yield batch.num_rows


def reader(made: MadeTable) -> Iterator[int]:
    for batch in pa.RecordBatchReader.from_stream(DeltaTable(made.uri)):
        yield batch.num_rows


def in_polars(made: MadeTable) -> Iterator[int]:
    for frame in DeltaTable(made.uri).to_polars().collect_batches(engine="streaming", maintain_order=True):
        yield frame.height


def in_duckdb(made: MadeTable) -> Iterator[int]:
    with duckdb.connect() as con:
        our_duckdb.register(con, "t", made.uri)
        for batch in con.sql("SELECT * FROM t").to_arrow_reader(ROWS):
            yield batch.num_rows


def in_datafusion(made: MadeTable) -> Iterator[int]:
    for batch in QueryBuilder().register("t", DeltaTable(made.uri)).execute("SELECT * FROM t"):
        yield batch.num_rows


def in_kql(made: MadeTable) -> Iterator[int]:
    with kql.query("T | where id >= 0", {"T": DeltaTable(made.uri)}) as found:
        for batch in found:
            yield batch.num_rows


def files(made: MadeTable) -> Iterator[int]:
    for _ in DeltaTable(made.uri).files():
        yield ROWS


def file_batches(made: MadeTable) -> Iterator[int]:
    for batch in DeltaTable(made.uri).files(strategy="forward").batches():
        yield batch.num_rows * ROWS


def remote_rows(made: MadeTable) -> Iterator[int]:
    with serving({"t": made.path}) as server, connected(server) as connection:
        for batch in connection.table("t").rows():
            yield batch.num_rows


def remote_files(made: MadeTable) -> Iterator[int]:
    with serving({"t": made.path}) as server, connected(server) as connection:
        for _ in connection.table("t").files():
            yield ROWS


CONSUMERS: list[Callable[[MadeTable], Iterator[int]]] = [
    rows,
    filtered_rows,
    dataset,
    reader,
    in_polars,
    in_duckdb,
    in_datafusion,
    in_kql,
    files,
    file_batches,
    remote_rows,
    remote_files,
]


def until_no_thread_works() -> None:
    """Wait for as long as any thread decodes rows: longer than whatever it would wait for more work."""
    deadline = time.monotonic() + _PATIENCE
    while row_threads():
        assert time.monotonic() < deadline, row_threads()
        time.sleep(0.001)


def no_pause() -> None:
    """Take the next batch at once."""


@pytest.mark.parametrize("pause", [no_pause, until_no_thread_works])
@pytest.mark.parametrize("processors", [1, 2])
@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda each: each.__name__)
@pytest.mark.each_value
def test_a_consumer_gets_all_however_long_it_pauses(
    made: MadeTable,
    consumer: Callable[[MadeTable], Iterator[int]],
    processors: int,
    pause: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    found: list[int] = []

    def consume() -> None:
        with closing(consumer(made)) as items:  # type: ignore[type-var]
            for number in items:
                found.append(number)
                pause()

    # In a thread, so that one that waits for ever fails the test and does not stop it.
    consuming = threading.Thread(target=consume, daemon=True)
    consuming.start()
    consuming.join(_PATIENCE)
    assert not consuming.is_alive(), f"it stopped after {len(found)} batches"
    assert sum(found) == FILES * ROWS

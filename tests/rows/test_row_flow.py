"""How much is read, and when it stops: counted in files, requests, row groups and bytes."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable
from lazydelta.data_files import reader as opened_file
from lazydelta.errors import DataFileError, StreamClosedError
from lazydelta.rows.flow import ReadingPool
from lazydelta.rows.request import RowRequest
from lazydelta.rows.scanner import RowScanner
from lazydelta.scan.file import StoredFile
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, observe
from tests.rows.made_table import MadeTable, make_table
from tests.rows.watching import hand_out_one_file_a_pull, no_threads_are_left, row_threads, watch

ROWS = 200


@pytest.fixture(scope="module")
def forty(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_table(tmp_path_factory.mktemp("forty"), files=40, rows=ROWS)


def scanner(made: MadeTable, pool: ReadingPool | None = None, **keywords: object) -> RowScanner:
    handle = TableHandle.open(made.uri)
    snapshot = handle.snapshot()
    return RowScanner(snapshot, RowRequest.of(snapshot.schema, **keywords), pool=pool)  # type: ignore[arg-type]


def test_a_limit_that_one_file_fills_pulls_at_most_three(forty: MadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled = hand_out_one_file_a_pull(monkeypatch)
    with watch() as watched:
        assert sum(batch.num_rows for batch in DeltaTable(forty.uri).rows(limit=100)) == 100
        requests = len(watched.requests)
    assert len(pulled) <= 3
    assert len(watched.files) == 1
    assert len(watched.requests) == requests
    assert row_threads() == []


def test_a_limit_that_ten_files_fill_pulls_at_most_thirteen(forty: MadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled = hand_out_one_file_a_pull(monkeypatch)
    assert sum(batch.num_rows for batch in DeltaTable(forty.uri).rows(limit=10 * ROWS)) == 10 * ROWS
    assert 10 <= len(pulled) <= 13


def test_nothing_is_read_before_the_first_batch_is_asked_for(forty: MadeTable) -> None:
    table = DeltaTable(forty.uri)
    with watch() as watched:
        stream = table.rows()
        assert watched.requests == []
        stream.close()
        assert watched.requests == []


def test_more_files_are_open_at_once_the_longer_it_goes_on(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=60, rows=ROWS, one_commit=True)
    with ReadingPool(4, 1 << 30) as pool:
        stream = scanner(made, pool).stream()
        next(stream)
        assert stream.metrics.most_files_at_once == 1
        for _ in stream:
            pass
        # Twice as many as threads: while the oldest waits to be taken, its thread is at work on another one.
        assert stream.metrics.most_files_at_once == 8
        assert pool.most_at_once <= 4
        assert pool.held == 0


@pytest.mark.parametrize(("limit", "most"), [(None, 8), (2 * ROWS, 1)], ids=["all", "some"])
def test_who_hurries_has_all_threads_at_work_at_once_unless_few_rows_are_wanted(
    tmp_path: Path, limit: int | None, most: int
) -> None:
    made = make_table(tmp_path, files=12, rows=ROWS, one_commit=True)
    with ReadingPool(4, 1 << 30) as pool:
        stream = scanner(made, pool, limit=limit).stream()
        next(stream)
        assert stream.metrics.most_files_at_once == 1
        stream.hurry()
        next(stream)
        assert stream.metrics.most_files_at_once == most
        stream.close()
        stream.hurry()
        assert next(stream, None) is None
        assert pool.held == 0


def test_files_are_read_while_others_are_still_looked_for(forty: MadeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    hand_out_one_file_a_pull(monkeypatch)
    stream = DeltaTable(forty.uri).rows()
    stream.read_all()
    assert stream.metrics.files_while_discovering >= 30


class _Pulls:
    """Files of a scan in two pulls of twenty; the second is told of when it begins, and held back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.second, self.let_go = threading.Event(), threading.Event()
        original = RowScanner._files

        def in_two(scanner: RowScanner, *arguments: Any) -> Generator[list[StoredFile]]:
            found = [file for some in original(scanner, *arguments) for file in some]
            yield found[:20]
            self.second.set()
            assert self.let_go.wait(60)
            yield found[20:]

        monkeypatch.setattr(RowScanner, "_files", in_two)


def test_files_are_looked_for_while_those_that_came_at_once_are_read(
    forty: MadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls = _Pulls(monkeypatch)
    with ReadingPool(2, 1 << 30) as pool:
        stream = scanner(forty, pool).stream()
        rows = [next(stream).num_rows for _ in range(5)]
        # Three files were taken to their end, sixteen are known.
        assert pulls.second.wait(60)
        # All of these are read while the rest is looked for.
        rows += [next(stream).num_rows for _ in range(15)]
        pulls.let_go.set()
        assert sum(rows) + stream.read_all().num_rows == 40 * ROWS


def test_whoever_wants_all_rows_has_files_looked_for_from_the_beginning(
    forty: MadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulls = _Pulls(monkeypatch)
    with ReadingPool(2, 1 << 30) as pool:
        stream = scanner(forty, pool).stream()
        first = next(stream).num_rows
        stream.hurry()
        assert pulls.second.wait(60)
        pulls.let_go.set()
        assert first + stream.read_all().num_rows == 40 * ROWS


@pytest.mark.parametrize(("threads", "taken"), [(2, 3), (1, 15)])
def test_nothing_more_is_looked_for_while_few_were_taken_or_one_thread_reads(
    forty: MadeTable, monkeypatch: pytest.MonkeyPatch, threads: int, taken: int
) -> None:
    pulls = _Pulls(monkeypatch)
    with ReadingPool(threads, 1 << 30) as pool:
        stream = scanner(forty, pool).stream()
        for _ in range(taken):
            next(stream)
        stream.close()
    assert not pulls.second.is_set()


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_closed_stream_makes_no_request_and_leaves_no_thread(forty: MadeTable, taken: int) -> None:
    stream = DeltaTable(forty.uri).rows()
    for _ in range(taken):
        next(stream)
    stream.close()
    with watch() as watched:
        assert row_threads() == []
        assert next(stream, None) is None
        assert watched.requests == []
    with pytest.raises(StreamClosedError):
        iter(stream)


def test_a_dropped_stream_is_a_closed_one(forty: MadeTable) -> None:
    stream = DeltaTable(forty.uri).rows()
    reader = stream.to_reader()
    reader.read_next_batch()
    flow = stream._flow
    assert flow is not None
    was_open = not flow._closed
    del reader, stream
    gc.collect()
    assert (was_open, flow._closed) == (True, True)
    assert row_threads() == []


def test_decoded_rows_that_wait_stay_within_the_budget(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=30, rows=2000)
    size = DeltaTable(made.uri).rows(limit=2000).read_all().nbytes
    with ReadingPool(4, 3 * size) as pool:
        stream = scanner(made, pool).stream()
        assert stream.count() == 60000
        # The file that the consumer waits for is read at any rate, and takes four times its size until it is known.
        assert pool.peak <= 3 * size + 4 * size
        assert pool.held == 0
    with ReadingPool(4, 1 << 30) as pool:
        stream = scanner(made, pool).stream()
        assert stream.count() == 60000
        assert pool.peak > 3 * size, "without a bound more is held, or the test above shows nothing"


def test_streams_that_share_a_pool_do_not_wait_for_each_other(forty: MadeTable) -> None:
    with ReadingPool(2, 1) as pool:
        idle = [scanner(forty, pool).stream() for _ in range(5)]
        for stream in idle:
            next(stream)
        busy = scanner(forty, pool).stream()
        assert busy.count() == 40 * ROWS
        assert pool.most_at_once <= 2
        for stream in idle:
            stream.close()
        assert pool.held == 0


def test_a_stream_whose_pool_was_closed_says_so(forty: MadeTable) -> None:
    pool = ReadingPool(2, 1 << 20)
    stream = scanner(forty, pool).stream()
    next(stream)
    pool.close()
    with pytest.raises(StreamClosedError, match="pool"):
        list(stream)


def test_row_groups_are_pruned_by_the_footer_where_the_log_knows_nothing(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=1, rows=1000, group=100, stats=False)
    stream = DeltaTable(made.uri).rows(where="id >= 350 and id < 360")
    assert [row["id"] for row in stream.read_all().to_pylist()] == list(range(350, 360))
    assert (stream.metrics.row_groups_read, stream.metrics.row_groups_pruned) == (1, 9)
    assert stream.metrics.rows_read == 100


def test_a_footer_that_proves_all_rows_saves_the_filter(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=1, rows=1000, group=100, stats=False)
    stream = DeltaTable(made.uri).rows(where="id >= 350")
    assert stream.read_all().num_rows == 650
    assert stream.metrics.row_groups_proven == 6


def test_columns_are_not_fetched_where_no_row_passed(tmp_path: Path) -> None:
    """Bounds say that every row group may hold the value, and only one does."""
    rows = [{"id": 2 * number, "part": 0, "text": "x" * 500 + str(number)} for number in range(4000)]
    schema = pa.schema([("id", pa.int64()), ("part", pa.int64()), ("text", pa.string())])
    made = make_table(tmp_path, files=1, rows=1)
    for index in range(8):
        rows[index * 500]["id"], rows[index * 500 + 499]["id"] = -1, 10**6
    rows[1234]["id"] = 777
    path = tmp_path / made.files[0]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, row_group_size=500, compression="none")
    log = tmp_path / "_delta_log" / f"{1:020d}.json"
    action = json.loads(log.read_text())
    action["add"] |= {"size": path.stat().st_size}
    del action["add"]["stats"]
    log.write_text(json.dumps(action) + "\n")
    stream = DeltaTable(made.uri).rows(where="id = 777")
    with watch() as watched:
        assert [row["text"][500:] for row in stream.read_all().to_pylist()] == ["1234"]
    assert stream.metrics.row_groups_read == 8
    assert stream.metrics.columns_skipped == 7
    metadata = pq.read_metadata(path)
    texts = [metadata.row_group(index).column(2) for index in range(8)]
    places = [(each.dictionary_page_offset or each.data_page_offset, each.total_compressed_size) for each in texts]

    def was_read(start: int, length: int) -> bool:
        middle = start + length // 2
        return any(
            request.start is not None
            and request.length is not None
            and request.start <= middle < request.start + request.length
            for request in watched.requests
            if request.path == made.files[0] and request.start != path.stat().st_size - 65536
        )

    assert [was_read(*place) for place in places].count(True) <= 2


def test_a_file_that_is_not_visible_yet_is_looked_for_again(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=3, rows=10)
    hidden = tmp_path / made.files[1]
    content = hidden.read_bytes()
    hidden.unlink()
    looks = 0

    def appear(request: Request) -> None:
        nonlocal looks
        if request.path == made.files[1]:
            looks += 1
            if looks == 3:
                hidden.write_bytes(content)

    with observe(appear):
        stream = DeltaTable(made.uri).rows()
        assert stream.read_all().num_rows == 30
    assert stream.metrics.files_looked_for_again >= 1


def test_a_file_that_stays_away_is_an_error_that_names_it(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=3, rows=10)
    (tmp_path / made.files[1]).unlink()
    stream = DeltaTable(made.uri).rows(limit=30)
    assert next(stream)["id"][0].as_py() == 20
    with pytest.raises(DataFileError, match=f"{made.files[1]} does not exist.*attempts") as caught:
        next(stream)
    assert caught.value.path == made.files[1]
    assert row_threads() == []


def test_counting_reads_no_file_that_the_log_has_counted(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=5, rows=10)
    table = DeltaTable(made.uri)
    with watch() as watched:
        assert table.count() == 50
        assert watched.files == set()
        assert table._row_scanner(where="id >= 15").count() == 35
        assert watched.files == {made.files[1]}


def test_row_groups_too_large_to_fetch_at_once_are_streamed_and_their_streams_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_table(tmp_path, files=2, rows=4000, group=1000)
    monkeypatch.setattr(opened_file, "_AT_ONCE", 100)
    used: list[opened_file.OpenedFile] = []
    most: list[int] = []
    original = opened_file.OpenedFile._source_of

    @contextmanager
    def counted(self: opened_file.OpenedFile, *sizes: Any) -> Iterator[pq.ParquetFile]:
        with original(self, *sizes) as parquet:
            used.append(self)
            most.append(len(self._streams))
            yield parquet

    monkeypatch.setattr(opened_file.OpenedFile, "_source_of", counted)
    assert DeltaTable(made.uri).to_pyarrow_table().num_rows == 8000
    found = DeltaTable(made.uri).rows(["text"], where=[("id", "in", [5, 1500, 7999])]).read_all()
    assert sorted(found["text"].to_pylist()) == [made.rows[place]["text"] for place in (5, 1500, 7999)]
    # The columns of the filter and the others, at most.
    assert max(most) == 2
    assert [file for file in used if file._streams] == []


def test_a_stream_may_be_closed_in_a_thread_of_the_pool(forty: MadeTable) -> None:
    """Garbage is collected wherever it is found: one thread closes a stream whose own work waits behind it."""
    with ReadingPool(1, 1 << 30) as pool:
        streams = [scanner(forty, pool).stream() for _ in range(3)]
        for stream in streams:
            next(stream)
        pool.submit(streams[0].close).result(timeout=60)
        assert next(streams[0], None) is None
        assert streams[1].count() == 39 * ROWS
        pool.submit(streams[2].close).result(timeout=60)
    assert no_threads_are_left()

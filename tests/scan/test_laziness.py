"""Laziness, counted: what a scan reads before it is asked, for what it is asked, and after it was told to stop."""

from __future__ import annotations

import asyncio
import threading
import uuid
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import StreamClosedError
from lazydelta.storage import observe
from lazydelta.testing import make_table
from tests.scan.hand_log import Watch, publish, read_ahead_threads, requests_under_way, watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from lazydelta.scan.file import DataFile
    from lazydelta.scan.stream import FileStream
    from lazydelta.storage import Request
    from tests.support.azurite import Azurite

MB = 1 << 20
FILES = 1_000_000
ENOUGH = 150  # more files than the tail of the medium table has
LAYOUTS: dict[str, dict[str, Any]] = {
    "one row group": {},
    "many row groups": {"row_group_size": 10_000},
    "four parts": {"checkpoint": "multipart", "parts": 4},
}
STRATEGIES = ("reverse", "forward")
both = pytest.mark.parametrize("strategy", STRATEGIES)


@pytest.fixture(scope="module")
def long_tail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a thousand commits after the checkpoint, and a checksum at the newest version."""
    table = tmp_path_factory.mktemp("long-tail")
    make_table(table, files=1000, columns=1, tail=1000, adds_per_commit=2, checksum=True)
    return table


@pytest.fixture(scope="module")
def medium(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a hundred thousand files in a checkpoint of about 10 MB, and a tail of 40 commits."""
    table = tmp_path_factory.mktemp("medium")
    make_table(table, files=100_000, columns=1, tail=40, adds_per_commit=2, removes=40)
    return table


@pytest.fixture(params=["local", "memory", "azurite"])
def anywhere(request: pytest.FixtureRequest, medium: Path) -> DeltaTable:
    """Open the medium table on each kind of store."""
    if request.param == "local":
        return DeltaTable(medium)
    if request.param == "memory":
        return DeltaTable(publish(medium, f"memory://{uuid.uuid4().hex}/table"))
    azurite: Azurite = request.getfixturevalue("azurite")
    uri = f"az://{azurite.container('laziness')}/{uuid.uuid4().hex}"
    options = azurite.storage_options()
    return DeltaTable(publish(medium, uri, options), storage_options=options)


def first_files(stream: FileStream, count: int, *, asynchronously: bool) -> list[DataFile]:
    """Pull so many files and break out of the loop."""

    async def pull() -> list[DataFile]:
        files: list[DataFile] = []
        async for file in stream:
            files.append(file)
            if len(files) == count:
                break
        return files

    if asynchronously:
        return asyncio.run(pull())
    files: list[DataFile] = []
    for file in stream:
        files.append(file)
        if len(files) == count:
            break
    return files


modes = pytest.mark.parametrize("asynchronously", [False, True], ids=["sync", "async"])


# What is read for what is asked.


@modes
@pytest.mark.parametrize("parallelism", [10, 3])
@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.each_value
def test_a_limit_of_one_on_a_long_tail_reads_one_round_of_commits_and_no_checkpoint(
    place: str,
    parallelism: int,
    asynchronously: bool,  # noqa: FBT001 - a parameter of the test
    long_tail: Path,
) -> None:
    uri = str(long_tail) if place == "local" else publish(long_tail, f"memory://{uuid.uuid4().hex}/table")
    with watching() as watch:
        table = DeltaTable(uri, options={"delta.commit.parallelism": parallelism})
        assert watch.commits <= parallelism, "the checksum tells what opening needs; one round may be speculative"
        stream = table.files(limit=1)
        (file,) = first_files(stream, 10, asynchronously=asynchronously)
        assert file.version == table.version() == 1010
        assert watch.grows() == []
        assert 1 <= watch.commits <= parallelism
        assert watch.count("checkpoint.") == 0
        assert stream.metrics.commits_scanned <= 1


@modes
def test_breaking_out_of_a_long_tail_reads_one_round_of_commits(
    asynchronously: bool,  # noqa: FBT001 - a parameter of the test
    long_tail: Path,
) -> None:
    with watching() as watch:
        stream = DeltaTable(long_tail).files(strategy="reverse")
        files = first_files(stream, 2, asynchronously=asynchronously)
        assert len(files) == 2
        stream.close()
        assert watch.grows() == []
        assert watch.commits <= 10
        assert watch.count("checkpoint.") == 0


def test_commits_are_fetched_as_the_consumer_goes(long_tail: Path) -> None:
    """However far the consumer is, one round and a quarter of what it has taken are ahead of it at most."""
    table = DeltaTable(long_tail, options={"delta.commit.parallelism": 5})
    with watching() as watch, table.files(strategy="reverse") as stream:
        for number, file in enumerate(stream):
            if file.version is None:
                break
            assert watch.commits <= 1.25 * (number // 2 + 1) + 1 + 5
            assert watch.count("checkpoint.") == 0
    assert number == 2000


def test_nothing_is_read_before_the_first_file_is_asked_for(long_tail: Path) -> None:
    table = DeltaTable(long_tail)
    with watching() as watch:
        stream = table.files("value > 3" if "value" in table.schema().names else None, strategy="forward")
        stream.explain()
        iterator = iter(stream)
        assert watch.requests == []
        assert read_ahead_threads() == []
        next(iterator)
        assert watch.requests != []
        stream.close()


def test_a_limit_of_zero_reads_nothing(long_tail: Path) -> None:
    table = DeltaTable(long_tail, options={"checksum": "error"})
    with watching() as watch:
        assert table.files(limit=0).collect() == []
        assert table.files(row_limit=0).collect() == []
        assert list(table.files(limit=0).batches()) == []
        assert watch.requests == []


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_ten_files_of_a_million_cost_a_few_pages(layout: dict[str, Any], tmp_path: Path) -> None:
    """The checkpoint has about 100 MB; ten files need pages of five columns of the first row group of one part."""
    make_table(tmp_path, files=FILES, columns=2, **layout)
    size = sum(file.stat().st_size for file in (tmp_path / "_delta_log").glob("*.parquet"))
    assert size > 100 * MB
    table = DeltaTable(tmp_path)
    for strategy, asynchronously in product(STRATEGIES, [False, True]):
        stream = table.files(strategy=strategy)
        with watching() as watch:
            assert len(first_files(stream, 10, asynchronously=asynchronously)) == 10
            stream.close()
            assert watch.grows() == []
            opened = {each.path for each in watch.requests if ".checkpoint." in each.path}
        assert len(opened) == 1
        assert stream.metrics.bytes_read < (16 * MB if strategy == "forward" else 8 * MB)
        assert stream.metrics.row_groups_read <= (5 if strategy == "forward" else 1)


def test_a_predicate_on_the_partition_reads_no_statistics(medium: Path) -> None:
    """Listing an hour costs the core columns only."""
    stream = DeltaTable(medium).files("_event_hour >= '2026021023'")
    with_statistics = DeltaTable(medium).files("_event_hour >= '2026021023'", stats_columns=[])
    found = sum(batch.num_rows for batch in stream.batches())
    assert found == sum(batch.num_rows for batch in with_statistics.batches())
    assert 0 < found < 1000
    assert stream.metrics.bytes_read < with_statistics.metrics.bytes_read * 0.75


# After the end.


def _by_close(stream: FileStream) -> None:
    pull(stream)
    stream.close()


def _by_break(stream: FileStream) -> None:
    for number, _ in enumerate(stream):
        if number == ENOUGH:
            break


def _by_with(stream: FileStream) -> None:
    with stream as files:
        pull(files)


def _by_error(stream: FileStream) -> None:
    def fail(files: FileStream) -> None:
        with files:
            for number, _ in enumerate(files):
                assert number < ENOUGH, "the consumer's own error"

    with pytest.raises(AssertionError, match="own error"):
        fail(stream)


def _by_dropping_batches(stream: FileStream) -> None:
    rows = 0
    for batch in stream.batches():
        rows += batch.num_rows
        if rows > ENOUGH:
            break


def _by_dropping_the_iterator(stream: FileStream) -> None:
    iterator = iter(stream)
    for _ in range(ENOUGH):
        next(iterator)
    del iterator


def _by_breaking_async(stream: FileStream) -> None:
    first_files(stream, ENOUGH, asynchronously=True)


def pull(files: Iterable[DataFile]) -> None:
    """Pull files until the base was begun."""
    assert sum(1 for _ in islice(files, ENOUGH)) == ENOUGH


ENDINGS = [
    _by_close,
    _by_break,
    _by_with,
    _by_error,
    _by_dropping_batches,
    _by_dropping_the_iterator,
    _by_breaking_async,
]


@both
@pytest.mark.parametrize("end", ENDINGS, ids=lambda each: each.__name__.removeprefix("_by_"))
@pytest.mark.each_value
def test_a_stream_that_ended_early_makes_no_further_request(
    end: Callable[[FileStream], None], strategy: str, anywhere: DeltaTable
) -> None:
    """However the stream ends, its requests and its threads end with it."""
    before = threading.active_count()
    with watching() as watch:
        end(anywhere.files(strategy=strategy, batch_size=10))
        assert watch.count("checkpoint.") > 0
        assert watch.grows() == []
    assert read_ahead_threads() == []
    assert requests_under_way() == 0
    assert threading.active_count() <= before + 8, "no more than the pool of the local store"


@both
def test_cancelling_a_task_ends_its_scan(strategy: str, anywhere: DeltaTable) -> None:
    """The task is cancelled in the middle of a request; afterwards there is no request, thread or task of it."""
    began, cancelled = threading.Event(), threading.Event()

    def slow(request: Request) -> None:
        if request.path.startswith("_delta_log"):
            began.set()
            assert cancelled.wait(60)

    async def run(watch: Watch) -> int:
        async def scan() -> None:
            # Nothing matches, so the scan would go on to the end of the log without coming back from its thread.
            async for _ in anywhere.files({"_event_hour": "never"}, strategy=strategy, batch_size=10):
                raise AssertionError

        task = asyncio.create_task(scan())
        await asyncio.to_thread(began.wait, 30)
        task.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Asked before the event loop ends, because that waits for the threads of its executor.
        assert await asyncio.to_thread(watch.grows) == []
        return len(asyncio.all_tasks())

    with watching() as watch, observe(slow):
        assert asyncio.run(run(watch)) == 1, "only the test's own task is left"
    assert read_ahead_threads() == []
    assert requests_under_way() == 0


@both
def test_a_scan_that_runs_to_its_end_leaves_no_thread(strategy: str, medium: Path) -> None:
    assert sum(1 for _ in DeltaTable(medium).files(strategy=strategy)) == 100_040
    assert read_ahead_threads() == []


# Single use.


def _uses() -> dict[str, Callable[[FileStream], Any]]:
    return {
        "iteration": lambda stream: next(iter(stream)),
        "asynchronous iteration": lambda stream: stream.__aiter__(),
        "batches": lambda stream: next(stream.batches()),
        "collect": lambda stream: stream.collect(),
    }


@pytest.mark.parametrize("second", _uses().values(), ids=_uses())
@pytest.mark.parametrize("first", _uses().values(), ids=_uses())
def test_a_stream_is_used_once(
    first: Callable[[FileStream], Any], second: Callable[[FileStream], Any], long_tail: Path
) -> None:
    with DeltaTable(long_tail).files(limit=5) as stream:
        first(stream)
        with pytest.raises(StreamClosedError, match="already used"):
            second(stream)


@pytest.mark.parametrize("use", _uses().values(), ids=_uses())
def test_a_closed_stream_cannot_be_used(use: Callable[[FileStream], Any], long_tail: Path) -> None:
    stream = DeltaTable(long_tail).files()
    stream.close()
    with watching() as watch:
        with pytest.raises(StreamClosedError):
            use(stream)
        assert watch.requests == []


def test_the_iterator_of_a_stream_is_one_for_every_tool(long_tail: Path) -> None:
    """An iterator is its own iterator, so what a loop left can be taken by another loop, islice or zip."""
    with DeltaTable(long_tail).files(limit=6) as stream:
        iterator = iter(stream)
        first = next(iterator)
        some = list(islice(iterator, 2))
        rest = list(iterator)
    assert [file.version for file in (first, *some, *rest)] == [1010, 1010, 1009, 1009, 1008, 1008]


def test_closing_twice_and_after_the_end_is_harmless(long_tail: Path) -> None:
    stream = DeltaTable(long_tail).files(limit=3)
    assert len(stream.collect()) == 3
    stream.close()
    stream.close()
    assert stream.metrics.files_emitted == 3


def test_a_stream_that_is_closed_while_it_is_iterated_ends_there(long_tail: Path) -> None:
    stream = DeltaTable(long_tail).files(strategy="reverse")
    seen = []
    for file in stream:
        seen.append(file)
        if len(seen) == 3:
            stream.close()
    assert len(seen) == 3


def test_two_streams_of_one_table_do_not_disturb_each_other(medium: Path) -> None:
    table = DeltaTable(medium)
    first, second = table.files(strategy="forward"), table.files(strategy="reverse")
    next(iter(first))
    assert sum(1 for _ in second) == 100_040
    first.close()
    third = table.files(strategy="forward")
    assert sum(batch.num_rows for batch in third.batches()) == 100_040


def test_statistics_asked_for_after_the_scan_are_still_read(medium: Path) -> None:
    """An object outlives its stream: what the scan did not need is read on access."""
    with DeltaTable(medium).files(strategy="reverse") as stream:
        files = [file for file, _ in zip(stream, range(200), strict=False)]
    assert {file.tier for file in files} == {0, 3}
    assert all(file.num_records is not None for file in files)

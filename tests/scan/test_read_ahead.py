"""The thread that makes the next items: in order, not too far ahead, and gone when it is not wanted any more."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lazydelta import execution as read_ahead
from lazydelta.execution import ReadAhead, Workers, give_way, in_parallel


class Source:
    """Numbers, with a count of how many were made; it can stop for a signal, and fail."""

    def __init__(self, count: int, *, error_at: int | None = None, pause_at: int | None = None) -> None:
        self.made = 0
        self.closed = False
        self.paused = threading.Event()
        self.go_on = threading.Event()
        self._count, self._error_at, self._pause_at = count, error_at, pause_at

    def __iter__(self) -> Iterator[int]:
        try:
            for number in range(self._count):
                if number == self._pause_at:
                    self.paused.set()
                    assert self.go_on.wait(30)
                if number == self._error_at:
                    message = f"no {number}"
                    raise LookupError(message)
                self.made += 1
                yield number
        finally:
            self.closed = True


def ahead(source: Source, depth: int = 2) -> ReadAhead[int]:
    return ReadAhead(iter(source), depth=depth, stop=source.go_on.set)


def test_items_come_in_their_order_and_then_the_end() -> None:
    with_all = ahead(Source(50))
    assert list(with_all) == list(range(50))
    assert next(with_all, None) is None
    with_all.close()


def test_an_error_comes_after_the_items_before_it_and_once() -> None:
    items = ahead(Source(10, error_at=3), depth=5)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LookupError, match="no 3"):
        next(items)
    assert next(items, None) is None
    items.close()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_no_more_is_made_than_may_wait(depth: int) -> None:
    source = Source(100)
    items = ahead(source, depth)
    for taken in range(1, 20):
        next(items)
        assert source.made <= taken + depth
    items.close()
    assert source.made < 100


def test_closing_ends_the_thread_and_the_source() -> None:
    source = Source(1_000)
    items = ahead(source)
    next(items)
    items.close()
    assert source.closed
    assert [each for each in threading.enumerate() if each.name == "lazydelta-read-ahead"] == []


def _to_the_end(items: ReadAhead[Any]) -> None:
    list(items)


def _to_the_error(items: ReadAhead[Any]) -> None:
    with pytest.raises(LookupError):
        list(items)


def _not_far(items: ReadAhead[Any]) -> None:
    next(items)


@pytest.mark.parametrize(
    ("source", "use"),
    [(Source(5), _to_the_end), (Source(5, error_at=2), _to_the_error), (Source(500), _not_far)],
    ids=["to the end", "to an error", "not far"],
)
def test_way_is_given_only_to_a_thread_that_works(source: Source, use: Any) -> None:
    """While it makes an item; neither when it waits with enough of them, nor after its end."""
    items = ahead(source)
    use(items)
    items.close()
    assert not read_ahead._working
    slow = Source(5, pause_at=1)
    items = ahead(slow)
    assert slow.paused.wait(30)
    assert len(read_ahead._working) == 1
    give_way()
    slow.go_on.set()
    items.close()
    assert not read_ahead._working


def nothing() -> None:
    """Nothing waits for anything."""


def busy() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("lazydelta-worker")]


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_work_in_parallel_comes_in_its_order(threads: int) -> None:
    """Whatever is ready first: each piece of work waits for a piece that was begun after it, as far as there is one."""
    done = [threading.Event() for _ in range(20)]

    def work(number: int) -> int:
        later = number + 1
        if threads > 1 and number % 2 == 0 and later < len(done):
            assert done[later].wait(30)
        done[number].set()
        return number * 10

    assert list(in_parallel(work, range(20), threads=threads, stop=nothing)) == list(range(0, 200, 10))
    assert busy() == []


def test_work_in_parallel_is_begun_a_little_ahead_and_not_more() -> None:
    source = Source(50)
    results = in_parallel(lambda number: number, source, threads=2, stop=nothing)
    for taken in range(1, 20):
        next(results)
        assert taken <= source.made <= taken + 2
    results.close()
    assert (source.made < 25, busy()) == (True, [])


def test_work_that_fails_ends_the_rest_in_its_place() -> None:
    def work(number: int) -> int:
        if number == 3:
            message = f"no {number}"
            raise LookupError(message)
        return number

    results = in_parallel(work, range(100), threads=2, stop=nothing)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(LookupError, match="no 3"):
        next(results)
    assert busy() == []


def test_a_source_that_fails_ends_the_work() -> None:
    results = in_parallel(lambda number: number, Source(50, error_at=5), threads=2, stop=nothing)
    with pytest.raises(LookupError, match="no 5"):
        list(results)
    assert busy() == []


@pytest.mark.parametrize("failing", [False, True], ids=["closed", "failed"])
def test_work_that_waits_is_told_to_stop_before_its_end_is_waited_for(failing: bool) -> None:  # noqa: FBT001 - a case
    go_on = threading.Event()

    def work(number: int) -> int:
        if number > 0:
            assert go_on.wait(30)
        elif failing:
            message = "no 0"
            raise LookupError(message)
        return number

    results = in_parallel(work, range(10), threads=2, stop=go_on.set)
    if failing:
        with pytest.raises(LookupError, match="no 0"):
            next(results)
    else:
        assert next(results) == 0
        results.close()
    assert (go_on.is_set(), busy()) == (True, [])


def test_workers_do_so_much_at_a_time_with_no_more_threads_than_work() -> None:
    workers = Workers(3, "test-workers")
    together = threading.Barrier(3)
    begun = [workers.submit(lambda: together.wait(30)) for _ in range(3)]
    assert sorted(each.result(30) for each in begun) == [0, 1, 2]
    workers.close()
    alone = Workers(3, "test-alone")
    assert alone.submit(threading.get_ident).result(30)
    assert len([each for each in threading.enumerate() if each.name.startswith("test-alone")]) == 1
    alone.close()
    assert [each for each in threading.enumerate() if each.name.startswith("test-")] == []


def test_an_error_of_a_worker_arrives_where_its_work_is_waited_for() -> None:
    workers = Workers(1, "test-workers")
    failed, done = workers.submit(lambda: {"a": 1}["b"]), workers.submit(lambda: 7)
    with pytest.raises(KeyError):
        failed.result(30)
    assert done.result(30) == 7
    workers.close()


def test_workers_that_are_closed_finish_what_they_began_and_cancel_the_rest() -> None:
    workers = Workers(1, "test-workers")
    begun, go_on = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return go_on.wait(30)

    first = workers.submit(work)
    second = workers.submit(lambda: 2)
    assert begun.wait(30)
    closing = threading.Thread(target=workers.close)
    closing.start()
    while not second.cancelled():
        pass
    go_on.set()
    closing.join(30)
    assert first.result(0) is True
    assert workers.submit(lambda: 3).cancelled()


_AT_THE_END = """
import threading
from lazydelta.execution import Workers, in_parallel
workers = Workers(2, "late")
def late():
    threading.main_thread().join()
    print(workers.submit(lambda: 1).result(), list(in_parallel(abs, [-2, -3], threads=2, stop=lambda: None)))
threading.Thread(target=late).start()
"""


def test_workers_take_work_while_a_program_waits_for_its_threads() -> None:
    done = subprocess.run([sys.executable, "-c", _AT_THE_END], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 [2, 3]\n", "")


class _NeverStarts(threading.Thread):
    """What Python 3.12 makes of every thread once the main thread has ended, while others may be at work."""

    def start(self) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")


def test_where_no_thread_starts_the_consumer_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "Thread", _NeverStarts)
    here = [threading.get_ident()] * 3
    closed: list[bool] = []

    def source() -> Iterator[int]:
        try:
            yield from (threading.get_ident() for _ in range(5))
        finally:
            closed.append(True)

    ahead = ReadAhead(source(), depth=2, stop=lambda: None)
    assert [next(ahead) for _ in range(3)] == here
    ahead.close()
    assert closed == [True]

    done = in_parallel(lambda number: (number, threading.get_ident()), range(3), threads=2, stop=lambda: None)
    assert list(done) == list(enumerate(here))

    pool = Workers(2, "none")
    failed = pool.submit(lambda: 1 // 0)
    assert isinstance(failed.exception(timeout=0), ZeroDivisionError)
    pool.close()


class _Interrupted(threading.Thread):
    """A thread that comes to life slowly, with Ctrl-C while whoever starts it waits for that."""

    def start(self) -> None:
        begun: Any = self._started  # type: ignore[attr-defined]
        known, waited = begun.set, begun.wait

        def wait(_timeout: float | None = None) -> bool:
            begun.wait = waited
            raise KeyboardInterrupt

        def slowly() -> None:
            time.sleep(0.05)
            known()

        begun.wait, begun.set = wait, slowly
        super().start()


def test_threads_that_were_being_started_when_ctrl_c_came_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they had begun is over when the pool, or the read-ahead, is closed."""
    monkeypatch.setattr(read_ahead, "Thread", _Interrupted)
    done: list[str] = []
    pool = Workers(2, "interrupted")
    with pytest.raises(KeyboardInterrupt):
        pool.submit(lambda: done.append("work"))
    pool.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("interrupted")]
    assert done in ([], ["work"])
    with pytest.raises(KeyboardInterrupt):
        ReadAhead(iter(range(3)), depth=1, stop=lambda: None)
    for each in [each for each in read_ahead._alive if isinstance(each, ReadAhead)]:
        if isinstance(each._thread, _Interrupted):
            each.close()
    assert not [each for each in threading.enumerate() if each.name == "lazydelta-read-ahead"]

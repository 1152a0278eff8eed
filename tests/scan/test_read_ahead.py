"""The thread that makes the next items: in order, not too far ahead, and gone when it is not wanted any more."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lazydelta.runtime import threads as execution
from lazydelta.runtime.threads import ReadAhead, Workers, give_way, in_parallel, start_thread


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
    assert not execution._working
    slow = Source(5, pause_at=1)
    items = ahead(slow)
    assert slow.paused.wait(30)
    assert len(execution._working) == 1
    give_way()
    slow.go_on.set()
    items.close()
    assert not execution._working


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
    name = alone.submit(lambda: (alone.threads, threading.current_thread().name)).result(30)
    assert name == (1, "test-alone")
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
from lazydelta.runtime.threads import Workers, in_parallel
workers = Workers(2, "late")
def late():
    threading.main_thread().join()
    print(workers.submit(lambda: 1).result(), list(in_parallel(abs, [-2, -3], threads=2, stop=lambda: None)))
threading.Thread(target=late).start()
"""


def test_workers_take_work_while_a_program_waits_for_its_threads() -> None:
    done = subprocess.run([sys.executable, "-c", _AT_THE_END], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 [2, 3]\n", "")


def _no_thread(*_: Any) -> int:
    """Say what Python 3.12 does once the main thread has ended, while others may be at work."""
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_where_no_thread_starts_the_consumer_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "start_new_thread", _no_thread)
    monkeypatch.setattr(execution, "_crew", execution._Crew())
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
    with pytest.raises(RuntimeError, match="new thread"):
        start_thread(nothing, "none")


# --- threads are kept, and no time has to pass


def test_threads_stay_and_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long nothing is to do: there is no clock in it. A hundred pools in a row need the threads of one."""
    crew = execution._Crew()
    monkeypatch.setattr(execution, "_crew", crew)
    seen: set[int] = set()
    together = threading.Barrier(3)

    def work() -> None:
        seen.add(threading.get_ident())
        together.wait(30)

    for _ in range(100):
        pool = Workers(3, "test-reused")
        for each in [pool.submit(work) for _ in range(3)]:
            each.result(30)
        pool.close()
        while len(crew._idle) < 3:  # they have left the pool and are on their way to wait
            time.sleep(0)
    assert len(seen) == 3


def test_a_pool_holds_no_thread_while_it_has_no_work() -> None:
    pool = Workers(2, "test-empty")
    for number in range(50):
        assert pool.submit(lambda number=number: number).result(30) == number  # type: ignore[misc]
        while pool.threads:
            time.sleep(0)
    pool.close()


# --- every order of events


class _Actor:
    """A thread that goes on only when it is told to, until it is about to enter the pool's lock again."""

    def __init__(self, work: Callable[[], None], order: _Order) -> None:
        self.order = order
        self.go, self.has_ended = threading.Semaphore(0), False
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        self.pause()
        work()
        self.has_ended = True
        self.order.paused.release()

    def pause(self) -> None:
        assert self.go.acquire(timeout=30)


class _Order:
    """Runs actors one at a time; stands for the pool's lock and for the crew. ``choices`` says who goes on."""

    def __init__(self, choices: list[int]) -> None:
        self.choices, self.options = choices, list[int]()
        self.paused = threading.Semaphore(0)
        self.actors: list[_Actor] = []
        self.current: _Actor | None = None

    def run(self, job: Callable[[], None]) -> None:
        self.actors.append(_Actor(job, self))

    def __enter__(self) -> None:
        me = self.current
        assert me is not None
        self.paused.release()
        me.pause()

    def __exit__(self, *_: object) -> None:
        pass

    def play(self) -> None:
        while able := [each for each in self.actors if not each.has_ended]:
            step = len(self.options)
            self.options.append(len(able))
            self.current = able[self.choices[step] if step < len(self.choices) else 0]
            self.current.go.release()
            assert self.paused.acquire(timeout=30)

    def next_choices(self) -> list[int] | None:
        taken = self.choices + [0] * (len(self.options) - len(self.choices))
        while taken and taken[-1] + 1 == self.options[len(taken) - 1]:
            taken.pop()
        return [*taken[:-1], taken[-1] + 1] if taken else None


@pytest.mark.parametrize(("most", "work", "submitters"), [(1, 2, 1), (1, 3, 1), (2, 2, 1), (1, 1, 2), (2, 1, 2)])
def test_no_order_of_events_leaves_work_without_a_thread(
    most: int, work: int, submitters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All interleavings of submitting, taking work and leaving, by running each of them on the class itself."""
    choices: list[int] | None = []
    orders = 0
    while choices is not None:
        order = _Order(choices)
        monkeypatch.setattr(execution, "_crew", order)
        pool = Workers(most, "test-orders")
        pool._lock = order  # type: ignore[assignment]
        tasks: list[Any] = []

        def submit(pool: Workers = pool, tasks: list[Any] = tasks) -> None:
            tasks.extend(pool.submit(threading.get_ident) for _ in range(work))

        for _ in range(submitters):
            order.run(submit)
        order.play()
        assert [each.done() for each in tasks] == [True] * work * submitters, order.choices
        assert pool.threads == 0
        assert len({each.result() for each in tasks}) <= work * submitters
        choices = order.next_choices()
        orders += 1
    assert orders > 3

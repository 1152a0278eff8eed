"""What every store does, whatever it is made of."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from lazydelta.errors import (
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    StorageTimeoutError,
    StreamClosedError,
)
from lazydelta.storage import IoCounters, Request, observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lazydelta.storage import Store

ODD_NAMES = ["a b", "a%20b", "a+b", "a#b", "a?b=c&d", "é日本", "x=1%2F2", "~!$'(),;@[]{}^`", ".hidden", "a:b"]


def names(store: Store, folder: str, after: str = "") -> list[str]:
    return [info.path for info in store.list(folder, after=after)]


def test_an_object_reads_back_as_it_was_written(store: Store) -> None:
    store.put("folder/object", b"content")
    assert store.get("folder/object") == b"content"


def test_an_empty_object_is_an_object(store: Store) -> None:
    store.put("empty", b"")
    assert store.get("empty") == b""
    assert list(store.stream("empty")) == []
    assert store.head("empty").size == 0


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_taken_as_they_are(store: Store, name: str) -> None:
    path = f"odd/{name}/{name}"
    store.put(path, name.encode())
    assert store.get(path) == name.encode()
    assert store.head(path).path == path
    assert names(store, f"odd/{name}") == [path]
    assert b"".join(store.stream(path)) == name.encode()


def test_put_replaces(store: Store) -> None:
    store.put("a", b"1")
    store.put("a", b"22")
    assert store.get("a") == b"22"


def test_head_agrees_with_the_listing_and_the_clock(store: Store) -> None:
    before = time.time_ns() // 1_000_000
    store.put("folder/a", b"12345")
    head = store.head("folder/a")
    assert (head.path, head.size) == ("folder/a", 5)
    assert abs(head.last_modified - before) < 600_000
    assert [head] == list(store.list("folder"))


def test_a_missing_object_is_not_found(store: Store) -> None:
    reads: list[Callable[[str], object]] = [
        store.get,
        store.head,
        lambda path: list(store.stream(path)),
        lambda path: store.get(path, length=3),
    ]
    for read in reads:
        with pytest.raises(ObjectNotFoundError) as caught:
            read("no/such")
        assert caught.value.path == "no/such"
        assert "no/such" in str(caught.value)
    assert not store.exists("no/such")


def test_a_folder_is_not_an_object(store: Store) -> None:
    store.put("folder/a", b"1")
    assert not store.exists("folder")
    with pytest.raises(ObjectNotFoundError):
        store.get("folder")


# --- ranges


def test_ranges_are_cut_at_the_end_of_the_object(store: Store) -> None:
    store.put("a", bytes(range(100)))
    assert store.get("a", start=10, length=5) == bytes(range(10, 15))
    assert store.get("a", start=90) == bytes(range(90, 100))
    assert store.get("a", start=90, length=50) == bytes(range(90, 100))
    assert store.get("a", start=3, length=0) == b""


def test_a_range_past_the_end_is_an_error(store: Store) -> None:
    store.put("a", b"123")
    with pytest.raises(StorageError):
        store.get("a", start=3, length=1)


def test_a_negative_range_is_an_error(store: Store) -> None:
    store.put("a", b"123")
    with pytest.raises(StorageError, match="no range"):
        store.get("a", start=-1)
    with pytest.raises(StorageError, match="no range"):
        store.fetch_ranges("a", [(0, -1)]).result()


def test_many_ranges_come_back_in_the_order_asked_for(store: Store) -> None:
    content = os.urandom(1 << 20)
    store.put("a", content)
    ranges = [(900_000, 10), (0, 4), (4, 0), (5, 100_000), (50, 50), (900_005, 20), (1 << 19, 1)]
    assert store.fetch_ranges("a", ranges).result() == [content[at : at + size] for at, size in ranges]
    assert store.fetch_ranges("a", []).result() == []


def test_fetches_overlap(store: Store) -> None:
    for number in range(30):
        store.put(f"n/{number}", str(number).encode())
    pending = [store.fetch(f"n/{number}") for number in range(30)]
    assert [request.result() for request in pending] == [str(number).encode() for number in range(30)]


def test_a_pending_request_can_be_awaited(store: Store) -> None:
    store.put("a", b"1")

    async def read() -> bytes:
        return await asyncio.to_thread(store.fetch("a").result)

    assert asyncio.run(read()) == b"1"


# --- etags


def test_a_read_with_the_etag_of_an_older_object_is_refused(store: Store) -> None:
    store.put("f/a", b"1")
    (listed,) = store.list("f")
    assert store.get("f/a", if_match=listed.etag) == b"1"
    assert store.fetch_ranges("f/a", [(0, 1)], if_match=listed.etag).result() == [b"1"]
    store.put("f/a", b"22")
    with pytest.raises(ObjectChangedError):
        store.get("f/a", if_match=listed.etag)
    with pytest.raises(ObjectChangedError):
        store.fetch_ranges("f/a", [(0, 1)], if_match=listed.etag).result()


def test_a_write_with_the_etag_of_an_older_object_is_refused(store: Store) -> None:
    store.put("a", b"1")
    etag = store.head("a").etag
    store.put("a", b"22", if_match=etag)
    with pytest.raises(ObjectChangedError):
        store.put("a", b"333", if_match=etag)
    assert store.get("a") == b"22"


# --- put-if-absent


def test_put_if_absent_does_not_overwrite(store: Store) -> None:
    store.put_if_absent("f/a", b"1")
    with pytest.raises(ObjectExistsError) as caught:
        store.put_if_absent("f/a", b"2")
    assert caught.value.path == "f/a"
    assert store.get("f/a") == b"1"
    assert names(store, "f") == ["f/a"]


def test_of_twenty_racing_writers_one_wins(store: Store) -> None:
    won, lost = [], []
    barrier = threading.Barrier(20)

    def write(number: int) -> None:
        barrier.wait()
        try:
            store.put_if_absent("race", str(number).encode())
        except ObjectExistsError:
            lost.append(number)
        else:
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 19)
    assert store.get("race") == str(won[0]).encode()


# --- streams


def test_a_stream_gives_the_whole_object_in_bounded_chunks(store: Store) -> None:
    content = os.urandom(5_000_000)
    store.put("a", content)
    chunks = list(store.stream("a", chunk_size=1 << 18))
    assert b"".join(chunks) == content
    assert max(map(len, chunks)) <= 1 << 19


def test_a_stream_can_begin_in_the_middle(store: Store) -> None:
    store.put("a", bytes(range(200)))
    assert b"".join(store.stream("a", start=150)) == bytes(range(150, 200))


def test_a_closed_stream_is_at_its_end(store: Store) -> None:
    store.put("a", os.urandom(4_000_000))
    with store.stream("a", chunk_size=1 << 16) as stream:
        next(stream)
    assert list(stream) == []
    stream.close()


def test_a_streamed_upload_is_visible_only_when_complete(store: Store) -> None:
    seen = []

    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            seen.append(store.exists("big"))
            yield b"x" * 6_000_000

    assert store.put_stream("big", chunks()) == 18_000_000
    assert seen == [False] * 3
    assert store.head("big").size == 18_000_000


def test_a_failed_upload_leaves_nothing_and_raises_the_callers_error(store: Store) -> None:
    store.put("f/old", b"old")

    def chunks() -> Iterator[bytes]:
        yield b"x" * 9_000_000
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.put_stream("f/old", chunks())
    assert store.get("f/old") == b"old"
    assert names(store, "f") == ["f/old"]


def test_an_upload_of_nothing_is_an_empty_object(store: Store) -> None:
    assert store.put_stream("nothing", []) == 0
    assert store.get("nothing") == b""


# --- deleting


def test_delete_tolerates_what_is_not_there(store: Store) -> None:
    store.put("a", b"1")
    store.delete("a")
    store.delete("a")
    assert not store.exists("a")


def test_a_strict_delete_wants_an_object(store: Store) -> None:
    store.put("a", b"1")
    store.delete("a", missing_ok=False)
    with pytest.raises(ObjectNotFoundError):
        store.delete("a", missing_ok=False)


# --- counting, observing, stopping


def test_requests_and_bytes_are_counted(store: Store) -> None:
    store.put("f/a", b"12345")
    mine = IoCounters()
    twin = store.with_counters(mine)
    twin.get("f/a")
    twin.get("f/a", start=1, length=2)
    twin.head("f/a")
    list(twin.list("f"))
    list(twin.stream("f/a"))
    twin.put("f/b", b"123")
    twin.delete("f/b")
    assert mine.snapshot() == {
        "requests": 7,
        "gets": 3,
        "lists": 1,
        "puts": 1,
        "deletes": 1,
        "bytes_read": 12,
        "bytes_written": 3,
    }
    assert store.counters.requests == 1


def test_an_observer_sees_each_request_before_it_is_made(store: Store) -> None:
    store.put("f/a", b"12345")
    seen: list[Request] = []
    with observe(seen.append):
        store.get("f/a", start=1, length=2)
        list(store.list("f"))
    store.get("f/a")
    assert seen == [
        Request("GET", "f/a", 1, 2, store.uri),
        Request("LIST", "f", None, None, store.uri),
    ]


def test_an_observers_fault_is_the_requests_failure(store: Store) -> None:
    store.put("f/a", b"12345")

    def time_out(request: Request) -> None:
        raise TimeoutError

    with observe(time_out):
        calls: list[Callable[[], object]] = [
            lambda: store.get("f/a"),
            lambda: list(store.list("f")),
            lambda: list(store.stream("f/a")),
            lambda: store.put("f/a", b""),
            lambda: store.put_stream("f/a", []),
            lambda: store.fetch_ranges("f/a", [(0, 1)]).result(),
            lambda: store.delete("f/a"),
        ]
        for call in calls:
            with pytest.raises(StorageTimeoutError):
                call()
        failing = store.fetch("f/a")
    with pytest.raises(StorageTimeoutError):
        failing.result()
    assert store.get("f/a") == b"12345"


def test_stopped_counters_refuse_further_requests(store: Store) -> None:
    store.put("a", b"1")
    counters = IoCounters()
    twin = store.with_counters(counters)
    twin.get("a")
    counters.stop()
    with pytest.raises(StreamClosedError):
        twin.get("a")
    assert counters.requests == 1


@pytest.mark.parametrize("path", ["../x", "a/../../x", "a\0b"])
def test_a_path_that_leaves_the_root_never_reaches_the_store(store: Store, path: str) -> None:
    calls: list[Callable[[str], object]] = [
        store.get,
        store.head,
        store.delete,
        store.stream,
        lambda path: list(store.list(path)),
    ]
    for call in calls:
        with pytest.raises(StorageError, match="not a path below"):
            call(path)
    assert store.counters.requests == 0


def test_a_name_that_is_not_unicode_is_refused_by_name(store: Store) -> None:
    with pytest.raises(StorageError):
        store.get("a\ud800b")


def test_folders_are_those_directly_in_a_folder(store: Store) -> None:
    for path in ("lake/b/t/_delta_log/0.json", "lake/a b/x", "lake/é/x", "lake/file", "other/x"):
        store.put(path, b"1")
    requests: list[Request] = []
    with observe(requests.append):
        assert list(store.folders("lake")) == ["a b", "b", "é"]
        assert list(store.folders("lake/b/")) == ["t"]
        assert list(store.folders("lake/b/t")) == ["_delta_log"]
        assert list(store.folders("lake/nowhere")) == list(store.folders("lake/file")) == []
        assert {"lake", "other"} <= set(store.folders(""))
    assert {each.verb for each in requests} == {"LIST"}
    asked = [each.path.strip("/") for each in requests]
    assert asked == ["lake", "lake/b", "lake/b/t", "lake/nowhere", "lake/file", ""]

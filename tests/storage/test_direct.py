"""Files that Arrow reads by itself: announced before they are opened, and refused as every other read is."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazydelta.errors import LazyDeltaError, ObjectNotFoundError, StorageError, StreamClosedError
from lazydelta.storage import IoCounters, Request, observe, open_store
from lazydelta.storage.local import DirectReads


def test_a_local_file_is_announced_before_it_is_opened(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    store = open_store(str(tmp_path)).with_counters(IoCounters())
    seen: list[Request] = []
    with observe(seen.append):
        source = store.open_direct("a", start=6, length=4)
        assert source is not None
        with source:
            DirectReads(store, "a").foresee([(5, 0), (0, 2), (2, 3)])
            assert source.read_at(2, 0) == b"01"
    assert [(each.verb, each.path, each.start, each.length) for each in seen] == [
        ("GET", "a", 6, 4),
        ("GET", "a", 0, 5),
    ]
    assert (store.counters.gets, store.counters.bytes_read) == (2, 9)


def test_where_reading_takes_requests_nothing_is_opened_directly() -> None:
    store = open_store("memory://direct/table")
    store.put("a", b"x")
    assert store.open_direct("a", start=0, length=1) is None


@pytest.mark.parametrize(
    ("path", "kind"), [("b", ObjectNotFoundError), ("folder", StorageError), ("../a", StorageError)]
)
def test_what_is_no_file_of_the_table_is_an_error_of_ours(
    tmp_path: Path, path: str, kind: type[LazyDeltaError]
) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "table" / "folder").mkdir(parents=True)
    with pytest.raises(kind):
        open_store(str(tmp_path / "table")).open_direct(path, start=0, length=1)


def test_a_scan_that_has_ended_opens_nothing_and_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    counters = IoCounters()
    store = open_store(str(tmp_path)).with_counters(counters)
    counters.stop()
    with pytest.raises(StreamClosedError):
        store.open_direct("a", start=0, length=1)
    with pytest.raises(StreamClosedError):
        DirectReads(store, "a").foresee([(0, 1)])

"""A stream belongs to one thread at a time, and says so."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import lazydelta
from lazydelta.errors import OptionError, StreamSharedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAYS: dict[str, Callable[[lazydelta.FileStream], Iterator[Any]]] = {
    "files": iter,
    "the stream itself": lambda stream: stream,
    "batches": lambda stream: stream.batches(),
}


@pytest.fixture
def table(tmp_path: Path) -> lazydelta.DeltaTable:
    for start in range(3):
        lazydelta.write_arrow(tmp_path, pa.table({"id": [start]}))
    return lazydelta.DeltaTable(tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_a_second_thread_is_told_and_the_first_goes_on(way: str, table: lazydelta.DeltaTable) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def guard(_version: int, _timestamp: int | None) -> bool:
        # The scan asks it once, from within the first pull: the thread stays there as long as the test likes.
        inside.set()
        return go_on.wait(60)

    stream = table.files(retention_guard=guard, strategy="reverse")
    shared = WAYS[way](stream)
    found: list[Any] = []
    first = threading.Thread(target=lambda: found.extend(shared))
    first.start()
    try:
        assert inside.wait(60)
        with pytest.raises(StreamSharedError, match="Another thread is reading this stream"):
            next(shared)
    finally:
        go_on.set()
        first.join(60)
    assert sum(each.num_rows if isinstance(each, pa.RecordBatch) else 1 for each in found) == 3


def test_threads_that_take_turns_share_a_stream(table: lazydelta.DeltaTable) -> None:
    shared = iter(table.files())
    found = [next(shared)]
    second = threading.Thread(target=lambda: found.extend(shared))
    second.start()
    second.join(60)
    assert len({each.path for each in found}) == 3


def test_a_loop_over_a_stream_ends_when_the_stream_is_closed(table: lazydelta.DeltaTable) -> None:
    stream = table.files()
    found = []
    for file in stream:
        found.append(file.path)
        stream.close()
    assert len(found) == 1


def test_an_error_of_the_scan_keeps_its_cause(table: lazydelta.DeltaTable) -> None:
    """Some of ours are ValueErrors, as what Python says of shared generators is."""

    def guard(_version: int, _timestamp: int | None) -> bool:
        raise OptionError("it was this") from KeyError("because of that")

    for way in WAYS.values():
        with pytest.raises(OptionError, match="it was this") as caught:
            next(way(table.files(retention_guard=guard)))
        assert isinstance(caught.value.__cause__, KeyError)

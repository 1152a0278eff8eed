"""Closing a reader stops its traffic."""

from __future__ import annotations

import gc
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lazydelta.errors import StorageError
from lazydelta.storage import open_store
from tests.storage.relay import Relay

if TYPE_CHECKING:
    from lazydelta.storage import ByteStream
    from tests.storage.conftest import Place

SIZE = 48 << 20


def settled(relay: Relay) -> int:
    """Wait until no byte has come back for a while."""
    last, quiet = -1, 0
    while quiet < 5:
        time.sleep(0.05)
        quiet = quiet + 1 if relay.bytes_back == last else 0
        last = relay.bytes_back
    return last


@pytest.mark.parametrize("how", ["close", "drop"])
@pytest.mark.each_value
def test_a_stream_that_ends_early_reads_little_more(remote: Place, how: str) -> None:
    remote.open().put("big", os.urandom(SIZE))
    with Relay(remote.port, holds=SIZE // 4) as relay:
        stream: ByteStream | None = remote.through(relay.port).open().stream("big", chunk_size=1 << 20)
        assert stream is not None
        next(stream)
        if how == "close":
            stream.close()
        stream = None
        gc.collect()
        assert relay.release() < SIZE // 3


def test_a_stream_that_is_not_read_does_not_run_ahead(remote: Place) -> None:
    remote.open().put("big", os.urandom(SIZE))
    with Relay(remote.port) as relay:
        store = remote.through(relay.port).open()
        with store.stream("big", chunk_size=1 << 20) as stream:
            next(stream)
            settled(relay)
            assert store.counters.bytes_read <= 4 << 20
            assert relay.bytes_back < SIZE // 2


def test_a_cancelled_fetch_stops_its_transfer(remote: Place) -> None:
    remote.open().put("big", os.urandom(SIZE))
    with Relay(remote.port, holds=1 << 20) as relay:
        pending = remote.through(relay.port).open().fetch("big")
        relay.wait_until_held()
        pending.cancel()
        with pytest.raises(StorageError, match="cancelled"):
            pending.result()
        assert relay.release() < SIZE // 2


def test_a_wait_can_be_bounded(remote: Place) -> None:
    remote.open().put("big", os.urandom(SIZE))
    with Relay(remote.port, holds=0) as relay:
        pending = remote.through(relay.port).open().fetch("big")
        with pytest.raises(StorageError, match="no answer within"):
            pending.result(0.05)
        pending.cancel()


def test_closing_an_input_stops_its_transfer(remote: Place) -> None:
    remote.open().put("big", os.urandom(SIZE))
    with Relay(remote.port, holds=SIZE // 2) as relay:
        source = remote.through(relay.port).open().open_input("big", size=SIZE)
        for _ in range(8):
            source.read(1 << 20)
        source.close()
        assert relay.release() < SIZE * 2 // 3


def _open_names() -> list[str]:
    """Return what the descriptors of this process point to; the one of the listing itself is gone by then."""
    names = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            names.append(str(each.readlink()))
    return names


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files can be counted on Linux only")
def test_a_dropped_local_stream_closes_its_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put("a", b"x" * 100)
    for _ in range(5):
        next(store.stream("a", chunk_size=10))
        store.open_input("a", size=100).read(10)
    gc.collect()
    # Not how many there are in all: what earlier tests have left open may be collected in between.
    assert [name for name in _open_names() if name.startswith(str(tmp_path))] == []

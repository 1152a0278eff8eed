"""Stores and processes: forks, pickles, and the end of the interpreter."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING

import pytest

from lazydelta.storage import open_store
from tests.storage.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lazydelta.storage import Store
    from tests.storage.conftest import Place


def in_fork(work: Callable[[], str]) -> str:
    """Run ``work`` in a forked child and return what it returns, or the error's text."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001 - told to the parent, whatever it is
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    timer = threading.Timer(20, os.kill, (child, 9))
    timer.start()
    with os.fdopen(read) as pipe:
        said = pipe.read()
    timer.cancel()
    os.waitpid(child, 0)
    return said


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_local_stores_work_in_a_forked_child(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put("a", b"content")
    assert store.fetch("a").result() == b"content"
    assert in_fork(lambda: store.fetch("a").result().decode()) == "content"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_child_has_the_answers_of_reads_that_were_under_way_when_it_was_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread of the child would finish them, or let go of what their threads held."""
    content = b"content" * 10_000  # more than is read without a thread
    store = open_store(tmp_path)
    store.put("a", content)
    begun, goes_on, read = threading.Event(), threading.Event(), os.pread

    def slow(*given: int) -> bytes:
        begun.set()
        goes_on.wait()
        return read(*given)

    monkeypatch.setattr(os, "pread", slow)
    under_way = store.fetch("a")
    assert begun.wait(60)
    ends = threading.Timer(0.3, goes_on.set)
    ends.start()
    assert in_fork(lambda: str(under_way.result() == content)) == "True"
    ends.join()
    assert under_way.result() == store.fetch("a").result() == content


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_remote_store_fails_at_once_in_a_child_forked_after_its_use(remote: Place) -> None:
    """The client's threads stay in the parent, and a request in the child would wait for ever."""
    store = remote.open()
    store.put("a", b"content")
    for work in (
        lambda: store.get("a").decode(),
        lambda: remote.open().get("a").decode(),
        lambda: str(list(store.list(""))),
        lambda: str(list(store.stream("a"))),
    ):
        assert in_fork(work).startswith("StorageError: this process was forked")
    assert store.get("a") == b"content"


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_store_opened_but_not_used_before_a_fork_works_in_the_child(remote: Place) -> None:
    remote.open().put("a", b"content")
    child = run(
        """
        import os, pickle, sys
        store = pickle.loads(bytes.fromhex(sys.argv[1]))
        child = os.fork()
        if child == 0:
            print(store.get("a").decode(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(store.get("a").decode())
        """,
        pickle.dumps(remote.open().carrying_credentials()).hex(),
    )
    assert (child.stdout, child.stderr) == ("content\ncontent\n", "")


def test_a_store_can_be_pickled_with_its_credentials(store: Store) -> None:
    store.put("a", b"content")
    twin = pickle.loads(pickle.dumps(store.carrying_credentials()))  # noqa: S301 - our own
    assert twin.uri == store.uri
    assert twin.get("a") == b"content"
    assert (twin.counters.requests, store.counters.requests) == (1, 1)


def test_counters_can_be_pickled(store: Store) -> None:
    store.put("a", b"content")
    assert pickle.loads(pickle.dumps(store.counters)).snapshot() == store.counters.snapshot()  # noqa: S301 - our own


def test_importing_the_package_starts_no_thread() -> None:
    child = run("import threading, lazydelta.storage; print(threading.active_count())")
    assert (child.stdout, child.stderr) == ("1\n", "")


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "store.close = 1", "del store, stream"])
@pytest.mark.each_value
def test_the_interpreter_ends_quietly_with_requests_in_flight(remote: Place, ending: str) -> None:
    remote.open().put("big", bytes(32 << 20))
    with Relay(remote.port, holds=1 << 20) as relay:
        child = run(
            f"""
            import pickle, sys
            store = pickle.loads(bytes.fromhex(sys.argv[1]))
            pending = [store.fetch("big") for _ in range(5)]
            stream = store.stream("big", chunk_size=1 << 16)
            next(stream)
            listing = store.list("")
            next(listing)
            {ending}
            """,
            pickle.dumps(remote.through(relay.port).open().carrying_credentials()).hex(),
        )
    assert (child.returncode, child.stdout, child.stderr) == (0, "", "")


def test_an_interrupt_ends_the_wait_and_the_request(remote: Place) -> None:
    remote.open().put("big", bytes(8 << 20))
    program = """
        import pickle, sys
        store = pickle.loads(bytes.fromhex(sys.argv[1]))
        try:
            store.get("big")
        except KeyboardInterrupt:
            print("interrupted")
        """
    with Relay(remote.port, holds=0) as relay:
        shipped = pickle.dumps(remote.through(relay.port).open().carrying_credentials()).hex()
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), shipped],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        relay.wait_for_request("big")
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=60)
    assert (child.returncode, *said) == (0, "interrupted\n", "")

"""``WorkerPool``: the processes that describe and run statements, so that no statement can harm the server.

DuckDB overflows its stack on some queries, keeps computing after an interrupt, and does not count all of its memory. So
the server process never runs a statement. A worker runs it within an operating system limit, and is killed when its
client disconnects, its time limit passes or the server shuts down.

A *template* process imports everything once and forks the workers, which takes milliseconds. It is started as a new
program with a single thread, because a fork of the server process would inherit the locks of its threads. The template
is also the parent that reaps the workers, so that a process id cannot be reused before it is killed.

Messages are frames with a kind and a length. The server sends pickles, which include a table with its credentials. They
therefore appear neither in arguments nor in the environment. Workers send only JSON and Arrow, so a compromised worker
cannot make the server run code.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from lazydelta.client.wire import error_from
from lazydelta.errors import LazyDeltaError, OptionError, ServeError, StreamClosedError
from lazydelta.runtime.metrics import ScanMetrics, scan_listeners
from lazydelta.runtime.threads import start_thread
from lazydelta.sidecar.handle import snapshot_of
from lazydelta.table.delta_table import DeltaTable

__all__ = [
    "BATCH",
    "CONTROL",
    "DESCRIBED",
    "DONE",
    "ERROR",
    "FORK",
    "FORKED",
    "GONE",
    "KILL",
    "LAST",
    "LOWER",
    "OPEN",
    "READY",
    "SCANNED",
    "KqlSettings",
    "Request",
    "Worker",
    "WorkerPool",
    "receive_exactly",
    "receive_frame",
    "send_frame",
]

_log = logging.getLogger(__name__)

READY, DESCRIBED, BATCH, OPEN, ERROR, LAST, DONE, SCANNED = b"R", b"D", b"B", b"O", b"E", b"L", b"Z", b"S"
"""What a worker sends.

In order: it has started, the columns of a statement, rows, the name of a table that it needs, a failure, that it must
not be reused, the end, and the metrics of a scan that has ended.
"""

FORK, KILL, LOWER, FORKED, GONE = b"F", b"K", b"N", b"P", b"X"
CONTROL = struct.Struct("<cqq")
"""Messages between server and template: a kind and two numbers."""

_FRAME = struct.Struct("<cI")
_MOST_FRAME = 48 << 20
_LOOK_AROUND_SECONDS = 0.02
# A statement that computes for longer makes way for shorter ones, so that these are answered while it runs. Its process
# cannot have its priority back and ends with it, which is cheap beside a statement of this length.
_LONG_SECONDS = 1.0
_PROCESS_CLOCK = 2  # with the process id before it, the clock of clock_getcpuclockid(3) on Linux
_GONE_SECONDS = 10.0
_END_SECONDS = 2.0
# One thread until the first fork: BLAS and Arrow's allocator would start threads on import. Arrow uses the system
# allocator, because its own reserves a gigabyte that no limit counts.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
_PROGRAM = (
    "import json, sys; given = json.loads(sys.stdin.readline()); sys.path[:] = given['path']; "
    "from lazydelta.server.worker import main; main(given['control'])"
)


class KqlSettings(NamedTuple):
    """What a request adds to its query in KQL; the same as ``kql.execution.query.QuerySettings``.

    The server process does not import that module, because it imports DuckDB.
    """

    now: dt.datetime | None = None
    parameters: Mapping[str, Any] = {}
    window: tuple[str, dt.datetime | None, dt.datetime | None] | None = None
    take: int | None = None


class Request(NamedTuple):
    """A request to a worker: ``describe`` or ``run``, a query in a language, and the tables that it may name."""

    verb: str
    language: str
    text: str
    names: tuple[str, ...]
    values: pa.RecordBatch | None = None
    schema: pa.Schema | None = None
    settings: KqlSettings | None = None


def send_frame(sock: socket.socket, kind: bytes, *parts: Any) -> None:
    """Send one frame, made of one or more parts."""
    sock.sendall(_FRAME.pack(kind, sum(len(part) for part in parts)))
    for part in parts:
        sock.sendall(part)


def receive_exactly(sock: socket.socket, size: int) -> bytearray | None:
    """Return exactly ``size`` bytes. Return None if the peer has closed the connection."""
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        try:
            got = sock.recv_into(view[at:])
        except (ConnectionError, OSError):
            got = 0
        if not got:
            return None
        at += got
    return data


def receive_frame(sock: socket.socket, most: int | None = None) -> tuple[bytes, bytearray] | None:
    """Return the next frame. Return None if the peer has closed the connection or sent an invalid frame."""
    head = receive_exactly(sock, _FRAME.size)
    if head is None:
        return None
    kind, size = _FRAME.unpack(head)
    if most is not None and size > most:
        return None
    body = receive_exactly(sock, size)
    return None if body is None else (kind, body)


def _is_readable(sock: socket.socket, seconds: float | None) -> bool:
    """Return whether a frame, or the end of the connection, arrives within ``seconds``."""
    poll = select.poll()  # unlike select(), it takes any number of open files
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


class Worker:
    """One worker process, as seen by the server. It serves one statement at a time."""

    def __init__(self, template: _Template, token: int, sock: socket.socket) -> None:
        self._template = template
        self._token = token
        self._sock = sock
        self.pid: int | None = None
        self.gone = threading.Event()
        """Set when the process no longer exists."""
        self.status: int | None = None
        self.is_killed = False
        self._is_ready = False
        self._lower_at: float | None = None
        """The processor time at which its priority is lowered. None if it is lowered already."""
        self.may_be_used_again = False

    def wait_until_ready(self, check: Callable[[], None] | None = None) -> None:
        """Wait until the process has started. This takes seconds if the template has just started; see ``frames``."""
        if not self._is_ready:
            self._receive(check)
            self._is_ready = True

    def frames(
        self, request: Request, open_table: Callable[[str], DeltaTable], check: Callable[[], None] | None = None
    ) -> Iterator[tuple[bytes, bytearray]]:
        """Send a request and yield the response frames. Tables that the worker names are opened on the way.

        ``check`` is called repeatedly while no frame arrives, and raises if the response is no longer wanted.
        """
        self.may_be_used_again, may_be_used_again = False, True
        failure: LazyDeltaError | None = None
        self.wait_until_ready(check)
        self._send(pickle.dumps(tuple(request)))
        self._lower_at = self._processor_seconds() + _LONG_SECONDS
        while True:
            kind, body = self._receive(check)
            if kind == OPEN:
                try:
                    self._send(_shipped(open_table(body.decode())))
                except LazyDeltaError as error:
                    failure = error
                    self._send(b"")
            elif kind == LAST:
                may_be_used_again = False
            elif kind == SCANNED:
                _pass_on(body)
            elif kind == ERROR:
                # The worker has finished the statement and waits for the next one.
                self.may_be_used_again = may_be_used_again and self._lower_at is not None
                told = error_from(bytes(body)) if body else failure
                raise told or ServeError("The statement failed without a reason")
            elif kind == DONE:
                self.may_be_used_again = may_be_used_again and self._lower_at is not None
                return
            else:
                yield kind, body

    def kill(self) -> None:
        """Kill the process without waiting for it."""
        self.is_killed = True
        self._template.send(self, KILL)

    def close(self) -> None:
        """Let an idle process exit, and kill a busy one."""
        self._sock.close()

    def why_it_ended(self) -> str:
        """Return how the process ended, once it has."""
        self.gone.wait(_GONE_SECONDS)
        if self.status is None:
            return "its worker process is gone"
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            with contextlib.suppress(ValueError):
                return f"its worker process ended by signal {number} ({signal.Signals(number).name})"
            return f"its worker process ended by signal {number}"
        return f"its worker process ended with status {os.waitstatus_to_exitcode(self.status)}"

    def _send(self, data: bytes) -> None:
        try:
            send_frame(self._sock, OPEN, data)
        except OSError:
            raise self._ended() from None

    def _receive(self, check: Callable[[], None] | None) -> tuple[bytes, bytearray]:
        while True:
            if check is not None:
                check()
            if self._lower_at is not None and self._processor_seconds() >= self._lower_at:
                self._template.send(self, LOWER)
                self._lower_at = None
            seconds = None if self._lower_at is None else _LONG_SECONDS
            if _is_readable(self._sock, seconds if check is None else _LOOK_AROUND_SECONDS):
                break
        found = receive_frame(self._sock, _MOST_FRAME)
        if found is None:
            raise self._ended()
        return found

    def _processor_seconds(self) -> float:
        """Return the processor time that the process has used. Zero where the system does not tell."""
        if self.pid is None:
            return 0.0
        try:
            return time.clock_gettime(~self.pid << 3 | _PROCESS_CLOCK)
        except OSError:
            return 0.0

    def _ended(self) -> LazyDeltaError:
        if self.is_killed:
            return StreamClosedError("The statement was cancelled", hint="run it again")
        self.kill()
        hint = "deep nesting and large values are the usual reasons; simplify the statement"
        return ServeError(f"The statement was stopped: {self.why_it_ended()}", hint=hint)


class _Template:
    """The process that forks workers, and the thread that tracks their ends. All pools of a program share it."""

    _shared: _Template | None = None
    _users = 0
    _sharing = threading.Lock()

    @classmethod
    def shared(cls) -> _Template:
        """Return the running template, or start one."""
        with cls._sharing:
            if cls._shared is None or not cls._shared.is_alive:
                cls._shared = cls()
            return cls._shared

    @classmethod
    def hold(cls, change: int) -> None:
        """Change the number of pools that use the template. It ends with the last of them."""
        with cls._sharing:
            cls._users += change
            last, cls._shared = (None, cls._shared) if cls._users else (cls._shared, None)
        if last is not None:
            last.close()

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair()
        # Garbage collection of a stream kills its worker. It can run in any thread, even one that holds the lock.
        self._lock = threading.RLock()
        self._workers: dict[int, Worker] = {}
        self._tokens = 0
        self.is_alive = True
        # A separate session: Ctrl-C in a terminal goes to the server, which lets statements finish first.
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter and our own code
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={**os.environ, **_ENVIRONMENT},
        )
        given = {"path": sys.path, "control": theirs.fileno()}
        assert self._process.stdin is not None  # noqa: S101 - requested above
        self._process.stdin.write(json.dumps(given).encode() + b"\n")
        self._process.stdin.close()
        theirs.close()
        start_thread(self._listen, "lazydelta-template")

    def fork(self, limits: dict[str, int]) -> Worker:
        """Return a new worker. It accepts work at once, although its process starts slightly later."""
        mine, theirs = socket.socketpair()
        with theirs, self._lock:
            self._tokens += 1
            worker = Worker(self, self._tokens, mine)
            if not self.is_alive:
                mine.close()
                worker.gone.set()
                return worker
            self._workers[self._tokens] = worker
            with contextlib.suppress(OSError):  # it has ended: _listen reports this to the worker
                socket.send_fds(self._control, [CONTROL.pack(FORK, self._tokens, 0)], [theirs.fileno()])
                send_frame(mine, OPEN, json.dumps(limits).encode())
        return worker

    def send(self, worker: Worker, kind: bytes) -> None:
        """Kill a worker or lower its priority. One whose process id is not known yet is killed once it is."""
        with self._lock, contextlib.suppress(OSError):
            if worker.pid is not None and not worker.gone.is_set():
                self._control.sendall(CONTROL.pack(kind, worker.pid, 0))

    def close(self) -> None:
        """End the template and all workers."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it may still be importing, and then it has no worker
            self._process.kill()
            self._process.wait()

    def _listen(self) -> None:
        while (record := receive_exactly(self._control, CONTROL.size)) is not None:
            kind, number, value = CONTROL.unpack(record)
            with self._lock:
                if kind == FORKED and (worker := self._workers.get(number)) is not None:
                    worker.pid = value
                    if worker.is_killed:
                        self.send(worker, KILL)
                elif kind == GONE:
                    for token, each in list(self._workers.items()):
                        if each.pid == number:
                            each.status = value
                            each.gone.set()
                            del self._workers[token]
        with self._lock:
            self.is_alive = False
            lost = list(self._workers.values())
            self._workers.clear()
        for worker in lost:
            worker.gone.set()
        self._control.close()
        self._process.wait()


class WorkerPool:
    """Workers for statements. The caller limits how many are busy. ``idle`` workers are kept for reuse.

    ``memory`` and ``reading_memory`` are the limits of a statement in DuckDB and for prefetched rows, in bytes.
    ``threads`` is DuckDB's number of threads.
    """

    def __init__(self, *, memory: int, reading_memory: int, threads: int, idle: int = 4) -> None:
        if not hasattr(os, "fork"):
            raise OptionError("Statements need worker processes, which this system cannot fork", hint="use --no-sql")
        self._limits = {"memory": memory, "reading_memory": reading_memory, "threads": threads}
        self._most_idle = idle
        # Reentrant: garbage collection of a stream gives its worker back, in any thread.
        self._lock = threading.RLock()
        _Template.hold(1)
        self._idle: deque[Worker] = deque()
        self._busy: set[Worker] = set()
        self._is_closed = False
        self.started = 0
        """The number of workers started so far."""

    @property
    def busy(self) -> list[int | None]:
        """The process ids of busy workers, None for one that has just been started."""
        with self._lock:
            return [each.pid for each in self._busy]

    @property
    def memory(self) -> int:
        """The memory of all busy workers in bytes, if the system reports it."""
        total = 0
        for pid in self.busy:
            with contextlib.suppress(OSError, ValueError, IndexError):
                told = Path(f"/proc/{pid}/statm").read_text(encoding="ascii")
                total += int(told.split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return total

    def start(self) -> None:
        """Start a worker, and the template with the first one, so that the next statement does not wait for it."""
        with self._lock:
            if not self._is_closed and not self._idle:
                self._idle.append(self._forked())

    def take(self) -> Worker:
        """Return an idle worker."""
        with self._lock:
            if self._is_closed:
                raise ServeError("The server is shutting down and runs no more statements", hint="try another port")
            while self._idle:
                worker = self._idle.pop()
                if not worker.gone.is_set():
                    break
                worker.close()
            else:
                worker = self._forked()
            self._busy.add(worker)
            return worker

    def give_back(self, worker: Worker) -> None:
        """Return a worker to the pool. A worker whose statement did not finish is dead when this returns."""
        keep = worker.may_be_used_again and not worker.is_killed and not worker.gone.is_set()
        if not keep:
            worker.kill()
            worker.close()
            if not worker.gone.wait(_GONE_SECONDS):
                _log.error("a worker process could not be killed")
        with self._lock:
            self._busy.discard(worker)
            if keep and not self._is_closed and len(self._idle) < self._most_idle:
                self._idle.append(worker)
                return
        if keep:
            worker.close()
        else:
            self.start()

    def kill_busy(self) -> None:
        """Kill every busy worker."""
        with self._lock:
            busy = list(self._busy)
        for worker in busy:
            worker.kill()

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            idle = list(self._idle)
            self._idle.clear()
        for worker in idle:
            worker.close()
        self.kill_busy()
        _Template.hold(-1)

    def _forked(self) -> Worker:
        self.started += 1
        return _Template.shared().fork(self._limits)


def _pass_on(body: bytearray) -> None:
    """Tell this process of a scan in a worker. What a compromised worker sends can only be wrong numbers."""
    with contextlib.suppress(msgspec.MsgspecError):
        metrics, place = msgspec.json.decode(body, type=tuple[ScanMetrics, str])
        for listener in list(scan_listeners):
            listener(metrics, place)


def _shipped(table: DeltaTable) -> bytes:
    """Return a table for a worker: its version, credentials, and the check of allowed files."""
    snapshot = snapshot_of(table)
    return pickle.dumps((snapshot.carrying_credentials(), snapshot.table.check_files))

"""The worker process, which describes and runs untrusted statements one at a time.

``main`` is the template that forks workers (see ``worker_pool``). Before a worker receives a statement, it limits its
memory, disables core dumps, lowers its priority below the server's, and arranges to end with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import pickle
import resource
import selectors
import signal
import socket
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import NoReturn

import msgspec
import pyarrow as pa

from lazydelta.client.wire import error_in_json
from lazydelta.errors import KqlError, LazyDeltaError, MemoryLimitError, QueryError, ServeError
from lazydelta.kql.execution.query import QuerySettings
from lazydelta.kql.execution.query import columns as kql_columns
from lazydelta.kql.execution.query import run as run_kql
from lazydelta.kql.language.parser import parse
from lazydelta.runtime.metrics import ScanMetrics, scan_listeners
from lazydelta.server.flight_sql.session import SqlSession
from lazydelta.server.worker_pool import (
    BATCH,
    CONTROL,
    DESCRIBED,
    DONE,
    ERROR,
    FORK,
    FORKED,
    GONE,
    KILL,
    LAST,
    LOWER,
    OPEN,
    READY,
    SCANNED,
    Request,
    receive_exactly,
    receive_frame,
    send_frame,
)
from lazydelta.table.delta_table import DeltaTable, table_of

__all__ = ["main"]

_log = logging.getLogger(__name__)

_BESIDES = 256 << 20
"""Memory beyond a statement's limit: the interpreter, thread stacks, and one batch in flight."""

_BATCH_BYTES = 4 << 20
_ROW_BYTES = 32 << 20
_MOST_COLUMNS = 10_000
_OUT_OF_MEMORY = MemoryLimitError.__name__.encode()
_DEATH_SIGNAL = 1
_PRIORITY = 5
_LONG_PRIORITY = 10
"""Added to the niceness of a worker, and to that of one whose statement takes long."""
_REAP_SECONDS = 1.0
_FD = struct.Struct("i")


# --- the template


def main(control_fd: int) -> NoReturn:
    """Fork a worker for each request of the server, report workers that ended, and end with the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The mask is inherited from the thread that started this program. With SIGCHLD blocked, no end would be noticed.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    logging.basicConfig(format="lazydelta worker %(process)d: %(message)s")
    with contextlib.suppress(LazyDeltaError):
        parse("warm")  # the grammar is built once, for all workers
    control = socket.socket(fileno=control_fd)
    waking, woken = socket.socketpair()
    for each in (waking, woken):
        each.settimeout(0)
    signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    gc.freeze()  # so that workers share these pages
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while _serve_control(control, woken, children):
            # A child is also looked for without a signal, so that a lost one cannot keep a dead worker's room.
            selector.select(_REAP_SECONDS if children else None)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _serve_control(control: socket.socket, woken: socket.socket, children: set[int]) -> bool:
    """Handle pending events. Return whether the server is still connected."""
    with contextlib.suppress(BlockingIOError):
        woken.recv(4096)
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            break
        children.discard(pid)
        with contextlib.suppress(OSError):
            control.sendall(CONTROL.pack(GONE, pid, status))
    try:
        # Not socket.recv_fds, which ignores its flags and would wait here, where the end of a worker is not noticed.
        data, sent, _, _ = control.recvmsg(CONTROL.size, socket.CMSG_SPACE(_FD.size), socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    if not data:
        return False
    rest = b"" if len(data) == CONTROL.size else receive_exactly(control, CONTROL.size - len(data))
    if rest is None:
        return False
    kind, number, _ = CONTROL.unpack(data + rest)
    if kind == KILL and number in children:
        os.kill(number, signal.SIGKILL)
    elif kind == LOWER and number in children:
        with contextlib.suppress(OSError):  # it has ended
            # By process group, because on Linux the niceness of a process is that of its first thread alone.
            os.setpriority(os.PRIO_PGRP, number, os.getpriority(os.PRIO_PGRP, number) + _LONG_PRIORITY)
    elif kind == FORK:
        (fd,) = _FD.unpack(sent[0][2])
        pid = os.fork()
        if not pid:
            _become_worker(fd, control, woken)
        os.close(fd)
        children.add(pid)
        try:
            control.sendall(CONTROL.pack(FORKED, number, pid))
        except OSError:  # the server has ended
            return False
    return True


def _become_worker(fd: int, control: socket.socket, woken: socket.socket) -> NoReturn:
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        woken.close()
        sock = socket.socket(fileno=fd)
        if (frame := receive_frame(sock)) is not None:
            limits = msgspec.json.decode(frame[1], type=dict[str, int])
            _limit_this_process(limits["memory"] + limits["reading_memory"])
            _Worker(sock, **limits).serve()
        status = 0
    except BaseException:  # noqa: BLE001 - no code of the template may run here
        _log.exception("a worker process failed")
    finally:
        os._exit(status)


def _limit_this_process(memory: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # without this call, the end of the template ends the worker
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() == 1:
            os._exit(1)
    os.setpgid(0, 0)
    os.nice(_PRIORITY)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = _memory("VmData") + memory + _BESIDES
    # Limit private writable memory, not address space: DuckDB and Arrow reserve much more than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _memory(kind: str) -> int:
    """Return a memory figure of this process: ``VmData`` is private memory, ``VmRSS`` is resident memory."""
    try:
        with open("/proc/self/status", encoding="ascii") as lines:  # noqa: PTH123 - a kernel file
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{kind}:"))
    except (OSError, StopIteration):
        return 256 << 20


# --- a worker


class _CannotOpenError(QueryError):
    """The server could not open a table, or may not. The server knows the reason."""


class _Worker:
    def __init__(self, sock: socket.socket, *, memory: int, reading_memory: int, threads: int) -> None:
        self._sock = sock
        self._session = SqlSession(memory=memory, reading_memory=reading_memory, threads=threads)
        self._most_kept = _memory("VmRSS") + (memory + reading_memory) // 2

    def serve(self) -> None:
        """Answer requests until the server sends no more."""
        send_frame(self._sock, READY)
        scanned: deque[tuple[ScanMetrics, str]] = deque()
        # Scans end in other threads; only this one writes to the socket.
        scan_listeners[:] = [lambda metrics, place: scanned.append((metrics, place))]
        while (frame := receive_frame(self._sock)) is not None:
            failure: bytes | None = None
            try:
                self._answer(Request(*pickle.loads(frame[1])))  # noqa: S301 - sent by the server
            except BrokenPipeError:
                return
            except BaseException as error:  # noqa: BLE001 - reported to the server as a LazyDeltaError
                failure = _told(error)
            while scanned:
                send_frame(self._sock, SCANNED, msgspec.json.encode(scanned.popleft()))
            gc.collect()
            pa.default_memory_pool().release_unused()
            if _memory("VmRSS") > self._most_kept or (failure is not None and _OUT_OF_MEMORY in failure):
                # The memory that a statement leaves in use must not count against the next one.
                send_frame(self._sock, LAST)
            if failure is None:
                send_frame(self._sock, DONE)
            else:
                send_frame(self._sock, ERROR, failure)

    def _answer(self, asked: Request) -> None:
        open_table = _opened_once(self._open)
        if asked.verb == "describe":
            schema, parameters = self._described(asked, open_table)
            if len(schema) > _MOST_COLUMNS:
                raise QueryError(f"The result has {len(schema)} columns", hint=f"{_MOST_COLUMNS} are the most")
            parts = [each.serialize().to_pybytes() for each in (schema, parameters)]
            send_frame(self._sock, DESCRIBED, len(parts[0]).to_bytes(8, "little"), *parts)
            return
        with contextlib.closing(self._rows(asked, open_table)) as rows:
            for batch in rows:
                for piece in _pieces(batch):
                    send_frame(self._sock, BATCH, memoryview(piece.serialize()))

    def _described(self, asked: Request, open_table: Callable[[str], DeltaTable]) -> tuple[pa.Schema, pa.Schema]:
        if asked.language == "sql":
            return self._session.described(asked.text, asked.names, open_table, asked.values)
        if asked.values is not None and asked.values.num_columns:
            hint = "write the values into the query, or define them with let"
            raise KqlError("A query in KQL takes no bound values", hint=hint)
        names = {name: name for name in asked.names}
        databases = self._session.kql
        shown = kql_columns(asked.text, names, settings=_settings(asked), open_table=open_table, databases=databases)
        return shown, pa.schema([])

    def _rows(self, asked: Request, open_table: Callable[[str], DeltaTable]) -> Generator[pa.RecordBatch]:
        if asked.language == "sql":
            yield from self._session.rows(asked.text, asked.names, open_table, asked.values, asked.schema)
            return
        names = {name: name for name in asked.names}
        databases = self._session.kql
        with run_kql(
            asked.text, names, settings=_settings(asked), open_table=open_table, databases=databases
        ) as result:
            yield from result

    def _open(self, name: str) -> DeltaTable:
        """Request a table from the server, which refuses tables that the client may not read."""
        send_frame(self._sock, OPEN, name.encode())
        frame = receive_frame(self._sock)
        if frame is None:
            raise BrokenPipeError
        if not frame[1]:
            raise _CannotOpenError(f"The table {name!r} cannot be opened")
        snapshot, check = pickle.loads(frame[1])  # noqa: S301 - sent by the server
        return table_of(snapshot.on(msgspec.structs.replace(snapshot.table, check_files=check)))


def _settings(asked: Request) -> QuerySettings:
    return QuerySettings() if asked.settings is None else QuerySettings(*asked.settings)


def _told(error: BaseException) -> bytes:
    """Return the description of an error for the server. It is empty if the server knows the reason itself."""
    told: LazyDeltaError
    if isinstance(error, _CannotOpenError):
        return b""
    if isinstance(error, LazyDeltaError):
        told = error
    elif isinstance(error, MemoryError | pa.ArrowMemoryError):
        told = MemoryLimitError("The query needs more memory than a statement has here", hint="narrow the query")
    elif isinstance(error, RecursionError):
        told = QueryError("The query is nested too deeply", hint="move parts of it to a WITH clause")
    else:
        _log.error("an internal error in a worker process", exc_info=error)
        told = ServeError("The server failed for a reason of its own", hint="see the server's log")
    return error_in_json(told, str(told.args[0]))


def _opened_once(open_table: Callable[[str], DeltaTable]) -> Callable[[str], DeltaTable]:
    opened: dict[str, DeltaTable] = {}

    def once(name: str) -> DeltaTable:
        if name not in opened:
            opened[name] = open_table(name)
        return opened[name]

    return once


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into pieces that the server can hold."""
    if batch.nbytes <= _BATCH_BYTES or batch.num_rows <= 1:
        if batch.nbytes > _ROW_BYTES:
            message = f"A row of the result has {batch.nbytes} bytes"
            raise QueryError(message, hint=f"{_ROW_BYTES} are the most; select less of it")
        yield batch
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))

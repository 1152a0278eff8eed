"""A client's statement in SQL or KQL: checked and described on arrival, run when its rows are fetched.

Both happen in a worker process. The server keeps the query string of a statement, the versions of its tables and its
columns. The length, depth and width of the query are checked before parsing, because parsers fail on extremes of these.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import IO, Any, Protocol

import pyarrow as pa

from lazydelta.errors import DeadlineError, QueryError, ServerBusyError, StreamClosedError
from lazydelta.server.flight_sql.guard import MOST_TEXT
from lazydelta.server.streams import Answer
from lazydelta.server.worker_pool import BATCH, DESCRIBED, KqlSettings, Request, Worker, WorkerPool
from lazydelta.table.delta_table import DeltaTable

__all__ = ["Spill", "Statement", "StatementAnswer", "TablesOfServer", "check_text", "described", "language_of"]

_MOST_DEPTH = 100
_MOST_TOKENS = 30_000
_MOST_OPERATORS = 5_000
_PREFIXES = ("kql", "sql")
# String literals, comments and quoted names are one token each. Unclosed ones extend to the end, so that no part is
# scanned twice. A chain of operators without a comma or bracket counts as nesting, because parsers recurse on it.
_REST = r"""|[\w.]+|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<comma>[,;])|\S"""
_TOKENS = {
    "sql": re.compile(
        r"""'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)|\$(\w*)\$.*?(?:\$\1\$|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z)""" + _REST, re.DOTALL
    ),
    "kql": re.compile(r"""'(?:[^'\\]|\\.)*(?:'|\\?\Z)|"(?:[^"\\]|\\.)*(?:"|\\?\Z)|//[^\n]*""" + _REST, re.DOTALL),
}


class TablesOfServer(Protocol):
    """The part of the server's tables that this package uses."""

    def names_for(self, identity: Any) -> list[str]:
        """Return the names of the tables that a client may read."""

    def open(self, name: str, identity: Any) -> DeltaTable:
        """Return a table at its newest version."""


@dataclass(frozen=True)
class Statement:
    """A statement that may run. The versions of its tables were pinned when it was described."""

    language: str
    text: str
    names: tuple[str, ...]
    tables: dict[str, DeltaTable]
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    parameters: pa.Schema = field(default_factory=lambda: pa.schema([]))
    values: pa.RecordBatch | None = None
    size: int = 0
    """Approximate memory in bytes."""
    settings: KqlSettings | None = None
    """What the request adds to a query in KQL."""

    @property
    def table_names(self) -> tuple[str, ...]:
        """The tables that it reads."""
        return tuple(sorted(self.tables))

    def request(self, verb: str) -> Request:
        """Return the request for a worker."""
        schema = self.schema if verb == "run" else None
        return Request(verb, self.language, self.text, self.names, self.values, schema, self.settings)


def language_of(text: str, language: str) -> tuple[str, str]:
    """Return the language of a query and the query without its prefix. The prefix overrides the session's language."""
    start = text.lstrip()
    for prefix in _PREFIXES:
        if start[: len(prefix) + 1].lower() == f"{prefix}:":
            return prefix, start[len(prefix) + 1 :]
    return language, text


def check_text(text: str, language: str) -> None:
    """Refuse a query that is too long, too deep or too wide for a parser. Check nothing else."""
    if len(text.encode("utf-8", "surrogatepass")) > MOST_TEXT:
        raise QueryError(f"The query is longer than {MOST_TEXT} bytes", hint="bind values as parameters")
    depth = row = 0
    for number, token in enumerate(_TOKENS[language].finditer(text)):
        row += 1
        if token["open"]:
            depth, row = depth + 1, 0
        elif token["close"]:
            depth, row = depth - 1, 0
        elif token["comma"]:
            row = 0
        if depth > _MOST_DEPTH:
            raise QueryError(
                f"The query is nested deeper than {_MOST_DEPTH} brackets", hint="move parts of it to a WITH clause"
            )
        if row > _MOST_OPERATORS or number > _MOST_TOKENS:
            most = f"{_MOST_TOKENS} words and signs, or {_MOST_OPERATORS} without a comma or bracket between"
            raise QueryError(f"The query has more than {most}", hint="use IN, a join, or several queries")


def described(
    pool: WorkerPool,
    statement: Statement,
    open_table: Callable[[str], DeltaTable],
    *,
    cancelled: Callable[[], bool],
    seconds: float | None,
) -> Statement:
    """Return a statement with its columns and parameters, as described by a worker."""
    until: float | None = None

    def check() -> None:
        if cancelled():
            raise StreamClosedError("The call was cancelled", hint="run the statement again")
        if until is not None and time.monotonic() > until:
            message = f"The statement was not described after {seconds:g} s, the time limit for planning"
            raise DeadlineError(message, hint="simplify it")

    tables = dict(statement.tables)

    def opened(name: str) -> DeltaTable:
        if name not in tables:
            tables[name] = open_table(name)
        return tables[name]

    worker = pool.take()
    try:
        worker.wait_until_ready(check)
        # The limit applies to the statement, not to the startup of its process.
        until = None if seconds is None else time.monotonic() + seconds
        found: list[pa.Schema] = []
        size = 0
        for kind, body in worker.frames(statement.request("describe"), opened, check):
            if kind == DESCRIBED:
                size = len(body)
                end = 8 + int.from_bytes(body[:8], "little")
                found = [pa.ipc.read_schema(pa.py_buffer(bytes(each))) for each in (body[8:end], body[end:])]
    finally:
        pool.give_back(worker)
    schema, parameters = found
    size += len(statement.text) + (0 if statement.values is None else statement.values.nbytes)
    return replace(statement, tables=tables, schema=schema, parameters=parameters, size=size)


class Spill:
    """Disk space for the results of slow clients, shared by all of them."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Reserve ``size`` bytes. Return whether they were available."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give_back(self, size: int) -> None:
        """Release bytes."""
        with self._lock:
            self._left += size


class StatementAnswer(Answer):
    """The rows of a statement, from a worker process.

    A slow client gives way to waiting requests: the rest of its rows goes to a file, and the worker is released.
    ``freed`` is called as soon as the worker is free.
    """

    again = "run the statement again"

    def __init__(
        self,
        statement: Statement,
        pool: WorkerPool,
        open_table: Callable[[str], DeltaTable],
        *,
        spill: Spill,
        freed: Callable[[], None],
    ) -> None:
        self.schema = statement.schema
        self._statement = statement
        self._pool = pool
        self._open_table = open_table
        self._spill = spill
        self._freed = freed
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._is_stopped = False
        self._rows: Generator[bytearray] | None = None
        self._file: IO[bytes] | None = None
        self._parked: deque[tuple[int, int]] = deque()
        self._taken = 0

    def batches(self) -> Generator[tuple[pa.RecordBatch, None]]:
        """Yield the rows as the worker produces them. The worker waits while the client does not read."""
        self._rows = self._from_worker()
        try:
            while (data := self._next()) is not None:
                batch = pa.ipc.read_record_batch(pa.py_buffer(data), self.schema)
                batch.validate()  # a compromised worker must not harm the server
                yield batch, None
        finally:
            self._rows.close()
            self._spill.give_back(self._taken)
            if self._file is not None:
                self._file.close()

    def stop(self) -> None:
        """Kill the worker."""
        with self._lock:
            self._is_stopped = True
            worker = self._worker
        if worker is not None:
            worker.kill()

    def give_way(self, is_wanted: Callable[[], bool]) -> None:
        """Spill rows to a file until the client reads again or the worker has finished. See ``Answer``."""
        while not is_wanted() and self._rows is not None and (data := next(self._rows, None)) is not None:
            if not self._spill.take(len(data)):
                message = "The client read nothing while others waited, and its remaining rows are too large to keep"
                raise ServerBusyError(message, hint="fetch without pauses, or query fewer rows; then try again")
            self._taken += len(data)
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="lazydelta-")  # noqa: SIM115 - closed with the batches
            self._parked.append((self._file.seek(0, 2), len(data)))
            self._file.write(data)

    def explain(self) -> dict[str, Any]:
        """Return an empty plan: EXPLAIN is a statement of its own."""
        return {}

    def _next(self) -> bytes | bytearray | None:
        if self._parked and self._file is not None:
            at, size = self._parked.popleft()
            self._file.seek(at)
            return self._file.read(size)
        assert self._rows is not None  # noqa: S101 - set before the first batch is requested
        return next(self._rows, None)

    def _from_worker(self) -> Generator[bytearray]:
        worker = self._pool.take()
        try:
            with self._lock:
                self._worker = worker
                if self._is_stopped:
                    raise StreamClosedError("The stream was closed")
            for kind, body in worker.frames(self._statement.request("run"), self._opened):
                if kind == BATCH:
                    yield body
        finally:
            with self._lock:
                self._worker = None
            self._pool.give_back(worker)
            self._freed()

    def _opened(self, name: str) -> DeltaTable:
        return self._statement.tables.get(name) or self._open_table(name)

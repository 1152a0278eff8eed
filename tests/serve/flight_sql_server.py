"""A server with Flight SQL alone, in the test's own process, so that what its scans do can be counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from pyarrow import flight

from lazydelta import DeltaTable
from lazydelta.errors import TableNotFoundError
from lazydelta.log.file_batch import FileBatch
from lazydelta.scan.scanner import LazyDeltaScanner
from lazydelta.serve.flight_sql.flight_sql import FlightSql, SqlLimits
from lazydelta.serve.flight_sql.session_options import SESSION_MIDDLEWARE, SessionCookies

T = TypeVar("T")

__all__ = ["WAIT", "Gate", "SqlServer", "Tables", "serving", "wait_for"]

WAIT = 60


class Tables:
    """Tables by name; ``only`` gives an identity the few that it may read. Every opening is noted."""

    def __init__(self, places: Mapping[str, str], only: Mapping[Hashable, list[str]] | None = None) -> None:
        self._places = dict(places)
        self._only = dict(only or {})
        self.opened: list[str] = []

    def names_for(self, identity: Hashable) -> list[str]:
        """Return the names for an identity."""
        return [name for name in self._places if name in self._only.get(identity, self._places)]

    def open(self, name: str, identity: Hashable) -> DeltaTable:
        """Open a table."""
        self.opened.append(name)
        if name not in self.names_for(identity):
            raise TableNotFoundError(f"There is no table {name!r} here")
        return DeltaTable(self._places[name])


class _Who(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, name: str) -> None:
        self.name = name


class _WhoFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, info: Any, headers: Mapping[str, list[str]]) -> _Who:  # noqa: ARG002 - Flight's
        return _Who(headers.get("who", [""])[0])


class SqlServer(flight.FlightServerBase):  # type: ignore[misc]
    """Hands every call over."""

    def __init__(self, tables: Tables, limits: SqlLimits | None = None, reserve: Any = None) -> None:
        self.tables = tables
        self.sql = FlightSql(
            tables, identity_of=lambda context: context.get_middleware("who").name, limits=limits, reserve=reserve
        )
        middleware = {"who": _WhoFactory(), SESSION_MIDDLEWARE: SessionCookies()}
        super().__init__("grpc://127.0.0.1:0", middleware=middleware)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:  # noqa: D102
        return self.sql.get_flight_info(context, descriptor)

    def get_schema(self, context: Any, descriptor: Any) -> Any:  # noqa: D102
        return self.sql.get_schema(context, descriptor)

    def do_get(self, context: Any, ticket: Any) -> Any:  # noqa: D102
        return self.sql.do_get(context, ticket)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:  # noqa: D102
        self.sql.do_put(context, descriptor, reader, writer)

    def do_action(self, context: Any, action: Any) -> Any:  # noqa: D102
        return self.sql.do_action(context, action)

    def list_actions(self, context: Any) -> Any:  # noqa: ARG002, D102
        return self.sql.list_actions()

    @property
    def uri(self) -> str:
        """Where it listens."""
        return f"grpc://127.0.0.1:{self.port}"


@contextmanager
def serving(
    places: Mapping[str, str], limits: SqlLimits | None = None, reserve: Any = None, **tables: Any
) -> Iterator[SqlServer]:
    """Run a server over tables."""
    server = SqlServer(Tables(places, **tables), limits, reserve)
    try:
        yield server
    finally:
        server.sql.cancel_all()
        server.shutdown()
        server.sql.close()


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until something is so; threads of the server end in their own time."""
    deadline = time.monotonic() + WAIT
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Gate:
    """Makes every scan hand out its files one by one, and wait before the one after ``free``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.pulled: list[str] = []
        self.reached = threading.Event()
        self.open = threading.Event()
        original = LazyDeltaScanner.converted

        def one_by_one(scanner: LazyDeltaScanner, convert: Callable[[FileBatch], T]) -> Generator[T]:
            for batch in original(scanner, lambda found: found):
                for index in range(len(batch)):
                    if len(self.pulled) == free:
                        self.reached.set()
                        assert self.open.wait(WAIT)
                    one = batch.slice(index, 1)
                    self.pulled.append(one.path[0].as_py())
                    yield convert(one)

        monkeypatch.setattr(LazyDeltaScanner, "converted", one_by_one)

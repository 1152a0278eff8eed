"""A server with Flight SQL alone, in the test's own process, so that what it opens can be counted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pyarrow import flight

from lazydelta import DeltaTable
from lazydelta.errors import TableNotFoundError
from lazydelta.server.flight_sql.calls import SESSION_MIDDLEWARE, FlightSql, SessionCookies, SqlLimits

__all__ = ["WAIT", "Gate", "SqlServer", "Tables", "is_gone", "serving", "wait_for"]

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
        more = {} if reserve is None else {"reserve": reserve}
        self.sql = FlightSql(
            tables, identity_of=lambda context: context.get_middleware("who").name, limits=limits, **more
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


class _Flag:
    """A file that stands for an event in a worker process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wait(self, seconds: float) -> bool:
        """Wait until it is set, at most so long; tell whether it is."""
        until = time.monotonic() + seconds
        while not self.path.exists() and time.monotonic() < until:
            time.sleep(0.005)
        return self.path.exists()

    def set(self) -> None:
        """Set it."""
        self.path.touch()


class Gate:
    """Makes every scan of the worker processes hand out its files one by one, and wait before the one after ``free``.

    ``reached`` is set by the scan that waits, and ``open`` lets it go on; ``pulled`` has what was handed out.
    """

    def __init__(self, free: int = 1 << 30) -> None:
        self._folder = Path(os.environ["LAZYDELTA_TEST_GATE"])
        self.reached, self.open = (_Flag(self._folder / name) for name in ("reached", "open"))
        self._free = free

    @property
    def pulled(self) -> list[str]:
        """The files that scans have handed out."""
        path = self._folder / "pulled"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def pid(self) -> int:
        """The process whose scan waits."""
        return int(self.reached.path.read_text())

    def __enter__(self) -> Self:
        self._clear()
        (self._folder / "free").write_text(str(self._free))
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
        for path in self._folder.iterdir():
            path.unlink()


def is_gone(pid: int) -> bool:
    """Tell whether a process does not exist any more."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False

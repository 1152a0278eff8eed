"""A server in this process, and what tests ask of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.flight as fl

import lazydelta
from lazydelta.server.flight import FlightServer, drain
from lazydelta.server.tables import ServedTables, TablePlace
from lazydelta.server.ticket import TicketSigner

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.client import Connection

KEY = b"a key for tests, not for others"


def make_server(tables: Mapping[str, Path | str], *, key: bytes = KEY, **more: Any) -> FlightServer:
    """Return a server that listens on some port of the loopback."""
    served = ServedTables({name: TablePlace(str(place)) for name, place in tables.items()})
    return FlightServer(more.pop("location", "grpc://127.0.0.1:0"), served, TicketSigner(key), **more)


@contextmanager
def serving(tables: Mapping[str, Path | str], **more: Any) -> Iterator[FlightServer]:
    """Serve tables for the block."""
    server = make_server(tables, **more)
    try:
        yield server
    finally:
        # A test that fails may leave a client that takes nothing, for which gRPC would wait for good.
        drain(server, 0)


def location(server: FlightServer) -> str:
    """Return where a server of this process listens."""
    return f"grpc://127.0.0.1:{server.port}"


@contextmanager
def connected(server: FlightServer, **more: Any) -> Iterator[Connection]:
    """Connect to a server of this process."""
    with lazydelta.connect(location(server), **more) as connection:
        yield connection


def plan(client: Any, **command: Any) -> Any:
    """Ask for tickets as a client does that knows nothing of ours."""
    return client.get_flight_info(fl.FlightDescriptor.for_command(msgspec.json.encode(command)))

"""Another protocol on the same port gets what it handles, and its errors leave as ours do."""

# ruff: noqa: ARG002 - as Flight has its methods

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from lazydelta.errors import QueryError
from lazydelta.serve.authentication import identity_of
from lazydelta.serve.flight_server import FlightServer
from lazydelta.serve.served_tables import ServedTables
from lazydelta.wire import error_from
from tests.scan.hand_log import HandLog, add
from tests.serve.serving import location, plan, serving

_SCHEMA = pa.schema([("name", pa.string())])


class _Names:
    """Answers commands that begin with a zero byte with the names of the tables that the client may read."""

    def __init__(self) -> None:
        self.tables: ServedTables | None = None

    def handles(self, command: bytes) -> bool:
        return command.startswith(b"\0")

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        if descriptor.command == b"\0wrong":
            raise QueryError("This is no question", hint="ask another one")
        endpoint = fl.FlightEndpoint(descriptor.command, [])
        return fl.FlightInfo(_SCHEMA, descriptor, [endpoint], -1, -1)

    def do_get(self, context: Any, ticket: Any) -> Any:
        assert self.tables is not None
        names = self.tables.names_for(identity_of(context))
        return fl.RecordBatchStream(pa.table({"name": names}, schema=_SCHEMA))

    def do_action(self, context: Any, action: Any) -> Any:
        return iter([action.type.encode()])

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        reader.read_all()


@pytest.fixture
def server(tmp_path: Path) -> Any:
    HandLog(tmp_path / "t").commit(add("a.parquet"))
    names = _Names()
    with serving({"t": tmp_path / "t"}, extension=names) as running:
        names.tables = running.tables
        yield running


def test_what_it_handles_is_left_to_it_and_the_rest_is_ours(server: FlightServer) -> None:
    client = fl.connect(location(server))
    descriptor = fl.FlightDescriptor.for_command(b"\0names")
    info = client.get_flight_info(descriptor)
    assert client.do_get(info.endpoints[0].ticket).read_all().to_pydict() == {"name": ["t"]}
    assert client.get_schema(descriptor).schema == _SCHEMA
    assert [each.body.to_pybytes() for each in client.do_action(fl.Action("CloseSession", b""))] == [b"CloseSession"]
    writer, _ = client.do_put(descriptor, _SCHEMA)
    writer.close()
    ours = plan(client, table="t")
    assert client.do_get(ours.endpoints[0].ticket).read_all().num_rows == 1


def test_its_errors_keep_their_class(server: FlightServer) -> None:
    client = fl.connect(location(server))
    with pytest.raises(fl.FlightServerError, match="no question") as caught:
        client.get_flight_info(fl.FlightDescriptor.for_command(b"\0wrong"))
    assert isinstance(error_from(caught.value.extra_info), QueryError)

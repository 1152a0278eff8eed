"""Flight SQL on the port of the Flight server: the same tables, tokens, budgets and errors."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from adbc_driver_flightsql import DatabaseOptions

from lazydelta import write_arrow
from lazydelta.server.budgets import Budgets
from lazydelta.server.flight import FlightServer
from lazydelta.server.flight_sql.calls import SqlLimits
from lazydelta.server.flight_sql.messages import packed
from lazydelta.server.tokens import AccessLog, TokenFile, add_token
from tests.server.flight_sql_server import WAIT, Gate, wait_for
from tests.server.serving import connected, location, plan, serving

LIMITS = SqlLimits(memory=128 << 20, reading_memory=64 << 20)


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, Path]:
    for name, rows in (("open", 10), ("closed", 20)):
        write_arrow(tmp_path / name, pa.table({"id": range(rows)}), maintain=False)
    return {name: tmp_path / name for name in ("open", "closed")}


@pytest.fixture
def server(tables: dict[str, Path]) -> Iterator[FlightServer]:
    with serving(tables, sql=LIMITS) as running:
        yield running


def _fetched(server: FlightServer, sql: str, parameters: tuple[object, ...] = (), token: str | None = None) -> pa.Table:
    options = {} if token is None else {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {token}"}
    with (
        adbc.connect(location(server), db_kwargs=options, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(sql, parameters or None)
        return cursor.fetch_arrow_table()


def test_both_protocols_answer_on_one_port(server: FlightServer) -> None:
    assert _fetched(server, "SELECT sum(id) AS s FROM open WHERE id >= ?", (5,)).to_pydict() == {"s": [35]}
    assert _fetched(server, "kql: open | where id < 3 | count").to_pydict() == {"Count": [3]}
    client = fl.connect(location(server))
    assert client.do_get(plan(client, table="open", of="rows").endpoints[0].ticket).read_all().num_rows == 10
    with connected(server) as connection:
        assert connection.table("closed").rows().read_all().num_rows == 20
    named = {kind for kind, _ in client.list_actions()}
    assert {"health", "CreatePreparedStatement", "CancelFlightInfo"} <= named
    requests = server.metrics.text().decode()
    assert 'request="sql plan"' in requests
    assert 'request="sql get"' in requests


def test_a_token_opens_its_tables_and_no_others(tables: dict[str, Path], tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    token = add_token(str(tokens), "reader", ("open",))
    with serving(tables, sql=LIMITS, tokens=TokenFile(str(tokens))) as server:
        assert _fetched(server, "SELECT count(*) AS n FROM open", token=token).to_pydict() == {"n": [10]}
        with pytest.raises(adbc.Error, match=r"no table .closed. here"):
            _fetched(server, "SELECT * FROM closed", token=token)
        with pytest.raises(adbc.Error, match="token"):
            _fetched(server, "SELECT * FROM open")
        with pytest.raises(adbc.Error, match="token"):
            _fetched(server, "SELECT * FROM open", token=f"{token}x")


def test_statements_take_room_of_the_same_budget(tables: dict[str, Path]) -> None:
    room = LIMITS.memory + LIMITS.reading_memory
    with serving(tables, sql=LIMITS, budgets=Budgets(memory=room, memory_per_client=room)) as server:
        assert _fetched(server, "SELECT id FROM open").num_rows == 10
        assert server.budgets.most_memory == room
        taken = server.budgets.reserve("somebody", 1)
        with pytest.raises(adbc.Error, match="The server is full"):
            _fetched(server, "SELECT id FROM open")
        taken()
        assert server.budgets.memory == 0


def test_a_server_without_sql_refuses_it(tables: dict[str, Path]) -> None:
    with serving(tables) as server, pytest.raises(adbc.Error):
        _fetched(server, "SELECT id FROM open")


def test_what_is_too_long_is_not_looked_at(server: FlightServer) -> None:
    with pytest.raises(adbc.Error, match="bytes"):
        _fetched(server, f"SELECT '{'x' * (server.limits.command_bytes + 1)}'")


def test_statements_are_counted_and_written_down_when_they_have_ended(tables: dict[str, Path]) -> None:
    out = io.StringIO()
    with serving(tables, sql=LIMITS, access_log=AccessLog(out)) as server:
        _fetched(server, "SELECT o.id, 'a secret' AS s FROM open AS o JOIN closed USING (id)")
        _fetched(server, "kql: closed | where id < 5")
        with pytest.raises(adbc.Error, match="out it goes"):
            _fetched(server, "SELECT error('out it goes') FROM open")
        with pytest.raises(adbc.Error, match="no table"):
            _fetched(server, "SELECT * FROM nowhere")
        assert server.budgets.wait_until_idle(60)
        told = [json.loads(line) for line in out.getvalue().splitlines()]
        of_sql = {"of": "sql", "how": "done"}
        sent = server.metrics.registry.get_sample_value
        assert sent("lazydelta_serve_stream_rows_total", {"table": "closed,open", "of": "sql"}) == 10
        assert sent("lazydelta_serve_stream_rows_total", {"table": "closed", "of": "sql"}) == 5
        assert sent("lazydelta_serve_stream_seconds_count", {"table": "closed", **of_sql}) == 1
    ended = [each for each in told if each["request"] == "stream"]
    assert [(each["table"], each["of"], each["how"], each["rows"], each.get("error")) for each in ended] == [
        ("closed,open", "sql", "done", 10, None),
        ("closed", "sql", "done", 5, None),
        ("open", "sql", "failed", 0, "QueryError"),
    ]
    assert all(each["bytes"] > 0 for each in ended[:2])
    assert [each["how"] for each in told if each["how"] not in {"ok", "done", "failed"}] == ["QueryError"]
    assert "secret" not in out.getvalue()


def test_a_statement_that_is_cancelled_is_written_down_as_such(tables: dict[str, Path]) -> None:
    out = io.StringIO()
    with Gate(free=0) as gate, serving(tables, sql=LIMITS, access_log=AccessLog(out)) as server:
        client = fl.connect(location(server))
        query = fl.FlightDescriptor.for_command(packed("CommandStatementQuery", query="SELECT sum(id) FROM open"))
        reader = client.do_get(client.get_flight_info(query).endpoints[0].ticket)
        assert gate.reached.wait(WAIT)
        reader.cancel()
        wait_for(lambda: '"request":"stream"' in out.getvalue())
        assert server.budgets.wait_until_idle(60)
    (ended,) = [json.loads(line) for line in out.getvalue().splitlines() if '"request":"stream"' in line]
    assert (ended["how"], ended["table"], ended["rows"]) == ("cancelled", "open", 0)

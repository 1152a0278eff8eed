"""Microsoft's own client against the Kusto endpoint: rows, types, nulls, errors, limits, cancellation and tokens."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import math
import socket
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.kusto.data import ClientRequestProperties, KustoClient, KustoConnectionStringBuilder
from azure.kusto.data.aio import KustoClient as AsyncKustoClient
from azure.kusto.data.exceptions import KustoApiError, KustoMultiApiError, KustoServiceError

from lazydelta import DeltaTable, kql
from lazydelta.server.tokens import add_token
from lazydelta.testing import make_table
from tests.kql.documented import CASES
from tests.server.flight_sql_server import WAIT, Gate, is_gone
from tests.server.http_server import http_serving, write_every_type

DATABASE = "lazydelta"
QUERIES = [
    "T",
    "T | extend sp = 1d + 2s + 5ms, neg = -90m, g = guid(74be27de-1e4e-49d9-b579-fe0b331d3642), n = dynamic(null)",
    "T | summarize count(), max(x), make_list(i) by b | order by count_ asc, b asc",
    "T | where ts > datetime(2026-01-01T01:30:00) | project ts, d, hour = bin(ts, 1h) | sort by ts desc",
    """T | where isnull(x) or f > 1 | extend o = todynamic('{"k": [1, null]}')""",
    "print a = 9223372036854775807, b = real(nan), c = '', e = datetime(9999-12-31), f = datetime(0001-01-01)",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_every_type(tmp_path_factory.mktemp("kusto") / "T")


@pytest.fixture(scope="module")
def address(place: Path) -> Iterator[str]:
    with http_serving({"T": place}) as (_, found):
        yield found


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[KustoClient]:
    with KustoClient(address) as found:
        yield found


def request_properties() -> Any:
    return ClientRequestProperties()  # type: ignore[no-untyped-call]


def plain(value: Any, kind: str) -> Any:
    """Return a value of ours or of the client in one form. NaN equals itself. Ours have dynamic values as JSON."""
    if kind == "dynamic" and isinstance(value, str):
        return plain(json.loads(value), "")
    if isinstance(value, float) or (kind == "real" and isinstance(value, str)):
        number = float(str(value).replace("Infinity", "inf"))
        return "NaN" if math.isnan(number) else number
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return value


def rows_of(table: Any) -> list[list[Any]]:
    # The client has decoded dynamic values with the reply.
    kinds = [column.column_type.replace("dynamic", "") for column in table.columns]
    return [[plain(value, kind) for value, kind in zip(row.to_list(), kinds, strict=True)] for row in table]


def ours(text: str, tables: dict[str, Any] | None = None) -> tuple[list[tuple[str, str]], list[list[Any]]]:
    result = kql.query(text, tables)
    kinds = list(result.kinds.items())
    table = result.read_all()
    columns = [
        [plain(value, kind) for value in column.to_pylist()]
        for column, (_, kind) in zip(table.columns, kinds, strict=True)
    ]
    return kinds, [list(row) for row in zip(*columns, strict=True)]


@pytest.mark.parametrize("text", QUERIES)
def test_rows_types_and_nulls_are_those_of_kql(client: KustoClient, place: Path, text: str) -> None:
    table = client.execute(DATABASE, text).primary_results[0]
    kinds, rows = ours(text, {"T": DeltaTable(str(place))})
    assert [(column.column_name, column.column_type) for column in table.columns] == kinds
    found = rows_of(table)
    if "sort by" in text or "order by" in text or "print" in text:
        assert found == rows
    else:
        assert sorted(map(repr, found)) == sorted(map(repr, rows))


def check_documented(client: KustoClient, cases: list[Any]) -> None:
    """Compare with the rows that Microsoft's documentation shows."""
    wrong = []
    for case in cases:
        table = client.execute(DATABASE, case.query).primary_results[0]
        kinds = [column.column_type for column in table.columns]
        expected = [[plain(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in case.rows]
        shown = [[[comparable(value) for value in row] for row in each] for each in (rows_of(table), expected)]
        found, told = shown if case.ordered else map(sorted, shown)
        if found != told:
            wrong.append((case.query, found, told))
    assert wrong == []


def comparable(value: Any) -> str:
    if isinstance(value, list | dict):
        return json.dumps(value, sort_keys=True, default=str)
    number = isinstance(value, float | Decimal) or (isinstance(value, int) and not isinstance(value, bool))
    return f"{float(value):.9g}" if number else str(value)


def test_queries_of_the_documentation_give_the_documented_rows(client: KustoClient) -> None:
    check_documented(client, CASES[::30])


@pytest.mark.slow
def test_all_queries_of_the_documentation_give_the_documented_rows(client: KustoClient) -> None:
    check_documented(client, CASES)


def test_version_1_and_progressive_frames_have_the_same_rows(address: str, client: KustoClient) -> None:
    text = "T | sort by x asc"
    expected = client.execute(DATABASE, text).primary_results[0].raw_rows
    body = {"db": DATABASE, "csl": text, "properties": {"Options": {"results_progressive_enabled": True}}}
    old = httpx.post(f"{address}/v1/rest/query", json=body).json()["Tables"]
    assert old[0]["Rows"] == expected
    assert next(row[1:3] for row in old[-1]["Rows"]) == ["QueryResult", "PrimaryResult"]
    frames = httpx.post(f"{address}/v2/rest/query", json=body).json()
    assert frames[0]["IsProgressive"] is True
    assert [row for frame in frames if frame["FrameType"] == "TableFragment" for row in frame["Rows"]] == expected
    assert [frame["RowCount"] for frame in frames if frame["FrameType"] == "TableCompletion"] == [len(expected)]


def test_the_client_streams_and_runs_in_an_event_loop(address: str, client: KustoClient) -> None:
    streamed = next(client.execute_streaming_query(DATABASE, "range i from 1 to 20000 step 1").iter_primary_results())
    assert [row[0] for row in streamed] == list(range(1, 20001))

    async def run() -> list[Any]:
        async with AsyncKustoClient(address) as found:
            answers = await asyncio.gather(*(found.execute(DATABASE, f"print x = {number}") for number in range(3)))
            answer = await found.execute_streaming_query(DATABASE, "range i from 1 to 20000 step 1")
            async for table in answer.iter_primary_results():
                streamed = [row[0] async for row in table]
            return [[answer.primary_results[0][0]["x"] for answer in answers], streamed]

    assert asyncio.run(run()) == [[0, 1, 2], list(range(1, 20001))]


def test_errors_are_the_exceptions_of_the_client_with_line_and_column(client: KustoClient) -> None:
    with pytest.raises(KustoApiError) as syntax:
        client.execute(DATABASE, "T\n| whee x")
    assert syntax.value.get_api_error().code == "BadRequest_SyntaxError"
    assert "[line:position=2:3]" in str(syntax.value)
    with pytest.raises(KustoApiError) as semantic:
        client.execute(DATABASE, "T | where nope > 1")
    assert semantic.value.is_semantic_error()
    assert "[line:position=1:11]" in str(semantic.value)
    with pytest.raises(KustoApiError, match=r"\.drop table"):
        client.execute_mgmt(DATABASE, ".drop table T")
    with pytest.raises(KustoServiceError, match="no database 'other'"):
        client.execute("other", "T")


def test_a_result_beyond_its_limits_is_a_partial_failure(client: KustoClient) -> None:
    properties = request_properties()
    properties.set_option("truncationmaxrecords", 3)
    with pytest.raises(KustoMultiApiError, match="E_QUERY_RESULT_SET_TOO_LARGE") as found:
        client.execute(DATABASE, "T", properties)
    assert found.value.get_api_errors()[0].code == "LimitsExceeded"
    assert len(client.execute(DATABASE, "set notruncation;\nT", properties).primary_results[0]) == 6
    properties.set_option("truncationmaxrecords", 6)
    assert len(client.execute(DATABASE, "T", properties).primary_results[0]) == 6
    size = request_properties()
    size.set_option("truncationmaxsize", 1000)
    with pytest.raises(KustoMultiApiError, match="1000 bytes"):
        client.execute(DATABASE, "range i from 1 to 100000 step 1", size)


def test_request_properties_change_the_query(client: KustoClient) -> None:
    properties = request_properties()
    properties.set_option("query_take_max_records", 2)
    properties.set_option("query_now", "2026-01-01T03:00:00.0000000Z")
    properties.set_parameter("least", "datetime(2026-01-01 01:00)")
    properties.set_parameter("word", "a")
    text = "declare query_parameters(least:datetime, word:string, n:long = 7);\nT | where ts >= least or s == word"
    assert len(client.execute(DATABASE, text, properties).primary_results[0]) == 2
    table = client.execute(DATABASE, "print now()", properties).primary_results[0]
    assert table[0][0] == dt.datetime(2026, 1, 1, 3, tzinfo=dt.UTC)
    window = request_properties()
    window.set_option("query_datetimescope_column", "ts")
    window.set_option("query_datetimescope_from", "2026-01-01T01:00:00Z")
    window.set_option("query_datetimescope_to", "2026-01-01T03:00:00Z")
    assert sorted(row["x"] for row in client.execute(DATABASE, "T", window).primary_results[0]) == [2, 3]
    missing = request_properties()
    with pytest.raises(KustoApiError, match="'least' has no value"):
        client.execute(DATABASE, text, missing)
    missing.set_option("query_take_max_records", "many")
    with pytest.raises(KustoServiceError, match="query_take_max_records"):
        client.execute(DATABASE, "T", missing)


def test_commands_tell_what_clients_ask(address: str, client: KustoClient) -> None:
    def rows(command: str) -> list[list[Any]]:
        return [row.to_list() for row in client.execute_mgmt(DATABASE, command).primary_results[0]]

    assert [row[0] for row in rows(".show databases")] == [DATABASE]
    assert [row[:2] for row in rows(".show tables")] == [["T", DATABASE]]
    assert [row[0] for row in rows(".show external tables | project TableName")] == ["T"]
    columns = [
        (each["Name"], each["CslType"]) for each in json.loads(rows(".show table ['T'] schema")[0][1])["OrderedColumns"]
    ]
    assert columns[:3] == [("ts", "datetime"), ("x", "long"), ("i", "int")]
    schema = json.loads(rows(".show database schema as json")[0][0])["Databases"][DATABASE]["Tables"]
    assert [each["Name"] for each in schema["T"]["OrderedColumns"]] == [name for name, _ in columns]
    assert rows(".show table T cslschema")[0][1].startswith("ts:datetime,x:long,i:int,s:string")
    assert rows(".show functions") == []
    assert rows(".show version")[0][2] == "Engine"
    # As the web explorer, Kusto.Explorer and connectors ask before the first query.
    assert rows(".show schema as json") == rows(f".show database ['{DATABASE}'] schema as json")
    assert rows(".show schema") == rows(".show databases schema")
    entities = ".show databases entities with (showObfuscatedStrings=true)"
    assert rows(f"{entities} | where DatabaseName == '{DATABASE}' | project EntityType, EntityName") == [["Table", "T"]]
    assert rows(entities)[0][7] == rows(".show table T cslschema")[0][1]
    details = client.execute_mgmt(DATABASE, ".show tables details").primary_results[0][0]
    assert (details["TableName"], details["TotalExtents"]) == ("T", 1)
    assert details["TotalExtentSize"] > 100
    assert rows(".show table T details") == [details.to_list()]
    assert [row[4] for row in rows(".show cluster")] == [True]
    assert rows(".show diagnostics | project IsHealthy, MachinesTotal") == [[True, 1]]
    assert rows(".show principal access")[0][3] is True
    assert rows(".show principal access with (principal = 'x', accesstype='ingest', database='d')")[0][3] is False
    assert rows(".show principal roles")[0][3].endswith("Viewer")
    assert rows(".show materialized-views") == rows(".show entity_groups") == []
    assert "['IsHealthy']" not in str(rows(".show queries"))  # commands are not queries
    # As Grafana's plugin queries and tests a data source.
    options = {"queryconsistency": "strongconsistency", "servertimeout": "00:01:00)", "query_take_max_records": 1}
    body = {"csl": "T", "db": DATABASE, "querySource": "raw", "properties": {"options": options}}
    assert len(httpx.post(f"{address}/v1/rest/query", json=body).json()["Tables"][0]["Rows"]) == 1
    body |= {"csl": ".show databases schema", "db": ""}
    answer = httpx.post(f"{address}/v1/rest/query", json=body, headers={"x-ms-client-request-id": "abc"})
    assert answer.json()["Tables"][0]["TableName"] == "Table_0"
    assert answer.headers["x-ms-client-request-id"] == "abc"
    assert httpx.get(f"{address}/v1/rest/auth/metadata").json()["dSTS"] is None


def test_how_to_draw_a_result_reaches_the_client(client: KustoClient) -> None:
    answer = client.execute(DATABASE, "T | summarize count() by bin(ts, 1h) | render timechart with (title='rows')")
    drawn = json.loads(next(table for table in answer.tables if table.table_kind == "QueryProperties")[0]["Value"])
    assert (drawn["Visualization"], drawn["Title"]) == ("timechart", "rows")


def test_a_cancelled_query_reads_nothing_more(tmp_path: Path) -> None:
    make_table(tmp_path / "big", files=200, checkpoint="none")
    with Gate(free=0) as gate, http_serving({"B": tmp_path / "big"}) as (server, address):
        failed: list[KustoServiceError] = []
        properties = request_properties()
        properties.client_request_id = "mine;1"

        def ask() -> None:
            try:
                KustoClient(address).execute(DATABASE, "B | count", properties)
            except KustoServiceError as error:
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        assert gate.reached.wait(WAIT)
        pid = gate.pid
        with KustoClient(address) as other:
            running = other.execute_mgmt(DATABASE, ".show running queries").primary_results[0]
            assert [(row["ClientActivityId"], row["State"]) for row in running] == [("mine;1", "InProgress")]
            answer = other.execute_mgmt(DATABASE, ".cancel query 'mine;1'").primary_results[0]
            assert answer[0]["RunningQueryCanceled"] is True
        thread.join(WAIT)
        assert isinstance(failed[0], KustoApiError)
        assert failed[0].get_api_error().code == "Aborted"
        assert server.app.queries.budgets.wait_until_idle(WAIT)
        assert is_gone(pid)
        assert gate.pulled == []


def test_a_client_that_leaves_ends_its_query(tmp_path: Path) -> None:
    make_table(tmp_path / "big", files=200, checkpoint="none")
    body = b'{"csl": "B | count"}'
    head = b"POST /v2/rest/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with Gate(free=0) as gate, http_serving({"B": tmp_path / "big"}) as (server, _):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert gate.reached.wait(WAIT)
            pid = gate.pid
        assert server.app.queries.budgets.wait_until_idle(WAIT)
        assert is_gone(pid)
        assert gate.pulled == []


def test_a_token_lets_in_shows_its_own_tables_and_a_wrong_one_does_not(tmp_path: Path, place: Path) -> None:
    tokens = tmp_path / "tokens"
    right, other = add_token(tokens, "one", ["T"]), add_token(tokens, "two", ["U"])
    with http_serving({"T": place, "U": place}, tokens) as (_, address):

        def connect(token: str) -> KustoClient:
            builder = KustoConnectionStringBuilder.with_token_provider(address, lambda: token)
            return KustoClient(builder)

        with connect(right) as one, connect(other) as two, connect("one.wrong") as wrong, KustoClient(address) as bare:
            assert one.execute(DATABASE, "T | count").primary_results[0][0][0] == 6
            assert [row[0] for row in one.execute_mgmt(DATABASE, ".show tables").primary_results[0]] == ["T"]
            with pytest.raises(KustoApiError, match="there is no table 'T'"):
                two.execute(DATABASE, "T | count")
            with pytest.raises(KustoServiceError, match="no table 'T'"):
                two.execute_mgmt(DATABASE, ".show table T schema")
            texts = [row["Text"] for row in two.execute_mgmt(DATABASE, ".show queries").primary_results[0]]
            assert texts == ["T | count"]  # its own, which failed, and nothing of the other
            assert (
                two.execute_mgmt(DATABASE, ".cancel query 'x'").primary_results[0][0]["RunningQueryCanceled"] is False
            )
            for each in (wrong, bare):
                with pytest.raises(KustoServiceError, match="401"):
                    each.execute(DATABASE, "T | count")

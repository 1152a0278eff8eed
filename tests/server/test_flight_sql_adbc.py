"""Flight SQL as ADBC's driver speaks it: the answers of the engine itself, scans that stop, and handles that end."""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import adbc_driver_flightsql
import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import duckdb
import pyarrow as pa
import pytest
from pyarrow import flight

from lazydelta.errors import MemoryLimitError
from lazydelta.server.flight_sql.calls import SqlLimits
from lazydelta.server.flight_sql.catalog import sql_info
from lazydelta.server.flight_sql.guard import MOST_TEXT
from lazydelta.server.flight_sql.messages import MESSAGES, packed, parsed, unpacked
from lazydelta.server.flight_sql.session import SqlSession
from tests.engines.engine_queries import generated_query, over_duckdb, shown
from tests.rows.made_table import MadeTable, make_rich_table, make_table
from tests.server.flight_sql_server import WAIT, Gate, SqlServer, is_gone, serving, wait_for

QUERIES = 24
ROWS = 3000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_rich_table(tmp_path_factory.mktemp("rich"), seed=4, files=8, rows=60)


@pytest.fixture(scope="module")
def forty(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_table(tmp_path_factory.mktemp("forty"), files=40, rows=ROWS)


@pytest.fixture(scope="module")
def server(made: MadeTable, forty: MadeTable) -> Iterator[SqlServer]:
    places = {"t": made.uri, "Forty": forty.uri, "secret": forty.uri}
    only = {"": ["t", "Forty"], "guest": ["Forty"], "owner": ["t", "Forty", "secret"]}
    with serving(places, only=only) as running:
        yield running


@pytest.fixture
def con(server: SqlServer) -> Iterator[Any]:
    with adbc.connect(server.uri, autocommit=True) as connection:
        yield connection


# The type of each fact as the specification has it, by the first and the last of its numbers.
_SPECIFIED = {
    "string_value": [(0, 2), (6, 7), (504, 504), (513, 514), (529, 531)],
    "bool_value": [
        *((3, 5), (9, 11), (500, 502), (506, 506), (515, 516), (518, 521), (523, 524), (527, 527), (532, 532)),
        *((536, 537), (539, 539), (556, 556), (563, 563), (565, 566), (572, 576)),
    ],
    "bigint_value": [(503, 503), (505, 505), (507, 507), (541, 555), (557, 562)],
    "int32_bitmask": [
        *((8, 8), (100, 101), (522, 522), (525, 526), (528, 528), (533, 535), (538, 538), (540, 540), (564, 564)),
        (567, 571),
    ],
    "string_list": [(508, 512)],
    "int32_to_int32_list_map": [(517, 517)],
}


def test_every_fact_about_the_server_has_the_type_of_the_specification() -> None:
    expected = {
        number: name
        for name, ranges in _SPECIFIED.items()
        for first, last in ranges
        for number in range(first, last + 1)
    }
    facts = sql_info([])
    kind = facts.schema.field("value").type
    codes = facts["value"].combine_chunks().type_codes.to_pylist()
    found = {number: kind.field(code).name for number, code in zip(facts["info_name"].to_pylist(), codes, strict=True)}
    assert found == {number: expected[number] for number in found}
    assert set(range(500, 577)) <= found.keys()
    by_number = dict(zip(facts["info_name"].to_pylist(), facts["value"].to_pylist(), strict=True))
    assert [by_number[number] for number in (556, 557, 558)] == [False, MOST_TEXT, 0]


def test_columns_of_results_tell_the_name_precision_and_scale_of_their_type(server: SqlServer) -> None:
    sql = "SELECT price, id, s, 1::UTINYINT AS small, TIME '10:00' AS at, NULL AS nothing, [1] AS list FROM t LIMIT 1"
    client = flight.connect(server.uri)
    command = flight.FlightDescriptor.for_command(packed("CommandStatementQuery", query=sql))
    info = client.get_flight_info(command)
    answers = [info.schema, client.get_schema(command).schema, client.do_get(info.endpoints[0].ticket).schema]
    body = packed("ActionCreatePreparedStatementRequest", query=sql)
    (made,) = client.do_action(flight.Action("CreatePreparedStatement", body))
    prepared = unpacked(made.body.to_pybytes())[1]
    answers.append(pa.ipc.read_schema(pa.py_buffer(prepared.dataset_schema)))
    for schema in answers:
        told = [{key.decode()[17:]: value.decode() for key, value in each.metadata.items()} for each in schema]
        names = [each["TYPE_NAME"] for each in told]
        assert names == ["DECIMAL", "BIGINT", "VARCHAR", "UTINYINT", "TIME", "NULL", "LIST"]
        assert (told[0]["PRECISION"], told[0]["SCALE"]) == ("12", "2")
        assert told[1]["PRECISION"] == "19"
        # What a query computes is of no table.
        assert not any("TABLE_NAME" in each for each in told)
        assert all(each.nullable for each in schema)


def answer(con: Any, sql: str, values: Any = None) -> pa.Table:
    with con.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetch_arrow_table()


# --- the catalog


def test_the_catalog_lists_the_tables_that_one_may_read_with_their_columns(con: Any, made: MadeTable) -> None:
    (catalog,) = con.adbc_get_objects(depth="all").read_all().to_pylist()
    (schema,) = catalog["catalog_db_schemas"]
    tables = {each["table_name"]: each for each in schema["db_schema_tables"]}
    assert (catalog["catalog_name"], schema["db_schema_name"], set(tables)) == ("lazydelta", "main", {"t", "Forty"})
    assert {each["table_type"] for each in tables.values()} == {"TABLE"}
    assert [each["column_name"] for each in tables["t"]["table_columns"]] == made.table().schema.names
    assert con.adbc_get_table_schema("t").names == made.table().schema.names
    assert con.adbc_get_table_types() == ["TABLE"]
    assert con.adbc_get_info()["vendor_name"] == "lazydelta"


def test_columns_tell_their_types_by_the_names_that_the_engine_has_for_them(con: Any) -> None:
    (catalog,) = con.adbc_get_objects(depth="columns", table_name_filter="t").read_all().to_pylist()
    (table,) = catalog["catalog_db_schemas"][0]["db_schema_tables"]
    told = {each["column_name"]: each["xdbc_type_name"] for each in table["table_columns"]}
    engine = {row["column_name"]: row["column_type"] for row in answer(con, "DESCRIBE t").to_pylist()}
    assert told == {name: "LIST" if kind.endswith("[]") else kind.partition("(")[0] for name, kind in engine.items()}
    price = con.adbc_get_table_schema("t").field("price")
    digits = [price.metadata[f"ARROW:FLIGHT:SQL:{key}".encode()] for key in ("PRECISION", "SCALE")]
    assert digits == [str(price.type.precision).encode(), str(price.type.scale).encode()]


def test_patterns_and_kinds_narrow_the_list_of_tables(con: Any) -> None:
    def listed(**asked: Any) -> list[str]:
        (catalog,) = con.adbc_get_objects(depth="tables", **asked).read_all().to_pylist() or [{}]
        schemas = catalog.get("catalog_db_schemas") or []
        return [table["table_name"] for schema in schemas for table in schema["db_schema_tables"]]

    assert listed(table_name_filter="F%") == ["Forty"]
    assert listed(table_name_filter="_") == ["t"]
    assert listed(table_types_filter=["VIEW"]) == []
    assert listed(db_schema_filter="other") == []


def test_a_table_that_cannot_be_opened_hides_no_other(made: MadeTable, tmp_path: Any) -> None:
    with serving({"t": made.uri, "gone": str(tmp_path)}) as server, adbc.connect(server.uri, autocommit=True) as con:
        (catalog,) = con.adbc_get_objects(depth="all").read_all().to_pylist()
        tables = catalog["catalog_db_schemas"][0]["db_schema_tables"]
        assert {each["table_name"]: bool(each["table_columns"]) for each in tables} == {"gone": False, "t": True}
        with pytest.raises(adbc_driver_manager.Error, match="Delta"):
            answer(con, "SELECT * FROM gone")


# --- answers


@pytest.mark.parametrize("first", range(0, QUERIES, 12))
def test_generated_queries_answer_as_the_engine_over_its_own_table(con: Any, made: MadeTable, first: int) -> None:
    native = made.table()
    for seed in range(first, first + 12):
        sql = generated_query(seed, "duckdb")
        assert shown(answer(con, sql)) == shown(over_duckdb(native, sql)), sql


VALUES: list[tuple[str, Any]] = [
    ("id > ?", 100),
    ("n = ?", 7),
    ("x < ?", 1.5),
    ("x >= ?", float("nan")),
    ("x > ?", float("-inf")),
    ("s >= ?", "it's; -- ü"),
    ("s = ?", ""),
    ("hour = ?", "2026021022"),
    ("day <= ?", dt.date(2026, 2, 10)),
    ('"at" > ?', dt.datetime(2026, 2, 10, 12, 0, 0, 1, tzinfo=dt.UTC)),
    ('CAST("at" AS TIMESTAMP) > ?', dt.datetime(2026, 2, 10, 12, 0, 0, 1)),  # noqa: DTZ001
    ("price < ?", Decimal("1.25")),
    ("flag = ?", True),
    ("place.row = ?", 3),
    ("s IS NOT DISTINCT FROM ?", None),
    ("encode(s) > ?", b"\x00a'\xff"),
    ('CAST(CAST("at" AS TIMESTAMP) AS TIME) > ?', dt.time(11, 30, 0, 5)),
    ("\"at\" - TIMESTAMPTZ '2026-02-10 00:00:00+00' > ?", dt.timedelta(hours=3, microseconds=7)),
]


@pytest.mark.parametrize(("condition", "value"), VALUES, ids=[condition for condition, _ in VALUES])
def test_bound_values_of_every_type_select_what_the_engine_selects(
    con: Any, made: MadeTable, condition: str, value: Any
) -> None:
    sql = f"SELECT id FROM t WHERE {condition} ORDER BY id"
    with duckdb.connect() as native:
        native.execute("SET TimeZone = 'UTC'")
        native.register("given", made.table())
        native.execute("CREATE TABLE t AS SELECT * FROM given")
        expected = [row[0] for row in native.execute(sql, [value]).fetchall()]
    assert answer(con, sql, (value,))["id"].to_pylist() == expected


def test_a_prepared_statement_tells_its_parameters_and_runs_again_with_others(con: Any) -> None:
    sql = "SELECT id + ?, s FROM t WHERE id BETWEEN ? AND ? AND hour IN (?, '1') AND price < ? AND s LIKE ? LIMIT ?"
    with con.cursor() as cursor:
        schema = cursor.adbc_prepare(sql)
        kinds = [pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.decimal128(12, 2), pa.string(), pa.int64()]
        assert schema.types == kinds
    with con.cursor() as cursor:
        sql = "SELECT id, $1 AS given FROM t WHERE id >= $1 ORDER BY id LIMIT $2"
        cursor.adbc_prepare(sql)
        for start, limit in ((10, 2), (100, 1), (10, 0)):
            cursor.execute(sql, (start, limit))
            found = cursor.fetchall()
            assert len(found) == limit
            assert all(row[0] >= start and row[1] == start for row in found)


def test_a_value_is_never_read_as_sql(con: Any) -> None:
    hostile = "x'; DROP TABLE t; SELECT '"
    assert answer(con, "SELECT ? AS v", (hostile,)).to_pylist() == [{"v": hostile}]
    assert answer(con, "SELECT ? AS v", ("2) OR (1=1",)).to_pylist() == [{"v": "2) OR (1=1"}]


def test_the_number_of_values_has_to_be_that_of_the_parameters(con: Any) -> None:
    with pytest.raises(adbc_driver_manager.Error, match="2 parameters, and 1 values"):
        answer(con, "SELECT ?, ?", (1,))
    with pytest.raises(adbc_driver_manager.Error, match="More than one row"):
        answer(con, "SELECT ?", pa.record_batch({"a": [1, 2]}))


def test_kql_by_its_prefix(con: Any, made: MadeTable) -> None:
    expected = sorted(row["id"] for row in made.rows if row["n"] == 7)
    found = answer(con, "kql: t | where n == 7 | project id")
    assert sorted(found["id"].to_pylist()) == expected
    assert answer(con, "KQL:t|count").to_pylist() == [{"Count": len(made.rows)}]
    with pytest.raises(adbc_driver_manager.Error, match="nowhere"):
        answer(con, "kql: nowhere | count")


def test_kql_by_an_option_of_the_session(server: SqlServer) -> None:
    def options(con: Any) -> None:
        con.adbc_connection.set_options(**{"adbc.flight.sql.session.option.language": "kql"})

    cookies = {adbc_driver_flightsql.DatabaseOptions.WITH_COOKIE_MIDDLEWARE.value: "true"}
    with adbc.connect(server.uri, db_kwargs=cookies, autocommit=True) as con:
        options(con)
        assert answer(con, "Forty | count").to_pylist() == [{"Count": 40 * ROWS}]
        assert answer(con, "sql: SELECT 1 AS one").to_pylist() == [{"one": 1}]
        with pytest.raises(adbc_driver_manager.Error):
            con.adbc_connection.set_options(**{"adbc.flight.sql.session.option.language": "cobol"})
        with adbc.connect(server.uri, db_kwargs=cookies, autocommit=True) as other:
            assert answer(other, "SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_names_may_be_qualified_and_in_other_letters(con: Any) -> None:
    for name in ("forty", '"FORTY"', "main.Forty", "lazydelta.main.forty", "lazydelta.Forty"):
        assert answer(con, f"SELECT count(*) AS c FROM {name}").to_pylist() == [{"c": 40 * ROWS}]
    found = answer(con, "WITH u AS (SELECT 1 AS a) SELECT a FROM u JOIN lazydelta.main.forty AS f ON f.id = u.a")
    assert found.to_pylist() == [{"a": 1}]
    described = answer(con, "DESCRIBE t")
    assert described["column_name"][0].as_py() == "id"


# --- laziness and cancelling


def test_a_limit_stops_discovery(con: Any) -> None:
    with Gate() as gate:
        assert answer(con, "SELECT * FROM forty LIMIT 100").num_rows == 100
        assert len(gate.pulled) <= 3, gate.pulled


def test_preparing_reads_no_row(con: Any) -> None:
    with Gate() as gate, con.cursor() as cursor:
        cursor.adbc_prepare("SELECT count(*), max(s) FROM t JOIN forty USING (id) WHERE t.id > ? GROUP BY hour")
        assert cursor.adbc_execute_schema("SELECT * FROM forty ORDER BY id").names[0] == "id"
        assert gate.pulled == []


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM forty",
        "SELECT count(id) FROM forty",
        "kql: Forty | summarize sum(id)",
        # Described already, it runs the first part.
        "kql: let n = toscalar(Forty | summarize sum(id)); print n",
    ],
)
def test_a_cancelled_call_ends_its_worker_while_it_waits_for_storage(server: SqlServer, con: Any, text: str) -> None:
    failures: list[BaseException] = []
    with Gate(free=4) as gate, con.cursor() as cursor:

        def fetch() -> None:
            try:
                cursor.execute(text)
                cursor.fetch_arrow_table()
            except BaseException as error:  # noqa: BLE001 - looked at below
                failures.append(error)

        thread = threading.Thread(target=fetch)
        thread.start()
        assert gate.reached.wait(WAIT)
        cursor.adbc_cancel()
        thread.join(WAIT)
        assert len(failures) == 1
        assert "ancel" in str(failures[0])
        wait_for(lambda: server.sql.running == 0)
        assert is_gone(gate.pid)
        assert len(gate.pulled) == 4
    assert answer(con, "SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_a_client_that_goes_away_ends_its_worker(server: SqlServer) -> None:
    with Gate(free=6) as gate:
        with flight.connect(server.uri) as client:
            query = packed("CommandStatementQuery", query="SELECT * FROM forty")
            ticket = client.get_flight_info(flight.FlightDescriptor.for_command(query)).endpoints[0].ticket
            reader = client.do_get(ticket)
            assert reader.read_chunk().data.num_rows > 0
            assert gate.reached.wait(WAIT)
            assert server.sql.running == 1
            reader.cancel()
            del reader
        wait_for(lambda: server.sql.running == 0)
        assert is_gone(gate.pid)


@pytest.mark.parametrize("action", ["CancelFlightInfo", "CancelQuery"])
def test_a_statement_is_cancelled_by_its_flight_info(server: SqlServer, action: str) -> None:
    with Gate(free=4) as gate, flight.connect(server.uri) as client:
        descriptor = flight.FlightDescriptor.for_command(
            packed("CommandStatementQuery", query="SELECT sum(id) FROM forty")
        )
        info = client.get_flight_info(descriptor)

        def cancel(who: str = "") -> int:
            if action == "CancelFlightInfo":
                body = MESSAGES["CancelFlightInfoRequest"](info=parsed("FlightInfo", info.serialize()))
                data = body.SerializeToString()
            else:
                data = packed("ActionCancelQueryRequest", info=info.serialize())
            options = flight.FlightCallOptions(headers=[(b"who", who.encode())])
            (result,) = client.do_action(flight.Action(action, data), options)
            if action == "CancelFlightInfo":
                return int(parsed("CancelFlightInfoResult", result.body.to_pybytes()).status)
            value = result.body.to_pybytes()
            return 3 if b"\x08\x03" in value[-3:] else value[-1]

        reader = client.do_get(info.endpoints[0].ticket)
        assert gate.reached.wait(WAIT)
        assert cancel("guest") == 3  # not theirs
        assert cancel() == 2
        # Chunk by chunk: `read_all` of PyArrow makes a KeyboardInterrupt of every cancelled call.
        with pytest.raises(pa.ArrowCancelled, match="cancelled"):
            reader.read_chunk()
        assert cancel() == 3
        wait_for(lambda: server.sql.running == 0)
        assert is_gone(gate.pid)


# --- handles and identities


def as_who(name: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(b"who", name.encode())])


def info_for(client: Any, sql: str, who: str = "") -> Any:
    return client.get_flight_info(
        flight.FlightDescriptor.for_command(packed("CommandStatementQuery", query=sql)), as_who(who)
    )


def test_a_ticket_belongs_to_the_identity_that_asked_for_it(server: SqlServer) -> None:
    with flight.connect(server.uri) as client:
        ticket = info_for(client, "SELECT count(*) AS c FROM secret", "owner").endpoints[0].ticket
        assert client.do_get(ticket, as_who("owner")).read_all().to_pylist() == [{"c": 40 * ROWS}]
        for who in ("", "guest"):
            with pytest.raises(pa.ArrowInvalid, match="not known here"):
                client.do_get(ticket, as_who(who)).read_all()
        with pytest.raises(pa.ArrowInvalid, match="not known here"):
            client.do_get(flight.Ticket(packed("TicketStatementQuery", statement_handle=b"0" * 16))).read_all()
        with pytest.raises(pa.ArrowInvalid, match="no table 'secret'"):
            info_for(client, "SELECT * FROM secret", "guest")


def test_a_ticket_keeps_the_version_that_it_was_made_for(server: SqlServer, tmp_path: Any) -> None:
    import lazydelta  # noqa: PLC0415

    lazydelta.write_arrow(str(tmp_path), pa.table({"a": [1, 2]}))
    with serving({"grows": str(tmp_path)}) as own, flight.connect(own.uri) as client:
        ticket = info_for(client, "SELECT sum(a) AS s FROM grows").endpoints[0].ticket
        lazydelta.write_arrow(str(tmp_path), pa.table({"a": [10]}), mode="append")
        assert client.do_get(ticket).read_all().to_pylist() == [{"s": 3}]
        again = info_for(client, "SELECT sum(a) AS s FROM grows").endpoints[0].ticket
        assert client.do_get(again).read_all().to_pylist() == [{"s": 13}]


def test_prepared_statements_are_counted_for_each_client_and_freed_by_closing(made: MadeTable) -> None:
    limits = SqlLimits(prepared=2)
    with serving({"t": made.uri}, limits) as server, flight.connect(server.uri) as client:

        def prepare(who: str = "") -> bytes:
            action = flight.Action(
                "CreatePreparedStatement", packed("ActionCreatePreparedStatementRequest", query="FROM t")
            )
            (result,) = client.do_action(action, as_who(who))
            from lazydelta.server.flight_sql.messages import unpacked  # noqa: PLC0415

            return bytes(unpacked(result.body.to_pybytes())[1].prepared_statement_handle)

        first = prepare()
        prepare()
        with pytest.raises(pa.ArrowInvalid, match="2 open prepared statements"):
            prepare()
        prepare("another")
        close = packed("ActionClosePreparedStatementRequest", prepared_statement_handle=first)
        list(client.do_action(flight.Action("ClosePreparedStatement", close), as_who("another")))
        with pytest.raises(pa.ArrowInvalid, match="2 open"):
            prepare()
        list(client.do_action(flight.Action("ClosePreparedStatement", close)))
        assert prepare() != first


def test_a_query_that_needs_more_memory_than_a_statement_has_is_an_error(made: MadeTable) -> None:
    limits = SqlLimits(memory=32 << 20)
    with serving({"t": made.uri}, limits) as server, adbc.connect(server.uri, autocommit=True) as con:
        with pytest.raises(adbc_driver_manager.Error, match="more memory than a statement has"):
            answer(con, "SELECT list(range || repeat('x', 100)) AS l FROM range(5000000)")
        assert answer(con, "SELECT count(*) AS c FROM t").to_pylist() == [{"c": len(made.rows)}]


@pytest.mark.parametrize(
    "text",
    [
        "kql: range x from 1 to 1000000 step 1 | summarize make_list(strcat(tostring(x), 'xxxxxxxxxxxxxxxxxxxxxxxxx'))",
        # This one is run before the columns are known.
        "kql: let n = toscalar(range x from 1 to 1000000 step 1 | distinct strcat(x, 'xxxxxxxxxxxx') | count); print n",
    ],
    ids=["rows", "toscalar"],
)
def test_a_query_in_kql_has_the_memory_of_a_statement(made: MadeTable, text: str) -> None:
    with serving({"t": made.uri}, SqlLimits(memory=12 << 20)) as server, flight.connect(server.uri) as client:
        with pytest.raises(flight.FlightServerError, match="more memory than a statement has"):
            client.do_get(info_for(client, text).endpoints[0].ticket).read_all()
        found = client.do_get(info_for(client, "kql: t | count").endpoints[0].ticket).read_all()
        assert found.to_pylist() == [{"Count": len(made.rows)}]


def test_queries_in_kql_are_locked_in_databases_of_their_own(made: MadeTable) -> None:
    """What one of them makes is unknown to the next, and none can raise its limit."""
    session = SqlSession(memory=64 << 20, reading_memory=1 << 20, threads=1)
    first, second = session.kql.connection(), session.kql.connection()
    first.execute("CREATE TABLE seen AS SELECT 1 AS a")
    with pytest.raises(duckdb.CatalogException, match="seen"):
        second.execute("FROM seen")
    for setting in ("SET memory_limit = '64GB'", "SET enable_external_access = true", "SET temp_directory = '/tmp'"):
        with pytest.raises(duckdb.InvalidInputException):
            first.execute(setting)
    assert second.execute("SELECT current_setting('memory_limit')").fetchall() == [("64.0 MiB",)]
    for each in (first, second):
        each.close()
    session.close()


@pytest.mark.parametrize(
    "text",
    ["kql: let n = toscalar(Forty | summarize sum(id)); print n", "SELECT count(id) FROM forty"],
    ids=["describing", "running"],
)
def test_room_is_given_back_when_the_process_is_gone(forty: MadeTable, text: str) -> None:
    taken: list[int] = []
    gone: list[bool] = []
    gate = Gate(free=4)

    def reserve(_context: Any, memory: int) -> Any:
        taken.append(memory)

        def give_back() -> None:
            gone.append(gate.reached.path.exists() and is_gone(gate.pid))
            taken.clear()

        return give_back

    limits = SqlLimits(memory=64 << 20, reading_memory=16 << 20)
    with gate, serving({"Forty": forty.uri}, limits, reserve) as server, flight.connect(server.uri) as client:
        call = threading.Thread(target=_ignored, args=(lambda: fetched(client, text),))
        call.start()
        assert gate.reached.wait(WAIT)
        assert taken == [80 << 20]
        server.sql.cancel_all()
        call.join(WAIT)
        wait_for(lambda: taken == [])
        assert gone[-1]


def fetched(client: Any, sql: str) -> pa.Table:
    return client.do_get(info_for(client, sql).endpoints[0].ticket).read_all()


def _ignored(work: Any) -> None:
    with contextlib.suppress(BaseException):
        work()


@pytest.mark.parametrize(
    "text",
    ["kql: let n = toscalar(Forty | summarize sum(id)); print n", "SELECT count(id) FROM forty"],
    ids=["describing", "running"],
)
def test_a_statement_that_takes_too_long_is_stopped(forty: MadeTable, text: str) -> None:
    with (
        Gate(free=2) as gate,
        serving({"Forty": forty.uri}, SqlLimits(statement_seconds=0.5)) as server,
        flight.connect(server.uri) as client,
    ):
        # The time may be over before the worker has begun.
        with pytest.raises(flight.FlightTimedOutError, match=r"0\.5 s"):
            fetched(client, text)
        wait_for(lambda: server.sql.running == 0)
        assert not gate.reached.path.exists() or is_gone(gate.pid)


def test_memory_is_asked_for_before_a_statement_runs_and_given_back_after(made: MadeTable) -> None:
    taken: list[tuple[str, int]] = []

    def reserve(context: Any, memory: int) -> Any:
        if len(taken) == 1:
            raise MemoryLimitError("There is no room for another statement", hint="wait")
        taken.append((context.get_middleware("who").name, memory))
        return taken.clear

    limits = SqlLimits(memory=64 << 20, reading_memory=16 << 20)
    with serving({"t": made.uri}, limits, reserve) as server, flight.connect(server.uri) as client:
        ticket = info_for(client, "SELECT count(*) AS c FROM t").endpoints[0].ticket
        assert client.do_get(ticket).read_all().to_pylist() == [{"c": len(made.rows)}]
        wait_for(lambda: taken == [])
        taken.append(("another", 80 << 20))
        with pytest.raises(flight.FlightServerError, match="no room"):
            client.do_get(ticket).read_all()
        assert taken == [("another", 80 << 20)]
        assert server.sql.running == 0


def test_clients_at_the_same_time_get_their_own_answers(server: SqlServer, made: MadeTable) -> None:
    queries = [generated_query(seed, "duckdb") for seed in range(100, 112)]
    native = made.table()
    expected = {sql: shown(over_duckdb(native, sql)) for sql in queries}
    wrong: list[str] = []

    def ask(mine: list[str]) -> None:
        with adbc.connect(server.uri, autocommit=True) as con:
            wrong.extend(sql for sql in mine if shown(answer(con, sql)) != expected[sql])

    threads = [threading.Thread(target=ask, args=(queries[at::6] * 2,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []

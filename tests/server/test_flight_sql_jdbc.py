"""Flight SQL as Arrow's JDBC driver speaks it, in a Java of its own that the test calls."""

from __future__ import annotations

import datetime as dt
import subprocess
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lazydelta.server.flight_sql.guard import MOST_TEXT
from scripts.install_jdbc import java, location
from tests.engines.engine_queries import generated_query, over_duckdb
from tests.rows.made_table import MadeTable, make_rich_table, make_table
from tests.server.flight_sql_server import WAIT, Gate, SqlServer, is_gone, serving, wait_for
from tests.support import unavailable

ROWS = 500
_TIMESTAMP_WITH_ZONE = 2014


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_rich_table(tmp_path_factory.mktemp("rich"), seed=5, files=6, rows=40)


@pytest.fixture(scope="module")
def server(made: MadeTable, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    forty = make_table(tmp_path_factory.mktemp("forty"), files=40, rows=ROWS)
    with serving({"t": made.uri, "forty": forty.uri}) as running:
        yield running


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    program = java()
    if program is None or not location().exists():
        unavailable("no Java, or no JDBC driver; `make setup` fetches it")
    import pyspark  # noqa: PLC0415 - for the gateway that it brings
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway  # noqa: PLC0415

    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    # Arrow's driver shifts timestamps with a zone where Java's own zone is not UTC, even by a calendar in UTC.
    options = [
        "-Duser.timezone=UTC",
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "-Xmx512m",
        "-XX:TieredStopAtLevel=1",
    ]
    port, token = launch_gateway(
        jarpath=str(jar),
        classpath=str(location()),
        javaopts=options,
        java_path=program,
        die_on_exit=True,
        enable_auth=True,
        # What the driver logs to its console is of no use here.
        redirect_stdout=subprocess.DEVNULL,
        redirect_stderr=subprocess.DEVNULL,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    yield gateway.jvm
    gateway.shutdown()


def connected(jvm: Any, server: SqlServer) -> Any:
    driver = jvm.org.apache.arrow.driver.jdbc.ArrowFlightJdbcDriver()
    uri = f"jdbc:arrow-flight-sql://127.0.0.1:{server.port}/?useEncryption=false"
    return driver.connect(uri, jvm.java.util.Properties())


@pytest.fixture(autouse=True)
def errors_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a session of Spark does in this process: it takes every error of any JVM for one of its own."""
    from py4j import java_gateway, protocol  # noqa: PLC0415 - only where there is Spark

    monkeypatch.setattr(java_gateway, "get_return_value", protocol.get_return_value)


@pytest.fixture(scope="module")
def con(jvm: Any, server: SqlServer) -> Iterator[Any]:
    found = connected(jvm, server)
    yield found
    found.close()


def cell(results: Any, number: int, kind: int) -> Any:
    """Return a value as Python has it. The driver makes no objects of timestamps with a zone, only timestamps."""
    if kind == _TIMESTAMP_WITH_ZONE:
        timestamp = results.getTimestamp(number)
        if timestamp is None:
            return None
        whole = dt.datetime.fromtimestamp(timestamp.getTime() // 1000, dt.UTC)
        return whole + dt.timedelta(microseconds=timestamp.getNanos() // 1000)
    value = results.getObject(number)
    name = value.getClass().getName() if hasattr(value, "getClass") else ""
    if name == "java.sql.Date":
        return dt.date.fromisoformat(value.toString())
    return value


def rows_of(results: Any) -> list[tuple[Any, ...]]:
    kinds = [results.getMetaData().getColumnType(at + 1) for at in range(results.getMetaData().getColumnCount())]
    found = []
    while results.next():
        found.append(tuple(cell(results, at + 1, kind) for at, kind in enumerate(kinds)))
    results.close()
    return found


def same(row: tuple[Any, ...]) -> str:
    return repr(tuple(each.timestamp() if isinstance(each, dt.datetime) else each for each in row))


def test_tables_are_listed_and_described(con: Any, made: MadeTable) -> None:
    about = con.getMetaData()
    assert about.getDatabaseProductName() == "lazydelta"
    assert about.isReadOnly()
    assert [row[0:4] for row in rows_of(about.getTables(None, None, None, None))] == [
        ("lazydelta", "main", "forty", "TABLE"),
        ("lazydelta", "main", "t", "TABLE"),
    ]
    assert rows_of(about.getCatalogs()) == [("lazydelta",)]
    assert rows_of(about.getSchemas()) == [("main", "lazydelta")]
    assert rows_of(about.getTableTypes()) == [("TABLE",)]
    assert rows_of(about.getPrimaryKeys(None, None, "t")) == []
    columns = {row[3]: row[5] for row in rows_of(about.getColumns(None, None, "t", None))}
    assert list(columns) == made.table().schema.names
    assert (columns["id"], columns["price"], columns["day"]) == ("BIGINT", "DECIMAL", "DATE")


def test_the_driver_understands_every_fact_about_the_server(con: Any) -> None:
    """Each has the type that the driver casts it to; facts that are shifted by one number are a ClassCastException."""
    about = con.getMetaData()
    asked = [
        *(
            "doesMaxRowSizeIncludeBlobs",
            "getMaxStatementLength",
            "getMaxStatements",
            "getMaxRowSize",
            "getMaxConnections",
        ),
        *("getMaxTableNameLength", "getMaxTablesInSelect", "getMaxUserNameLength", "getMaxColumnsInSelect"),
        *("getDefaultTransactionIsolation", "supportsTransactions", "supportsBatchUpdates", "supportsSavepoints"),
        *("supportsNamedParameters", "locatorsUpdateCopy", "supportsStoredFunctionsUsingCallSyntax", "supportsUnion"),
        *("supportsUnionAll", "supportsFullOuterJoins", "supportsCorrelatedSubqueries", "supportsSelectForUpdate"),
        *("isCatalogAtStart", "getCatalogTerm", "getSchemaTerm", "supportsLikeEscapeClause", "supportsGroupBy"),
        *("supportsExpressionsInOrderBy", "supportsColumnAliasing", "nullPlusNonNullIsNull", "getSQLKeywords"),
        *("getNumericFunctions", "getStringFunctions", "getTimeDateFunctions", "getIdentifierQuoteString"),
        *("getSearchStringEscape", "supportsMixedCaseIdentifiers", "nullsAreSortedAtEnd", "allTablesAreSelectable"),
    ]
    found = {name: getattr(about, name)() for name in asked}
    assert (found["doesMaxRowSizeIncludeBlobs"], found["getMaxStatements"]) == (False, 0)
    assert found["getMaxStatementLength"] == MOST_TEXT


def test_columns_of_results_have_precision_scale_and_the_name_of_their_type(con: Any) -> None:
    """As columns of tables do; a bound statement tells the same before it is run."""
    sql = "SELECT price, id, s, t.at, day, price * 2 AS twice, TIME '10:00' AS clock FROM t LIMIT 1"
    results = con.createStatement().executeQuery(sql)
    prepared = con.prepareStatement(sql)
    for told in (results.getMetaData(), prepared.getMetaData()):
        columns = [
            (told.getColumnTypeName(at), told.getPrecision(at), told.getScale(at), told.isReadOnly(at))
            for at in range(1, 8)
        ]
        # The driver has a name of its own for timestamps with a zone.
        names = [name for name, *_ in columns if not name.startswith("TIMESTAMP")]
        assert names == ["DECIMAL", "BIGINT", "VARCHAR", "DATE", "DECIMAL", "TIME"]
        assert columns[0][1:3] == (12, 2)
        assert columns[1][1:3] == (19, 0)
        assert columns[3][1:3] == (32, 6)
        assert all(is_read_only for *_, is_read_only in columns)
    results.close()
    prepared.close()


def test_types_are_listed_as_the_specification_has_them(jvm: Any, con: Any, server: SqlServer) -> None:
    """The driver's own ``getTypeInfo`` asks no server and has no rows; the client of Flight SQL that it brings does."""
    named, arrow = jvm.java.lang.Class.forName, jvm.org.apache.arrow.driver.jdbc.shaded.org.apache.arrow
    package = "org.apache.arrow.driver.jdbc.shaded.org.apache.arrow.flight"
    options = jvm.java.lang.reflect.Array.newInstance(named(f"{package}.CallOption"), 0)
    allocator = arrow.memory.RootAllocator(1 << 26)
    place = arrow.flight.Location.forGrpcInsecure("127.0.0.1", server.port)
    client = arrow.flight.sql.FlightSqlClient(arrow.flight.FlightClient.builder(allocator, place).build())

    def types(*asked: int) -> list[tuple[Any, ...]]:
        info = client.getXdbcTypeInfo(*asked, options)
        specified = named(f"{package}.sql.FlightSqlProducer$Schemas").getField("GET_TYPE_INFO_SCHEMA").get(None)
        assert specified.equals(info.getSchemaOptional().get())
        stream = client.getStream(info.getEndpoints().get(0).getTicket(), options)
        assert stream.next()
        columns = [stream.getRoot().getVector(name) for name in ("type_name", "data_type", "datetime_subcode")]
        found = [tuple(each.getObject(at) for each in columns) for at in range(stream.getRoot().getRowCount())]
        stream.close()
        return [(str(name), *numbers) for name, *numbers in found]

    every = types()
    assert every == sorted(every, key=lambda each: each[1])
    assert types(93) == [("TIMESTAMP", 93, 3), ("TIMESTAMP WITH TIME ZONE", 93, 5)]
    for name, *_ in every:
        ((kind,),) = rows_of(con.createStatement().executeQuery(f"SELECT typeof(CAST(NULL AS {name}))"))
        assert kind.partition("(")[0] == name
    client.close()
    allocator.close()


def test_generated_queries_answer_as_the_engine_over_its_own_table(con: Any, made: MadeTable) -> None:
    native = made.table()
    seeds = [seed for seed in range(60) if "count(*)" in generated_query(seed, "duckdb")]
    for at, seed in enumerate(seeds[:14]):
        sql = generated_query(seed, "duckdb")
        results = con.prepareStatement(sql).executeQuery() if at % 2 else con.createStatement().executeQuery(sql)
        expected = [tuple(row.values()) for row in over_duckdb(native, sql).to_pylist()]
        assert sorted(map(same, rows_of(results))) == sorted(map(same, expected)), sql


def test_plain_columns_arrive_as_they_are(con: Any, made: MadeTable) -> None:
    names = ["id", "hour", "n", "x", "s", "day", "at", "price", "flag", "grown"]
    columns = ", ".join(f'"{name}"' for name in names)
    results = con.createStatement().executeQuery(f"SELECT {columns} FROM t WHERE id < 12 ORDER BY id")
    expected = [tuple(row[name] for name in names) for row in made.rows if row["id"] < 12]
    assert sorted(map(same, rows_of(results))) == sorted(map(same, expected))


def test_bound_values_of_every_type(con: Any, jvm: Any, made: MadeTable) -> None:
    timestamp = dt.datetime(2026, 2, 10, 12, tzinfo=dt.UTC)
    stamp = jvm.java.sql.Timestamp(int(timestamp.timestamp() * 1000))
    cases: list[tuple[str, str, Any, Any]] = [
        ("id > ?", "setLong", 100, lambda row: row["id"] > 100),
        ("n = ?", "setInt", 7, lambda row: row["n"] == 7),
        ("x < ?", "setDouble", 1.5, lambda row: row["x"] is not None and row["x"] < 1.5),
        ("s = ?", "setString", "it's", lambda row: row["s"] == "it's"),
        ("s LIKE ?", "setString", "a%", lambda row: row["s"] is not None and row["s"].startswith("a")),
        ("flag = ?", "setBoolean", True, lambda row: row["flag"] is True),
        (
            "price < ?",
            "setBigDecimal",
            jvm.java.math.BigDecimal("1.25"),
            lambda row: row["price"] is not None and row["price"] < Decimal("1.25"),
        ),
        (
            "day <= ?",
            "setDate",
            jvm.java.sql.Date.valueOf("2026-02-10"),
            lambda row: row["day"] is not None and row["day"] <= dt.date(2026, 2, 10),
        ),
        ('"at" > ?', "setTimestamp", stamp, lambda row: row["at"] is not None and row["at"] > timestamp),
    ]
    for condition, setter, value, matches in cases:
        statement = con.prepareStatement(f"SELECT id FROM t WHERE {condition}")
        getattr(statement, setter)(1, value)
        expected = sorted(row["id"] for row in made.rows if matches(row))
        assert sorted(row[0] for row in rows_of(statement.executeQuery())) == expected, condition
        statement.close()


def test_a_statement_that_writes_and_one_that_reads_files_are_refused(con: Any) -> None:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415

    for sql, why in (
        ("DELETE FROM t", "Only SELECT"),
        ("SELECT * FROM read_csv('/etc/passwd')", "read_csv"),
        ("SELECT * FROM '/etc/passwd'", "no table"),
    ):
        with pytest.raises(Py4JJavaError) as refused:
            con.createStatement().executeQuery(sql)
        assert why in str(refused.value.java_exception.getMessage())


def test_a_cancelled_statement_ends_its_worker(jvm: Any, server: SqlServer) -> None:
    # Not closed: the driver complains of the memory of streams that were cancelled, and Java ends with the test.
    statement = connected(jvm, server).createStatement()
    failures: list[BaseException] = []

    def fetch() -> None:
        try:
            rows_of(statement.executeQuery("SELECT id FROM forty"))
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    with Gate(free=3) as gate:
        thread = threading.Thread(target=fetch)
        thread.start()
        assert gate.reached.wait(WAIT)
        statement.cancel()
        thread.join(WAIT)
        assert not thread.is_alive()
        wait_for(lambda: server.sql.running == 0)
        assert is_gone(gate.pid)

"""Statements and messages of an attacker: each is refused, and nothing outside the tables is read."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from lazydelta.server.flight_sql.messages import packed
from lazydelta.server.flight_sql.session import SqlSession
from tests.rows.made_table import MadeTable, make_table
from tests.rows.watching import watch
from tests.server.flight_sql_server import SqlServer, serving

SECRET = "the-contents-of-a-file-that-nobody-serves"

NOT_A_SELECT = [
    "INSERT INTO t VALUES (1)",
    "UPDATE t SET id = 1",
    "DELETE FROM t",
    "CREATE TABLE x AS SELECT 1",
    "CREATE VIEW x AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "CREATE TYPE mood AS ENUM ('a')",
    "CREATE SEQUENCE s",
    "DROP TABLE t",
    "ALTER TABLE t ADD COLUMN a INT",
    "COPY t TO '{file}'",
    "COPY (SELECT 1) TO '{file}' (FORMAT csv)",
    "COPY t FROM '{file}'",
    "EXPORT DATABASE '{folder}'",
    "IMPORT DATABASE '{folder}'",
    "ATTACH '{file}' AS other",
    "DETACH memory",
    "USE memory",
    "INSTALL httpfs",
    "FORCE INSTALL spatial",
    "LOAD httpfs",
    "LOAD '{file}'",
    "UPDATE EXTENSIONS",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "SET memory_limit = '64GB'",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SET python_enable_replacements = true",
    "SET VARIABLE x = 1",
    "RESET memory_limit",
    "CHECKPOINT",
    "VACUUM",
    "ANALYZE",
    "BEGIN TRANSACTION",
    "COMMIT",
    "PREPARE v AS SELECT 1",
    "EXECUTE v",
    "DEALLOCATE v",
    "EXPLAIN INSERT INTO t VALUES (1)",
    "EXPLAIN COPY t TO '{file}'",
    "COMMENT ON TABLE t IS 'x'",
    "MERGE INTO t USING t AS u ON t.id = u.id WHEN MATCHED THEN DELETE",
    "TRUNCATE t",
]
SEVERAL = [
    "",
    ";",
    "-- nothing",
    "/* nothing */",
    "SELECT 1; SELECT 2",
    "SELECT 1; SELECT * FROM t",
]
SEVERAL_AND_MORE = ["SELECT 1; DROP TABLE t", "SELECT 1;; COPY t TO '{file}'", "SELECT 1; ATTACH '{file}'"]
NO_SUCH_TABLE = [
    "SELECT * FROM '{file}'",
    'SELECT * FROM "{file}"',
    "FROM '{folder}/*.csv'",
    "SELECT * FROM 'https://127.0.0.1:1/x.parquet'",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "SELECT * FROM '../../etc/passwd'",
    "SELECT * FROM '%2e%2e/secret'",
    "SELECT * FROM information_schema.secrets",
    "SELECT * FROM system.information_schema.tables",
    "SHOW secret",
    "EXPLAIN SELECT * FROM secret",
    "SELECT * FROM pg_catalog.pg_settings",
    "SELECT * FROM pg_settings",
    "SELECT * FROM duckdb_settings",
    "SELECT * FROM duckdb_secrets",
    "SELECT * FROM duckdb_tables",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM system.main.duckdb_views",
    "SELECT * FROM temp.main.t",
    "SELECT * FROM memory.main.t",
    "SELECT * FROM other.t",
    "SELECT * FROM server",
    "SELECT * FROM os",
    "SELECT * FROM t JOIN secret USING (id)",
    "SELECT * FROM t WHERE id IN (SELECT id FROM secret)",
    "SELECT (SELECT max(id) FROM secret)",
    "WITH a AS (SELECT * FROM secret) SELECT * FROM a",
    "SELECT * FROM t UNION ALL SELECT * FROM secret",
    "SELECT * FROM (SELECT * FROM (SELECT * FROM secret))",
    "DESCRIBE secret",
    "SUMMARIZE secret",
    "TABLE secret",
    "SELECT * FROM t, LATERAL (SELECT * FROM secret WHERE secret.id = t.id)",
    "SELECT * FROM t POSITIONAL JOIN secret",
]
NOT_AVAILABLE = [
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM READ_CSV_AUTO('{file}')",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_blob('{file}')",
    "SELECT * FROM read_parquet('https://127.0.0.1:1/x.parquet')",
    "SELECT * FROM parquet_scan('{file}')",
    "SELECT * FROM parquet_metadata('{file}')",
    "SELECT * FROM read_json('{file}')",
    "SELECT * FROM sniff_csv('{file}')",
    "SELECT * FROM glob('{folder}/*')",
    "SELECT * FROM delta('{folder}')",
    "SELECT * FROM delta_scan('{folder}')",
    "SELECT * FROM iceberg_scan('{folder}')",
    "SELECT * FROM query('SELECT * FROM duckdb_settings()')",
    "SELECT * FROM query_table('secret')",
    "SELECT * FROM json_execute_serialized_sql('{{}}')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_logs()",
    "SELECT * FROM duckdb_functions()",
    "SELECT * FROM which_secret('s3://x', 's3')",
    "SELECT * FROM pragma_database_size()",
    "SELECT * FROM checkpoint()",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM python_arrow_scan(1, 2, 3)",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM seq_scan('t')",
    "SELECT * FROM test_all_types()",
    "SELECT * FROM t, read_text('{file}')",
    "SELECT EXISTS (FROM read_text('{file}'))",
    "SELECT getenv('HOME')",
    "SELECT main.getenv('HOME')",
    "SELECT 'HOME'.getenv()",
    "SELECT current_setting('memory_limit')",
    "SELECT getvariable('x')",
    "SELECT write_log('x')",
    "SELECT sleep_ms(100000)",
    "SELECT pg_sleep(100000)",
    "SELECT nextval('s')",
    "SELECT setseed(0.5)",
    "SELECT json_serialize_plan('SELECT 1')",
    "SELECT current_query()",
    "SELECT count(*) FILTER (WHERE getenv('HOME') = 'x') FROM t",
    "SELECT list_transform([1], lambda x: getenv('HOME')) FROM t",
    "SELECT * FROM t ORDER BY getenv('HOME')",
    "SELECT * FROM t LIMIT (SELECT length(getenv('HOME')))",
    "SELECT finalize('x')",
]
TOO_LARGE = [
    "SELECT list_sum(range(10000000000))",
    "SELECT len(generate_series(1, 10000000000))",
    "SELECT length(repeat('x', 4000000000))",
    "SELECT length(repeat('x', '4000000000'))",
    "SELECT length('x'.repeat(4000000000))",
    "SELECT lpad('x', 2000000000, 'y')",
    "SELECT rpad('x', id::INT, 'y') FROM t",
    "SELECT count(*) FROM unnest(range(10000000000))",
    "SELECT * FROM range(list_sum(range(10000000000))::BIGINT)",
    "SELECT list_resize([1], 10000000000)",
    "SELECT list_transform([1], lambda x: range(10000000000))",
    "SELECT bitstring('0', 2000000000)",
]
OTHERWISE_REFUSED = [
    ("WITH x AS (INSERT INTO t VALUES (1) RETURNING *) SELECT * FROM x", "INSERT_QUERY_NODE"),
    ("WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x", "DELETE_QUERY_NODE"),
    ("SHOW VARIABLES", "SHOW variables is not run"),
    ("SHOW TABLES FROM other", "SHOW"),
    ("EXPLAIN ANALYZE SELECT * FROM t", "EXPLAIN ANALYZE is not run"),
    ("/* x */ EXPLAIN (FORMAT html) SELECT * FROM t", "is not run here"),
    ("SELECT * FROM t AT (VERSION => 1)", "another version"),
    ("SELECT * FROM (WITH duckdb_tables AS (SELECT 1) SELECT 1), duckdb_tables", "name that DuckDB reserves"),
    ("SELECT 1 FROM", "cannot read"),
    ("\x00SELECT 1", "cannot read"),
    ("SELECT '" + "x" * (1 << 18) + "'", "longer than"),
    ("SELECT " + "(" * 5000 + "1" + ")" * 5000, "nested deeper"),
    ("SELECT " + "1 + " * 5000 + "1", "more than"),
    ("SELECT " + "NOT " * 5000 + "true", "more than"),
    ("SELECT " + ", ".join("1" for _ in range(20_000)), "more than"),
    ("SELECT " + "'a' " * 50_000, "more than"),
    ("SELECT " + ", ".join("?" for _ in range(1001)), "1001 parameters"),
    ("kql: print " + "(" * 5000 + "1" + ")" * 5000, "nested deeper"),
    ("kql: secret | take 1", "no table 'secret'"),
    ("kql: external_table('secret') | take 1", "no table 'secret'"),
    ("kql: t | evaluate python('x')", "the plugin python is not supported"),
    ("kql: externaldata(a:string)['https://127.0.0.1:1/x']", "'externaldata' is not supported"),
    ("kql: cluster('x').database('y').t | take 1", "cluster"),
    ("kql: .show tables", "with a dot are not supported"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_table(tmp_path_factory.mktemp("served"), files=2, rows=10)


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret.csv").write_text(f"a\n{SECRET}\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def server(made: MadeTable) -> Iterator[SqlServer]:
    with serving({"t": made.uri, "secret": made.uri}, only={"": ["t"]}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: SqlServer) -> Iterator[Any]:
    with flight.connect(server.uri) as connection:
        yield connection


def asked(client: Any, sql: str) -> Any:
    return client.get_flight_info(flight.FlightDescriptor.for_command(packed("CommandStatementQuery", query=sql)))


def refused(client: Any, server: SqlServer, sql: str, match: str) -> None:
    """Ask for it both ways: as a statement, and prepared."""
    before = list(server.tables.opened)
    prepare = packed("ActionCreatePreparedStatementRequest", query=sql)
    with watch() as watched:
        with pytest.raises(pa.ArrowInvalid, match=match) as told:
            asked(client, sql)
        with pytest.raises(pa.ArrowInvalid, match=match):
            list(client.do_action(flight.Action("CreatePreparedStatement", prepare)))
    assert server.tables.opened == before
    assert watched.requests == []
    assert "[SQLSTATE 42000]" in str(told.value)
    for word in (SECRET, "Traceback", "site-packages", os.path.dirname(__file__)):  # noqa: PTH120
        assert word not in str(told.value)


def still_serves(client: Any) -> bool:
    rows = client.do_get(asked(client, "SELECT count(*) AS c FROM t").endpoints[0].ticket).read_all()
    return bool(rows.to_pylist() == [{"c": 20}])


GROUPS = {
    "no SELECT": [(sql, "cannot read|statements") for sql in NOT_A_SELECT],
    "not one statement": [(sql, "statements") for sql in SEVERAL],
    "not one SELECT": [(sql, "cannot read|statements") for sql in SEVERAL_AND_MORE],
    "no such table": [(sql, "no table") for sql in NO_SUCH_TABLE],
    "no such function": [(sql, "not available here") for sql in NOT_AVAILABLE],
    "a value too large": [(sql, "needs a literal size") for sql in TOO_LARGE],
    "otherwise": OTHERWISE_REFUSED,
}


def test_there_are_more_than_a_hundred() -> None:
    assert sum(map(len, GROUPS.values())) > 100


@pytest.mark.parametrize("group", GROUPS)
def test_what_reaches_beyond_the_tables_is_refused_before_anything_is_read(
    client: Any, server: SqlServer, outside: Path, group: str
) -> None:
    for text, match in GROUPS[group]:
        sql = text.replace("{file}", str(outside / "secret.csv")).replace("{folder}", str(outside))
        refused(client, server, sql, match)
    assert sorted(path.name for path in outside.iterdir()) == ["secret.csv"]
    assert still_serves(client)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM '{file}'",
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM glob('{folder}/*')",
        "COPY (SELECT 1) TO '{folder}/new.csv'",
        "ATTACH '{folder}/new.db'",
        "SET enable_external_access = true",
        "LOAD httpfs",
        "SELECT * FROM session",
    ],
)
def test_the_connection_itself_reaches_nothing_either(outside: Path, sql: str) -> None:
    """Without the check of the text: the second wall stands by itself."""
    session = pa.table({"a": [SECRET]})
    own = SqlSession(memory=64 << 20, reading_memory=1 << 20, threads=1)
    con = own.locked()
    try:
        with pytest.raises(Exception, match=r"disabled|locked|does not exist|Permission|no effect"):
            con.sql(sql.replace("{file}", str(outside / "secret.csv")).replace("{folder}", str(outside))).fetchall()
    finally:
        con.close()
        own.close()
    assert session.num_rows == 1
    assert sorted(path.name for path in outside.iterdir()) == ["secret.csv"]


def test_a_statement_is_described_without_its_constants(client: Any, server: SqlServer) -> None:
    """What would fail when it is worked out has columns all the same."""
    info = asked(client, "SELECT error('it was worked out') AS a, md5(repeat('x', 1000)) AS b")
    assert info.schema.names == ["a", "b"]
    with pytest.raises(pa.ArrowInvalid, match="worked out"):
        client.do_get(info.endpoints[0].ticket).read_all()


def test_damaged_messages_are_refused_and_the_server_goes_on(client: Any, server: SqlServer) -> None:
    rng = random.Random(7)
    told: list[str] = []
    whole = packed("CommandStatementQuery", query="SELECT * FROM t")
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data))]
        ways: list[Callable[[bytes], Any]] = [
            lambda data: client.get_flight_info(flight.FlightDescriptor.for_command(data)),
            lambda data: client.do_get(flight.Ticket(data)).read_all(),
            lambda data: list(client.do_action(flight.Action("CreatePreparedStatement", data))),
            lambda data: list(client.do_action(flight.Action("CancelFlightInfo", data))),
        ]
        try:
            rng.choice(ways)(bytes(data))
        except (flight.FlightError, pa.ArrowInvalid) as error:
            told.append(str(error))
    assert len(told) > 50
    assert not [each for each in told if "Traceback" in each or "reason of its own" in each]
    assert still_serves(client)


def test_what_is_not_offered_says_so(client: Any, made: MadeTable) -> None:
    for command in ("CommandStatementUpdate", "CommandStatementIngest", "CommandStatementSubstraitPlan"):
        with pytest.raises(flight.FlightServerError, match="only reads"):
            client.get_flight_info(flight.FlightDescriptor.for_command(packed(command)))
    inside = packed("CommandStatementQuery", query="SELECT 1", transaction_id=b"x")
    with pytest.raises(flight.FlightServerError, match="no transactions"):
        client.get_flight_info(flight.FlightDescriptor.for_command(inside))
    unknown = packed("CommandGetCatalogs").replace(b"CommandGetCatalogs", b"CommandGetCatalogz")
    with pytest.raises(pa.ArrowInvalid, match="does not support"):
        client.get_flight_info(flight.FlightDescriptor.for_command(unknown))
    writer, _ = client.do_put(
        flight.FlightDescriptor.for_command(packed("CommandStatementUpdate", query="DELETE FROM t")),
        pa.schema([("a", pa.int64())]),
    )
    with pytest.raises(flight.FlightServerError, match="only reads"):
        writer.close()

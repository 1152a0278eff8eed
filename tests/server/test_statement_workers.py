"""Statements that would kill, fill or occupy a server: they end in their worker process, and others are answered."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from lazydelta.errors import ServerBusyError
from lazydelta.server import worker_pool
from lazydelta.server.budgets import Budgets
from lazydelta.server.flight_sql.calls import SqlLimits
from lazydelta.server.flight_sql.messages import packed
from lazydelta.server.worker_pool import CONTROL, FORK, WorkerPool, _Template
from tests.rows.made_table import MadeTable, make_table
from tests.server.flight_sql_server import WAIT, Gate, SqlServer, is_gone, serving, wait_for
from tests.server.serving import location
from tests.server.serving import serving as serving_flight

LIMITS = SqlLimits(memory=128 << 20, reading_memory=32 << 20, threads=2)
DEEP = "(SELECT repeat('[', 90000) || repeat(']', 90000) AS j)"
DOUBLED = (
    "WITH a0 AS (SELECT *, * FROM t)"
    + "".join(f", a{n} AS (SELECT *, * FROM a{n - 1})" for n in range(1, 18))
    + " SELECT * FROM a17"
)
COMPUTES = "SELECT sum(levenshtein(repeat('ab', 50000), repeat('ba', 50000))) FROM range(1000)"
SAME = "SELECT count(*) AS c FROM t"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_table(tmp_path_factory.mktemp("served"), files=6, rows=10)


@pytest.fixture(scope="module")
def server(made: MadeTable) -> Iterator[SqlServer]:
    with serving({"t": made.uri}, LIMITS) as running:
        yield running


@pytest.fixture
def client(server: SqlServer) -> Iterator[Any]:
    with flight.connect(server.uri) as connection:
        yield connection


def asked(client: Any, sql: str) -> Any:
    return client.get_flight_info(flight.FlightDescriptor.for_command(packed("CommandStatementQuery", query=sql)))


def rows(client: Any, sql: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.do_get(asked(client, sql).endpoints[0].ticket).read_all().to_pylist()
    return found


# --- statements that kill or fill


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT j::JSON::VARIANT FROM {DEEP}",
        f"SELECT json_transform(j::JSON::VARIANT::JSON, '[\"JSON\"]') FROM {DEEP}",
    ],
)
def test_a_statement_that_crashes_is_an_error_of_its_own(client: Any, sql: str) -> None:
    with pytest.raises(flight.FlightServerError, match=r"worker process ended by signal 11 \(SIGSEGV\)"):
        rows(client, sql)
    assert rows(client, SAME) == [{"c": 60}]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT damerau_levenshtein(repeat('ab', 10000), repeat('ba', 10000))",
        "SELECT format('{:>2000000000}', 'x')",
        "SELECT length(printf('%2000000000d', 1))",
        "WITH RECURSIVE r AS (SELECT 'x' AS a UNION ALL SELECT a || a FROM r) SELECT max(length(a)) FROM r",
        "SELECT repeat('x', 100000) FROM range(1000000)",
        "SELECT list(range) FROM range(200000000)",
        "kql: range a from 1 to 300000000 step 1 | summarize make_list(a)",
    ],
)
def test_a_statement_that_takes_memory_ends_at_its_limit(client: Any, sql: str) -> None:
    # Where the limit is met by a library that cannot tell, the process ends instead.
    with pytest.raises(flight.FlightServerError, match=r"more memory than a statement has|process ended by signal"):
        rows(client, sql)
    assert rows(client, SAME) == [{"c": 60}]


def test_a_row_that_the_server_could_not_hold_is_refused(client: Any) -> None:
    # The limit of the memory may be met first.
    with pytest.raises((pa.ArrowInvalid, flight.FlightServerError), match=r"A row of the result has|more memory"):
        rows(client, "SELECT list(repeat('x', 100000)) AS x FROM range(340)")


def test_a_worker_has_its_limits_before_it_has_a_statement(server: SqlServer, client: Any) -> None:
    with Gate(free=0) as gate:
        stream = client.do_get(asked(client, SAME).endpoints[0].ticket)
        assert gate.reached.wait(WAIT)
        limits = Path(f"/proc/{gate.pid}/limits").read_text(encoding="ascii")
        assert re.search(r"Max core file size +0 +0", limits)
        data = re.search(r"Max data size +(\d+)", limits)
        assert data is not None
        assert int(data[1]) < (LIMITS.memory + LIMITS.reading_memory) + (800 << 20)
        stream.cancel()
    wait_for(lambda: server.sql.running == 0)


def test_a_long_statement_has_a_lower_priority_than_the_server_and_than_short_ones(
    server: SqlServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rows(client, SAME) == [{"c": 60}]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with Gate(free=0) as gate:
        stream = client.do_get(asked(client, SAME).endpoints[0].ticket)
        assert gate.reached.wait(WAIT)
        short = os.getpriority(os.PRIO_PROCESS, gate.pid)
        assert own < short
        stream.cancel()
    wait_for(lambda: server.sql.running == 0)
    monkeypatch.setattr(worker_pool, "_LONG_SECONDS", 0.0)
    with Gate(free=0) as gate:
        stream = client.do_get(asked(client, SAME).endpoints[0].ticket)
        assert gate.reached.wait(WAIT)
        threads = [int(each.name) for each in Path(f"/proc/{gate.pid}/task").iterdir()]
        wait_for(lambda: all(os.getpriority(os.PRIO_PROCESS, each) > short for each in threads))
        long = gate.pid
        gate.open.set()
        assert stream.read_all().to_pylist() == [{"c": 60}]
    # Its process cannot have its priority back.
    wait_for(lambda: is_gone(long))
    assert rows(client, SAME) == [{"c": 60}]


# --- statements that compute on


@pytest.mark.parametrize("sql", [COMPUTES, DOUBLED], ids=["running", "describing"])
def test_what_computes_on_is_killed_when_its_time_is_over(made: MadeTable, sql: str) -> None:
    limits = SqlLimits(memory=128 << 20, reading_memory=32 << 20, statement_seconds=0.3)
    with serving({"t": made.uri}, limits) as server, flight.connect(server.uri) as client:
        with pytest.raises(flight.FlightTimedOutError):
            rows(client, sql)
        wait_for(lambda: server.sql.running == 0)


def test_what_computes_on_is_killed_when_its_client_leaves(server: SqlServer, client: Any) -> None:
    stream = client.do_get(asked(client, COMPUTES).endpoints[0].ticket)
    wait_for(lambda: server.sql.running == 1)
    (worker,) = server.sql.workers._busy
    stream.cancel()
    assert worker.gone.wait(WAIT)
    assert worker.status == signal.SIGKILL


def test_what_is_described_on_is_killed_when_its_client_leaves(server: SqlServer, client: Any) -> None:
    rows(client, SAME)
    command = flight.FlightDescriptor.for_command(packed("CommandStatementQuery", query=DOUBLED))
    with pytest.raises(flight.FlightTimedOutError):  # of the client alone: the server has no limit here
        client.get_flight_info(command, flight.FlightCallOptions(timeout=0.5))
    wait_for(lambda: server.sql.running == 0)


def test_health_shows_statements_and_what_they_take(made: MadeTable) -> None:
    with serving_flight({"t": made.uri}, sql=LIMITS) as own, flight.connect(location(own)) as client:
        stream = client.do_get(asked(client, COMPUTES).endpoints[0].ticket)
        wait_for(lambda: json.loads(_action(client, "health"))["statements_memory"] > 1 << 20)
        health = json.loads(_action(client, "health"))
        assert (health["statements"], health["streams"], health["waiting"]) == (1, 1, 0)
        stream.cancel()
        wait_for(lambda: json.loads(_action(client, "health"))["statements"] == 0)


def test_others_are_answered_while_statements_compute(server: SqlServer, client: Any) -> None:
    readers = [client.do_get(asked(client, COMPUTES).endpoints[0].ticket) for _ in range(2)]
    wait_for(lambda: server.sql.running == 2)
    assert rows(client, SAME) == [{"c": 60}]
    assert server.sql.running == 2
    for each in readers:
        each.cancel()
    wait_for(lambda: server.sql.running == 0)


# --- processes


def test_workers_are_used_again_and_replaced_when_they_are_killed(made: MadeTable) -> None:
    with serving({"t": made.uri}, LIMITS) as server, flight.connect(server.uri) as client:
        for _ in range(5):
            assert rows(client, SAME) == [{"c": 60}]
        assert server.sql.workers.started == 1
        (idle,) = server.sql.workers._idle
        assert idle.pid is not None
        os.kill(idle.pid, signal.SIGKILL)
        assert idle.gone.wait(WAIT)
        assert rows(client, SAME) == [{"c": 60}]
        assert server.sql.workers.started == 2


@pytest.mark.parametrize("has_started", [True, False])
def test_a_stream_may_be_collected_by_a_thread_that_holds_a_lock(*, has_started: bool) -> None:
    """Collecting a stream kills its worker and gives its room back; neither may wait for its own thread."""
    budgets, pool = Budgets(), WorkerPool(memory=64 << 20, reading_memory=64 << 20, threads=1)
    other = pool.take()
    other.wait_until_ready()  # the template runs, which takes long on a busy machine
    give_back, worker = budgets.reserve("a", 1), pool.take()
    if has_started:
        worker.wait_until_ready()

    def collect() -> None:
        with budgets._lock, worker._template._lock:
            give_back()
            worker.kill()

    thread, _ = _later(collect)
    thread.join(WAIT)
    assert not thread.is_alive()
    assert worker.gone.wait(WAIT)
    assert budgets.streams == 0
    for each in (worker, other):
        pool.give_back(each)
    pool.close()


def test_the_end_of_a_worker_is_noticed_while_the_server_asks_for_nothing() -> None:
    pool = WorkerPool(memory=64 << 20, reading_memory=64 << 20, threads=1)
    workers = [pool.take() for _ in range(3)]
    for each in workers:
        each.wait_until_ready()
    for each in workers:
        wait_for(lambda each=each: each.pid is not None)  # type: ignore[misc]
        os.kill(each.pid, signal.SIGKILL)  # type: ignore[arg-type]
        assert each.gone.wait(WAIT)
    for each in workers:
        pool.give_back(each)
    pool.close()


def test_a_server_that_ends_while_a_worker_starts_leaves_neither_traceback_nor_worker() -> None:
    server, control = socket.socketpair()
    ours, its = socket.socketpair()
    with control, ours, its:
        socket.send_fds(server, [CONTROL.pack(FORK, 1, 0)], [its.fileno()])
        server.close()
        code = f"from lazydelta.server.worker import main; main({control.fileno()})"
        done = subprocess.run(
            [sys.executable, "-c", code], pass_fds=[control.fileno()], capture_output=True, check=False, timeout=WAIT
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_worker_may_be_given_back_by_a_thread_that_holds_the_pools_lock() -> None:
    """Garbage collection can give a worker back while the same thread takes another."""
    pool = WorkerPool(memory=64 << 20, reading_memory=64 << 20, threads=1)
    worker = pool.take()
    worker.wait_until_ready()

    def collect() -> None:
        with pool._lock:
            pool.give_back(worker)

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert pool.busy == []
    pool.close()


def test_workers_are_reaped_although_the_thread_that_started_them_blocks_signals() -> None:
    """The template inherits the mask of that thread; without SIGCHLD it would notice no end."""
    ends: list[bool] = []

    def start_and_kill() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        template = _Template()
        worker = template.fork({"memory": 64 << 20, "reading_memory": 64 << 20, "threads": 1})
        worker.wait_until_ready()
        worker.kill()
        ends.append(worker.gone.wait(WAIT))
        worker.close()
        template.close()

    thread, _ = _later(start_and_kill)
    thread.join()
    assert ends == [True]


def test_a_worker_that_is_killed_from_outside_is_told_to_its_client(server: SqlServer, client: Any) -> None:
    with Gate(free=2) as gate:
        stream = client.do_get(asked(client, "SELECT sum(id) FROM t").endpoints[0].ticket)
        assert gate.reached.wait(WAIT)
        os.kill(gate.pid, signal.SIGKILL)
        with pytest.raises(flight.FlightServerError, match=r"ended by signal 9 \(SIGKILL\)"):
            stream.read_all()
    assert rows(client, SAME) == [{"c": 60}]


_SERVE = """
import sys
import pyarrow as pa
from lazydelta import write_arrow
from lazydelta.cli import main
write_arrow(sys.argv[1], pa.table({"id": [1, 2, 3]}), maintain=False)
secret = ["--storage-option", "secret_key=hunter2hunter2"]
sys.argv[1:] = ["serve", "--table", f"t={sys.argv[1]}", *secret, "--drain-seconds", "0"]
try:
    main()
finally:
    print("duckdb" in sys.modules, flush=True)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server of its own, with defaults; tell where it listens."""
    command = [sys.executable, "-c", _SERVE, str(tmp_path / "t")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serve:
        assert serve.stdout is not None
        yield serve, serve.stdout.readline().strip()
        serve.kill()


def _children(pid: int) -> list[int]:
    found = [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    return [*found, *(below for child in found for below in _children(child))]


def test_the_server_process_runs_no_duckdb_and_its_workers_end_with_it(process: tuple[Any, str]) -> None:
    serve, place = process
    with flight.connect(place) as client:
        assert rows(client, "SELECT count(*) AS c FROM t") == [{"c": 3}]
        assert rows(client, "kql: t | count") == [{"Count": 3}]
        # Functions that Python computes load their libraries in the worker.
        computed = "kql: print a = gamma(5.0), b = series_sum(dynamic([1, 2])), c = geo_point_to_h3cell(0, 0, 1)"
        assert rows(client, computed) == [{"a": 24.0, "b": 3.0, "c": "81757ffffffffff"}]
        wait_for(lambda: len(_children(serve.pid)) >= 2)  # a worker beside the template
        below = _children(serve.pid)
        for pid in below:
            for told in ("cmdline", "environ"):
                assert b"hunter2" not in Path(f"/proc/{pid}/{told}").read_bytes()
    serve.send_signal(signal.SIGTERM)
    assert serve.wait(WAIT) == 0
    assert serve.stdout.read().split()[-1] == "False"
    wait_for(lambda: all(map(is_gone, below)))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_while_it_describes_leaves_nothing_behind(process: tuple[Any, str], how: int) -> None:
    serve, place = process
    with flight.connect(place) as client:
        rows(client, SAME)
        failures: list[BaseException] = []

        def describe() -> None:
            try:
                asked(client, DOUBLED)
            except BaseException as error:  # noqa: BLE001 - looked at below
                failures.append(error)

        call = threading.Thread(target=describe)
        call.start()
        wait_for(lambda: json.loads(_action(client, "health"))["streams"] == 1)
        below = _children(serve.pid)
        serve.send_signal(how)
        assert serve.wait(WAIT) == (0 if how == signal.SIGTERM else -how)
        call.join(WAIT)
        assert len(failures) == 1
    wait_for(lambda: all(map(is_gone, below)))


def _action(client: Any, kind: str) -> bytes:
    (result,) = client.do_action(flight.Action(kind, b""))
    return bytes(result.body.to_pybytes())


# --- the queue


def _later(work: Any) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_clients_take_turns_and_each_comes_in_its_order() -> None:
    budgets = Budgets(streams=1, queue_seconds=WAIT)
    first = budgets.reserve("busy", 1)
    order: list[str] = []

    def wait(name: str) -> None:
        give_back = budgets.reserve(name[0], 1)
        order.append(name)
        give_back()

    threads = []
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        threads.append(_later(partial(wait, name))[0])
        wait_for(lambda: budgets.waiting == len(threads))
    first()
    for thread in threads:
        thread.join(WAIT)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert budgets.streams == budgets.waiting == 0


def test_a_client_without_room_of_its_own_lets_others_go_first() -> None:
    budgets = Budgets(streams=2, streams_per_client=1, queue_seconds=WAIT)
    mine = budgets.reserve("a", 1)
    thread, _ = _later(lambda: budgets.reserve("a", 1)())  # noqa: PLW0108 - reserved in the thread
    wait_for(lambda: budgets.waiting == 1)
    budgets.reserve("b", 1)()
    assert budgets.waiting == 1
    mine()
    thread.join(WAIT)
    assert budgets.streams == 0


def test_a_queue_has_an_end_and_says_when_to_come_again() -> None:
    budgets = Budgets(streams=1, queue=2, queue_per_client=1, queue_seconds=WAIT)
    give_back = budgets.reserve("a", 1)
    left = threading.Event()
    threads = [_later(partial(budgets.reserve, name, 1, left.is_set)) for name in "ab"]
    wait_for(lambda: budgets.waiting == 2)
    with pytest.raises(ServerBusyError, match=r"2 requests are already waiting.*try again in \d+ s"):
        budgets.reserve("c", 1)
    left.set()
    for thread, found in threads:
        thread.join(WAIT)
        assert "has left" in str(found[0])
    assert budgets.waiting == 0
    give_back()
    short = Budgets(streams=1, queue_seconds=0.01)
    short.reserve("a", 1)
    with pytest.raises(ServerBusyError, match=r"within 0\.01 s.*try again in \d+ s"):
        short.reserve("b", 1)
    with pytest.raises(ServerBusyError, match="bytes for this client"):
        Budgets(memory_per_client=10, queue_seconds=WAIT).reserve("a", 11)  # it would wait for good


def test_those_who_wait_are_told_when_the_server_ends() -> None:
    budgets = Budgets(streams=1, queue_seconds=WAIT)
    budgets.reserve("a", 1)
    thread, found = _later(lambda: budgets.reserve("b", 1))
    wait_for(lambda: budgets.waiting == 1)
    budgets.close()
    thread.join(WAIT)
    assert "shutting down" in str(found[0])


ROOM = LIMITS.memory + LIMITS.reading_memory


@pytest.mark.parametrize("spill", [64 << 20, 1 << 10], ids=["kept", "too large"])
def test_a_client_that_reads_nothing_gives_way_to_others(made: MadeTable, spill: int) -> None:
    """There is room for one statement. The result of the slow one is kept on disk if it fits, or the statement ends."""
    limits = SqlLimits(
        memory=LIMITS.memory, reading_memory=LIMITS.reading_memory, threads=1, patience=0.05, spill_bytes=spill
    )
    budgets = Budgets(memory=ROOM, memory_per_client=ROOM, queue_seconds=WAIT)
    sql = "SELECT range, repeat('x', 1000) AS x FROM range(20000)"
    narrow = [("grpc.http2.bdp_probe", 0)]
    with (
        serving_flight({"t": made.uri}, sql=limits, budgets=budgets) as server,
        flight.connect(location(server), generic_options=narrow) as slow,
        flight.connect(location(server)) as other,
    ):
        stream = slow.do_get(asked(slow, sql).endpoints[0].ticket)
        assert stream.read_chunk().data.num_rows > 0
        assert rows(other, SAME) == [{"c": 60}]
        if spill == 64 << 20:
            assert stream.read_all()["range"].to_pylist()[-1] == 19_999
        else:
            with pytest.raises(flight.FlightUnavailableError, match="read nothing while others waited"):
                stream.read_all()
        wait_for(lambda: server.budgets.memory == 0)


def test_a_client_that_reads_nothing_keeps_its_rows_where_none_wait(made: MadeTable) -> None:
    limits = SqlLimits(memory=LIMITS.memory, reading_memory=LIMITS.reading_memory, patience=0.01, spill_bytes=0)
    with (
        serving_flight({"t": made.uri}, sql=limits) as server,
        flight.connect(location(server), generic_options=[("grpc.http2.bdp_probe", 0)]) as slow,
    ):
        stream = slow.do_get(asked(slow, "SELECT repeat('x', 1000) AS x FROM range(20000)").endpoints[0].ticket)
        stream.read_chunk()
        for _ in range(5):
            assert rows(slow, SAME) == [{"c": 60}]
        assert server.sql is not None
        assert server.sql.running == 1
        stream.read_all()


def test_statements_that_are_not_fetched_hold_a_few_megabytes(made: MadeTable) -> None:
    limits = SqlLimits(memory=LIMITS.memory, reading_memory=LIMITS.reading_memory, kept_bytes=1 << 20)
    with serving({"t": made.uri}, limits) as server, flight.connect(server.uri) as client:
        infos = [asked(client, f"SELECT '{'x' * 200_000}' AS x, {n} AS n") for n in range(8)]
        assert len(server.sql._statements) == 5
        with pytest.raises(pa.ArrowInvalid, match="not known here"):
            client.do_get(infos[0].endpoints[0].ticket).read_all()
        assert client.do_get(infos[-1].endpoints[0].ticket).read_all()["n"].to_pylist() == [7]


# --- what tools ask for


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SHOW TABLES", [{"name": "t"}]),
        ("SHOW TABLES FROM main", [{"name": "t"}]),
        ("SHOW DATABASES", [{"database_name": "lazydelta"}]),
        ("SELECT table_type FROM information_schema.tables WHERE table_name = 't'", [{"table_type": "BASE TABLE"}]),
        ("SELECT DISTINCT schema_name AS s FROM information_schema.schemata", [{"s": "main"}]),
        ("SELECT count(*) AS n FROM lazydelta.information_schema.views", [{"n": 0}]),
        ("SELECT data_type FROM information_schema.columns WHERE column_name = 'id'", [{"data_type": "BIGINT"}]),
        ("SELECT column_type FROM (DESCRIBE t) WHERE column_name = 'id'", [{"column_type": "BIGINT"}]),
        ("SELECT count(*) AS n FROM t USING SAMPLE 7 ROWS", [{"n": 7}]),
        ("SELECT count(*) AS n FROM t TABLESAMPLE reservoir(8 ROWS) REPEATABLE (3)", [{"n": 8}]),
        ("SELECT count(*) AS n FROM (SELECT * FROM t USING SAMPLE 100%)", [{"n": 60}]),
        ("SELECT 'b'::ENUM('a', 'b') AS e", [{"e": "b"}]),
        ("SELECT ['b'::ENUM('a', 'b')] AS e, {'x': 'a'::ENUM('a')} AS s", [{"e": ["b"], "s": {"x": "a"}}]),
        (f"SELECT 1 AS one LIMIT {10**30}", [{"one": 1}]),
        (f"SELECT 1 AS one LIMIT 1 OFFSET {10**30}", []),
        (f"SELECT count(*) AS n FROM (FROM t LIMIT {'9' * 5000})", [{"n": 60}]),
    ],
)  # fmt: skip
def test_what_tools_ask_for_is_answered(client: Any, sql: str, expected: list[dict[str, Any]]) -> None:
    assert rows(client, sql) == expected


def test_explain_shows_the_plan_and_reads_nothing(client: Any) -> None:
    with Gate() as gate:
        (plan,) = rows(client, "EXPLAIN SELECT id FROM t WHERE id > 3")
        assert "id" in plan["explain_value"]
        (plan,) = rows(client, "-- a word\nexplain (format json) SELECT 1")
        assert json.loads(plan["explain_value"])
        assert gate.pulled == []


def test_the_catalog_shows_what_the_client_may_read(made: MadeTable) -> None:
    with serving({"t": made.uri, "secret": made.uri}, LIMITS, only={"": ["t"]}) as server:  # noqa: SIM117
        with flight.connect(server.uri) as client:
            for sql in ("SHOW TABLES", "SHOW ALL TABLES", "SELECT * FROM information_schema.columns"):
                assert "secret" not in repr(rows(client, sql))


def test_a_table_that_cannot_be_opened_hides_no_other_from_the_catalog(made: MadeTable, tmp_path: Path) -> None:
    with serving({"gone": str(tmp_path), "t": made.uri}, LIMITS) as server, flight.connect(server.uri) as client:
        found = rows(client, "SELECT DISTINCT table_name FROM information_schema.columns ORDER BY ALL")
        assert [each["table_name"] for each in found] == ["gone", "t"]

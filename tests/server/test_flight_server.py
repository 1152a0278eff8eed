"""What a client of any language sees: commands, tickets, streams, budgets, and ends."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

import lazydelta
from lazydelta import DeltaTable
from lazydelta.client.wire import ScanCommand
from lazydelta.errors import (
    DeadlineError,
    LazyDeltaError,
    OptionError,
    ServerBusyError,
    StreamClosedError,
    UnknownColumnError,
    VersionNotFoundError,
)
from lazydelta.server.budgets import Budgets
from lazydelta.server.flight import FlightServer, ServerLimits, drain
from lazydelta.server.streams import Answer, Outcome, RowsAnswer, ServedStream, answer_to
from lazydelta.server.ticket import Position, Ticket, TicketSigner
from lazydelta.server.tokens import AccessLog
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, observe
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.rows.made_table import MadeTable, make_rich_table, make_table
from tests.scan.hand_log import HandLog, add
from tests.server.serving import KEY, connected, location, plan, serving

_PATIENCE = 60
BULKY_FILES, BULKY_ROWS = 40, 10_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeTable:
    return make_rich_table(tmp_path_factory.mktemp("made") / "t", seed=3, files=12, rows=40)


@pytest.fixture(scope="module")
def bulky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a table of far more bytes than the windows of gRPC hold."""
    folder = tmp_path_factory.mktemp("bulky") / "t"
    make_table(folder, files=BULKY_FILES, rows=BULKY_ROWS)
    return folder


@pytest.fixture(scope="module")
def server(made: MadeTable) -> Iterator[FlightServer]:
    with serving({"t": made.path}) as running:
        yield running


def _eventually(holds: Callable[[], bool]) -> bool:
    """Wait for something that another thread does; the time only bounds how long a failure takes."""
    until = time.monotonic() + _PATIENCE
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


# --- the same answers as in process


QUESTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"where": "hour = '2026021022'"},
    {"where": {"n": {">=": 3}}},
    {"where": "id >= 100", "strategy": "reverse"},
    {"where": [("id", "<", 100), ("hour", "in", ["2026021022", "2026021023"])]},
    {"limit": 3},
    {"row_limit": 20, "where": "hour >= '2026'"},
    {"stats_columns": ["id", "n"]},
    {"stats_columns": []},
    {"last": "10000d"},
)


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_files_are_those_of_the_table_itself(server: FlightServer, made: MadeTable, number: int) -> None:
    question = QUESTIONS[number]
    here = pa.Table.from_batches(DeltaTable(made.path).files(**question).batches())
    with connected(server) as connection:
        there = pa.Table.from_batches(connection.table("t").files(**question).batches())
    assert there.equals(here)


def test_files_are_objects_with_what_the_log_says_of_them(server: FlightServer, made: MadeTable) -> None:
    with connected(server) as connection:
        here, there = DeltaTable(made.path).files().collect(), connection.table("t").files(stats_columns=[]).collect()
    assert there == here
    assert [file.partition_values for file in there] == [file.partition_values for file in here]
    assert [file.version for file in there] == [file.version for file in here]
    assert [file.num_records for file in there] == [file.num_records for file in here]
    with pytest.raises(LazyDeltaError, match="Servers do not reveal"):
        _ = there[0].uri


async def _all_paths(files: Any) -> list[str]:
    return [file.path async for file in files]


@pytest.mark.asyncio
async def test_files_can_be_awaited(server: FlightServer, made: MadeTable) -> None:
    with connected(server) as connection:
        assert sorted(await _all_paths(connection.table("t").files())) == sorted(made.files)


@pytest.mark.parametrize(
    ("columns", "where", "limit"),
    [(None, None, None), (["id", "place.row"], "n >= 3", None), (["s"], {"flag": True}, 5), ([], None, None)],
)
def test_rows_are_those_of_the_table_itself(
    server: FlightServer, made: MadeTable, columns: list[str] | None, where: Any, limit: int | None
) -> None:
    here = DeltaTable(made.path).rows(columns, where, limit=limit).read_all()
    with connected(server) as connection:
        there = connection.table("t").rows(columns, where, limit=limit)
        assert there.schema == here.schema
        assert repr(there.read_all().to_pylist()) == repr(here.to_pylist())  # NaN is not equal to itself


def test_a_remote_table_describes_itself_as_the_table_does(server: FlightServer, made: MadeTable) -> None:
    here = DeltaTable(made.path)
    with connected(server) as connection:
        there = connection.table("t")
        assert connection.tables() == ["t"]
        assert there.version() == here.version()
        assert there.schema().to_arrow() == here.schema().to_arrow()
        assert there.metadata().id == here.metadata().id
        assert there.metadata().partition_columns == here.metadata().partition_columns
        assert there.protocol() == here.protocol()
        assert there.count_rows("n >= 3") == here.count_rows("n >= 3")
        assert there.count() == len(made.rows)
        assert connection.table("t", 3).count() == DeltaTable(made.path, 3).count()
        plan_there = there.files("id >= 3").explain()["plan"]
    plan_here = here.files("id >= 3").explain().as_dict()["plan"]
    assert plan_there["predicate"] == plan_here["predicate"]
    assert plan_there["table"] == "t"


def test_schemas_are_told_without_a_stream(server: FlightServer, made: MadeTable) -> None:
    client = fl.connect(location(server))
    command = json.dumps({"table": "t", "of": "rows", "columns": ["id"]}).encode()
    assert client.get_schema(fl.FlightDescriptor.for_command(command)).schema == pa.schema([("id", pa.int64())])
    info = plan(client, table="t", stats_columns=["id"])
    assert info.schema.names[-3:] == ["min.id", "max.id", "null_count.id"]
    assert client.get_flight_info(fl.FlightDescriptor.for_path("t")).schema.names[0] == "path"
    assert [each.schema for each in client.list_flights()] == [DeltaTable(made.path).schema().to_arrow()]


@pytest.mark.parametrize("number", [1, 2, 3, 30])
def test_endpoints_divide_files_and_rows_by_size(server: FlightServer, made: MadeTable, number: int) -> None:
    client = fl.connect(location(server))
    for of, column in (("files", "path"), ("rows", "id")):
        info = plan(client, table="t", of=of, endpoints=number)
        parts = [client.do_get(each.ticket).read_all() for each in info.endpoints]
        assert len(parts) == number
        found = sorted(value for part in parts for value in part.column(column).to_pylist())
        assert found == sorted(made.files if of == "files" else [row["id"] for row in made.rows])
        if of == "files":
            sizes = [sum(part.column("size").to_pylist()) for part in parts]
            largest = max(size for part in parts for size in part.column("size").to_pylist())
            assert max(sizes) <= sum(sizes) / number + largest


def test_fragments_are_read_side_by_side(server: FlightServer, made: MadeTable) -> None:
    with connected(server) as connection:
        parts = connection.table("t").fragments(3, columns=["id"])
        assert sorted(id_ for part in parts for id_ in part.read_all()["id"].to_pylist()) == sorted(
            row["id"] for row in made.rows
        )


def test_other_libraries_take_the_rows_through_arrow(server: FlightServer, made: MadeTable) -> None:
    duckdb = pytest.importorskip("duckdb")
    with connected(server) as connection:
        with duckdb.connect() as con:
            con.register("rows", connection.table("t").to_pyarrow_reader(["id"]))
            assert con.execute("SELECT count(*) FROM rows").fetchall() == [(len(made.rows),)]
        assert pa.table(connection.table("t")).num_rows == len(made.rows)


# --- errors keep their class


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda table: table.files("nope = 1").collect(), UnknownColumnError),
        (lambda table: table.files("id >").collect(), lazydelta.errors.PredicateError),
        (lambda table: table.rows(["nope"]).read_all(), UnknownColumnError),
        (lambda table: table.files(limit=-1).collect(), OptionError),
        (lambda table: table.load_as_version(99), VersionNotFoundError),
        (lambda table: table.fragments(0), OptionError),
        (lambda table: table.files(pa.compute.field("id") > 3), OptionError),
    ],
    ids=["column", "syntax", "projection", "limit", "version", "pieces", "expression"],
)
def test_an_error_of_the_server_is_the_same_error_at_the_client(
    server: FlightServer, ask: Callable[[Any], object], error: type[LazyDeltaError]
) -> None:
    with connected(server) as connection:
        table = connection.table("t")
        with pytest.raises(error):
            ask(table)


def test_the_place_of_a_table_is_not_told(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a.parquet"))
    log.commit(add("b.parquet"))
    with serving({"t": tmp_path / "t"}) as running, connected(running) as connection:
        table = connection.table("t")
        with pytest.raises(LazyDeltaError, match=r"a\.parquet|b\.parquet") as caught:
            table.rows().read_all()  # its data files do not exist
    assert str(tmp_path) not in str(caught.value)
    assert str(tmp_path) not in repr(vars(caught.value))


# --- cancelling


class _Gate:
    """Lets requests for some objects wait until it is opened, and notes all that begin."""

    def __init__(self, part: str) -> None:
        self._part = part
        self.open = threading.Event()
        self.waiting = threading.Event()
        self.begun: list[str] = []

    def __call__(self, request: Request) -> None:
        self.begun.append(request.path)
        if self._part in request.path:
            self.waiting.set()
            assert self.open.wait(_PATIENCE)


@pytest.mark.parametrize("of", ["files", "rows"])
def test_a_cancel_while_the_store_is_waited_for_ends_the_stream_and_no_request_follows(tmp_path: Path, of: str) -> None:
    make_table(tmp_path / "t", files=30, rows=5)
    store = TableHandle.open(str(tmp_path / "t")).store
    write_checkpoint(store, DeltaTable(tmp_path / "t").version())
    gate = _Gate(".checkpoint.parquet" if of == "files" else "part-00020")
    with serving({"t": tmp_path / "t"}) as running:
        client = fl.connect(location(running))
        ticket = plan(client, table="t", of=of).endpoints[0].ticket
        with observe(gate):
            reader = client.do_get(ticket)
            took = threading.Thread(target=lambda: _taken(reader))
            took.start()
            assert gate.waiting.wait(_PATIENCE)
            reader.cancel()
            took.join(_PATIENCE)
            # The client is free at once, and so is gRPC's thread; the scan's own thread still waits for the store.
            assert _eventually(lambda: not running._streams)
            assert running.budgets.streams == 1
            asked = len(gate.begun)
            gate.open.set()
            assert running.budgets.wait_until_idle(_PATIENCE)
            assert len(gate.begun) == asked


def _taken(reader: Any) -> None:
    # Not read_all, in which PyArrow takes a cancel for Ctrl-C.
    with pytest.raises(fl.FlightCancelledError):
        deque(iter(reader.read_chunk, None), maxlen=0)


def test_a_client_that_goes_away_ends_its_scan(bulky: Path) -> None:
    """Far more than the windows hold, so that the server is in the middle when its client is gone."""
    with serving({"t": bulky}) as running:
        connection = lazydelta.connect(location(running))
        stream = connection.table("t").rows()
        next(stream)
        assert running.budgets.streams == 1
        stream.close()
        assert running.budgets.wait_until_idle(_PATIENCE)
        assert b'how="cancelled"' in running.metrics.text() or b'how="dropped"' in running.metrics.text()


def test_an_idle_client_holds_few_batches_of_the_server(bulky: Path) -> None:
    """Backpressure, counted: for a client that takes one batch the server reads a few files of many."""
    opened: set[str] = set()

    def note(request: Request) -> None:
        if request.path.endswith(".parquet"):
            opened.add(request.path)

    with serving({"t": bulky}) as running, connected(running) as connection, observe(note):
        stream = connection.table("t").rows()
        next(stream)
        before = -1
        while before != len(opened):  # until it has stopped by itself
            before = len(opened)
            time.sleep(0.3)
        assert len(opened) < 20
        stream.close()


# --- streams by themselves


class _Slow(Answer):
    """An answer whose next batch comes when it is let."""

    schema = pa.schema([("a", pa.int64())])

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.stopped = threading.Event()

    def batches(self) -> Iterator[tuple[pa.RecordBatch, Position]]:  # type: ignore[override]
        """Yield one batch, and another one when the test allows it."""
        batch = pa.record_batch([pa.array([1])], schema=self.schema)
        yield batch, Position(1, "", "forward", sidecar=False)
        assert self.may_go_on.wait(_PATIENCE)
        yield batch, Position(2, "", "forward", sidecar=False)

    def stop(self) -> None:
        """Note that it was stopped."""
        self.stopped.set()
        self.may_go_on.set()

    def explain(self) -> dict[str, Any]:
        """Nothing to explain."""
        return {}


def _outcomes() -> tuple[list[Outcome], Callable[[Outcome], None], threading.Event]:
    found: list[Outcome] = []
    told = threading.Event()

    def note(outcome: Outcome) -> None:
        found.append(outcome)
        told.set()

    return found, note, told


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_stream_may_be_collected_by_a_thread_that_holds_the_locks_of_its_answer(*, has_begun: bool) -> None:
    lock = threading.Lock()

    class Locked(_Slow):
        def stop(self) -> None:
            with lock:
                super().stop()

    outcomes, note, told = _outcomes()
    streams = [ServedStream(Locked(), cancelled=lambda: False, freed=lambda: None, report=note)]
    if has_begun:
        next(streams[0])

    def collect() -> None:
        with lock:
            streams.clear()

    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert told.wait(60)
    assert [outcome.how for outcome in outcomes] == ["dropped"]


@pytest.mark.parametrize("why", ["cancelled", "deadline", "drained", "closed", "never begun"])
def test_a_stream_ends_once_for_whatever_reason(why: str) -> None:
    answer, now = _Slow(), [0.0]
    outcomes, note, told = _outcomes()
    gone = threading.Event()
    freed: list[int] = []
    ends = {"freed": lambda: freed.append(1), "report": note}
    stream = ServedStream(answer, cancelled=gone.is_set, seconds=5, clock=lambda: now[0], **ends)  # type: ignore[arg-type]
    if why == "never begun":
        stream.close("dropped")
        assert [outcome.how for outcome in outcomes] == ["dropped"]
        return
    next(stream)
    if why == "closed":
        stream.close()
    else:
        error = {"cancelled": StreamClosedError, "deadline": DeadlineError, "drained": ServerBusyError}[why]
        if why == "cancelled":
            gone.set()
        elif why == "deadline":
            now[0] = 6.0
        else:
            stream.end_now()
        with pytest.raises(error):
            next(stream)
    assert answer.stopped.is_set()
    assert told.wait(_PATIENCE)
    stream.close()
    del stream
    assert [outcome.how for outcome in outcomes] == [why]
    assert freed == [1]


# --- budgets


def test_a_full_server_says_so_and_has_room_again_when_a_stream_ends(bulky: Path) -> None:
    budgets = Budgets(streams=2, streams_per_client=2)
    with serving({"t": bulky}, budgets=budgets) as running, connected(running, attempts=1) as connection:
        table = connection.table("t")
        streams = [table.rows(), table.rows()]
        for stream in streams:
            next(stream)
        with pytest.raises(ServerBusyError, match="3 streams of all clients would be more than 2"):
            table.rows().read_all()
        streams[0].close()
        assert _eventually(lambda: budgets.streams < 2)
        assert table.files().collect()
        streams[1].close()
        assert budgets.wait_until_idle(_PATIENCE)
        assert budgets.memory == 0


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"streams": 1}, "streams of all clients"),
        ({"streams_per_client": 1}, "streams of this client"),
        ({"memory": 150}, "bytes for all clients"),
        ({"memory_per_client": 150}, "bytes for this client"),
    ],
    ids=["streams", "streams of one", "memory", "memory of one"],
)
def test_each_budget_is_kept(limits: dict[str, int], words: str) -> None:
    budgets = Budgets(**limits)
    give_back = budgets.reserve("a", 100)
    with pytest.raises(ServerBusyError, match=words):
        budgets.reserve("a", 100)
    if "one" in words or "this client" in words:
        budgets.reserve("b", 100)()
    give_back()
    give_back()  # once more does nothing
    budgets.reserve("a", 100)()
    assert (budgets.streams, budgets.memory) == (0, 0)


def test_a_stream_has_the_time_that_the_sooner_of_both_sides_gives() -> None:
    command = lazydelta.client.wire.ScanCommand(table="t", timeout=3)
    assert ServerLimits(seconds=5).seconds_of(command) == 3
    assert ServerLimits(seconds=2).seconds_of(command) == 2
    assert ServerLimits().seconds_of(lazydelta.client.wire.ScanCommand(table="t")) is None


# --- ending


def test_a_server_that_ends_lets_streams_come_to_their_end_and_takes_no_new_ones(bulky: Path) -> None:
    with serving({"t": bulky}) as running, connected(running, attempts=1) as connection:
        table = connection.table("t")
        stream = table.rows(["id", "text"])
        got = next(stream).num_rows
        ended = threading.Thread(target=drain, args=(running, _PATIENCE))
        ended.start()
        assert _eventually(lambda: connection.health()["state"] == "ending")
        with pytest.raises(ServerBusyError, match="shutting down"):
            table.rows(["id", "text"]).read_all()
        got += sum(batch.num_rows for batch in stream)
        ended.join(_PATIENCE)
        assert got == BULKY_FILES * BULKY_ROWS
        assert not ended.is_alive()


def test_a_stream_that_does_not_end_is_told_to_resume_elsewhere(bulky: Path) -> None:
    with serving({"t": bulky}) as second, serving({"t": bulky}) as first:
        connection = lazydelta.connect(location(first))
        stream = connection.table("t").rows(["id", "text"])
        ids = next(stream).column("id").to_pylist()
        first.refuse_streams()
        first.end_streams()
        assert first.budgets.wait_until_idle(_PATIENCE)  # though the client takes nothing
        connection.location = location(second)
        for batch in stream:
            ids += batch.column("id").to_pylist()
        assert b"drained" in first.metrics.text()
        assert stream.resumed == 1
    assert sorted(ids) == list(range(BULKY_FILES * BULKY_ROWS))


@pytest.mark.parametrize(("limit", "grows"), [(None, True), (3 * BULKY_ROWS, False)], ids=["all", "some"])
def test_a_client_that_goes_on_has_all_threads_read_for_it(bulky: Path, limit: int | None, *, grows: bool) -> None:
    signer, table = TicketSigner(KEY), DeltaTable(bulky)
    command = ScanCommand(table="t", of="rows", columns=["id"], limit=limit, version=table.version())
    answer = answer_to(table, Ticket(command, table.metadata().id, 0, "me", signer.expiry()), 100 << 20)
    batches = answer.batches()
    next(batches)
    assert isinstance(answer, RowsAnswer)
    flow = answer._stream._flow  # how many are open at once also depends on how soon files are found
    assert flow is not None
    assert flow._window == 1
    next(batches)
    assert flow._window == (flow._most if grows else 1) != 0
    batches.close()


# --- what operators see


def test_the_access_log_has_a_line_for_each_request_and_no_conditions(tmp_path: Path) -> None:
    HandLog(tmp_path / "t").commit(add("a.parquet"), add("b.parquet"))
    path = tmp_path / "access.log"
    with path.open("w", encoding="utf-8") as out:
        log = AccessLog(out)
        with serving({"t": tmp_path / "t"}, access_log=log) as running, connected(running) as connection:
            connection.table("t").files("name = 'a secret'").collect()
            with pytest.raises(LazyDeltaError):
                connection.table("u")
            assert _eventually(lambda: not running._streams)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(line["request"], line["how"]) for line in lines] == [
        ("describe", "ok"),
        ("plan", "ok"),
        ("get", "ok"),
        ("stream", "done"),
        ("describe", "TableNotFoundError"),
    ]
    assert [line.get("table") for line in lines] == ["t", "t", None, "t", "u"]
    stream = lines[3]
    assert (stream["table"], stream["of"], stream["version"], stream["rows"]) == ("t", "files", 0, 2)
    assert stream["client"] == "anonymous"
    assert "secret" not in path.read_text(encoding="utf-8")


def test_metrics_are_told_by_action_and_by_http(tmp_path: Path) -> None:
    import urllib.request  # noqa: PLC0415 - this test alone is a client of HTTP

    HandLog(tmp_path / "t").commit(add("a.parquet"), add("b.parquet"))
    with serving({"t": tmp_path / "t"}) as running, connected(running) as connection:
        connection.table("t").files().collect()
        assert _eventually(lambda: not running._streams)
        text = connection.action("metrics", b"").decode()
        port, http = running.metrics.listen("127.0.0.1", 0)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            over_http = answer.read().decode()
        http.shutdown()
        http.server_close()
    for found in (text, over_http):
        assert 'lazydelta_serve_stream_rows_total{of="files",table="t"} 2.0' in found
        assert 'lazydelta_serve_requests_total{how="ok",request="plan"} 1.0' in found
        assert "lazydelta_serve_streams 0.0" in found


def test_metrics_go_to_opentelemetry_with_units_and_the_table(tmp_path: Path) -> None:
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - loading it is what switches the export on
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415

    from lazydelta.server import actions  # noqa: PLC0415

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    made = actions._made(provider)
    before, actions._made = actions._made, lambda _: made  # type: ignore[assignment]
    try:
        HandLog(tmp_path / "t").commit(add("a.parquet"), add("b.parquet"))
        with serving({"t": tmp_path / "t"}) as running, connected(running) as connection:
            connection.table("t").files().collect()
            assert _eventually(lambda: not running._streams)
        data = json.loads(reader.get_metrics_data().to_json())  # type: ignore[union-attr]
    finally:
        actions._made = before
        provider.shutdown()
    metrics = data["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    found = {each["name"]: each for each in metrics}
    assert {name: each["unit"] for name, each in found.items()} == {
        "delta.lazy.serve.requests": "{request}",
        "delta.lazy.serve.stream_rows": "{row}",
        "delta.lazy.serve.stream_bytes": "By",
        "delta.lazy.serve.stream_seconds": "s",
        "delta.lazy.serve.streams": "{stream}",
        "delta.lazy.serve.reserved_memory": "By",
        "delta.lazy.serve.waiting": "{request}",
    }
    (point,) = found["delta.lazy.serve.stream_rows"]["data"]["data_points"]
    assert (point["attributes"], point["value"]) == ({"delta.lazy.table": "t", "delta.lazy.of": "files"}, 2)

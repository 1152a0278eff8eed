"""The server as a process: what it prints, how it ends, and what is left when one side is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow.flight as fl
import pytest

import lazydelta
from lazydelta import DeltaTable
from lazydelta.client import Connection
from lazydelta.client.wire import error_from
from lazydelta.server.flight import FlightServer, drain, until_told
from lazydelta.server.tables import ServedTables, TablePlace
from lazydelta.server.ticket import TicketSigner
from lazydelta.server.tokens import add_token
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import observe
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.rows.made_table import make_table
from tests.scan.hand_log import HandLog, add, publish
from tests.server.cut_off import CutOff
from tests.server.serving import location, plan, serving
from tests.support import free_port
from tests.support.azurite import Azurite

_PATIENCE = 60
FILES, ROWS = 20, 10_000


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start ``lazydelta serve`` and give it with the line that it prints."""
    command = [sys.executable, "-m", "lazydelta.cli", "serve", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def _rest(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.read()


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "t"
    make_table(folder, files=FILES, rows=ROWS)
    return folder


def test_a_server_prints_where_it_is_and_ends_when_it_is_told(tmp_path: Path, table: Path) -> None:
    token = add_token(tmp_path / "tokens", "me", ["t"])
    settings = tmp_path / "serve.toml"
    settings.write_text(f"[tables.t]\nuri = '{table}'\n[limits]\nstreams = 2\n", encoding="utf-8")
    log = tmp_path / "access.log"
    with started("--config", str(settings), "--tokens", str(tmp_path / "tokens"), "--access-log", str(log)) as (
        process,
        where,
    ):
        assert where.startswith("grpc://127.0.0.1:")
        with lazydelta.connect(where, token=token) as connection:
            assert len(connection.table("t").files().collect()) == FILES
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE) == 0
        assert "ending" in _rest(process.stderr)
    assert {json.loads(line)["client"] for line in log.read_text(encoding="utf-8").splitlines()} == {"me"}


def test_a_server_that_is_told_to_end_lets_a_stream_come_to_its_end(table: Path) -> None:
    with (
        started("--table", f"t={table}", "--json") as (process, told),
        lazydelta.connect(json.loads(told)["location"]) as connection,
    ):
        stream = connection.table("t").rows(["id", "text"])
        rows = next(stream).num_rows
        process.send_signal(signal.SIGTERM)
        rows += sum(batch.num_rows for batch in stream)
        assert rows == FILES * ROWS
        assert stream.resumed == 0
        assert process.wait(_PATIENCE) == 0


@pytest.mark.parametrize("of", ["files", "rows"])
def test_a_client_whose_server_is_killed_goes_on_at_the_next_one(tmp_path: Path, table: Path, of: str) -> None:
    """The second server has the first one's port and key, as behind a supervisor; nothing comes twice."""
    (tmp_path / "key").write_bytes(os.urandom(32))
    port = str(free_port())
    arguments = ("--table", f"t={table}", "--port", port, "--ticket-key", str(tmp_path / "key"))
    with started(*arguments) as (first, where), lazydelta.connect(where, attempts=100) as connection:
        remote = connection.table("t")
        stream: Any = remote.files(batch_size=1) if of == "files" else remote.rows(["id", "text"])
        column = "path" if of == "files" else "id"
        batches = stream.batches() if of == "files" else iter(stream)
        found = next(batches).column(column).to_pylist()
        first.kill()
        first.wait(_PATIENCE)
        with started(*arguments) as (_, again):
            assert again == where
            for batch in batches:
                found += batch.column(column).to_pylist()
    here = DeltaTable(table)
    want = [file.path for file in here.files()] if of == "files" else here.rows(["id"]).read_all()["id"].to_pylist()
    assert sorted(found) == sorted(want)
    assert of == "files" or stream.resumed >= 1  # all files fit into what gRPC has under way


def test_without_a_server_the_client_says_so_after_its_attempts(table: Path) -> None:
    paused: list[float] = []
    with serving({"t": table}) as server:
        where = location(server)
        connection = Connection(where, attempts=3, pause=paused.append)
        stream = connection.table("t").rows(["id", "text"])
        next(stream)
        server.end_streams()
    with pytest.raises(lazydelta.errors.ServerUnreachableError, match="after 3 attempts"):
        stream.read_all()
    assert len(paused) == 2


_CLIENT = """
import sys
import lazydelta
stream = lazydelta.connect(sys.argv[1]).table("t").rows()
next(stream)
print("has one", flush=True)
sys.stdin.read()
"""


def test_a_client_that_is_killed_leaves_nothing_behind(table: Path) -> None:
    with serving({"t": table}) as server:
        before = threading.active_count()
        command = [sys.executable, "-c", _CLIENT, location(server)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "has one"
            assert server.budgets.streams == 1
            process.kill()
            process.wait(_PATIENCE)
        assert server.budgets.wait_until_idle(_PATIENCE)
        assert server.budgets.memory == 0
        for thread in threading.enumerate():
            if thread.name.startswith("lazydelta-serve"):
                thread.join(_PATIENCE)
        assert threading.active_count() <= before


def test_a_store_that_breaks_in_the_middle_is_an_error_that_says_so_and_the_rest_can_be_had(
    tmp_path: Path, azurite: Azurite
) -> None:
    """When the connection to Azurite breaks, the tail is known and the base is not."""
    log = HandLog(tmp_path / "t")
    log.commit(*(add(f"base-{index}.parquet") for index in range(50)))
    write_checkpoint(TableHandle.open(str(tmp_path / "t")).store, 0)
    log.commit(*(add(f"tail-{index}.parquet") for index in range(5)))
    place = publish(tmp_path / "t", f"az://{azurite.container('served')}/t", azurite.storage_options())
    with CutOff(azurite.port) as between:
        endpoint = f"http://127.0.0.1:{between.port}/{azurite.account}"
        options = azurite.storage_options() | {"azure_storage_endpoint": endpoint}
        settings = {"retries": 0, "request_timeout": 5, "cache_size": 0}
        tables = ServedTables({"t": TablePlace(place, options, settings)})
        server = FlightServer("grpc://127.0.0.1:0", tables, TicketSigner(b"k" * 32))
        try:
            client = fl.connect(location(server))
            ticket = plan(client, table="t", strategy="reverse", batch_size=5).endpoints[0].ticket
            chunks: list[Any] = []
            # Cut by the scan itself, when it begins with the base: how far it has come by then is no matter of luck.
            with observe(lambda request: between.cut() if "checkpoint" in request.path else None):
                reader = client.do_get(ticket)
                with pytest.raises(fl.FlightServerError) as caught:
                    _take(reader, chunks)
            assert isinstance(error_from(caught.value.extra_info), lazydelta.errors.StorageError)
            assert azurite.key not in str(caught.value)
            assert server.budgets.wait_until_idle(_PATIENCE)
            between.mend()
            rest = client.do_get(fl.Ticket(chunks[-1].app_metadata.to_pybytes())).read_all()
        finally:
            drain(server, 0)
    first = [path for chunk in chunks for path in chunk.data.column("path").to_pylist()]
    assert all(path.startswith("tail") for path in first)
    found = first + rest.column("path").to_pylist()
    assert sorted(found) == sorted([f"base-{index}.parquet" for index in range(50)] + first)
    assert len(first) == 5


def _take(reader: Any, chunks: list[Any]) -> None:
    while True:
        chunks.append(reader.read_chunk())


def test_a_signal_that_another_thread_receives_ends_the_wait() -> None:
    with until_told() as told:
        heard: list[bool] = []

        def receive() -> None:
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            heard.append(told.wait(_PATIENCE / 2))

        receiver = threading.Thread(target=receive)
        receiver.start()
        told.wait(_PATIENCE)
        receiver.join()
    assert heard == [True]

"""A store that is stopped and started again while a server streams from it: a real Azurite, killed at counted requests.

The server notices, says why and lets go of everything; the client goes on when the store is back.
"""

from __future__ import annotations

import io
import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lazydelta.client import Connection
from lazydelta.errors import StorageError
from lazydelta.server.flight import FlightServer, drain
from lazydelta.server.tables import ServedTables, TablePlace
from lazydelta.server.ticket import TicketSigner
from lazydelta.server.tokens import AccessLog
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, observe
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.rows.made_table import MadeTable, make_table
from tests.scan.hand_log import publish
from tests.server.serving import KEY, location
from tests.support.azurite import AzuriteToStop

pytestmark = pytest.mark.xdist_group("store restarted")  # its store is filled once

FILES, ROWS = 8, 50
_PATIENCE = 60


class _Setting:
    """A store, a server of this process that reads from it with no patience, and its log."""

    def __init__(self, store: AzuriteToStop, server: FlightServer, log: io.StringIO, made: MadeTable) -> None:
        self.store = store
        self.server = server
        self.log = log
        self.made = made

    def ended(self) -> list[dict[str, Any]]:
        """Return what the log says of streams that have ended, when all have."""
        assert self.server.budgets.wait_until_idle(_PATIENCE)
        assert self.server.budgets.memory == 0
        for thread in threading.enumerate():
            if thread.name == "lazydelta-serve-stream":
                thread.join(_PATIENCE)
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [each for each in lines if each["request"] == "stream"]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Setting]:
    folder = tmp_path_factory.mktemp("restarted")
    made = make_table(folder / "t", files=FILES, rows=ROWS)
    write_checkpoint(TableHandle.open(made.uri).store, FILES // 2)
    with AzuriteToStop(tmp_path_factory.mktemp("azurite-on-disk")) as store:
        options = store.service.storage_options()
        place = publish(Path(made.uri), f"az://{store.service.container('restarted')}/t", options)
        TableHandle.open(place, options).store.put("last", b"1")
        store.settle("t/last")
        settings = {"retries": 0, "request_timeout": 5, "cache_size": 0}
        tables, log = ServedTables({"t": TablePlace(place, options, settings)}), io.StringIO()
        server = FlightServer("grpc://127.0.0.1:0", tables, TicketSigner(KEY), access_log=AccessLog(log))
        try:
            yield _Setting(store, server, log, made)
        finally:
            drain(server, 0)


def _begun(connection: Connection, of: str) -> Any:
    table = connection.table("t")
    return table.files(strategy="reverse", batch_size=1) if of == "files" else table.rows(["id"])


def _found(stream: Any, of: str) -> Counter[Any]:
    batches = stream.batches() if of == "files" else stream
    column = "path" if of == "files" else "id"
    return Counter(value for batch in batches for value in batch.column(column).to_pylist())


@pytest.mark.parametrize(("of", "share"), [("files", 0.0), ("files", 0.99), ("rows", 0.5)])
def test_a_stream_goes_on_when_its_store_is_back(setting: _Setting, of: str, share: float) -> None:
    requests: list[Request] = []
    with Connection(location(setting.server)) as connection, observe(requests.append):
        stream = _begun(connection, of)
        requests.clear()
        want = _found(stream, of)
    assert want == Counter(setting.made.files if of == "files" else [row["id"] for row in setting.made.rows])
    at, told_before = int(len(requests) * share), len(setting.ended())
    requests.clear()
    lock = threading.Lock()

    def stop_at_its_number(request: Request) -> None:
        with lock:
            requests.append(request)
            if len(requests) == at + 1:
                setting.store.stop()

    pauses: list[float] = []

    def start_again(seconds: float) -> None:
        pauses.append(seconds)
        setting.store.start()

    with Connection(location(setting.server), pause=start_again) as connection:
        stream = _begun(connection, of)
        with observe(stop_at_its_number):
            found = _found(stream, of)
        assert found == want
        assert stream.resumed == len(pauses) == 1
    first, second = setting.ended()[told_before:]
    assert (first["how"], first["error"], second["how"]) == ("failed", "StorageError", "done")
    assert first["rows"] + second["rows"] == want.total()
    assert first["rows"] > 0  # in the middle, not before the beginning


def test_a_store_that_stays_away_is_told_of_after_a_few_attempts(setting: _Setting) -> None:
    told_before, pauses = len(setting.ended()), list[float]()
    with Connection(location(setting.server), pause=pauses.append) as connection:
        stream = _begun(connection, "files")
        setting.store.stop()
        try:
            with pytest.raises(StorageError) as caught:
                _found(stream, "files")
        finally:
            setting.store.start()
    assert len(pauses) == 2
    assert setting.store.service.key not in str(caught.value)
    assert {each["how"] for each in setting.ended()[told_before:]} == {"failed"}

"""Statements read no file outside the folders of their tables, and end with the server."""

from __future__ import annotations

import gc
import shutil
import threading
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import pytest

from lazydelta.server.flight import FlightServer, drain
from lazydelta.server.flight_sql.calls import SqlLimits
from tests.rows.made_table import make_table
from tests.server.flight_sql_server import WAIT, Gate, is_gone
from tests.server.serving import location, serving

LIMITS = SqlLimits(memory=128 << 20, reading_memory=16 << 20)


def rows(server: FlightServer, sql: str) -> Any:
    with adbc.connect(location(server), autocommit=True) as con, con.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


@pytest.mark.parametrize("sql", ["SELECT * FROM t", "SELECT count(id) FROM t", "kql: t | take 5", "kql: t | count"])
@pytest.mark.parametrize("way", ["absolute", "link", "relative"])
@pytest.mark.each_value
def test_rows_of_files_outside_the_folders_are_not_read(tmp_path: Path, way: str, sql: str) -> None:
    make_table(tmp_path / "outside", files=1, rows=3)
    file = next((tmp_path / "outside").glob("*.parquet"))
    shutil.copytree(tmp_path / "outside" / "_delta_log", tmp_path / "t" / "_delta_log")
    (tmp_path / "t" / "link.parquet").symlink_to(file)
    logged = {"absolute": str(file), "link": "link.parquet", "relative": "../outside/" + file.name}[way]
    log = tmp_path / "t" / "_delta_log"
    for commit in log.glob("*.json"):
        commit.write_text(commit.read_text().replace(f'"{file.name}"', f'"{logged}"'))
    with (
        serving({"t": tmp_path / "t"}, sql=LIMITS) as server,
        pytest.raises(adbc_driver_manager.Error, match="outside"),
    ):
        rows(server, sql)


# ADBC closes a statement by asking the server to forget it. With no server that fails, and a cursor whose `close` has
# failed closes once more when it is collected, which its counters call an underflow.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <function (Cursor|Connection).__del__")
def test_a_server_that_ends_stops_its_statements(tmp_path: Path) -> None:
    make_table(tmp_path / "t", files=10, rows=100)
    failures: list[BaseException] = []
    with Gate(free=2) as gate, serving({"t": tmp_path / "t"}, sql=LIMITS) as server:

        def fetch() -> None:
            try:
                rows(server, "SELECT count(id) FROM t")
            except BaseException as error:  # noqa: BLE001 - looked at below
                failures.append(error)

        thread = threading.Thread(target=fetch)
        thread.start()
        assert gate.reached.wait(WAIT)
        drain(server, 0)
        thread.join(WAIT)
        assert len(failures) == 1
        failures.clear()
        gc.collect()  # here, where it is known why
        assert is_gone(gate.pid)
        assert len(gate.pulled) == 2

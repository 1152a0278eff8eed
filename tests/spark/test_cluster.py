"""Reading, writing and streaming on a cluster of processes whose executors die midway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from lazydelta import write_arrow
from lazydelta.spark.session import prepare_environment
from tests.spark.stops import CHANGES_OF_A_FILE, Stops
from tests.spark.streams import ROOT, WORKER, kill, kill_executor, spark_home
from tests.spark.tables import ids
from tests.support.spark import SHORT_LIVED, use_java

pytestmark = [pytest.mark.xdist_group("other sparks")]


def lose_executors(folder: Path, kills: int, files: int) -> None:
    """Kill the executor of a task that has handed over rows, then those of tasks that stand at a change of a file."""
    use_java()
    prepare_environment()
    table, held = folder / "t", folder / "held"
    for number in range(files):
        write_arrow(table, pa.table({"id": pa.array(range(number * 500, (number + 1) * 500), pa.int64())}))
    held.mkdir()
    places = range(1, kills * CHANGES_OF_A_FILE, CHANGES_OF_A_FILE)
    written, streamed = (
        Stops(folder / f"stops {name}", folder / name, places, WORKER) for name in ("written", "streamed")
    )
    work = {
        "master": "local-cluster[2,1,1024]",
        "conf": {
            "spark.task.maxFailures": "20",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            **SHORT_LIVED,
        },
        "table": str(table),
        "options": {"maxPartitionBytes": "1kb", "minPartitions": str(files)},
        "folder": str(held),
        "written": str(written.table),
        "streamed": str(streamed.table),
        "checkpoint": str(folder / "checkpoint"),
        "result": str(folder / "result.json"),
    }
    environment = os.environ | written.environment(streamed)
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(ROOT)])
    said = folder / "driver.log"
    with said.open("wb") as log, ExitStack() as at_the_end:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.cluster_work", json.dumps(work)],
            env=environment | {"SPARK_HOME": str(spark_home(folder))},
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        for stops in (written, streamed):
            at_the_end.callback(stops.kill)
        at_the_end.callback(kill, driver)
        while driver.poll() is None and len(begun := list(held.glob("begun-*"))) < 2:
            time.sleep(0.05)
        assert driver.poll() is None, said.read_text(errors="replace")[-4000:]
        assert kill_executor(driver.pid, int(begun[0].name.partition("-")[2]))
        (held / "go").touch()
        for stops in (written, streamed):
            killed = [kill_executor(driver.pid, stops.wait(place, lambda: driver.poll() is None)) for place in places]
            assert any(killed)
        assert driver.wait(600) == 0, said.read_text(errors="replace")[-4000:]
    everything = list(range(files * 500))
    assert json.loads((folder / "result.json").read_text()) == {
        "ids": everything,
        "rows": len(everything),
        "batches": files,
    }
    assert ids(folder / "written") == everything
    assert ids(folder / "streamed") == everything


@pytest.mark.timeout(600)
def test_every_row_is_read_written_and_streamed_once_though_executors_die(tmp_path: Path) -> None:
    lose_executors(tmp_path, kills=1, files=3)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_row_is_there_once_though_many_executors_die(tmp_path: Path) -> None:
    lose_executors(tmp_path, kills=4, files=6)

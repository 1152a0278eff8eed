"""Reading where the driver is not the whole of Spark: over Spark Connect, and with executors that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from lazydelta import DeltaTable, write_arrow
from lazydelta.spark.session import prepare_environment
from tests.spark.streams import ROOT, descendants, kill, spark_home
from tests.support.spark import use_java

pytestmark = [pytest.mark.xdist_group("spark")]

_EXECUTOR = "CoarseGrainedExecutorBackend"


@pytest.mark.timeout(600)
def test_a_client_of_spark_connect_writes_and_reads(tmp_path: Path) -> None:
    """The package is installed where the server runs; the client has no JVM."""
    use_java()
    prepare_environment()
    work = {
        "uri": str(tmp_path / "t"),
        "register": False,
        "conf": {"spark.sql.warehouse.dir": str(tmp_path / "warehouse")},
    }
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_work", json.dumps(work)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert ".connect." in found["session"]
    assert found["source"] == [each for each in range(50) if each % 3 == 1]
    assert found["files"] == [each for each in range(11, 50) if each % 3 == 1]
    assert found["sql"] == 50
    assert DeltaTable(tmp_path / "t").count_rows() == 50


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_row_is_read_once_although_an_executor_was_killed_midway(tmp_path: Path) -> None:
    """Two executors have handed over a batch each and hold; one of them dies, and its tasks run again elsewhere."""
    use_java()
    prepare_environment()
    for number in range(6):
        write_arrow(tmp_path / "t", pa.table({"id": pa.array(range(number * 500, (number + 1) * 500), pa.int64())}))
    held = tmp_path / "held"
    held.mkdir()
    work = {
        "master": "local-cluster[2,1,1024]",
        "conf": {
            "spark.task.maxFailures": "20",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        },
        "table": str(tmp_path / "t"),
        "options": {"maxPartitionBytes": "1kb", "minPartitions": "6"},
        "folder": str(held),
        "result": str(tmp_path / "result.json"),
    }
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.read_work", json.dumps(work)],
            env=os.environ | {"PYTHONPATH": paths, "SPARK_HOME": str(spark_home(tmp_path))},
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        while driver.poll() is None and len(begun := list(held.glob("begun-*"))) < 2:
            time.sleep(0.1)
        assert driver.poll() is None, (tmp_path / "driver.log").read_text(errors="replace")[-4000:]
        worker = int(begun[0].name.partition("-")[2])
        executors = descendants(driver.pid, lambda command: _EXECUTOR in command)
        (victim,) = [each for each in executors if worker in descendants(each)]
        for each in (worker, victim):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        (held / "go").touch()
        assert driver.wait(600) == 0, (tmp_path / "driver.log").read_text(errors="replace")[-4000:]
    finally:
        kill(driver)
    assert json.loads((tmp_path / "result.json").read_text()) == list(range(3000))

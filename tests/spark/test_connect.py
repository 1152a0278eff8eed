"""Reading and writing over Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lazydelta import DeltaTable
from lazydelta.spark.session import prepare_environment
from tests.spark.streams import ROOT
from tests.support.spark import use_java

pytestmark = [pytest.mark.xdist_group("other sparks")]


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

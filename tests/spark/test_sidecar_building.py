"""A sidecar built on a cluster of two executors, one of which is killed midway: the same as that of one process."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lazydelta.errors import LazyDeltaError, OptionError
from lazydelta.sidecar import build, drop, verify
from lazydelta.sidecar.format.columns import FOLDER
from lazydelta.sidecar.format.manifest import Manifest
from lazydelta.spark import build_sidecar
from lazydelta.storage import open_store
from lazydelta.testing import make_table
from tests.spark.streams import spark_home

pytestmark = [pytest.mark.xdist_group("spark")]

ROOT = Path(__file__).resolve().parents[2]
_DIGESTED = 100_000


def _manifest(table: Path) -> Manifest:
    (path,) = (table / FOLDER).glob("*.manifest.json")
    return Manifest.decode(open_store(table).get(f"{FOLDER}/{path.name}"))


def test_in_a_session_it_is_the_same_as_in_one_process(spark: SparkSession, tmp_path: Path) -> None:
    make_table(tmp_path, files=3_000, hours=24, tail=2)
    build(tmp_path)
    expected = _digest(tmp_path)
    drop(tmp_path)
    done = build_sidecar(spark, tmp_path, memory_budget=2 << 20)
    assert (done.action, done.num_files) == ("built", 3_000)
    assert done.num_parts > 1
    assert _digest(tmp_path) == expected
    assert verify(tmp_path).ok
    assert build_sidecar(spark, tmp_path).action == "already-valid"


def test_it_takes_what_the_build_in_one_process_takes() -> None:
    """The parameters are written down once, and come behind the session; who makes the parts is not asked."""
    session, *others = inspect.signature(build_sidecar).parameters.values()
    assert session.name == "spark"
    assert others == [each for each in inspect.signature(build).parameters.values() if each.name != "maker"]
    with pytest.raises(OptionError, match="Spark Connect"):
        build_sidecar(object(), "nowhere")  # type: ignore[arg-type]


def test_very_wide_tables_get_two_tiers_from_tasks_too(spark: SparkSession, tmp_path: Path) -> None:
    make_table(tmp_path, files=240, hours=24, tail=0, columns=510)
    done = build_sidecar(spark, tmp_path)
    assert (done.action, done.num_files) == ("built", 240)
    parts = _manifest(tmp_path).parts
    named = {file for part in parts for file in part.files}
    assert all(part.stats is not None for part in parts)
    assert {f"{FOLDER}/{path.name}" for path in (tmp_path / FOLDER).glob("*-*.parquet")} == named
    report = verify(tmp_path)
    assert report.ok, report.problems


def test_what_goes_wrong_in_a_task_is_an_error_of_ours(spark: SparkSession, tmp_path: Path) -> None:
    make_table(tmp_path, files=1_000, hours=24, tail=0)
    (path,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 2000] = bytes(2000)
    path.write_bytes(bytes(data))
    with pytest.raises(LazyDeltaError, match=r"checkpoint\.parquet"):
        build_sidecar(spark, tmp_path)
    assert not (tmp_path / FOLDER).exists() or list((tmp_path / FOLDER).iterdir()) == []


def _built_here(table: Path, files: int) -> list[str]:
    """Make a table, and return the digest of the sidecar that one process builds; there is none any more."""
    make_table(table, files=files, hours=24, tail=0)
    build(table)
    expected = _digest(table)
    drop(table)
    return expected


def _killed(tmp_path: Path, files: int, memory_budget: int) -> None:
    expected = _built_here(tmp_path / "t", files)
    _built_by_a_cluster_that_loses_an_executor(tmp_path, files, memory_budget, expected)


def _built_by_a_cluster_that_loses_an_executor(
    tmp_path: Path, files: int, memory_budget: int, expected: list[str]
) -> None:
    table, mark = tmp_path / "t", tmp_path / "killed"
    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.dying_build", str(table), str(memory_budget)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "SPARK_HOME": str(spark_home(tmp_path))}
        | {"LAZYDELTA_TEST_MARK": str(mark)},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    assert (told["files"], told["action"]) == (files, "built")
    assert told["parts"] > 4
    named = [part.file for part in _manifest(table).parts]
    # The part of the attempt that died was complete: it is neither named nor there any more.
    assert mark.read_text() not in named
    assert sorted(f"{FOLDER}/{path.name}" for path in (table / FOLDER).glob("*-*.parquet")) == sorted(named)
    assert _digest(table) == expected
    assert verify(table).ok


def _digest(table: Path) -> list[str]:
    """Return a digest of each column, over all rows in the order of the manifest."""
    rows = pa.concat_tables(pq.read_table(table / part.file, partitioning=None) for part in _manifest(table).parts)
    found = []
    for name in rows.schema.names:
        digest = hashlib.sha256(name.encode())
        column = rows.column(name).combine_chunks()
        for start in range(0, len(column), _DIGESTED):
            digest.update(_texts(column.slice(start, _DIGESTED)))
        found.append(digest.hexdigest())
    return found


def _texts(values: pa.Array) -> bytes:
    """Return values as text, nulls told apart; however the parts were cut, the same for the same values."""
    if pa.types.is_nested(values.type):
        return repr(values.to_pylist()).encode()
    texts = values.cast(pa.string()) if not pa.types.is_string(values.type) else values
    valid = texts.is_valid().to_pylist()
    return repr((valid, pc.fill_null(texts, "").to_pylist())).encode()


@pytest.mark.slow  # a cluster of its own takes a minute and more to start, work and lose an executor
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("spark")  # it has found Java
def test_a_cluster_that_loses_an_executor_builds_the_same(tmp_path: Path) -> None:
    _killed(tmp_path, 10_000, 4 << 20)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("spark")
def test_a_cluster_that_loses_an_executor_builds_two_million_files_the_same(tmp_path: Path) -> None:
    _killed(tmp_path, 2_000_000, 256 << 20)

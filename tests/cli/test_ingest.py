"""``lazydelta ingest`` as people and programs use it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import deltalake
import pytest
from pyspark.sql import SparkSession

from tests.cli.conftest import Invoke, Spawn
from tests.spark.stops import Stops
from tests.support.spark import spark, use_java

__all__ = ["spark"]

pytestmark = [pytest.mark.timeout(600)]
# What needs a session gets that of the other tests of ours; what starts its own runs beside other such.
in_our_session, on_its_own = pytest.mark.xdist_group("spark"), pytest.mark.xdist_group("other sparks")


def put(folder: Path, name: str, first: int, count: int) -> None:
    """Let a file of events come to a folder whole."""
    folder.mkdir(exist_ok=True)
    begin = datetime(2026, 2, 10, 22, tzinfo=UTC)
    rows = [{"n": n, "ts": (begin + timedelta(minutes=10 * n)).isoformat()} for n in range(first, first + count)]
    lines = [json.dumps(row) for row in rows]
    (folder / f"_{name}").write_text("\n".join(lines) + "\n")
    (folder / f"_{name}").rename(folder / name)


def numbers(table: Path) -> list[int]:
    found: list[int] = sorted(deltalake.DeltaTable(table).to_pyarrow_table()["n"].to_pylist())
    return found


@in_our_session
def test_a_batch_is_one_commit_and_one_document(spark: SparkSession, invoke: Invoke, tmp_path: Path) -> None:
    put(tmp_path / "in", "a.json", 0, 10)
    with (tmp_path / "in" / "a.json").open("a") as file:
        file.write("broken\n")
    result = invoke("ingest", tmp_path / "in", tmp_path / "t", "--timestamp-column", "ts", "--json")
    document = json.loads(result.stdout)
    assert {key: document[key] for key in ("version", "rows", "rejected", "source_files", "already_committed")} == {
        "version": 0,
        "rows": 10,
        "rejected": 1,
        "source_files": 1,
        "already_committed": False,
    }
    assert document["files"] == len(deltalake.DeltaTable(tmp_path / "t").file_uris())
    text = invoke("ingest", tmp_path / "in" / "a.json", tmp_path / "t", "--mode", "overwrite").stdout
    assert "is at version 1: 10 rows of 1 files" in text
    assert "1 rows rejected" in text
    assert numbers(tmp_path / "t") == list(range(10))
    assert deltalake.DeltaTable(f"{tmp_path / 't'}_rejected").version() == 1


@in_our_session
def test_options_reach_the_table(spark: SparkSession, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("n,ts,place\n1,2026-02-10 14:00:00,x\n2,,y\n")
    invoke(
        *("ingest", tmp_path / "a.txt", tmp_path / "t", "--format", "csv", "--timestamp-column", "ts"),
        *("--boundary", "day", "--partition-column", "day", "--partition-by", "place"),
        *("--schema", "n int, ts timestamp, place string", "--compression", "snappy", "--stats-columns", "n"),
        *("--null-timestamps", "reject", "--rejected-table", tmp_path / "odd", "--target-file-size", "1MB"),
        *("--property", "delta.checkpointInterval=5", "--master", "local[2]", "--conf", "spark.ui.enabled=false"),
    )
    table = deltalake.DeltaTable(tmp_path / "t")
    assert table.metadata().partition_columns == ["day", "place"]
    assert table.metadata().configuration["delta.checkpointInterval"] == "5"
    (file,) = table.file_uris()
    assert "day=20260210/place=x" in file
    assert file.endswith(".snappy.parquet")
    assert numbers(tmp_path / "t") == [1]
    assert deltalake.DeltaTable(tmp_path / "odd").to_pyarrow_table()["record"].to_pylist() == ["2,,y"]


@in_our_session
def test_files_without_a_header_and_too_many_bad_rows(spark: SparkSession, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,x\n2,y\nz\n")
    arguments = ("ingest", tmp_path / "a.csv", tmp_path / "t", "--schema", "n int, s string")
    assert "the first line is no header" in invoke(*arguments, code=2).stderr
    refused = invoke(*arguments, "--no-header", "--max-rejected", "10%", code=2).stderr
    assert "1 of 3 rows of 1 files were rejected, and max_rejected is 10%" in refused
    assert not (tmp_path / "t" / "_delta_log").exists()
    invoke(*arguments, "--no-header", "--max-rejected", "1")
    assert numbers(tmp_path / "t") == [1, 2]


@in_our_session
def test_a_stream_prints_a_line_for_each_commit(spark: SparkSession, invoke: Invoke, tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path / "in", f"{number}.json", number * 5, 5)
    arguments = ("ingest", tmp_path / "in", tmp_path / "t", "--timestamp-column", "ts", "--stream")
    now = ("--trigger", "available-now")
    lines = invoke(*arguments, *now, "--max-files-per-trigger", "2", "--json").stdout.splitlines()
    commits = [json.loads(line) for line in lines]
    assert [(each["batch"], each["version"], each["rows"], each["source_files"]) for each in commits] == [
        (0, 0, 10, 2),
        (1, 1, 5, 1),
    ]
    assert all(each["lag_seconds"] >= 0 for each in commits)
    assert "nothing new" in invoke(*arguments, *now).stdout
    assert numbers(tmp_path / "t") == list(range(15))
    (notes,) = (tmp_path / "t" / "_checkpoints").iterdir()
    assert notes.name.startswith("ingest-")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "t"], "There is no"),
        (["in", "t", "--target-file-size", "big"], "target_file_size"),
        (["in", "t", "--max-rejected", "some"], "max_rejected='some' is not valid"),
        (["in", "t", "--mode", "overwrite", "--stream"], "--mode can only be used without --stream"),
        (["in", "t", "--trigger", "once"], "--trigger can only be used with --stream"),
        (["in", "abfss://c@a.dfs.core.windows.net/t", "--storage-option", "account_key=?"], "cannot open abfss"),
    ],
)
@on_its_own
def test_what_cannot_be_is_said_before_spark_starts(
    spawn: Spawn, tmp_path: Path, arguments: list[str], message: str
) -> None:
    put(tmp_path / "in", "a.json", 0, 1)
    places = [each if ":" in each else str(tmp_path / each) for each in arguments[:2]]
    process = spawn("ingest", *places, *arguments[2:], JAVA_HOME="/nowhere")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert message in err.decode()
    assert "Traceback" not in err.decode()


@pytest.mark.parametrize(
    ("missing", "message"), [("java", "needs Java"), ("pyspark", "pip install 'lazydelta[spark]'")]
)
@on_its_own
def test_what_is_not_installed_is_named(tmp_path: Path, missing: str, message: str) -> None:
    put(tmp_path / "in", "a.json", 0, 1)
    program = "import sys; from lazydelta.cli.app import main; sys.argv[0] = 'lazydelta'; "
    if missing == "pyspark":
        program += "import lazydelta.errors as e; e.find_spec = lambda name: None; "
    command = [sys.executable, "-c", program + "main()", "ingest", str(tmp_path / "in"), str(tmp_path / "t")]
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"} | {"PATH": "/nowhere"}
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (child.returncode, child.stdout) == (2, "")
    assert message in child.stderr
    assert len(child.stderr.strip().splitlines()) == 1


@on_its_own
def test_ctrl_c_while_a_batch_reads_commits_nothing_and_says_so(tmp_path: Path) -> None:
    use_java()
    put(tmp_path / "in", "a.json", 0, 5)
    # A task that is about to write its first file waits there until Spark ends it.
    stops = Stops(tmp_path / "stops", tmp_path / "t", [1], "pyspark.daemon pyspark.worker")
    terminal, other = pty.openpty()
    command = [sys.executable, "-m", "lazydelta.cli", "ingest", str(tmp_path / "in"), str(tmp_path / "t")]
    process = subprocess.Popen(
        [*command, "--timestamp-column", "ts", "--target-file-size", "1"],
        stdout=subprocess.PIPE,
        stderr=other,
        start_new_session=True,
        env=os.environ | stops.environment(),
    )
    os.close(other)
    try:
        stops.wait(1, lambda: process.poll() is None)
        process.send_signal(signal.SIGINT)
        said = _rest(terminal)
        out, _ = process.communicate(timeout=60)
    finally:
        stops.kill()
    assert (process.returncode, out) == (130, b"")
    assert b"interrupted: nothing was committed" in said
    assert b"Traceback" not in said
    assert not (tmp_path / "t" / "_delta_log").exists()


@on_its_own
def test_ctrl_c_ends_a_stream_and_the_same_command_goes_on(
    spark: SparkSession, spawn: Spawn, invoke: Invoke, tmp_path: Path
) -> None:
    put(tmp_path / "in", "0.json", 0, 5)
    command = ("ingest", tmp_path / "in", tmp_path / "t", "--timestamp-column", "ts", "--stream", "--json")
    first = spawn(*command)
    assert first.stdout is not None
    assert json.loads(first.stdout.readline())["rows"] == 5
    first.send_signal(signal.SIGINT)
    _, err = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "the same command goes on where this one stopped" in err.decode()
    assert "Traceback" not in err.decode()
    put(tmp_path / "in", "1.json", 5, 5)
    commits = [json.loads(each) for each in invoke(*command, "--trigger", "available-now").stdout.splitlines()]
    assert [each["rows"] for each in commits if not each["already_committed"]] == [5]
    assert numbers(tmp_path / "t") == list(range(10))


def _rest(terminal: int) -> bytes:
    said = b""
    while True:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # the other end was closed
            return said
        if not more:
            return said
        said += more

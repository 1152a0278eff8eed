"""``lazydelta sidecar watch``: beside a writer of delta-rs, for people and programs, until it is told to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import deltalake
import pytest
from click.testing import CliRunner

from lazydelta import DeltaTable
from lazydelta.cli.app import cli
from lazydelta.sidecar.format.columns import FOLDER
from tests.oracle.replay import replay
from tests.scan.hand_log import HandLog, add, watching

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "lazydelta.cli", "sidecar", "watch"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def run(*args: str | Path, code: int = 0) -> str:
    """Run the command to its end, and return what it prints."""
    result = CliRunner().invoke(cli, ["sidecar", "watch", *map(str, args)], prog_name="lazydelta")
    assert result.exit_code == code, result.output
    return result.output


def _log(table: Path, commits: int = 3) -> HandLog:
    log = HandLog(table)
    for number in range(commits):
        log.commit(add(f"f{number}", ids=(number, number)))
    return log


def _beside_a_writer(root: Path, commits: int) -> list[dict[str, Any]]:
    """Watch while delta-rs writes; return the looks up to the one at which all was in place."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.maintenance.deltalake_writer", str(root), str(commits)],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        text=True,
    )
    watch = subprocess.Popen(
        [*COMMAND, str(root), "--interval", "0.1", "--checksum", "--json"],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    looks: list[dict[str, Any]] = []
    with writer, watch:
        assert watch.stdout is not None
        assert writer.stdin is not None
        for line in watch.stdout:
            looks.append(json.loads(line))
            state = looks[-1]["metrics"]
            if state["sidecar_version"] == 9 and not writer.stdin.closed:
                writer.stdin.write("go on\n")
                writer.stdin.close()
            if state["version"] == commits - 1 == state["sidecar_version"] and _has_checksum(root, commits - 1):
                break
        watch.send_signal(signal.SIGINT)
        _, errors = watch.communicate(timeout=60)
        assert watch.returncode == 130
        assert errors.splitlines()[-1] == "interrupted"
        assert writer.wait(60) == 0
    return looks


def _has_checksum(root: Path, version: int) -> bool:
    return (root / "_delta_log" / f"{version:020}.crc").exists()


def _judge_beside_a_writer(root: Path, commits: int) -> None:
    looks = _beside_a_writer(root, commits)
    with watching() as seen:
        table = DeltaTable(root, options={"cache_size": 0, "checksum": "error"})
        assert table.version() == commits - 1
        # The hint, the listing, the checksum; on a remote store they are asked for together.
        assert seen.commits == 0
        assert seen.count(".checkpoint.") == 0
    stream = table.files()
    state = replay(root / "_delta_log")
    assert {file.path for file in stream} == {path for path, _ in state.files}
    assert stream.metrics.tier == 1
    checksum = json.loads((root / "_delta_log" / f"{commits - 1:020}.crc").read_text())
    assert checksum["numFiles"] == len(state.files)
    assert deltalake.DeltaTable(root).version() == commits - 1
    last = looks[-1]["metrics"]
    early = sum("There is no Delta table" in (look["error"] or "") for look in looks)  # the writer starts slowly
    assert last["failures"] == early
    assert last["lag_ms"] >= 0
    assert last["builds"] >= 1


def test_beside_a_writer_of_delta_rs_tables_end_at_tier_1_and_open_without_reading_the_tail(tmp_path: Path) -> None:
    _judge_beside_a_writer(tmp_path / "t", 40)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_beside_a_writer_of_delta_rs_for_a_thousand_commits(tmp_path: Path) -> None:
    _judge_beside_a_writer(tmp_path / "t", 1000)


def test_a_tail_that_nobody_checkpoints_is_opened_without_reading_it(tmp_path: Path) -> None:
    """The writer's own checkpoint lies behind; what the watch adds is the checksum at the head."""
    log = _log(tmp_path / "t")
    log.checkpoint()
    for number in range(15):
        log.commit(add(f"tail{number}"))
    run(log.table, "--once", "--checksum")
    with watching() as seen:
        assert DeltaTable(log.table, options={"cache_size": 0}).version() == 17
    assert (seen.commits, seen.count(".crc")) == (0, 1)


def test_once_says_what_was_done_and_then_that_there_is_nothing_to_do(tmp_path: Path) -> None:
    log = _log(tmp_path / "t", 4)
    assert "there is no checkpoint yet" in run(log.table, "--once")
    done = run(log.table, "--once", "--checkpoint", "4", "--checksum")
    assert "checkpoint 3 written, sidecar 3 built in " in done
    assert done.endswith("; 0 commits behind version 3\n")
    assert "nothing to do; 0 commits behind version 3" in run(log.table, "--once")


def test_dry_run_tells_and_changes_nothing(tmp_path: Path) -> None:
    log = _log(tmp_path / "t", 4)
    before = sorted(log.table.rglob("*"))
    told = run(log.table, "--dry-run", "--checkpoint", "2", "--checksum")
    assert told.endswith(": would write checkpoint 3, bring the sidecar to it, write the checksum at the head\n")
    found = json.loads(run(log.table, "--dry-run", "--json"))
    assert (found["version"], found["checkpoint"], found["sidecar"], found["checksum"]) == (3, False, False, False)
    assert sorted(log.table.rglob("*")) == before


def test_json_has_a_line_for_each_table(tmp_path: Path) -> None:
    tables = [_log(tmp_path / name) for name in "ab"]
    for each in tables:
        each.checkpoint()
    looks = [json.loads(line) for line in run(*(each.table for each in tables), "--once", "--json").splitlines()]
    assert [Path(look["table"].removeprefix("file://")).name for look in looks] == ["a", "b"]
    assert [look["built"]["version"] for look in looks] == [2, 2]
    assert looks[0]["metrics"]["lag_commits"] == 0


def test_once_ends_with_two_where_a_table_failed_and_serves_the_others(tmp_path: Path) -> None:
    log = _log(tmp_path / "t")
    log.checkpoint()
    output = run(tmp_path / "none", log.table, "--once", code=2)
    assert "There is no Delta table" in output
    assert list((log.table / FOLDER).iterdir())


def test_a_secret_that_slipped_is_not_repeated(tmp_path: Path) -> None:
    output = run(tmp_path, "--once", "--storage-option", "key=a", "=", "hunter2", code=2)
    assert "hunter2" not in output


_HELD = """
import sys, time
from lazydelta.cli.app import main
from lazydelta.storage import observe
def hold(request):
    if request.verb == "PUT" and "_sidecars" in request.path and request.path.endswith(".json"):
        print("now", flush=True)
        time.sleep(60)
with observe(hold):
    main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_build_ends_it_and_the_next_watch_completes_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    log = _log(tmp_path / "t")
    log.checkpoint()
    command = [sys.executable, "-c", _HELD, "sidecar", "watch", str(log.table)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"now\n"
        child.send_signal(number)
        _, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (128 + number, b"interrupted\n")
    assert not list((log.table / FOLDER).glob("*.json"))
    run(log.table, "--once")
    stream = DeltaTable(log.table, options={"cache_size": 0}).files()
    assert len(stream.collect()) == 3
    assert stream.metrics.tier == 1

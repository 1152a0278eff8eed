"""``lazydelta sidecar …``: what it prints, for people and for programs, and how it ends."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lazydelta.cli.app import cli
from lazydelta.sidecar.format.columns import FOLDER
from tests.scan.hand_log import HandLog
from tests.sidecar.conftest import Split
from tests.sidecar.refreshed import COLUMNS, HOURS, Hourly, file_in, gone_from

sidecar = importlib.import_module("lazydelta.cli.sidecar")
DEBRIS = f"{FOLDER}/v0-016ae953-37a9-438e-8683-9a9a4a79a395-1.parquet"


def run(command: str, *args: str | Path, code: int = 0) -> str:
    """Run a command of the group and return what it prints."""
    result = CliRunner().invoke(cli, ["sidecar", command, *map(str, args)], prog_name="lazydelta")
    assert result.exit_code == code, result.output
    return result.output


def run_json(command: str, *args: str | Path, code: int = 0) -> Any:
    """Run a command of the group for programs and return the document."""
    return json.loads(run(command, *args, "--json", code=code))


@pytest.fixture
def hourly(tmp_path: Path, split: Split) -> Hourly:
    """Return a table whose sidecar has ten parts of four row groups."""
    return Hourly(tmp_path / "t", split)


def test_build_says_what_it_did(hourly: Hourly) -> None:
    uri = hourly.place.uri
    run("drop", uri)
    assert run("build", uri).startswith("The sidecar of version 0 was built: 200 files in 10 parts, ")
    assert "is there and valid" in run("build", uri)
    found = run_json("build", uri, "--version", "0")
    assert (found["action"], found["num_files"], found["num_parts"]) == ("already-valid", 200, 10)


def test_build_sorts_by_what_is_asked_for(hourly: Hourly) -> None:
    run("drop", hourly.place.uri)
    run("build", hourly.place.uri, "--sort-by", "hour, id", "--memory", "16")
    assert run_json("show", hourly.place.uri)["sort"] == ["hour", "id"]
    assert run_json("verify", hourly.place.uri)["ok"]


def test_refresh_says_what_it_used_again_or_why_not(hourly: Hourly) -> None:
    hourly.log.commit(gone_from(HOURS[7], 75))
    hourly.log.checkpoint()
    lines = run("refresh", hourly.place.uri).splitlines()
    assert lines[0].startswith("The sidecar of version 1 was refreshed: 199 files in 10 parts")
    assert lines[1] == "9 parts used again, 1 part written"
    hourly.log.columns["new"] = "long"
    hourly.log.commit(hourly.log.metadata())
    hourly.log.checkpoint()
    assert "Everything was built anew: " in run("refresh", hourly.place.uri)


def test_verify_ends_with_one_where_the_sidecar_differs(hourly: Hourly) -> None:
    uri = hourly.place.uri
    assert "equals the log: 200 files, 19 columns, 40 row groups in 10 parts" in run("verify", uri)
    path = hourly.parts()[2]
    data = bytearray(hourly.place.store.get(path))
    data[len(data) // 3] ^= 1
    hourly.place.store.put(path, bytes(data))
    output = run("verify", uri, code=1)
    assert path in output
    assert output.endswith("The sidecar of version 0 does not equal the log.\n")
    assert run_json("verify", uri, code=1)["ok"] is False
    run("drop", uri)
    assert run("verify", uri, code=1) == "there is no sidecar of version 0\n"


def test_show_draws_every_row_group_on_the_axis_of_time(hourly: Hourly) -> None:
    lines = run("show", hourly.place.uri).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("part/group"))
    bars = lines[start + 1 : start + 41]
    assert [bar.split()[0] for bar in bars] == [f"{part}/{group}" for part in range(1, 11) for group in range(4)]
    begins = [bar.index("█") for bar in bars]
    assert begins == sorted(begins)
    assert len(set(begins)) == 20  # as many places as hours
    assert lines[start + 41].split() == [HOURS[0], HOURS[-1]]


def test_show_draws_parts_where_there_are_many_row_groups(hourly: Hourly, split: Split) -> None:
    split(2, 10)
    run("drop", hourly.place.uri)
    run("build", hourly.place.uri)
    lines = run("show", hourly.place.uri).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("part "))
    assert [line.split()[0] for line in lines[start + 1 : start + 11]] == [str(number) for number in range(1, 11)]
    assert sum("█" in line for line in run("show", hourly.place.uri, "--all").splitlines()) == 100


def test_show_marks_files_without_a_value_and_tells_when_the_sidecar_is_stale(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", COLUMNS, partitions=["hour"])
    log.commit(*(file_in(hour, number) for number, hour in enumerate([None, "x", "y/\x1b[31m"])))
    log.checkpoint()
    run("build", tmp_path / "t")
    log.commit(file_in("z", 9))
    log.checkpoint()
    output = run("show", tmp_path / "t")
    assert "0 (stale: the newest checkpoint is 1)" in output
    assert "+ holds files without hour" in output
    assert "\x1b" not in output


def test_show_as_json_has_the_ranges_of_every_row_group(hourly: Hourly) -> None:
    found = run_json("show", hourly.place.uri)
    assert (found["version"], found["checkpoint_version"], found["tier"], found["num_row_groups"]) == (0, 0, 1, 40)
    assert [len(part["row_groups"]) for part in found["parts"]] == [4] * 10
    group = found["parts"][3]["row_groups"][2]
    assert (group["min"], group["max"], group["num_rows"]) == (HOURS[7], HOURS[7], 5)
    assert group["ranges"]["id"] == {"min": "70", "max": "79"}


def test_show_without_a_sidecar_is_an_error_that_helps(hourly: Hourly) -> None:
    run("drop", hourly.place.uri)
    output = run("show", hourly.place.uri, code=2)
    assert "has no sidecar (`lazydelta sidecar build` makes one)" in output


def test_an_empty_sidecar_is_shown(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", COLUMNS, partitions=["hour"])
    log.commit()
    log.checkpoint()
    run("build", tmp_path / "t")
    assert run("show", tmp_path / "t").endswith("no files, nothing to draw\n")
    assert run_json("verify", tmp_path / "t")["ok"]


def test_clean_lists_what_it_deletes(hourly: Hourly) -> None:
    hourly.place.store.put(DEBRIS, b"debris")
    assert run("clean", hourly.place.uri) == "0 files deleted, 0 B; versions with a sidecar: 0\n"
    output = run("clean", hourly.place.uri, "--grace-hours", "0", "--dry-run")
    assert output == f"{DEBRIS}\n1 file would be deleted, 6 B; versions with a sidecar: 0\n"
    found = run_json("clean", hourly.place.uri, "--grace-hours", "0")
    assert (found["deleted"], found["kept_versions"], found["dry_run"]) == ([DEBRIS], [0], False)


def test_drop_deletes_all_and_dry_run_nothing(hourly: Hourly) -> None:
    before = hourly.place.sidecars()
    assert len(run_json("drop", hourly.place.uri, "--dry-run")["deleted"]) == 12
    assert hourly.place.sidecars() == before
    assert run("drop", hourly.place.uri).endswith("versions with a sidecar: none\n")
    assert hourly.place.sidecars() == []


@pytest.mark.parametrize("command", ["build", "refresh", "verify", "show", "clean"])
def test_no_table_is_one_line_and_code_two(command: str, tmp_path: Path) -> None:
    output = run(command, tmp_path / "nothing", code=2)
    assert output.startswith("error: ")
    assert output.count("\n") == 1


def test_a_secret_that_slipped_is_not_repeated(hourly: Hourly) -> None:
    output = run("show", hourly.place.uri, "--storage-option", "key=a", "=", "hunter2", code=2)
    assert "hunter2" not in output


_INTERRUPTED = """
import importlib, sys, time
from lazydelta.cli.app import main
from lazydelta.sidecar.format import part_file
from lazydelta.storage import observe
part_file.ROWS_PER_GROUP = 5
importlib.import_module("lazydelta.sidecar.building.plan").PART_ROWS = 20
seen = []
def third_write(request):
    if request.verb == "PUT":
        seen.append(request)
        if len(seen) == 3:
            print("now", flush=True)
            time.sleep(60)
with observe(third_write):
    main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_build_at_once_and_takes_its_parts_with_it(hourly: Hourly, number: signal.Signals) -> None:
    run("drop", hourly.place.uri)
    command = [sys.executable, "-c", _INTERRUPTED, "sidecar", "build", hourly.place.uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"now\n"
        child.send_signal(number)
        _, errors = child.communicate(timeout=30)
    assert (child.returncode, errors) == (128 + number, b"interrupted\n")
    assert hourly.place.sidecars() == []


def test_a_dry_run_of_a_build_tells_what_would_be_done_and_does_nothing(hourly: Hourly) -> None:
    uri = hourly.place.uri
    assert run("build", uri, "--dry-run").startswith("The sidecar of version 0 is there; it would be read")
    run("drop", uri)
    lines = run("build", uri, "--dry-run").splitlines()
    assert lines[0] == "The sidecar of version 0 would be built, in this process, sorted by hour"
    assert lines[1].startswith("Its checkpoint has 202 actions, ")
    assert hourly.place.sidecars() == []
    found = run_json("build", uri, "--dry-run", "--engine", "spark", "--sort-by", "id")
    assert (found["engine"], found["action"], found["sort"], found["actions"]) == ("spark", "build", ["id"], 202)


def test_the_engine_is_chosen_by_size_where_there_is_a_cluster(hourly: Hourly, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = hourly.place.uri
    asked = [uri, "--dry-run", "--master", "spark://nowhere:7077"]
    assert run_json("build", *asked)["engine"] == "local"
    monkeypatch.setattr(sidecar, "MANY_FILES", 200)
    assert run_json("build", *asked)["engine"] == "spark"
    assert run_json("build", uri, "--dry-run")["engine"] == "local"
    assert "cannot be used with --engine local" in run("build", *asked, "--engine", "local", code=2)

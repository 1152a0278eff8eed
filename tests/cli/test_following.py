"""``files --follow``: looked at through what it prints, with a writer between its lines."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from lazydelta import DeltaTable
from lazydelta.cli.table_commands import followed
from tests.scan.hand_log import HandLog, add, remove

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Invoke, Spawn


def test_versions_are_printed_as_they_come_until_ctrl_c(spawn: Spawn, tmp_path: Path) -> None:
    """Each line is waited for before the next version is written, so that nothing depends on how quick anybody is."""
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    process = spawn("files", log.table, "--follow", "--since", "-1", "--interval", "0.01", "--json")
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert [each["action"] for each in seen] == ["protocol", "metaData", "add"]
    for name in "bc":
        log.commit(remove("a"), add(name))
        seen = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [(each["version"], each["action"], each["path"]) for each in seen] == [
            (log.version, "remove", "a"),
            (log.version, "add", name),
        ]
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate()
    assert (process.returncode, rest, stderr) == (130, b"", b"interrupted\n")


def test_nothing_is_printed_twice_and_each_look_is_counted(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    looks = 0

    def wait(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks % 2:  # every other look finds nothing new
            log.commit(add(f"f{looks}"))
            log.commit(add(f"g{looks}"))

    found = [
        each["path"] for some in followed(DeltaTable(log.table), None, interval=0, limit=6, wait=wait) for each in some
    ]
    assert found == ["f1", "g1", "f3", "g3", "f5", "g5"]
    assert looks == 5


@pytest.mark.parametrize("more", [["--where", "id = 1"], ["--newest", "3"], ["--uris"], ["--version", "0"]])
def test_what_shapes_a_scan_makes_no_sense_beside_follow(invoke: Invoke, tmp_path: Path, more: list[str]) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    assert "--follow shows every change" in invoke("files", log.table, "--follow", *more, code=2).output
    assert "--since requires --follow" in invoke("files", log.table, "--since", "0", code=2).output


def test_people_see_a_line_a_change(invoke: Invoke, tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    moved = add("b")
    moved["add"]["dataChange"] = False
    log.commit(remove("a"), moved)
    lines = invoke("files", log.table, "--follow", "--since", "0", "--limit", "2").output.splitlines()
    assert lines[0].split() == ["version", "committed", "(UTC)", "action", "size", "path"]
    assert lines[1].split()[0] == "1"
    assert lines[1].endswith("a")
    assert lines[2].endswith("b  (moved)")


def test_a_version_that_is_not_there_yet_ends_it_with_the_reason(invoke: Invoke, tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    assert "does not exist yet" in invoke("files", log.table, "--follow", "--since", "7", code=2).output

"""The command as the shell sees it: pipes, signals, encodings, terminals."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lazydelta.cli.output import JsonOutput
from lazydelta.errors import StorageError
from lazydelta.storage.store import Request, observe

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from tests.cli.conftest import Invoke, Spawn


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_reader_that_has_enough_ends_the_scan_quietly(spawn: Spawn, long_table: Path, as_json: list[str]) -> None:
    process = spawn("files", long_table, *as_json)
    assert process.stdout is not None
    assert process.stderr is not None
    first = [process.stdout.readline() for _ in range(3)]
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0
    assert stderr == b""
    assert all(first)


@pytest.mark.parametrize("command", ["info", "history", "explain"])
def test_a_reader_that_reads_nothing_is_no_error(spawn: Spawn, table: Path, command: str) -> None:
    process = spawn(command, table)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), stderr) == (0, b"")


@pytest.mark.parametrize(("number", "as_json"), [(signal.SIGINT, []), (signal.SIGTERM, ["--json"])])
def test_a_signal_ends_the_scan_with_one_line_and_its_code(
    spawn: Spawn, long_table: Path, number: signal.Signals, as_json: list[str]
) -> None:
    process = spawn("files", long_table, *as_json)
    assert process.stdout is not None
    process.stdout.readline()
    # The pipe is full or filling by now and the scan far from its end.
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == 128 + number
    assert stderr == b"interrupted\n"


def test_ctrl_c_that_also_ended_the_reader_is_no_more_than_that_line(spawn: Spawn, long_table: Path) -> None:
    process = spawn("files", long_table)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    # Both end by one keystroke; which of the two endings the command sees first is up to the system.
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), stderr) in [(130, b"interrupted\n"), (0, b"")]


@pytest.mark.parametrize("error", [RuntimeError("release unlocked lock"), StorageError("the request was dropped")])
def test_an_error_that_ctrl_c_led_to_is_ctrl_c(
    invoke: Invoke, table: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """So it is in CPython, where an interrupt inside Thread.start() ends in an error of the lock."""

    def interrupted(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise error

    monkeypatch.setattr(JsonOutput, "_lines", interrupted)
    result = invoke("files", table, "--json", code=130)
    assert result.stderr == "interrupted\n"


def test_the_first_file_is_printed_before_the_base_is_read(
    invoke: Invoke, long_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is watched: when the checkpoint's files are asked for, those of the tail are out already."""
    printed: list[int] = []
    at_checkpoint: list[int] = []
    original = JsonOutput._lines

    def counted(self: JsonOutput, batch: Iterator[dict[str, object]]) -> None:
        records = list(batch)
        original(self, records)
        printed.append(len(records))

    def watch(request: Request) -> None:
        if request.verb == "GET" and "checkpoint.parquet" in request.path and printed:
            at_checkpoint.append(sum(printed))

    monkeypatch.setattr(JsonOutput, "_lines", counted)
    with observe(watch):
        invoke("files", long_table, "--json", "--strategy", "reverse", "--limit", "25")
    assert at_checkpoint
    assert min(at_checkpoint) > 0
    assert sum(printed) == 25


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", [["files"], ["files", "--json"], ["info"], ["rows"], ["history", "--json"]])
def test_an_output_that_cannot_be_written_is_an_error_and_no_bug(table: Path, command: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        line = [sys.executable, "-m", "lazydelta.cli", command[0], str(table), *command[1:]]
        process = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, check=False)
    assert process.returncode == 2
    assert process.stderr == (
        b"error: The output cannot be written: No space left on device (make room, or send it elsewhere)\n"
    )


def test_an_ascii_terminal_shows_odd_paths_escaped(spawn: Spawn, tmp_path: Path) -> None:
    table = tmp_path / "größe"
    _table_with_odd_paths(table)
    process = spawn("files", table, "--uris", PYTHONIOENCODING="ascii:strict", PYTHONUTF8="0")
    stdout, stderr = process.communicate()
    assert (process.returncode, stderr) == (0, b"")
    assert b"gr\\xf6\\xdfe" in stdout
    assert b"\\x1b[31mred" in stdout
    assert b"\x1b" not in stdout


def test_json_is_ascii_whatever_the_terminal(spawn: Spawn, tmp_path: Path) -> None:
    table = tmp_path / "größe"
    _table_with_odd_paths(table)
    process = spawn("files", table, "--uris", "--json", PYTHONIOENCODING="latin-1")
    stdout, _ = process.communicate()
    files = [json.loads(line) for line in stdout.decode("ascii").splitlines()]
    assert sorted(file["uri"].rpartition("/")[2] for file in files) == ["\x1b[31mred.parquet", "größe 雪.parquet"]


def test_a_uri_that_is_no_text_is_an_error_in_one_line(spawn: Spawn) -> None:
    process = spawn("info", os.fsdecode(b"/nowhere/\xff\xfe"))
    _, stderr = process.communicate()
    assert process.returncode == 2
    assert stderr == (
        b"error: The URI /nowhere/\\udcff\\udcfe is not valid Unicode "
        b"(rename the folder, or check the terminal's encoding)\n"
    )


_CLOCK = "import types, lazydelta.cli.console as progress; progress.time = types.SimpleNamespace(monotonic={})\n"


def test_on_a_terminal_a_long_scan_shows_its_progress() -> None:
    """Each look at the clock finds it 0.4 seconds later; results come when the line was shown twice."""
    program = _CLOCK.format("lambda ticks=__import__('itertools').count(): 0.4 * next(ticks)") + (
        "import threading\n"
        "from lazydelta.cli.console import ConsoleOutput\n"
        "out = ConsoleOutput()\n"
        "asked = threading.Semaphore(0)\n"
        "with out.watch(lambda: asked.release() or '7 files found'):\n"
        "    asked.acquire(); asked.acquire()\n"
        "    out.files([[{'path': 'p', 'size': 1, 'modification_time': 0, 'version': 1, 'partition_values': {}}]])\n"
    )
    shown, out = _with_terminal_for_errors([sys.executable, "-c", program])
    # Not before a second is over: 0.4 and 0.8 are not shown.
    assert "7 files found, 1.2 s" in shown
    assert "7 files found, 0" not in shown
    # The line is taken away before a result is printed: what follows the last text is an erased line.
    assert shown.endswith("\r\x1b[2K")
    assert out.splitlines()[1].split()[-1] == b"p"


def test_a_long_query_shows_its_progress() -> None:
    """The query begins when the line was shown; each look at the clock finds it 0.4 seconds later."""
    program = _CLOCK.format("lambda ticks=__import__('itertools').count(): 0.4 * next(ticks)") + (
        "import threading, lazydelta.cli.query as query\n"
        "shown, paced, asked = threading.Event(), progress.paced, query.Question.asked\n"
        "progress.paced = lambda *told: (shown.set(), paced(*told))[1]\n"
        "query.Question.asked = lambda self, **options: (shown.wait(30), asked(self, **options))[1]\n"
        "from lazydelta.cli.app import main; main()\n"
    )
    shown, out = _with_terminal_for_errors([sys.executable, "-c", program, "query", "select 1 as n"])
    assert "the query runs, 1.2 s" in shown
    assert out.split() == [b"n", b"1"]


_LONG = {
    "history": ("lazydelta.log.time_travel", "commit_info", ["history"], " versions read, 1."),
    "doctor": ("lazydelta.maintenance.doctor", "check_writable", ["doctor"], " files examined, 1."),
    "explain": ("lazydelta.scan.stream.FileStream", "batches", ["explain"], "0 files found, 0 tail commits read, 1."),
    "files as CSV": ("lazydelta.scan.stream.FileStream", "batches", ["files", "--csv"], " files found, "),
    "paths": ("lazydelta.scan.stream.FileStream", "batches", ["files", "--paths"], " files found, "),
    "rows as CSV": ("lazydelta.cli.table_commands", "write_csv", ["rows", "--csv"], "0 rows found, 1."),
    "a query as CSV": (
        "lazydelta.cli.query",
        "write_csv",
        ["query", "--csv", "select 1 as n"],
        "(the query runs|0 rows found), ",
    ),
}


@pytest.mark.parametrize("case", _LONG)
@pytest.mark.parametrize("as_json", [False, True])
def test_every_long_command_shows_its_progress(table: Path, case: str, *, as_json: bool) -> None:
    """The slow function waits until the line was shown, or with --json half a second, in which none may appear."""
    home, slow, words, told = _LONG[case]
    if as_json and {"--csv", "--paths"} & {*words}:
        pytest.skip("--json excludes this form")
    words = [*words[:1], str(table), *words[1:]] if words[0] != "query" else words
    program = _CLOCK.format("lambda ticks=__import__('itertools').count(): 0.4 * next(ticks)") + (
        "import pkgutil, threading\n"
        f"home = pkgutil.resolve_name({home!r})\n"
        f"shown, paced, work = threading.Event(), progress.paced, getattr(home, {slow!r})\n"
        "progress.paced = lambda *told: (shown.set(), paced(*told))[1]\n"
        f"setattr(home, {slow!r}, lambda *a, **b: (shown.wait({0.5 if as_json else 30}), work(*a, **b))[1])\n"
        "from lazydelta.cli.app import main; main()\n"
    )
    shown, out = _with_terminal_for_errors(
        [sys.executable, "-c", program, *words, *(["--json"] if as_json else [])], codes={0, 1}
    )
    assert out
    if as_json:
        assert shown == ""
    else:
        assert re.search(told, shown)
        assert shown.endswith("\r\x1b[2K")


def test_a_short_scan_shows_no_progress(table: Path) -> None:
    program = _CLOCK.format("lambda: 0.0") + "from lazydelta.cli.app import main; main()"  # it takes no time at all
    shown, out = _with_terminal_for_errors([sys.executable, "-c", program, "files", str(table)])
    assert shown == ""
    assert len(out.splitlines()) == 7


def _with_terminal_for_errors(command: list[str], codes: Container[int] = (0,)) -> tuple[str, bytes]:
    ours, theirs = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "FORCE_COLOR"}} | {
        "TERM": "xterm"
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            ready, _, _ = select.select([ours], [], [], 0.2)
            if not ready:
                continue
            try:
                piece = os.read(ours, 4096)
            except OSError:  # Linux says EIO when the other side is closed
                break
            if not piece:
                break
            shown += piece
        assert process.stdout is not None
        out = process.stdout.read()
    os.close(ours)
    assert process.returncode in codes, shown
    return shown.decode(), out


def _table_with_odd_paths(path: Path) -> None:
    log = path / "_delta_log"
    log.mkdir(parents=True)
    schema = {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]}
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "odd",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": [],
                "configuration": {},
            }
        },
        *(
            {"add": {"path": name, "size": 1, "modificationTime": 0, "partitionValues": {}, "dataChange": True}}
            for name in ("%1B%5B31mred.parquet", "gr%C3%B6%C3%9Fe%20%E9%9B%AA.parquet")
        ),
    ]
    (log / f"{0:020}.json").write_text("\n".join(json.dumps(action) for action in actions), encoding="utf-8")


def test_children_of_a_suite_in_the_background_hear_ctrl_c() -> None:
    """As every test of signals needs it; the shell here ignores it, as one does for what it starts with ``&``."""
    child = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    suite = "import subprocess, sys; from tests.support import give_children_default_signals as give; "
    asked = f"subprocess.run([sys.executable, '-c', {child!r}], check=True); "
    command = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", f"{suite}{asked}give(); {asked}"]
    found = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True"]

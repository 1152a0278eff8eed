"""The shell, line by line: without a terminal, in a terminal of its own, and over a server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pexpect
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from lazydelta import write_arrow
from lazydelta.cli.app import cli
from lazydelta.cli.shell import Server, Session, is_kql
from tests.server.flight_sql_server import serving


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a table of six rows."""
    path = tmp_path_factory.mktemp("shell") / "events"
    write_arrow(path, pa.table({"device": list("aabbbc"), "n": list(range(6))}))
    return path


def _lines(table: Path, *lines: str, code: int = 0) -> Result:
    found = CliRunner().invoke(cli, ["shell", str(table), f"e={table}"], input="".join(f"{line}\n" for line in lines))
    assert found.exit_code == code, found.output
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select 1", False),
        ("  FROM t", False),
        ("(select 1)", False),
        ("describe t", False),
        ("T | count", True),
        ("let x = 1; T | take x", True),
        ("print 1", True),
    ],
)
def test_a_query_that_begins_like_sql_is_sql(text: str, *, expected: bool) -> None:
    assert is_kql(text) is expected


def test_lines_of_sql_and_kql_are_answered_in_their_order(table: Path) -> None:
    found = _lines(table, ".mode csv", "select sum(n) as s from events;", "e | where n > 3 | count", "", "-- nothing")
    assert found.stdout == "s\n15\nCount\n2\n"


def test_a_line_may_go_on(table: Path) -> None:
    found = _lines(table, ".mode json", "select device, count(*) as c \\", "from e group by 1 order by 1 \\", "limit 1")
    assert json.loads(found.stdout) == {"device": "a", "c": 2}


def test_commands_show_tables_columns_plans_and_bars(table: Path) -> None:
    assert _lines(table, ".tables").stdout == "e\nevents\n"
    assert _lines(table, ".schema e").stdout == "e\n  device  string\n  n  int64\n"
    explained = json.loads(_lines(table, ".explain select n from e where n > 4").stdout)
    assert explained[0]["plan"]["predicate"] == "n > 4"
    drawn = _lines(table, ".mode csv", "e | summarize c = count() by device | order by device asc", ".render").stdout
    assert drawn.splitlines()[-3:] == [f"a  {'█' * 27} 2", f"b  {'█' * 40} 3", f"c  {'█' * 13} 1"]
    assert ".explain" in _lines(table, ".help").stdout


def test_an_error_is_a_line_and_the_session_goes_on(table: Path) -> None:
    found = _lines(table, "select * from nope", ".nope", ".schema nope", ".render", ".mode csv", "select 1 as x")
    assert found.stdout.endswith("x\n1\n")
    errors = found.stderr.splitlines()
    assert len(errors) == 4
    assert all(each.startswith("error: ") for each in errors)
    assert "known tables: e, events" in errors[0]


def test_quit_ends_it(table: Path) -> None:
    assert _lines(table, ".quit", "select 1").stdout == ""


@pytest.mark.parametrize("arguments", [[], ["./2026.d/"], ["x=a", "--server", "grpc://localhost:1"]])
def test_what_cannot_be_opened_is_told(arguments: list[str]) -> None:
    found = CliRunner().invoke(cli, ["shell", *arguments])
    assert found.exit_code == 2
    assert found.stderr.startswith("error: ")


def test_a_terminal_has_a_prompt_history_and_timing(table: Path, tmp_path: Path) -> None:
    environment: Any = {"XDG_STATE_HOME": str(tmp_path), "TERM": "dumb", "PATH": "", "PYTHONIOENCODING": "utf-8"}
    command = ["-m", "lazydelta.cli", "shell", f"e={table}"]
    child = pexpect.spawn(sys.executable, command, env=environment, encoding="utf-8", timeout=120, dimensions=(40, 120))
    child.expect("lazydelta> ")
    child.sendline("select sum(n) as total from e")
    child.expect("15")
    child.expect(r"\d+\.\d\d s")
    child.expect("lazydelta> ")
    child.sendline(".quit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert "select sum(n) as total from e" in (tmp_path / "lazydelta" / "history").read_text()


def test_a_server_answers_too(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"events": str(table)}) as server:
        source = Server(f"grpc://127.0.0.1:{server.port}", None)
        session = Session(source, is_terminal=False)
        for line in (".mode csv", ".tables", ".schema events", "select sum(n) as s from events", "events | count"):
            assert session.run(line)
        source.close()
    shown = capsys.readouterr().out
    assert shown.startswith("events\nevents\n  device  VARCHAR\n")
    assert shown.endswith("s\n15\nCount\n6\n")

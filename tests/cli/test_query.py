"""``lazydelta query``: SQL on the command line."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from lazydelta.cli.app import cli
from lazydelta.cli.console import _narrowed
from lazydelta.cli.query import Background
from tests.rows.made_table import make_rich_table, make_table
from tests.rows.watching import no_threads_are_left, watch

if TYPE_CHECKING:
    from tests.cli.conftest import Invoke, Spawn


def test_rows_in_every_form_are_the_same(invoke: Invoke, tmp_path: Path) -> None:
    made = make_table(tmp_path / "t", files=3, rows=10)
    ask = ["query", "SELECT id, part, text FROM t WHERE id >= 25 ORDER BY id", "--table", f"t={made.uri}"]
    expected = made.rows[25:]
    lines = invoke(*ask, "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == expected
    cells = list(csv.DictReader(io.StringIO(invoke(*ask, "--csv").stdout)))
    assert [{"id": int(row["id"]), "part": int(row["part"]), "text": row["text"]} for row in cells] == expected
    invoke(*ask, "--parquet", tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == expected
    assert [each.name for each in tmp_path.iterdir() if "unfinished" in each.name] == []
    result = CliRunner().invoke(cli, [*ask, "--arrow"])
    assert pa.ipc.open_stream(result.stdout_bytes).read_all().to_pylist() == expected
    shown = invoke(*ask).stdout.splitlines()
    assert shown[0].split() == ["id", "part", "text"]
    assert [int(line.split()[0]) for line in shown[1:]] == [row["id"] for row in expected]


def test_tables_may_be_named_in_place_by_option_by_catalog_and_in_a_file(invoke: Invoke, tmp_path: Path) -> None:
    one = make_table(tmp_path / "one", files=1, rows=4)
    two = make_table(tmp_path / "two", files=2, rows=3)
    (tmp_path / "catalog.toml").write_text(f'[tables]\nTwo = "{two.uri}"\nunused = "{tmp_path}/nothing"\n')
    (tmp_path / "query.sql").write_text(
        f"SELECT count(*) AS c FROM delta('{one.uri}') AS a JOIN two USING (id) JOIN three USING (id)"
    )
    given: list[str | Path] = ["--file", tmp_path / "query.sql", "--catalog", tmp_path / "catalog.toml"]
    given += ["--table", f"three={one.uri}"]
    assert json.loads(invoke("query", *given, "--json").stdout) == {"c": 4}


def test_columns_of_the_same_name_are_told_apart(invoke: Invoke) -> None:
    sql = "SELECT 1 AS a, 2 AS a_1, 3 AS a, 4 AS a"
    assert json.loads(invoke("query", sql, "--json").stdout) == {"a": 1, "a_1": 2, "a_2": 3, "a_3": 4}
    assert invoke("query", sql).stdout.split() == ["a", "a_1", "a_2", "a_3", "1", "2", "3", "4"]


def test_nested_values_are_json_in_csv(invoke: Invoke, tmp_path: Path) -> None:
    made = make_rich_table(tmp_path / "t", seed=5, files=2, rows=20)
    text = invoke("query", f"SELECT tags, x FROM delta('{made.uri}') ORDER BY id", "--csv").stdout
    found = [json.loads(row["tags"]) if row["tags"] else None for row in csv.DictReader(io.StringIO(text))]
    assert found == [row["tags"] for row in sorted(made.rows, key=lambda row: row["id"])]


def test_explain_shows_what_was_pushed_pruned_and_read(invoke: Invoke, tmp_path: Path) -> None:
    made = make_table(tmp_path / "t", files=4, rows=100, group=10)
    ask = ["query", f"SELECT text FROM delta('{made.uri}') WHERE id >= 150 AND id < 160", "--explain"]
    (scan,) = json.loads(invoke(*ask, "--json").stdout)
    assert scan["plan"]["columns"] == ["text"]
    assert scan["metrics"]["delta.lazy.files_pruned"] == 3
    assert (scan["rows"]["row_groups_read"], scan["rows"]["row_groups_pruned"]) == (1, 9)
    shown = invoke(*ask).stdout
    assert "row groups: 1 read, 9 pruned by footers" in shown
    assert "filter pushed down: (id >= 150 AND id < 160)" in shown


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["SELECT nothing FROM nowhere"], "nowhere"),
        (["DROP TABLE x"], "it is not a SELECT"),
        (["SELECT * FROM delta('/no/table/here')"], "/no/table/here"),
        (["SELECT 1", "--catalog", "missing.toml"], "missing.toml"),
        (["--file", "missing.sql"], "missing.sql"),
        ([], "Pass the query"),
        (["SELECT 1", "--csv", "--json"], "are mutually exclusive"),
        (["SELECT 1", "--parquet", "/no/folder/x.parquet"], "cannot be written"),
    ],
)
def test_what_goes_wrong_is_one_line_and_code_2(invoke: Invoke, arguments: list[str], what: str) -> None:
    result = invoke("query", *arguments, code=2)
    assert what in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_limit_opens_no_more_files_than_it_takes(invoke: Invoke, tmp_path: Path) -> None:
    made = make_table(tmp_path / "t", files=40, rows=100)
    with watch() as watched:
        invoke("query", f"SELECT * FROM delta('{made.uri}') LIMIT 10")
    assert len(watched.files) <= 3
    assert no_threads_are_left()


@pytest.mark.parametrize(
    ("sql", "code", "errors"), [("SELECT 1", 0, 0), ("SELECT nothing", 2, 1), ("SELECT error('x')", 2, 1)]
)
def test_a_query_that_ends_leaves_nothing_for_the_interpreter_to_complain_of(
    spawn: Spawn, sql: str, code: int, errors: int
) -> None:
    """A thread that still held DuckDB's objects at exit would make DuckDB list all of them."""
    process = spawn("query", sql)
    _, stderr = process.communicate()
    assert process.returncode == code
    assert len(stderr.splitlines()) == errors, stderr


def test_ctrl_c_ends_a_query_with_one_line_and_no_file(spawn: Spawn, tmp_path: Path) -> None:
    made = make_table(tmp_path / "t", files=4, rows=2000)
    sql = f"SELECT a.text, b.text FROM delta('{made.uri}') AS a, delta('{made.uri}') AS b"
    process = spawn("query", sql, "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr == b"interrupted\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["t"]


# Says that the query has begun once the process has computed for a while, which is what DuckDB does by then.
_BEGUN = """
import sys, threading, time
from lazydelta.cli.app import main
from lazydelta.engines import duckdb as engine
from lazydelta.kql.execution import query as kql_query

def announce(until):
    while time.process_time() < until:
        time.sleep(0.01)
    sys.stderr.write("begun\\n")
    sys.stderr.flush()

def announcing(function):
    def called(*args, **kwargs):
        threading.Thread(target=announce, args=[time.process_time() + 0.3], daemon=True).start()
        return function(*args, **kwargs)
    return called

engine.relation = announcing(engine.relation)
kql_query._QueryRun.start = announcing(kql_query._QueryRun.start)
kql_query._QueryRun.values = announcing(kql_query._QueryRun.values)
main()
"""
_FOR_HOURS = "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 9"
_KQL_FOR_HOURS = "range x from 1 to 3000000 step 1 | extend k = 1"
_KQL_FOR_HOURS = (
    f"{_KQL_FOR_HOURS} | join kind=inner ({_KQL_FOR_HOURS} | project y = x, k) on k | where x * y % 7 == 9 | count"
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["query", _FOR_HOURS],
        ["query", _FOR_HOURS, "--parquet", "{folder}/found.parquet"],
        ["kql", _KQL_FOR_HOURS],
        ["kql", f"print toscalar({_KQL_FOR_HOURS})"],
        ["kql", f"print 1 in ({_KQL_FOR_HOURS})", "--explain"],
    ],
    ids=["sql", "parquet", "kql", "toscalar", "in"],
)
def test_ctrl_c_ends_a_query_in_the_middle_of_a_join(arguments: list[str], tmp_path: Path) -> None:
    given = [each.replace("{folder}", str(tmp_path)) for each in arguments]
    command = [sys.executable, "-c", _BEGUN, *given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == b"begun\n"
            process.send_signal(signal.SIGINT)
            # The query would take hours; whether it ends at all is what the limit decides.
            _, told = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, told.replace(b"begun\n", b"")) == (130, b"interrupted\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_that_the_thread_of_the_query_receives_stops_it() -> None:
    background, stopped = Background(), threading.Event()
    background.halt = stopped.set
    heard: list[bool] = []
    over = threading.Event()

    def step() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        heard.append(stopped.wait(30))
        over.set()

    with pytest.raises(KeyboardInterrupt) as caught:
        background.call(step)
    over.wait()
    assert heard == [True]
    background.close(lambda: None, caught.value)


def test_lines_are_made_to_fit() -> None:
    assert _narrowed([5, 40, 10], 100) == [5, 40, 10]
    narrowed = _narrowed([5, 40, 40], 60)
    assert sum(narrowed) + 4 <= 60
    assert narrowed[0] == 5
    assert len(_narrowed([20] * 30, 80)) == 8
    assert _narrowed([40], 4) == [8]


def test_kql_has_the_outputs_of_sql(invoke: Invoke, tmp_path: Path) -> None:
    table = make_table(tmp_path / "one", files=2, rows=3)
    text = "external_table('T') | where id >= 2 | order by id asc | project id | take 2"
    given = ["query", "--kql", text, "--table", f"T={table.uri}"]
    assert [json.loads(line) for line in invoke(*given, "--json").stdout.splitlines()] == [{"id": 2}, {"id": 3}]
    assert invoke(*given, "--csv").stdout == "id\n2\n3\n"
    (tmp_path / "catalog.toml").write_text(f'[tables]\nT = "{table.uri}"\n')
    rows = tmp_path / "rows.parquet"
    invoke("query", "--kql", text, "--catalog", tmp_path / "catalog.toml", "--parquet", rows)
    assert pq.read_table(rows).to_pydict() == {"id": [2, 3]}
    explained = json.loads(invoke(*given, "--explain", "--json").stdout)
    assert explained["tables"][0]["columns"] == ["id"]
    assert "row limit" in invoke(*given, "--explain").stdout
    refused = invoke("query", "--kql", "T | wher id > 1", "--table", f"T={table.uri}", code=2)
    assert "error: " in refused.stderr

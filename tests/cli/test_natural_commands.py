"""Command lines as people type them: those that run, and those that are answered with what to write."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import write_arrow

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Invoke

RUN = [
    ("files T --where 'id < 3' --limit 5", "part-"),
    ("files T --csv", "path,size"),
    ("files T --json", '"path"'),
    ("files T --paths", ".parquet"),
    ("files T/", "part-"),
    ("rows T --limit 2 --csv", "id,device"),
    ("rows T --columns id,device --limit 1 --csv", "id,device"),
    ("rows T --columns device --columns id --limit 1 --csv", "device,id"),
    ("rows T --where \"device = 'b'\" --json", '"device":"b"'),
    ("history T --limit 1", "WRITE"),
    ("info T", "device"),
    ("explain T --where 'id = 3'", "strategy"),
    ("query 'select count(*) as n from t' t=T --csv", "n\n9"),
    ("query 'select count(*) as n from a join b using (id)' a=T b=T --csv", "n\n9"),
    ("query 'select count(*) as n from t' --table t=T --json", '"n":9'),
    ("query \"select count(*) as n from delta('T')\" --csv", "n\n9"),
    ("kql 't | count' t=T --csv", "Count\n9"),
    ("vacuum T --dry-run", "0 files"),
    ("optimize T --dry-run", "considered"),
    ("optimize T --z-order id,device --dry-run", "packed"),
    ("query 'select count(*) as n from T' T --csv", "n\n9"),
    ("kql 'T | count' ./T --csv", "Count\n9"),
    ("convert P --partition-by day:date", "is a table, at version 0"),
    ("create N a:int b:varchar(20)", "is at version 0"),
    ("query --file q.sql t=T --csv", "\n9"),
    ("optimize T --target-size 128MB --dry-run", "considered"),
    ("-h", "Commands"),
    ("files -h", "--where"),
]
REFUSED = [
    ("rows T --order-by id", "Write lazydelta query"),
    ("rows T --last 1h", "now() - interval '1 day'"),
    ("rows T id,device", "Write --where, --columns and --limit"),
    ("files T --count", "Write lazydelta query"),
    ("create N secret", "1 argument(s) too many"),
    ("sidecar t", "Write lazydelta sidecar COMMAND"),
    ("tail T", "Write lazydelta rows."),
    ("diff T 0 1", "load_cdf(version)"),
    ("drop T", "lazydelta delete --all"),
    ("export T x.parquet", "--parquet FILE"),
    ("completion bash", "_LAZYDELTA_COMPLETE=bash_source"),
    ("vacuum T --yes", "nothing is asked"),
    ("query T 'select 1'", "The query comes first"),
    ("restore T 0", "Write --version N."),
    ("delete T 'id = 1'", "Write --where PREDICATE."),
    ("alter T add column c int", "Write --add NAME:TYPE"),
    ("head T", "Write lazydelta rows."),
    ("show T", "Write lazydelta rows."),
    ("count T", "Write lazydelta query"),
    ("schema T", "Write lazydelta info."),
    ("describe T", "Write lazydelta info."),
    ("ls T", "Write lazydelta files."),
    ("sql 'select 1'", "Write lazydelta query."),
    ("compact T", "Write lazydelta optimize."),
    ("help", "Write lazydelta --help."),
    ("version", "Write lazydelta --version."),
    ("sidecar status T", "Write lazydelta sidecar show."),
    ("file T", "Did you mean files"),
    ("files T -n 3", "Write --limit."),
    ("files T -w 'id < 3'", "Write --where."),
    ("files T --filter 'id < 3'", "Write --where."),
    ("files T --format json", "Write --json or --csv."),
    ("rows T -c id", "Write --columns."),
    ("rows T --at 2026-02-10", "Write --timestamp."),
    ("files T --limit -1", "x>=0"),
    ("files", "Missing argument 'URI'"),
    ("files nope", "check the URI"),
    ("files T --where 'nope = 3'", "it has: id, device"),
    ("query 'select count(*) from T' nope", "1 argument(s) too many"),
    ("query q.sql t=T", "Write --file q.sql."),
    ("zorder T", "Write lazydelta optimize --z-order A,B."),
    ("optimize T --sort-by id --z-order id", "are mutually exclusive"),
    ("restore T --to-version 0", "Write --version."),
    ("alter T --add-column a:int", "Write --add."),
    ("query 'select * from nope'", "give nope=URI, or write delta('URI')"),
    ("query 'select * from nope' t=T", "known tables: t"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("commands")
    write_arrow(made / "T", {"id": list(range(9)), "device": list("aaabbbccc")})
    (made / "q.sql").write_text("select count(*) from t")
    (made / "P" / "day=2026-02-10").mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), made / "P" / "day=2026-02-10" / "a.parquet")
    return made


@pytest.mark.parametrize(("line", "said"), RUN, ids=[line for line, _ in RUN])
def test_it_runs(folder: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, line: str, said: str) -> None:
    monkeypatch.chdir(folder)
    assert said in invoke(*shlex.split(line)).stdout


@pytest.mark.parametrize(("line", "said"), REFUSED, ids=[line for line, _ in REFUSED])
def test_it_says_what_to_write(
    folder: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.chdir(folder)
    told = invoke(*shlex.split(line), code=2).stderr
    assert said in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(("query", "code"), [("select count(*) from t", 0), ("selec 1", 2)])
def test_a_query_leaves_nothing_but_its_own_words_on_stderr(folder: Path, query: str, code: int) -> None:
    line = [sys.executable, "-m", "lazydelta", "query", query, "t=T"]
    child = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert child.returncode == code
    assert len(child.stderr.splitlines()) == (code != 0), child.stderr

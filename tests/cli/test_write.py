from __future__ import annotations

import gzip
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import lazydelta
from lazydelta.cli.app import cli

if TYPE_CHECKING:
    from tests.cli.conftest import Invoke


def rows(table: Path) -> list[dict[str, Any]]:
    return sorted(lazydelta.DeltaTable(table).to_pyarrow_table().to_pylist(), key=repr)


def test_create_makes_a_table_of_the_columns_given(invoke: Invoke, tmp_path: Path) -> None:
    table = tmp_path / "t"
    columns = ["--column", "id:long!", "--column", "at:timestamp", "--column", "price:decimal(10,2)"]
    result = invoke(
        "create",
        table,
        *columns,
        "--timestamp-column",
        "at",
        "--partition-by",
        "id",
        "--property",
        "delta.appendOnly=true",
        "--name",
        "prices",
        "--json",
    )
    assert json.loads(result.output) == {"uri": table.as_uri(), "version": 0}
    found = lazydelta.DeltaTable(table)
    assert found.schema() == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("at", pa.timestamp("us", "UTC")),
            ("price", pa.decimal128(10, 2)),
            ("_event_hour", pa.string()),
        ]
    )
    assert found.metadata().partition_columns == ["_event_hour", "id"]
    assert found.metadata().configuration == {
        "delta.appendOnly": "true",
        "lazydelta.timestampColumn": "at",
        "lazydelta.boundary": "hour",
        "lazydelta.partitionColumn": "_event_hour",
    }
    assert found.metadata().name == "prices"


def test_types_may_be_written_as_in_sql(invoke: Invoke, tmp_path: Path) -> None:
    given = {
        "int": "int32",
        "BIGINT": "int64",
        "smallint": "int16",
        "varchar(20)": "string",
        "text": "string",
        "numeric(10, 2)": "decimal128(10, 2)",
        "double precision": "double",
        "bool!": "bool",
        "timestamptz": "timestamp[us, tz=UTC]",
    }
    columns = [part for number, kind in enumerate(given) for part in ("--column", f"c{number}:{kind}")]
    invoke("create", tmp_path / "t", *columns)
    assert list(lazydelta.DeltaTable(tmp_path / "t").dtypes.values()) == list(given.values())


def test_create_takes_the_columns_of_a_file(invoke: Invoke, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [["x"]]}), tmp_path / "f.parquet")
    invoke("create", tmp_path / "t", "--like", tmp_path / "f.parquet")
    assert lazydelta.DeltaTable(tmp_path / "t").schema().names == ["a", "b"]


def test_create_refuses_a_table_that_exists_unless_that_is_fine(invoke: Invoke, tmp_path: Path) -> None:
    invoke("create", tmp_path, "--column", "a:long")
    result = invoke("create", tmp_path, "--column", "b:long", code=2)
    assert "already" in result.output
    invoke("create", tmp_path, "--column", "b:long", "--if-absent")
    assert lazydelta.DeltaTable(tmp_path).schema().names == ["a"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "needs columns"),
        (["--column", "a"], "write it as name:type"),
        (["--column", "a:txt"], "'txt'"),
        (["--column", "a:long", "--timestamp-column", "b"], "no column 'b'"),
    ],
)
def test_create_says_what_is_wrong_with_the_columns(
    options: list[str], message: str, invoke: Invoke, tmp_path: Path
) -> None:
    assert message in invoke("create", tmp_path, *options, code=2).output


def test_append_reads_parquet_csv_and_json_in_one_commit(invoke: Invoke, tmp_path: Path) -> None:
    invoke(
        "create", tmp_path / "t", "--column", "id:string", "--column", "price:decimal(10,2)", "--column", "n:integer"
    )
    pq.write_table(
        pa.table({"id": ["1"], "price": [Decimal("1.50")], "n": pa.array([1], pa.int8())}), tmp_path / "a.parquet"
    )
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"price,id\n2.25,007\n,008\n"))
    (tmp_path / "c.jsonl").write_text('{"id": "3", "n": 5}\n{"id": null, "price": "9.99"}\n')
    files = [tmp_path / name for name in ("a.parquet", "b.csv.gz", "c.jsonl")]
    for each in files:
        invoke("append", tmp_path / "t", each)
    assert rows(tmp_path / "t") == [
        {"id": "007", "price": Decimal("2.25"), "n": None},
        {"id": "008", "price": None, "n": None},
        {"id": "1", "price": Decimal("1.50"), "n": 1},
        {"id": "3", "price": None, "n": 5},
        {"id": None, "price": Decimal("9.99"), "n": None},
    ]
    result = invoke("append", tmp_path / "t", files[1], files[2], "--json")
    assert json.loads(result.output) == {
        "uri": (tmp_path / "t").as_uri(),
        "version": 4,
        "files_read": 2,
        "rows": 4,
        "already_committed": False,
    }


def test_append_creates_the_table_by_hour(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("at,n\n2026-02-10T14:05:00Z,1\n2026-02-10T15:05:00Z,2\n")
    result = invoke("append", tmp_path / "t", tmp_path / "a.csv", "--timestamp-column", "at")
    assert "is at version 0: 2 rows of 1 file appended" in result.output
    assert [row["_event_hour"] for row in rows(tmp_path / "t")] == ["2026021014", "2026021015"]


@pytest.mark.parametrize("options", [[], ["--timestamp-column", "at"]], ids=["remembered", "named"])
def test_a_table_that_was_created_by_hour_is_filled_by_hour(options: list[str], invoke: Invoke, tmp_path: Path) -> None:
    table = tmp_path / "t"
    invoke("create", table, "--column", "at:timestamp", "--column", "n:long", "--timestamp-column", "at")
    pq.write_table(pa.table({"at": pa.array([0], pa.timestamp("us", "UTC")), "n": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("at,n\n1970-01-01T01:05:00Z,2\n")
    (tmp_path / "c.json").write_text('{"at": "1970-01-01T02:05:00Z", "n": 3}\n')
    for name in ("a.parquet", "b.csv", "c.json"):
        invoke("append", table, tmp_path / name, *options)
    assert sorted(row["_event_hour"] for row in rows(table)) == ["1970010100", "1970010101", "1970010102"]


def test_a_boundary_is_that_of_the_table_unless_another_is_asked_for(invoke: Invoke, tmp_path: Path) -> None:
    table = tmp_path / "t"
    invoke("create", table, "--column", "at:timestamp", "--timestamp-column", "at", "--boundary", "day")
    (tmp_path / "a.csv").write_text("at\n1970-01-02T01:05:00Z\n")
    invoke("append", table, tmp_path / "a.csv", "--timestamp-column", "at")
    assert [row["_event_day"] for row in rows(table)] == ["19700102"]
    refused = invoke("append", table, tmp_path / "a.csv", "--boundary", "hour", code=2)
    assert 'expected: ["_event_day"], got: ["_event_hour"]' in refused.output


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "at,_event_hour\n1970-01-01T01:05:00Z,hello\n"),
        ("a.json", '{"at": "1970-01-01T01:05:00Z", "_event_hour": "hello"}'),
    ],
)
def test_append_does_not_believe_an_hour(name: str, content: str, invoke: Invoke, tmp_path: Path) -> None:
    table = tmp_path / "t"
    invoke("create", table, "--column", "at:timestamp", "--timestamp-column", "at")
    (tmp_path / name).write_text(content)
    assert "has 'hello' in place of '1970010101'" in invoke("append", table, tmp_path / name, code=2).output
    assert rows(table) == []


def test_append_adds_columns_where_it_is_told_to(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    (tmp_path / "b.csv").write_text("n,m\n2,x\n")
    invoke("append", tmp_path / "t", tmp_path / "a.csv")
    refused = invoke("append", tmp_path / "t", tmp_path / "b.csv", code=2)
    assert "has the column 'm'" in refused.output
    invoke("append", tmp_path / "t", tmp_path / "b.csv", "--merge-schema")
    assert rows(tmp_path / "t") == [{"n": 1, "m": None}, {"n": 2, "m": "x"}]


def test_append_of_a_folder_says_which_command_reads_folders(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    said = invoke("append", tmp_path / "t", tmp_path / "folder.csv", code=2).output
    assert said.startswith(f"error: The file {tmp_path / 'folder.csv'} cannot be read")
    assert "`lazydelta ingest` reads folders" in said


def test_create_where_a_table_is_advises_an_option_of_the_command(invoke: Invoke, tmp_path: Path) -> None:
    invoke("create", tmp_path / "t", "--column", "n:long")
    said = invoke("create", tmp_path / "t", "--column", "n:long", code=2).output
    assert said == (
        f"error: There is already a Delta table at {(tmp_path / 't').as_uri()} "
        "(--if-absent leaves it as it is; `lazydelta append` adds rows to it)\n"
    )
    invoke("create", tmp_path / "t", "--column", "n:long", "--if-absent")


def test_append_of_one_application_happens_once(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    for _ in range(2):
        result = invoke("append", tmp_path / "t", tmp_path / "a.csv", "--app-id", "job", "--app-version", "0", "--json")
    assert json.loads(result.output)["rows"] == 0
    assert json.loads(result.output)["already_committed"] is True
    told = invoke("append", tmp_path / "t", tmp_path / "a.csv", "--app-id", "job", "--app-version", "0").output
    assert told == f"{(tmp_path / 't').as_uri()} had these rows already, in version 0 at the latest\n"
    assert rows(tmp_path / "t") == [{"n": 1}]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"n\n1\n", "cannot be told from its name"),
        ("a.parquet", b"n\n1\n", "a.parquet cannot be read"),
        ("a.csv", b"n,m\n1\n", "a.csv cannot be read"),
        ("missing.csv", None, "missing.csv (check its name; nothing was appended)"),
        ("missing.parquet", None, "missing.parquet (check its name; nothing was appended)"),
        (".", None, "cannot be told from its name"),
    ],
)
def test_append_names_the_file_that_it_cannot_read(
    name: str, content: bytes | None, message: str, invoke: Invoke, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert message in invoke("append", tmp_path / "t", tmp_path / name, code=2).output
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (b'n,s\n1,"x\n2,y\n', 2, "a quote that is opened in the row that begins in line 2 is never closed"),
        (b'n,s\n1,x\n2,"y"z\n', 3, "cell 2 continues after its closing quote"),
        (b'n,s\n1,"x\ny"\n2\n', 4, "the row has 1 cells, and there are 2 columns"),
        (b"n,s\n1,x\n2,\xff\n", 3, "the row cannot be read"),
        (b"1,x\n2,y\n", 1, "the first line is no header: none of its cells (1, x) is the name of a column (n, s)"),
        (b"n;s\n1;x\n", 1, "semicolons between its cells"),
        (b"n,n\n1,2\n", 1, "names the column 'n' twice"),
    ],
)
def test_append_takes_no_part_of_a_csv_file_that_is_wrong(
    text: bytes, line: int, reason: str, invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_bytes(text)
    invoke("create", tmp_path / "t", "--column", "n:long", "--column", "s:string")
    output = invoke("append", tmp_path / "t", tmp_path / "a.csv", code=2).output
    assert f"a.csv cannot be read: line {line}: " in output
    assert reason in output
    assert rows(tmp_path / "t") == []
    assert not list((tmp_path / "t").glob("*.parquet"))


def test_append_makes_no_columns_of_what_looks_like_a_row(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,x\n2,y\n")
    output = invoke("append", tmp_path / "t", tmp_path / "a.csv", code=2).output
    assert "looks like a row, not like a header: 1,x" in output
    assert not (tmp_path / "t").exists()


def test_append_keeps_texts_as_they_are(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'n,s,ok\r\n1,NA,1\r\n2,null,0\r\n3,"",true\r\n4,,\r\n5,"x\r\n""y""",\r\n')
    invoke("create", tmp_path / "t", "--column", "n:long", "--column", "s:string", "--column", "ok:boolean")
    for table in ("t", "new"):
        invoke("append", tmp_path / table, tmp_path / "a.csv")
        found = {row["n"]: row["s"] for row in rows(tmp_path / table)}
        assert found == {1: "NA", 2: "null", 3: "", 4: None, 5: 'x\r\n"y"'}
    assert {row["n"]: row["ok"] for row in rows(tmp_path / "t")} == {1: True, 2: False, 3: True, 4: None, 5: None}


@pytest.mark.parametrize("line", ["null", '{"n":2}{"n":3}', '{"n":2', "[2]", '{"n":"x"}', '\x00{"n":2}'])
def test_append_takes_no_part_of_a_json_file_that_is_wrong(line: str, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f'{{"n":1}}\n{line}\n{{"n":4}}\n')
    invoke("create", tmp_path / "t", "--column", "n:long")
    assert "a.json cannot be read: line 2: " in invoke("append", tmp_path / "t", tmp_path / "a.json", code=2).output
    assert rows(tmp_path / "t") == []


def test_append_of_json_leaves_the_column_that_is_made_to_the_table(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"at":"2026-02-10T15:00:00+01:00"}\n{"at":"2026-02-10T14:00:00"}\n')
    for _ in range(2):
        invoke("append", tmp_path / "t", tmp_path / "a.json", "--timestamp-column", "at")
    assert {(f"{row['at']:%H:%M %Z}", row["_event_hour"]) for row in rows(tmp_path / "t")} == {
        ("14:00 UTC", "2026021014")
    }


def test_files_of_different_types_are_not_appended_together(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    (tmp_path / "b.csv").write_text("n\nx\n")
    result = invoke("append", tmp_path / "t", tmp_path / "a.csv", tmp_path / "b.csv", code=2)
    assert "The files have different columns" in result.output


def test_a_secret_that_was_torn_apart_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    for command in (["append", str(tmp_path / "t"), str(tmp_path / "a.csv")], ["checkpoint", str(tmp_path / "t")]):
        result = CliRunner().invoke(cli, [*command, "--storage-option", "account_key", "=", "hunter2"])
        assert result.exit_code == 2
        assert "hunter2" not in result.output


def test_checkpoint_is_written_once_and_the_hint_follows(invoke: Invoke, tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, pa.table({"a": [1]}))
    lazydelta.write_arrow(tmp_path, pa.table({"a": [2]}))
    foreseen = json.loads(invoke("checkpoint", tmp_path, "--dry-run", "--json").output)
    assert foreseen == {"action": "write", "version": 1, "actions": 0, "engine": "local"}
    assert list((tmp_path / "_delta_log").glob("*.checkpoint*")) == []
    first = json.loads(invoke("checkpoint", tmp_path, "--json").output)
    assert (first["action"], first["version"], first["num_of_add_files"]) == ("written", 1, 2)
    assert json.loads((tmp_path / "_delta_log" / "_last_checkpoint").read_text())["version"] == 1
    assert "is there already" in invoke("checkpoint", tmp_path).output
    assert "is there already" in invoke("checkpoint", tmp_path, "--dry-run").output
    assert "The checkpoint of version 0 was written: 1 files" in invoke("checkpoint", tmp_path, "--version", "0").output


def test_log_clean_tells_what_it_would_delete_and_deletes_it(invoke: Invoke, tmp_path: Path) -> None:
    for number in range(3):
        lazydelta.write_arrow(tmp_path, pa.table({"a": [number]}))
    invoke("checkpoint", tmp_path)
    log = tmp_path / "_delta_log"
    for version, path in enumerate(sorted(log.glob("*.json"))):
        os.utime(path, (1_600_000_000 + version,) * 2)
    before = {path.name for path in log.iterdir()}
    would = json.loads(invoke("log", "clean", tmp_path, "--dry-run", "--json").output)
    assert would["dry_run"]
    assert {path.name for path in log.iterdir()} == before
    assert f"{len(would['paths'])} files deleted" in invoke("log", "clean", tmp_path).output
    left = before - {Path(path).name for path in would["paths"]}
    assert {path.name for path in log.iterdir()} == left
    assert f"{0:020}.json" not in left
    assert rows(tmp_path) == [{"a": 0}, {"a": 1}, {"a": 2}]

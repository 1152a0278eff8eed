"""Errors are one line and an exit code; secrets are never shown."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta.cli.parameters import TableSource
from tests.scan.hand_log import HandLog, add
from tests.storage.listener import Listener

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Invoke

TABLE_COMMANDS = ["info", "files", "history", "rows", "explain"]


@pytest.mark.parametrize("command", TABLE_COMMANDS)
def test_a_missing_table_is_one_line_and_code_2(invoke: Invoke, tmp_path: Path, command: str) -> None:
    result = invoke(command, tmp_path / "nothing", code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("error: There is no Delta table at ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--version", "99"], "error: Version 99 of"),
        (["--version", "x"], "error: Invalid value for '--version'"),
        (["--version", "1", "--timestamp", "2026-01-01"], "error: --version and --timestamp are mutually exclusive."),
        (["--timestamp", "yesterday"], "error: 'yesterday' is not an ISO 8601 timestamp"),
        (["--where", "nonsense >"], "error: "),
        (["--where", "nobody = 1"], "error: The table has no column 'nobody'"),
        (["--strategy", "sideways"], "error: Invalid value for '--strategy'"),
        (["--limit", "-1"], "error: Invalid value for '--limit'"),
        (["--option", "no.such=1"], "error: There is no option 'no.such'"),
        (["--no-such-option"], "error: No such option"),
        (["--stats-columns", "nobody"], "error: The table has no column 'nobody'"),
    ],
)
def test_a_wrong_argument_is_explained_with_code_2(invoke: Invoke, table: Path, args: list[str], message: str) -> None:
    result = invoke("files", table, *args, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("args", [["--debug", "info"], ["info", "--debug"]])
def test_debug_shows_the_trace_before_and_after_the_command(invoke: Invoke, tmp_path: Path, args: list[str]) -> None:
    stderr = invoke(*args, tmp_path / "nothing", code=2).stderr
    assert "Traceback" in stderr
    assert stderr.splitlines()[-1].startswith("error: There is no Delta table")


def test_a_bug_is_called_one_with_code_1(invoke: Invoke, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: TableSource) -> None:
        raise ZeroDivisionError("on\npurpose")

    monkeypatch.setattr(TableSource, "open", fail)
    result = invoke("info", table, code=1)
    assert result.stderr.startswith("internal error: ZeroDivisionError: on purpose (")
    assert "--debug" in result.stderr
    assert result.stderr.count("\n") == 1
    assert "in fail" in invoke("info", table, "--debug", code=1).stderr


@pytest.mark.parametrize(
    "args",
    [
        ["--storage-option", "hunter2"],
        ["--storage-option", "=hunter2"],
        ["--storage-option", "account_key", "=", "hunter2"],
        ["--storage-option", "account_key=", "hunter2"],
        ["--storage-option", "no_such_key=hunter2"],
    ],
)
@pytest.mark.parametrize("debug", [[], ["--debug"]])
@pytest.mark.parametrize("uri", ["s3://bucket/table", "az://container/table"])
def test_a_secret_given_badly_is_not_shown(invoke: Invoke, uri: str, args: list[str], debug: list[str]) -> None:
    settings = ["--option", "retries=0", "--storage-option", "endpoint=http://127.0.0.1:9", "--storage-option"]
    settings += ["allow_http=true", "--option", "request_timeout=2"]
    result = invoke("info", uri, *settings, *args, *debug, code=2)
    assert "hunter2" not in result.output


def test_the_warnings_of_the_library_are_shown(invoke: Invoke, table: Path, tmp_path: Path) -> None:
    """A checksum that disagrees does not fail the listing, and is not hidden either."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for folder in ("_delta_log",):
        (copy / folder).mkdir()
        for file in (table / folder).iterdir():
            (copy / folder / file.name).write_bytes(file.read_bytes())
    (copy / "_delta_log" / "00000000000000000006.crc").write_bytes(b"")
    result = invoke("files", copy, "--json")
    assert "warning: _delta_log/00000000000000000006.crc is empty" in result.stderr
    assert len(result.stdout.splitlines()) == 6


@pytest.mark.parametrize("command", ["info", "files", "rows", "checkpoint", "sidecar build"])
@pytest.mark.parametrize("place", ["s3:/bucket/t", "dbfs:/mnt/t", "hdfs:/t"])
def test_a_table_that_is_nearly_a_uri_is_refused(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    stderr = invoke(*command.split(), place, code=2).stderr
    assert f"{place} is neither a URI nor a path" in stderr
    assert list(tmp_path.iterdir()) == []


def test_an_external_location_is_given_with_its_own_options(invoke: Invoke, tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", {"id": "long"})
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array([41, 42], pa.int64())}), sink)
    log.commit(add("s3://shared/d/x.parquet"))
    with Listener({"/shared/d/x.parquet": sink.getvalue()}) as server:
        refused = invoke("rows", tmp_path / "t", code=2).stderr
        assert "s3://shared/d/x.parquet (bucket 'shared' at https://s3." in refused
        assert "external_locations" in refused
        own = [f"aws_endpoint_url={server.endpoint}", "aws_access_key_id=ID", "aws_secret_access_key=OWNSECRET"]
        allowed = [word for pair in own for word in ("--external-location", "s3://shared/d", pair)]
        shown = invoke("rows", tmp_path / "t", "--json", *allowed)
        assert [json.loads(line)["id"] for line in shown.stdout.splitlines()] == [41, 42]
        assert "Credential=ID/" in server.heard
        uris = invoke("files", tmp_path / "t", "--uris", "--json", *allowed).stdout
        assert json.loads(uris.splitlines()[0])["uri"] == "s3://shared/d/x.parquet"
        wrong = invoke("rows", tmp_path / "t", "--external-location", "s3://shared/d", "OWNSECRET", code=2).stderr
        assert "key=value" in wrong
        assert "OWNSECRET" not in refused + shown.output + uris + wrong


@pytest.mark.parametrize("file", ["s3://bucket/x.parquet", "gs://bucket/x.json", "abfss://c@a.example.com/x.csv"])
def test_append_reads_local_files_only(invoke: Invoke, tmp_path: Path, file: str) -> None:
    stderr = invoke("append", tmp_path / "t", file, code=2).stderr
    assert "is not a local file" in stderr
    assert "lazydelta ingest" in stderr


def test_append_takes_a_name_that_looks_like_a_uri_for_a_name(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    pq.write_table(pa.table({"id": [1]}), pa.OSFile(str(tmp_path / "s3:" / "x.parquet"), "wb"))
    assert "1 row" in invoke("append", tmp_path / "t", "s3:/x.parquet").stdout

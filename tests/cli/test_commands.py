from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import HOURS

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

    from tests.cli.conftest import Invoke, Spawn


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def logged_paths(table: Path, version: int | None = None) -> list[str]:
    actions = DeltaTable(table, version=version).get_add_actions(flatten=True)
    return sorted(actions.column("path").to_pylist())


def test_info_as_json_is_one_document_about_the_table(invoke: Invoke, table: Path) -> None:
    info = json.loads(invoke("info", table, "--json").stdout)
    assert (info["version"], info["name"], info["operation"]) == (6, "telemetry", "DELETE")
    assert info["partition_columns"] == ["_event_hour"]
    assert [column["name"] for column in info["columns"]] == ["device_id", "timestamp", "value", "_event_hour"]
    assert (info["checkpoint_version"], info["tail_commits"]) == (3, 3)
    assert info["id"] == str(DeltaTable(table).metadata().id)


def test_info_for_people_names_the_facts_and_the_columns(invoke: Invoke, table: Path) -> None:
    shown = invoke("info", table).stdout
    for fact in ("telemetry", "_event_hour", "timestamp[us, tz=UTC]", "checkpoint 3 and 3 commits after it"):
        assert fact in shown


def test_files_as_json_are_the_files_that_deltalake_finds(invoke: Invoke, table: Path) -> None:
    found = lines(invoke("files", table, "--json"))
    assert sorted(file["path"] for file in found) == logged_paths(table)
    assert {file["partition_values"]["_event_hour"] for file in found} == set(HOURS)
    assert all(file["size"] > 0 for file in found)


def test_files_for_people_are_a_header_and_a_line_each(invoke: Invoke, table: Path) -> None:
    header, *rows = invoke("files", table).stdout.splitlines()
    assert header.split() == ["size", "modified", "(UTC)", "version", "path"]
    assert sorted(row.split()[-1] for row in rows) == logged_paths(table)
    assert {row.index("_event_hour") for row in rows} == {header.index("path")}


@pytest.mark.parametrize("strategy", ["auto", "reverse", "forward"])
def test_the_strategy_changes_the_order_only(invoke: Invoke, table: Path, strategy: str) -> None:
    found = lines(invoke("files", table, "--json", "--strategy", strategy))
    assert sorted(file["path"] for file in found) == logged_paths(table)


@pytest.mark.parametrize("where", [f"_event_hour >= '{HOURS[4]}'", json.dumps({"_event_hour": {">=": HOURS[4]}})])
def test_where_takes_sql_and_json(invoke: Invoke, table: Path, where: str) -> None:
    found = lines(invoke("files", table, "--json", "--where", where))
    assert sorted(file["partition_values"]["_event_hour"] for file in found) == HOURS[4:]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_limit_counts_files(invoke: Invoke, table: Path, limit: int) -> None:
    assert len(lines(invoke("files", table, "--json", "--limit", str(limit)))) == limit


@pytest.mark.parametrize("count", [0, 1, 4, 9])
def test_newest_is_a_reverse_scan_with_a_limit(invoke: Invoke, table: Path, count: int) -> None:
    newest = invoke("files", table, "--newest", str(count), "--json").stdout
    assert newest == invoke("files", table, "--strategy", "reverse", "--limit", str(count), "--json").stdout
    versions = [json.loads(line)["version"] for line in newest.splitlines()]
    assert versions == [6, 5, 4, None, None, None][:count]


@pytest.mark.parametrize("other", [("--limit", "3"), ("--strategy", "forward")])
def test_newest_beside_what_contradicts_it_is_a_usage_error(
    invoke: Invoke, table: Path, other: tuple[str, str]
) -> None:
    assert "--newest" in invoke("files", table, "--newest", "2", *other, code=2).stderr


def test_row_limit_stops_when_the_files_hold_enough_rows(invoke: Invoke, table: Path) -> None:
    # The newest commit rewrote a file of three rows without one of them; the next file has the rest.
    assert len(lines(invoke("files", table, "--json", "--row-limit", "3"))) == 2


def test_stats_columns_add_counts_and_statistics(invoke: Invoke, table: Path) -> None:
    found = lines(invoke("files", table, "--json", "--stats-columns", "device_id"))
    assert sorted(file["num_records"] for file in found) == [2, 3, 3, 3, 3, 3]
    assert {file["min.device_id"] for file in found} == {"a", "b"}


def test_an_empty_list_of_stats_columns_shows_the_numbers_of_rows(invoke: Invoke, table: Path) -> None:
    header, *rows = invoke("files", table, "--stats-columns", "").stdout.splitlines()
    assert "rows" in header.split()
    assert sorted(row.split()[2] for row in rows) == ["2", "3", "3", "3", "3", "3"]


def test_uris_are_resolved(invoke: Invoke, table: Path) -> None:
    found = lines(invoke("files", table, "--json", "--uris"))
    assert sorted(file["uri"] for file in found) == sorted(DeltaTable(table).file_uris())
    assert str(table) in invoke("files", table, "--uris").stdout


def test_version_and_timestamp_read_the_past(invoke: Invoke, table: Path) -> None:
    found = lines(invoke("files", table, "--json", "--version", "1"))
    assert sorted(file["path"] for file in found) == logged_paths(table, version=1)
    info = json.loads(invoke("info", table, "--json", "--timestamp", "2100-01-01").stdout)
    assert info["version"] == 6


def test_an_option_of_the_library_is_passed_on(invoke: Invoke, table: Path) -> None:
    assert len(lines(invoke("files", table, "--json", "--option", "batch_size=1"))) == len(HOURS)
    result = invoke("files", table, "--json", "--option", "batch_size=none", code=2)
    assert result.stderr.startswith("error: A bad option")


def test_history_is_newest_first_and_limited(invoke: Invoke, table: Path) -> None:
    versions = json.loads(invoke("history", table, "--json", "--limit", "3").stdout)
    assert [each["version"] for each in versions] == [6, 5, 4]
    assert versions[0]["operation"] == "DELETE"


def test_history_shows_everything_on_demand(invoke: Invoke, table: Path) -> None:
    shown = invoke("history", table, "--all").stdout.splitlines()
    assert [line.split()[0] for line in shown if line[:9].strip().isdigit()] == ["6", "5", "4", "3", "2", "1", "0"]
    assert any("-1 rows" in line for line in shown)


def test_rows_as_json_are_plain_values(invoke: Invoke, table: Path) -> None:
    """NaN is a word because JSON has none; please wait is ISO 8601."""
    rows = lines(invoke("rows", table, "--json", "--where", f"_event_hour = '{HOURS[2]}'"))
    assert sorted(rows, key=lambda row: str(row["device_id"])) == [
        {"device_id": device, "timestamp": "2026-02-10T02:00:00+00:00", "value": value, "_event_hour": HOURS[2]}
        for device, value in (("a", 2.5), ("b", "NaN"), ("c", None))
    ]


def test_rows_are_limited_and_projected(invoke: Invoke, table: Path) -> None:
    rows = lines(invoke("rows", table, "--json", "--columns", "value, device_id", "--limit", "4"))
    assert [list(row) for row in rows] == [["value", "device_id"]] * 4
    assert lines(invoke("rows", table, "--json", "--limit", "0")) == []


def test_all_rows_are_those_of_the_table_without_the_deleted_one(invoke: Invoke, table: Path) -> None:
    rows = lines(invoke("rows", table, "--json", "--all"))
    assert len(rows) == 17
    assert {"a", HOURS[0]} not in [{row["device_id"], row["_event_hour"]} for row in rows]


def test_rows_for_people_are_aligned(invoke: Invoke, table: Path) -> None:
    header, *rows = invoke("rows", table, "--columns", "device_id,_event_hour", "--limit", "5").stdout.splitlines()
    assert header.split() == ["device_id", "_event_hour"]
    assert {row.index("2026") for row in rows} == {header.index("_event_hour")}
    assert len(rows) == 5


def test_rows_without_a_match_are_a_header_alone(invoke: Invoke, table: Path) -> None:
    assert invoke("rows", table, "--where", "device_id = 'z'").stdout.split() == [
        "device_id",
        "timestamp",
        "value",
        "_event_hour",
    ]


def test_explain_gives_the_plan_and_the_metrics(invoke: Invoke, table: Path) -> None:
    where = f"_event_hour = '{HOURS[1]}'"
    explained = json.loads(invoke("explain", table, "--json", "--where", where).stdout)
    assert (explained["plan"]["version"], explained["plan"]["base_version"]) == (6, 3)
    assert explained["plan"]["reason"]
    assert explained["metrics"]["delta.lazy.files_emitted"] == 1
    shown = invoke("explain", table, "--where", where, "--strategy", "reverse").stdout
    for fact in ("reverse", "files emitted", "requests", "bytes read"):
        assert fact in shown


def test_the_last_hours_are_found_from_the_command_line(invoke: Invoke, table: Path) -> None:
    # The table's rows are of 2026-02-10; so long ago that only a long window reaches them.
    found = invoke("files", table, "--last", "200000h", "--where", "_event_hour >= '2026021004'", "--json").stdout
    assert len(found.splitlines()) == 2
    refused = invoke("files", table, "--last", "soon", code=2)
    assert "last='soon' is not a duration" in refused.stderr


def test_a_condition_that_cannot_prune_is_a_line_on_standard_error_and_in_explain(invoke: Invoke, table: Path) -> None:
    done = invoke("files", table, "--where", "upper(device_id) = 'A'", "--json")
    assert len(done.stdout.splitlines()) == 6
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: No file can be left out by upper(device_id) = 'A': cannot prune, because")
    explained = invoke("explain", table, "--where", "_event_hour = '2026021001' AND upper(device_id) = 'A'").stdout
    words = " ".join(explained.split())
    assert "condition _event_hour = '2026021001': prunes by partition values" in words
    assert "condition upper(device_id) = 'A': cannot prune" in words
    refused = invoke("files", table, "--strict", "--where", "upper(device_id) = 'A'", code=2)
    assert refused.stderr.startswith("error: No file can be left out by upper(device_id)")


def test_text_that_is_no_predicate_is_an_error_on_the_command_line(invoke: Invoke, table: Path) -> None:
    done = invoke("files", table, "--where", "device_id ~~~ 3", code=2)
    assert "at line 1, column 11: there is no operator '~~~'" in done.stderr


def test_explain_says_what_each_line_means_and_adds_up(invoke: Invoke, table: Path) -> None:
    where = f"_event_hour = '{HOURS[1]}'"
    metrics = json.loads(invoke("explain", table, "--json", "--where", where).stdout)["metrics"]
    parts = [metrics[f"delta.lazy.files_{name}"] for name in ("emitted", "pruned", "masked")]
    assert metrics["delta.lazy.files_considered"] == sum(parts)
    assert metrics["delta.lazy.requests"] >= metrics["delta.lazy.open_requests"] > 0
    short = invoke("explain", table, "--where", where).stdout
    assert "files pruned" in short
    assert "files that cannot match" not in short
    shown = invoke("explain", table, "--where", where, "--all").stdout
    for words in ("total", "files that cannot match", "why this strategy", "from the first pull to the first file"):
        assert words in shown


def test_explain_says_whether_a_sidecar_is_used_stale_or_absent(invoke: Invoke, table: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(table, copy)

    def sidecar() -> str:
        plan = json.loads(invoke("explain", copy, "--json").stdout)["plan"]
        return str(plan["sidecar"])

    assert sidecar().startswith("none of version 3, nor of an older one")
    invoke("sidecar", "build", copy)
    assert sidecar() == "version 3, by its manifest"
    DeltaTable(copy).create_checkpoint()
    assert sidecar().startswith("none of version 6: stale, the newest is of version 3")
    invoke("sidecar", "refresh", copy)
    (manifest,) = copy.glob("_delta_log/_sidecars/v6.manifest.json")
    manifest.write_text("{}")
    assert sidecar().startswith("version 6, by its file alone")
    for part in copy.glob("_delta_log/_sidecars/v6*.parquet"):
        part.write_bytes(b"PAR1")
    assert sidecar().startswith("not used (damaged): ")


def test_the_list_of_commands_has_whole_sentences(invoke: Invoke) -> None:
    for group in ([], ["sidecar"], ["log"]):
        said = " ".join(invoke(*group, "--help").output.split())
        assert "..." not in said.replace("[ARGS]...", "")
        assert said.endswith(".")
    assert "Append the rows of FILES to the table at URI in one commit, and create the table if there is none." in (
        " ".join(invoke("--help").output.split())
    )


def test_the_shell_completes_commands_and_options(spawn: Spawn) -> None:
    for words, expected in (
        ("lazydelta fi", b"plain,files"),
        ("lazydelta files --ro", b"plain,--row-limit"),
        ("lazydelta sidecar v", b"plain,verify"),
        ("lazydelta files ./t", b"dir,./t"),  # the shell completes it
    ):
        process = spawn(_LAZYDELTA_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1))
        stdout, _ = process.communicate()
        assert stdout.split() == [expected]

"""`lazydelta kql`: rows, explanations, rewritten queries, and errors with a caret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import HOURS, Invoke


def test_rows_come_as_a_table_or_as_json(invoke: Invoke, table: Path) -> None:
    text = "T | where _event_hour == '2026021002' | summarize count() by device_id | sort by device_id asc"
    shown = invoke("kql", text, "--table", f"T={table}").stdout
    assert shown.split() == ["device_id", "count_", "a", "1", "b", "1", "c", "1"]
    lines = invoke("kql", text, "--table", f"T={table}", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"device_id": each, "count_": 1} for each in "abc"]


def test_now_is_the_timestamp_that_was_given(invoke: Invoke, table: Path) -> None:
    text = "T | where timestamp > ago(1h) | distinct _event_hour"
    lines = invoke("kql", text, "--table", f"T={table}", "--now", "2026-02-10T05:30:00", "--json").stdout.splitlines()
    assert lines == [json.dumps({"_event_hour": HOURS[5]}, separators=(",", ":"))]
    assert "not an ISO 8601 timestamp" in invoke("kql", text, "--now", "soon", code=2).stderr


def test_explain_says_what_reached_the_table(invoke: Invoke, table: Path) -> None:
    text = "external_table('T') | where _event_hour == '2026021002' and device_id contains 'A' | take 5"
    explained = json.loads(invoke("kql", text, "--table", f"T={table}", "--explain", "--json").stdout)
    (asked,) = explained["tables"]
    assert asked["where"] == {"_event_hour": {"=": "2026021002"}}
    assert [each["reached"] for each in asked["conditions"]] == [True, False, False]


def test_explain_for_people_is_a_line_for_each_condition(invoke: Invoke, table: Path) -> None:
    text = "T | where _event_hour == '2026021002'\n  and device_id contains 'A' | project value | take 5"
    lines = invoke("kql", text, "--table", f"T={table}", "--explain").stdout.splitlines()
    assert lines[:4] == [
        "T",
        "  columns     device_id, value, _event_hour",
        '  predicate   {"_event_hour": {"=": "2026021002"}}',
        "  row limit   none",
    ]
    assert [line.split()[0] for line in lines[4:]] == ["reached", "stopped", "stopped", "SQL"]
    assert lines[4] == "  reached     _event_hour == '2026021002'"
    assert lines[5].startswith("  stopped     device_id contains 'A': contains ignores case")


def test_an_error_shows_the_line_and_a_caret(invoke: Invoke, table: Path) -> None:
    result = invoke("kql", "T\n| where nothing == 1", "--table", f"T={table}", code=2)
    assert result.stdout == ""
    shown, caret, error = result.stderr.splitlines()
    assert shown == "| where nothing == 1"
    assert caret == "        ^"
    assert error.startswith("error: KQL, line 2, column 9: there is no column or value 'nothing'")


def test_a_rewritten_query_names_the_files(invoke: Invoke, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "?sig=secret")
    text = "external_table('T') | where _event_hour == '2026021002'"
    place = "T=https://account.blob.core.windows.net/c/t"
    args = ["--table", f"T={table}", "--rewrite", "--cluster-uri", place]
    shown = invoke("kql", text, *args, "--secret-variable", "TOKEN").stdout
    assert shown.count("h@'https://account.blob.core.windows.net/c/t/_event_hour%3D2026021002/") == 1
    assert "?sig=secret'" in shown
    told = invoke("kql", text, *args, "--secret-variable", "TOKEN", "--json").stdout
    assert json.loads(told) == {"query": shown[:-1]}
    assert "managed_identity=system" in invoke("kql", text, *args, "--managed-identity", "system").stdout
    assert "bytes of files may match" in invoke("kql", text, *args, "--cap", "10", code=2).stderr
    assert "UNSET is not set" in invoke("kql", text, *args, "--secret-variable", "UNSET", code=2).stderr


def test_arguments_left_over_are_not_shown(invoke: Invoke) -> None:
    result = invoke("kql", "print 1", "--storage-option", "key=1", "secret", code=2)
    assert "secret" not in result.stderr


def test_each_result_of_a_query_is_printed(invoke: Invoke) -> None:
    text = "print a = 5 | fork (project a) (count)"
    assert invoke("kql", text).stdout.split("\n\n") == ["a\n5", "Count\n    1\n"]
    assert invoke("kql", text, "--json").stdout.splitlines() == ['{"a":5}', '{"Count":1}']
    assert "2 results" in invoke("kql", text, "--arrow", code=2).stderr

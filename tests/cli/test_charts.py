"""``render`` on the command line: charts in the terminal and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from lazydelta.cli import charts
from lazydelta.cli import query as query_command
from lazydelta.cli.charts import chart_of
from lazydelta.kql import query
from tests.cli.conftest import Invoke

WAVE = "range x from 0 to 40 step 1 | extend t = datetime(2024-01-01) + x * 1h, y = x * x | project t, y"
FRUIT = 'datatable(fruit: string, kg: long) ["apple", 30, "pear", 50, "plum", 20]'


def chart(text: str) -> charts.Chart:
    with query(text) as result:
        assert result.render is not None
        return chart_of(result.render, result.kinds, iter(result))


def test_a_time_chart_in_the_terminal(invoke: Invoke) -> None:
    text = invoke("kql", "--chart", f'{WAVE} | render timechart with (title="squares", ytitle="count")').stdout
    lines = text.splitlines()
    assert "squares" in lines[0]
    assert any("1600" in line for line in lines)
    assert "01-01 00:00" in lines[-2] + lines[-1]
    assert "\x1b" not in text


def test_bars_have_their_labels(invoke: Invoke) -> None:
    for kind in ("barchart", "columnchart"):
        text = invoke("kql", "--chart", f"{FRUIT} | render {kind}").stdout
        assert all(each in text for each in ("apple", "pear", "plum")), kind
        assert "█" in text
    shown = invoke("kql", "--chart", f"{FRUIT} | render piechart")
    assert "pear 50.0 %" in shown.stdout
    assert "no circles" in shown.stderr
    assert "kg: 30" in invoke("kql", "--chart", f"{FRUIT} | render card").stdout


@pytest.mark.parametrize(
    ("kind", "stacking"),
    [*((each, "default") for each in sorted(charts.DRAWN)), ("barchart", "stacked"), ("areachart", "stacked")],
)
def test_every_kind_is_drawn_and_written(kind: str, stacking: str, tmp_path: Path, invoke: Invoke) -> None:
    text = (
        "range x from 1 to 9 step 1 | extend t = datetime(2024-01-01) + x * 1d, s = iff(x % 2 == 0, 'even', 'odd')"
        f" | project t, s, x | render {kind} with (kind={stacking})"
    )
    assert len(invoke("kql", "--chart", text).stdout.splitlines()) >= (1 if kind == "card" else 8)
    file = tmp_path / "chart.svg"
    assert invoke("kql", text, "--output", file).stdout == ""
    assert ET.parse(file).getroot().tag.endswith("svg")  # noqa: S314 - our own file


def test_a_png_file(tmp_path: Path, invoke: Invoke) -> None:
    file = tmp_path / "chart.png"
    invoke("kql", f"{FRUIT} | render columnchart", "--output", file)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_columns_become_axes_and_lines() -> None:
    rows = "'p', datetime(2024-01-02), 2, 0.5, 'q', datetime(2024-01-01), 1, 1.5"
    table = f"datatable(s: string, t: datetime, a: long, b: real) [{rows}]"
    found = chart(f"{table} | render timechart")
    assert (found.x, [line.name for line in found.lines]) == ("datetime", ["p: a", "p: b", "q: a", "q: b"])
    found = chart(f"{table} | render linechart with (xcolumn=b, ycolumns=a, series=s)")
    assert (found.x, [(line.name, line.x, line.y) for line in found.lines]) == (
        "number",
        [("p", [0.5], [2]), ("q", [1.5], [1])],
    )
    found = chart(f"{table} | project s, a | render barchart")
    assert (found.x, [(line.name, line.x, line.y) for line in found.lines]) == ("text", [("a", ["p", "q"], [2, 1])])


def test_arrays_are_lines() -> None:
    text = """print id = 'A', n = dynamic([1, null, 3]),
        t = dynamic(['2024-01-01T00:00:00Z', '2024-01-02T00:00:00Z', '2024-01-03T00:00:00Z']) | render timechart"""
    found = chart(text)
    assert found.x == "datetime"
    assert [(line.name, len(line.x), line.y) for line in found.lines] == [("A", 3, [1, None, 3])]


def test_a_pipe_gets_rows_and_a_terminal_the_chart(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{FRUIT} | render barchart"
    assert "█" not in invoke("kql", text).stdout
    assert '"fruit":"pear"' in invoke("kql", text, "--json").stdout
    # The runner's standard output is no terminal; what is asked of it is whether it is one.
    monkeypatch.setattr(query_command, "is_terminal", lambda: True)
    assert "█" in invoke("kql", text).stdout
    assert "█" not in invoke("kql", "--rows", text).stdout
    shown = invoke("kql", f"{FRUIT} | render treemap")
    assert "pear" in shown.stdout
    assert "draws no treemap" in shown.stderr


def _missing(*_: Any) -> None:
    from lazydelta.errors import MissingExtraError  # noqa: PLC0415

    raise MissingExtraError("plotext is not installed", hint="pip install 'lazydelta[charts]'")


def test_without_the_library_a_terminal_gets_rows_and_a_sentence(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_command, "is_terminal", lambda: True)
    monkeypatch.setattr(query_command, "require", _missing)
    shown = invoke("kql", f"{FRUIT} | render barchart")
    assert "pear" in shown.stdout
    assert "pip install 'lazydelta[charts]'" in shown.stderr


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        (FRUIT, ["--chart"], "asks for no chart"),
        (f"{FRUIT} | render barchart", ["--output", "chart.gif"], "neither .svg nor .png"),
        (f"{FRUIT} | render treemap", ["--chart"], "cannot be drawn"),
        (f"{FRUIT} | project fruit | render barchart", ["--chart"], "needs a column of numbers"),
        (f"{FRUIT} | render barchart with (ycolumns=tons)", ["--chart"], "'tons'"),
    ],
)
def test_what_cannot_be_drawn_is_said(invoke: Invoke, text: str, options: list[str], sentence: str) -> None:
    assert sentence in invoke("kql", text, *options, code=2).stderr

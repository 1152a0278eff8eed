"""Plots and pages follow from the numbers of a run, and from nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

import click
import pytest

from benchmarks import published
from benchmarks.full_run import files_of, merged
from benchmarks.growth import SECTIONS, sizes, synthetic
from benchmarks.published import between_marks, left_out, page, place_of, plots, published_runs, readme_part
from benchmarks.records import Record, Run
from benchmarks.svg import Bar, Series, bar_plot, bytes_text, count_text, line_plot, seconds_text
from benchmarks.text_tables import grids
from lazydelta.sidecar import build
from lazydelta.testing import make_table

ROOT = Path(__file__).parents[2]
MACHINE = {"cores": 2, "cpu": "a processor", "memory_gb": 24, "platform": "Linux", "python": "3.11", "load_before": 0.1}
OUT = "out of memory (cap 16 GB)"


def _run() -> Run:
    records = [
        Record("ladder", "L0 deltalake", "one hour", failure=OUT),
        Record("ladder", "L1", "one hour", seconds=1.5, first_seconds=0.5, peak_bytes=10_000_000, requests=5, bytes=70),
        Record("ladder", "L8", "one hour", seconds=0.02, first_seconds=0.01, peak_bytes=5_000_000, requests=2, bytes=7),
    ]
    for size in (10_000, 100_000):
        for name, seconds in (("lazydelta", 0.05), ("deltalake", size / 20_000)):
            variant = {"files": size}
            records.append(Record(SECTIONS[0], name, "one hour", variant, seconds=seconds, peak_bytes=size * 100))
    return Run(100_000, tuple(records), MACHINE, {}, "2026-11-16T06:00:00Z")


def test_a_plot_is_the_same_for_the_same_numbers_and_another_for_others() -> None:
    run = _run()
    assert plots([run]) == plots([run])
    for index, record in enumerate(run.records):
        if record.seconds is not None:
            changed = [*run.records]
            changed[index] = replace(record, seconds=record.seconds * 1.1)
            assert plots([replace(run, records=tuple(changed))]) != plots([run]), record
            assert page([replace(run, records=tuple(changed))]) != page([run]), record


def test_plots_are_whole_and_show_who_ran_out() -> None:
    drawn = plots([_run()])
    assert sorted(drawn) == [
        "growth-memory.svg",
        "growth-time.svg",
        "ladder-first.svg",
        "ladder-memory.svg",
        "ladder-time.svg",
    ]
    for text in drawn.values():
        ET.fromstring(text)  # noqa: S314 - our own
    assert OUT in drawn["ladder-time.svg"]
    assert "deltalake: 5 s" in drawn["growth-time.svg"]


def _rising(points: list[tuple[float, float]]) -> str:
    return line_plot("t", "x", [Series("s", points)], across=count_text, up=seconds_text)


def test_a_line_goes_where_its_points_are() -> None:
    text = _rising([(10.0, 1.0), (100.0, 10.0), (1000.0, 100.0)])
    line = next(each for each in ET.fromstring(text).iter() if each.tag.endswith("polyline"))  # noqa: S314 - our own
    places = [tuple(map(float, each.split(","))) for each in line.attrib["points"].split()]
    (left, low), (middle, half), (right, high) = places
    assert middle == pytest.approx((left + right) / 2), "logarithmic axes"
    assert half == pytest.approx((low + high) / 2)
    assert left < right
    assert low > high, "up is less in SVG"
    with pytest.raises(ValueError, match="nothing to draw"):
        _rising([])


def test_points_of_synthetic_tables_are_hollow_and_the_axis_says_so() -> None:
    line = Series("s", [(10.0, 1.0), (100.0, 10.0)], frozenset({100.0}))
    text = line_plot("t", "x", [line], across=count_text, up=seconds_text)
    measured, made = (each for each in ET.fromstring(text).iter() if each.tag.endswith("circle"))  # noqa: S314 - our own
    assert made.attrib["fill"] == "#ffffff"
    assert made.attrib["stroke"] == measured.attrib["fill"]
    assert "x (hollow: synthetic manifest)" in text


def test_bars_are_as_long_as_their_values_say() -> None:
    bars = [Bar("<a>", 1.0, ours=True), Bar("b", 100.0), Bar("c", None, "not done")]
    text = bar_plot("t", bars, across=seconds_text)
    drawn = [each for each in ET.fromstring(text).iter() if each.tag.endswith("rect")][1:]  # noqa: S314 - our own
    widths = [float(each.attrib["width"]) for each in drawn]
    assert len(widths) == 2
    assert widths[0] < widths[1]
    assert "&lt;a&gt;" in text
    assert "not done" in text
    with pytest.raises(ValueError, match="nothing to draw"):
        bar_plot("t", bars[2:], across=seconds_text)


def test_numbers_are_written_as_people_say_them() -> None:
    assert [seconds_text(each) for each in (0.0123, 1.5, 76.04, 1500)] == ["12.3 ms", "1.5 s", "76 s", "1,500 s"]
    assert [bytes_text(each) for each in (5e5, 18e6, 9.5e9)] == ["0.5 MB", "18 MB", "9.5 GB"]
    assert [count_text(each) for each in (7, 10_000, 2_500_000, 1e9)] == ["7", "10 k", "2.5 M", "1 B"]


def test_tables_have_every_contender_and_every_failure() -> None:
    complete, *_ = grids(_run())
    assert complete.head == ["", "one hour"]
    assert complete.rows == [["L0 deltalake", OUT], ["L1", "1.5 s"], ["L8", "20 ms"]]
    growth = grids(_run())[-1]
    assert growth.head == ["question", "circumstances", "by", "complete", "memory"]
    assert growth.rows[-1] == ["one hour", "files 100 k", "deltalake", "5 s", "10 MB"]


def test_a_busy_machine_is_said_to_be_busy() -> None:
    assert "otherwise idle" in page([_run()])
    assert "Each was measured once." in page([_run()])
    often = tuple(replace(each, rounds=[1.0] * 3) for each in _run().records)
    assert "Medians of 3 rounds" in page([replace(_run(), records=often)])
    assert "with a load of 7 when it began" in readme_part([replace(_run(), machine=MACHINE | {"load_before": 7})])


def test_the_page_names_what_a_run_has_left_out() -> None:
    missing = left_out(_run())
    assert missing[:2] == ["L0 Delta-Spark", "Polars"]
    assert "the question 'take 100'" in missing
    assert missing[-2:] == ["object store", "write side"]
    assert not {"L0 deltalake", "the question 'one hour'", SECTIONS[0]} & set(missing)
    assert f"Not in this run: {', '.join(missing)}." in page([_run()])


def test_a_page_without_a_place_for_numbers_is_an_error() -> None:
    with pytest.raises(ValueError, match="the page has no"):
        between_marks("# Benchmarks", "numbers")


def test_plots_are_of_the_largest_table_that_has_the_numbers() -> None:
    small = _run()
    ladder = [each for each in small.records if each.section == "ladder"]
    faster = tuple(replace(each, seconds=each.seconds and each.seconds / 2) for each in ladder)
    large = replace(small, scale=10_000_000, records=faster)
    drawn = plots([large, small])
    assert drawn["ladder-time.svg"] == plots([large])["ladder-time.svg"] != plots([small])["ladder-time.svg"]
    assert drawn["growth-time.svg"] == plots([small])["growth-time.svg"], "the large run has none"
    text = page([large, small])
    assert text.index("### 10,000,000 files") < text.index("### 100,000 files")
    assert "| 750 ms |" in text
    assert "| 1.5 s |" in text


def test_the_readme_has_time_and_memory_of_the_largest_table() -> None:
    asked = Record("ladder", "L7", "one hour", seconds=0.04, peak_bytes=25_000_000)
    run = replace(_run(), records=(*_run().records, asked))
    assert f"| files of one hour, by SQL text | 40 ms, 25 MB | {OUT} |" in readme_part([run])


def test_a_part_that_is_measured_again_leaves_the_rest_as_it_was() -> None:
    old, again = _run(), Record("ladder", "L1", "one hour", seconds=0.7)
    new = merged(old, replace(old, records=(again,), time="2026-11-17T06:00:00Z"))
    assert len(new.records) == len(old.records)
    assert [each for each in new.records if each not in old.records] == [again]
    assert new.time == "2026-11-17T06:00:00Z"


def test_there_is_one_published_run_of_each_size() -> None:
    assert place_of(_run()).name == "run-100k.json"
    assert place_of(replace(_run(), scale=10_000_000)).name == "run-10M.json"


@pytest.mark.skipif(not published_runs(), reason="no run is committed")
def test_what_is_published_is_what_the_committed_runs_say() -> None:
    runs = published_runs()
    drawn = plots(runs)
    assert {file.name: file.read_text() for file in published.FOLDER.glob("*.svg")} == drawn
    for file, part in ((ROOT / "docs" / "benchmarks.md", page(runs)), (ROOT / "README.md", readme_part(runs))):
        assert between_marks(file.read_text(), part) == file.read_text(), f"run python -m benchmarks.published: {file}"


def test_sizes_are_those_up_to_the_scale() -> None:
    assert sizes(1_000_000) == [10_000, 100_000, 1_000_000]
    assert sizes(50_000) == [10_000, 50_000]
    assert [files_of(each) for each in ("100k", "1M", "10 M", "7")] == [100_000, 1_000_000, 10_000_000, 7]
    for wrong in ("0", "1G", "-5", "many"):
        with pytest.raises(click.BadParameter, match="is no size"):
            files_of(wrong)


def test_a_billion_files_without_a_generator_are_said_to_be_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.growth._MODULE", "benchmarks.no_such_generator")
    record = synthetic(1_000_000_000)
    assert record.failure == "not available: there is no generator of such manifests"
    assert record.variant == {"files": 1_000_000_000, "synthetic": True}


def test_a_generator_that_is_there_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = ModuleType("benchmarks.some_generator")

    def make_long_table(folder: Path, files: int) -> None:
        make_table(folder, files=files, hours=3, checksum=True)
        build(folder)

    vars(generator).update(make_long_table=make_long_table, REAL_HOURS=("2026021021", "2026021022", "2026021023"))
    monkeypatch.setitem(sys.modules, generator.__name__, generator)
    monkeypatch.setattr("benchmarks.growth._MODULE", generator.__name__)
    record = synthetic(300)
    assert record.failure is None
    assert 0 < (record.answer or 0) < 300
    assert record.variant == {"files": 300, "synthetic": True}


def test_a_run_that_was_stopped_is_published_and_the_page_says_what_it_lacks(tmp_path: Path) -> None:
    """By the command, in a copy: nothing is left of the run before, neither plots nor numbers."""
    shutil.copytree(
        ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__", "results")
    )
    shutil.copytree(ROOT / "docs" / "benchmarks", tmp_path / "docs" / "benchmarks")
    for name in ("docs/benchmarks.md", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    whole = published_runs()[-1]
    for file in (tmp_path / "docs" / "benchmarks").glob("run-*.json"):
        if file.name != place_of(whole).name:
            file.unlink()
    kept = [each for each in whole.of("ladder") if (each.contender, each.question) == ("L8", "one hour")]
    stopped = tmp_path / "stopped.json"
    replace(whole, records=tuple(kept), parts=()).save(stopped)
    command = [sys.executable, "-m", "benchmarks.published", str(stopped)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    drawn = {"ladder-time.svg", "ladder-first.svg", "ladder-memory.svg"}
    assert {path.name for path in (tmp_path / "docs" / "benchmarks").glob("*.svg")} == drawn
    assert set(done.stdout.split()) == {f"docs/benchmarks/{name}" for name in {*drawn, place_of(whole).name}} | {
        "docs/benchmarks.md",
        "README.md",
    }
    text = (tmp_path / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert "Not in this run: L0 deltalake, " in text
    assert "growth-time.svg" not in text + (tmp_path / "README.md").read_text(encoding="utf-8")
    assert len(kept) == 1

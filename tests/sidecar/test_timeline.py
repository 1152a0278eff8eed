"""The timeline of a table and the picture of a scan, beside what the paths of the files say."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from lazydelta import DeltaTable, sidecar
from lazydelta.errors import OptionError
from lazydelta.sidecar.handle import snapshot_of
from lazydelta.sidecar.timeline import _spread, exact_timeline, manifest_timeline, row_groups
from lazydelta.testing import make_table

FILES, HOURS = 30_000, 24


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTable:
    place = tmp_path_factory.mktemp("timeline") / "<b>&'t"
    make_table(place, files=FILES, hours=HOURS, columns=2)
    sidecar.build(str(place))
    return DeltaTable(str(place))


def by_hour(table: DeltaTable) -> list[int]:
    """Count files by the hours in their paths."""
    hours = Counter(re.findall(r"_event_hour=(\d+)/", "\n".join(file.path for file in table.files())))
    return [hours[each] for each in sorted(hours)]


def test_files_are_counted_by_hour_exactly_and_from_the_manifest(table: DeltaTable) -> None:
    snapshot = snapshot_of(table)
    exact = exact_timeline(
        snapshot, lambda column: table.files(stats_columns=[column.name]).batches(), left=lambda: False
    )
    assert exact is not None
    assert exact.files == by_hour(table)
    assert exact.step == 3600
    rough = manifest_timeline(snapshot)
    assert rough is not None
    assert (rough.start, rough.step, len(rough.files)) == (exact.start, 3600, HOURS)
    assert abs(sum(rough.files) - FILES) < HOURS
    # Three row groups over 24 hours: what is before a point of time is off by less than a row group.
    sums = [0.0, 0.0]
    for one, other in zip(rough.files, exact.files, strict=True):
        sums = [sums[0] + one, sums[1] + other]
        assert abs(sums[0] - sums[1]) < 10_000
    last = max(re.findall(r"_event_hour=(\d+)", "\n".join(file.path for file in table.files())))
    assert rough.ranges["_event_hour"].max == last


def test_an_hour_that_two_row_groups_share_is_not_drawn_twice_as_high() -> None:
    hours = np.array([0.0, 2.0, 4.0]) * 3600
    _, _, files = _spread(hours, hours + 3 * 3600, np.array([10.0, 10.0, 10.0]))
    assert sum(files) == pytest.approx(30, abs=0.5)
    assert max(files[:7]) <= 1.3 * min(files[:7])


def test_a_picture_shows_what_was_left_out_and_escapes_every_text(table: DeltaTable) -> None:
    where = "timestamp >= '2026-02-10 22:00:00' AND device_id <> '<script>'"
    with table.files(where) as files:
        found = len(list(files))
        picture = files.explain(format="svg")
    root = ET.fromstring(picture)  # noqa: S314 - made here
    texts = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith(f"{found:,} of {FILES:,} files") for text in texts)
    tags = {each.tag.rpartition("}")[2] for each in root.iter()}
    assert tags == {"svg", "title", "desc", "style", "rect", "text", "line"}
    snapshot = snapshot_of(table)
    shown = row_groups(snapshot, files._scanner.request.predicate)
    assert [each.pruned_by is None for each in shown] == [False, False, True]
    assert shown[0].pruned_by is not None
    assert "timestamp" in shown[0].pruned_by
    tips = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum("left out by timestamp" in tip for tip in tips) == 2
    with table.files() as files, pytest.raises(OptionError, match="png"):
        files.explain(format="png")  # type: ignore[call-overload]


def test_a_table_without_a_manifest_has_a_picture_too(tmp_path: Path) -> None:
    make_table(tmp_path / "t", files=10, checkpoint="none")
    with DeltaTable(str(tmp_path / "t")).files() as files:
        assert len(list(files)) == 10
        assert "10 of 10 files" in files.explain(format="svg")

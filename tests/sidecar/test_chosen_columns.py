"""The sidecar has the statistics that the table's properties choose, whatever the first files show."""

from __future__ import annotations

import json
import random
from collections.abc import MutableSequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.oracle.checkpoints import CheckpointWriter, hint_for
from tests.scan.hand_log import HandLog, add
from tests.sidecar.sidecars import Place, rows

NAMES = [f"c{number}" for number in range(40)]
FILES = 600


class _InOrder(random.Random):
    """Leaves the files of a checkpoint in their order."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Do nothing to ``x``."""


def _built(table: Path, configuration: dict[str, str], *, silent: int = FILES) -> tuple[Place, set[str]]:
    """Build the sidecar of files of which the first so many have no statistics: more than a sample looks at."""
    log = HandLog(table, dict.fromkeys(NAMES, "long"), configuration=configuration)
    files = [add(f"a{number:05d}") for number in range(silent)]
    for number in range(silent, FILES):
        bounds = dict.fromkeys(NAMES, number)
        stats = {"minValues": bounds, "maxValues": bounds, "nullCount": dict.fromkeys(NAMES, 0)}
        files.append(add(f"a{number:05d}", stats=stats))
    log.commit(*files)
    snapshot = log.state()
    writer = CheckpointWriter(log.log, snapshot, _InOrder())
    writer.stats = "json"
    paths = writer.classic()
    (log.log / "_last_checkpoint").write_text(json.dumps(hint_for(snapshot, paths)))
    place = Place(str(table))
    assert place.build() == "built"
    names = pq.ParquetFile(table / place.parquets()[0]).schema_arrow.names
    return place, {name.partition(".")[2] for name in names if name.startswith("null_count.")}


@pytest.mark.parametrize(
    ("configuration", "expected"),
    [
        ({}, set(NAMES[:32])),
        ({"delta.dataSkippingNumIndexedCols": "3"}, set(NAMES[:3])),
        ({"DELTA.dataSkippingNumIndexedCols": "-1"}, set(NAMES)),
        ({"delta.dataSkippingStatsColumns": "c39, `c2`"}, {"c2", "c39"}),
        ({"delta.dataSkippingStatsColumns": "C39", "delta.dataSkippingNumIndexedCols": "3"}, {"c39"}),
        ({"delta.dataSkippingNumIndexedCols": "many", "delta.checkpointInterval": "often"}, set(NAMES[:32])),
    ],
    ids=["default", "number", "all", "named", "both", "senseless"],
)
def test_the_properties_choose_the_statistics(
    tmp_path: Path, configuration: dict[str, str], expected: set[str]
) -> None:
    assert _built(tmp_path / "t", configuration)[1] == expected


def test_a_column_that_is_named_prunes_beyond_the_first_32(tmp_path: Path) -> None:
    place, _ = _built(tmp_path / "t", {"delta.dataSkippingStatsColumns": "c39"}, silent=300)
    found, metrics = rows(place.open(), "c39 = 307")
    assert metrics.sidecar_hits == 1
    assert len(found) == 301  # the one with that value, and all that have no statistics
    assert found == place.answer("c39 = 307")

"""Which strategy ``auto`` takes where a manifest tells how much of the base a predicate leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.scan.hand_log import HandLog, add
from tests.sidecar.conftest import set_leaves
from tests.sidecar.sidecars import DISABLED, Place, checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from tests.sidecar.conftest import Split

HOURS = 100
PER_HOUR = 4


@pytest.fixture(params=["groups in the manifest", "groups in footers"])
def place(request: pytest.FixtureRequest, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Make a hundred hours of four files each, a row group an hour, and a file without an hour."""
    split(PER_HOUR, 1 if request.param == "groups in footers" else 10)
    if request.param == "groups in footers":
        monkeypatch.setattr("lazydelta.sidecar.format.manifest.MANIFEST_LIMIT", 100)
    return hundred_hours(tmp_path)


def hundred_hours(tmp_path: Path) -> Place:
    """Make the table, and its sidecar."""
    log = HandLog(tmp_path, {"id": "long", "hour": "string"}, partitions=["hour"])
    files = [(hour, number) for hour in range(HOURS) for number in range(PER_HOUR)]
    log.commit(
        *(
            add(f"f{hour:03d}-{number}", ids=(number, number), partition={"hour": f"{hour:03d}"})
            for hour, number in files
        )
    )
    checkpoint(log)
    log.commit(add("tail", ids=(1, 1), partition={"hour": "099"}))
    found = Place(str(tmp_path))
    found.build()
    return found


@pytest.mark.parametrize(
    ("where", "hours"),
    [
        ("hour >= '097'", 3),
        ("hour > '096' AND id = 1", 3),
        ("hour = '050'", 1),
        ("hour BETWEEN '010' AND '013'", 4),
        ("hour IN ('098', '003') AND id >= 0", 2),
    ],
)
@pytest.mark.each_value
def test_a_lower_bound_that_leaves_little_of_the_base_is_a_reverse_scan(place: Place, where: str, hours: int) -> None:
    stream = place.open().files(where)
    found = sorted(file.path for file in stream)
    assert stream.metrics.strategy == "reverse"
    assert f"at most {hours}.0%" in stream.explain().plan["reason"]
    assert found == sorted(file.path for file in place.open(**DISABLED).files(where))


def test_leaves_tell_as_much_as_parts(split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in the root do: none is read for it."""
    split(2 * PER_HOUR, 1)
    set_leaves(monkeypatch, 1)
    place = hundred_hours(tmp_path)
    for where, strategy in (("hour >= '098'", "reverse"), ("hour >= '090'", "forward"), ("hour < '003'", "forward")):
        stream = place.open().files(where)
        found = sorted(file.path for file in stream)
        assert stream.metrics.strategy == strategy
        assert found == sorted(file.path for file in place.open(**DISABLED).files(where))
        assert stream.metrics.tier == 1


@pytest.mark.parametrize(
    "where",
    [
        None,
        "hour >= '090'",  # ten percent
        "hour < '003'",  # no lower bound: the oldest files are what is asked for
        "id = 1",  # not what the base is sorted by
        "hour >= '097' OR id = 1",
    ],
)
@pytest.mark.each_value
def test_other_predicates_are_forward_scans(place: Place, where: str | None) -> None:
    stream = place.open().files(where)
    stream.collect()
    assert stream.metrics.strategy == "forward"


@pytest.mark.parametrize("strategy", ["forward", "reverse"])
def test_what_was_asked_for_is_not_overruled(place: Place, strategy: str) -> None:
    stream = place.open().files("hour >= '099'", strategy=strategy)
    stream.collect()
    assert (stream.metrics.strategy, stream.metrics.reason) == (strategy, "asked for")


def test_without_a_sidecar_nobody_knows_and_the_scan_goes_forward(place: Place) -> None:
    stream = place.open(**DISABLED).files("hour >= '099'")
    assert len(stream.collect()) == PER_HOUR + 1
    assert stream.metrics.strategy == "forward"

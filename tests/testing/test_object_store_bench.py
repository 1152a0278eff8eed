"""The benchmark over an object store, once, with a table that takes a timestamp."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.object_store import Circumstances, circumstances, measured, uploaded
from benchmarks.records import disagreements
from tests.support.azurite import Azurite

LATENCY = 100


def test_everything_is_measured_that_is_promised() -> None:
    found = circumstances()
    assert {each.latency_ms for each in found} == {0, 10, 30, 100}
    assert {(each.tail, each.checksum) for each in found} == {(10, True), (10, False), (150, True), (150, False)}


def test_round_trips_are_counted_and_a_floor_is_drawn_from_them(azurite: Azurite, tmp_path: Path) -> None:
    wanted = Circumstances(latency_ms=LATENCY)
    uri, made = uploaded(azurite, tmp_path, 3_000, wanted)
    records = measured(azurite, uri, made, wanted, ["one hour"])
    assert [each.failure for each in records] == [None] * len(records)
    assert disagreements(records) == []
    by = {each.contender: each for each in records}
    assert {each.answer for each in records if each.contender != "floor"} == {by["deltalake"].answer}
    for each in by.values():
        if each.contender != "floor":
            assert each.round_trips is not None
            assert each.first_round_trips is not None
            # How many depends on the machine while it is busy; that they are those of this query does not.
            assert 2 <= each.first_round_trips <= each.round_trips <= (each.requests or 0)
    assert by["floor"].seconds == pytest.approx((by["lazydelta"].round_trips or 0) * LATENCY / 1000)

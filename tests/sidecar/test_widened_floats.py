"""Doubles that were floats: older files log the digits of single floats, which are doubles of another value."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import sidecar
from tests.scan.hand_log import HandLog, add
from tests.sidecar.sidecars import DISABLED, Place

VALUES = [3.4, 0.1, -0.1, 16777217.0, 1e-40, 3.4028234e38, -3.3]


class WidenedLog(HandLog):
    """A table whose column ``x`` was a float when its files were written."""

    def metadata(self) -> dict[str, dict[str, object]]:
        """Return the metadata with the recorded change."""
        action = super().metadata()
        schema = json.loads(action["metaData"]["schemaString"])
        schema["fields"][0]["metadata"] = {"delta.typeChanges": [{"fromType": "float", "toType": "double"}]}
        action["metaData"]["schemaString"] = json.dumps(schema)
        return action


def text_of(value: float) -> float:
    """Return the double that the shortest digits of a single float stand for, as writers log it."""
    return float(str(np.float32(value)))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    log = WidenedLog(tmp_path / "t", {"x": "double"}, features=["typeWidening"])
    actions = []
    for number, value in enumerate(VALUES):
        pq.write_table(pa.table({"x": pa.array([value], pa.float32())}), log.table / f"{number}.parquet")
        bound = {"x": text_of(value)}
        stats = {"minValues": bound, "maxValues": bound, "nullCount": {"x": 0}}
        action = add(f"{number}.parquet", stats=stats)
        action["add"]["size"] = (log.table / f"{number}.parquet").stat().st_size
        actions.append(action)
    log.commit(*actions)
    return Place(str(log.table))


@pytest.mark.parametrize("base", ["commits", "checkpoint", "typed", "sidecar"])
def test_no_row_of_a_widened_float_is_lost(place: Place, base: str) -> None:
    if base != "commits":
        WidenedLog.checkpoint(_reopened(place), stats="struct" if base == "typed" else "json")
    if base == "sidecar":
        assert place.build() == "built"
        assert sidecar.verify(place.uri).ok
    table = place.open() if base == "sidecar" else place.open(**DISABLED)
    assert table.to_pyarrow_table().num_rows == len(VALUES)
    for value in VALUES:
        logged, real = text_of(value), float(np.float32(value))
        for point in {logged, real}:
            for op in (">", ">=", "<", "<=", "=", "!="):
                rows = {each for each in map(np.float32, VALUES) if _holds(float(each), op, point)}
                found = table.to_pyarrow_table(filters=[("x", op, point)]).column("x").to_pylist()
                assert sorted(found) == sorted(map(float, rows)), (op, point)


def _reopened(place: Place) -> WidenedLog:
    log = object.__new__(WidenedLog)
    log.table = Path(place.uri)
    log.log, log.version = log.table / "_delta_log", 0
    return log


def _holds(value: float, op: str, point: float) -> bool:
    return {
        ">": value > point,
        ">=": value >= point,
        "<": value < point,
        "<=": value <= point,
        "=": value == point,
        "!=": value != point,
    }[op]

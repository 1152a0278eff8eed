"""Rows along a curve: neighbours on it are neighbours in space; conditions on any of its columns leave files out."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pytest

from lazydelta import DeltaTable, write_arrow
from lazydelta.errors import OptionError
from lazydelta.maintenance.curves import CurveOrder, _interleaved, _transposed
from tests.maintenance.deleted_rows import delete_rows as delete_by_vector


@pytest.mark.parametrize(("axes", "bits"), [(2, 5), (3, 3), (4, 2)])
def test_a_step_on_the_hilbert_curve_is_a_step_in_space(axes: int, bits: int) -> None:
    grid = np.array(np.meshgrid(*[np.arange(1 << bits)] * axes, indexing="ij")).reshape(axes, -1).astype(np.uint64)
    places = _interleaved(_transposed(list(grid), bits), bits)
    assert sorted(places.tolist()) == list(range(grid.shape[1]))
    steps = np.abs(np.diff(grid[:, np.argsort(places)].astype(np.int64), axis=1)).sum(axis=0)
    assert set(steps.tolist()) == {1}


@pytest.mark.parametrize("curve", ["z", "hilbert"])
def test_conditions_on_each_column_leave_files_out(tmp_path: Path, curve: str) -> None:
    values = np.random.default_rng(7).integers(0, 1000, (2, 160_000))
    table = pa.table({"a": values[0], "b": values[1], "s": [f"{each:04}" for each in values[1]]})
    for start in range(0, 160_000, 40_000):
        write_arrow(tmp_path, table.slice(start, 40_000), maintain=False)
    metrics = DeltaTable(tmp_path).optimize.z_order(["a", "s"], target_size=50_000, curve=curve)
    assert (metrics["numFilesRemoved"], metrics["plannerStrategy"]) == (4, "zOrder")
    found = DeltaTable(tmp_path)
    order = [("a", "ascending"), ("b", "ascending")]
    assert found.to_pyarrow_table().sort_by(order) == table.sort_by(order)
    files = len(found.files().collect())
    assert files >= 8
    for condition in ("a < 100", "s < '0100'", "b < 100"):
        assert len(found.files(condition).collect()) <= files // 2, condition
    assert deltalake.DeltaTable(tmp_path).count() == 160_000
    assert found.history(1)[0]["operationParameters"]["zOrderBy"] == '["a","s"]'


def test_every_type_has_a_place() -> None:
    rows = pa.record_batch(
        {
            "text": ["b", None, "a"],
            "flag": [True, None, False],
            "money": pa.array([Decimal("2.50"), None, Decimal("-1.00")], pa.decimal128(20, 2)),
            "day": pa.array([dt.date(2026, 1, 2), None, dt.date(2020, 1, 1)]),
            "at": pa.array([5, None, 3], pa.timestamp("us", "UTC")),
            "x": [2.5, None, float("-inf")],
            "none": pa.nulls(3, pa.int32()),
        }
    )
    for name in rows.schema.names:
        places = CurveOrder.of("z", [name], [rows]).positions(rows).tolist()
        assert places[2] <= places[0] <= places[1], name
    together = CurveOrder.of("hilbert", rows.schema.names, [rows]).positions(rows)
    assert len(set(together.tolist())) == 3


def test_what_has_no_order_is_refused(tmp_path: Path) -> None:
    write_arrow(tmp_path, pa.table({"p": ["a"], "id": [1], "l": [[1]]}), partition_by=["p"])
    optimizer = DeltaTable(tmp_path).optimize
    with pytest.raises(OptionError, match="at least one column"):
        optimizer.z_order([])
    with pytest.raises(OptionError, match="partition column"):
        optimizer.z_order(["p"])
    with pytest.raises(OptionError, match="is not valid"):
        optimizer.z_order(["id"], curve="peano")
    with pytest.raises(OptionError, match="type list"):
        optimizer.z_order(["l"])


def test_purging_drops_deleted_rows_and_leaves_other_files(tmp_path: Path) -> None:
    for start in (0, 100):
        rows = pa.table({"id": range(start, start + 100)})
        write_arrow(tmp_path, rows, properties={"delta.enableDeletionVectors": "true"}, maintain=False)
    first, second = sorted(DeltaTable(tmp_path).files().collect(), key=lambda each: each.path)
    delete_by_vector(tmp_path, first, [0])  # too few for OPTIMIZE
    metrics = DeltaTable(tmp_path).optimize.purge()
    assert (metrics["numFilesRemoved"], metrics["numFilesAdded"]) == (1, 1)
    found = DeltaTable(tmp_path).files().collect()
    assert second.path in {each.path for each in found}
    assert [each.deletion_vector for each in found] == [None, None]
    assert DeltaTable(tmp_path).count() == 199

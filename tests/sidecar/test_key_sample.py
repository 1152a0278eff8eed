"""The sample of sort keys from which a build cuts its buckets: enough keys of each, and no more than it takes."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from lazydelta import DeltaTable
from lazydelta.sidecar import build
from lazydelta.sidecar.building import build as builder
from lazydelta.sidecar.building.build import KeySample
from lazydelta.sidecar.format.rows import sortable
from lazydelta.testing import make_table

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.sidecar.format.columns import SidecarLayout


@pytest.mark.parametrize(("size", "step"), [(1_000, 1), (1_000, 20), (100_000, 100)])
def test_buckets_are_about_as_large_as_one_another(size: int, step: int) -> None:
    rng = random.Random(1)
    keys = [b"%06d" % number for number in range(100_000)]
    rng.shuffle(keys)
    sample = KeySample(size, step=step)
    for start in range(0, len(keys), 8_192):
        some = pa.array(keys[start : start + 8_192], pa.binary())
        chosen = sample.chosen(len(some))
        sample.add(some if chosen is None else some.filter(chosen))
    assert len(sample.held()) <= min(2 * size, len(keys) // step + len(keys) // 8_192 + 1)
    edges = sample.splitters(10).to_pylist()
    found = np.diff([0, *np.searchsorted(sorted(keys), edges).tolist(), len(keys)])
    assert len(found) == 10
    assert found.min() > 7_000
    assert found.max() < 13_000


def test_keys_are_made_of_few_rows_where_buckets_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_table(tmp_path, files=5_000)
    made = 0

    def counted(rows: pa.RecordBatch, layout: SidecarLayout) -> pa.BinaryArray:
        nonlocal made
        made += rows.num_rows if sys._getframe(1).f_code.co_name == "_splitters" else 0
        return sortable(rows, layout)

    monkeypatch.setattr(builder, "sortable", counted)
    assert build(tmp_path).num_files == 5_000
    assert 0 < made < 100
    assert len(DeltaTable(tmp_path).file_uris()) == 5_000

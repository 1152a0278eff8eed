"""Maxima of float columns prune SQL's ``>`` in files whose writer leaves them out where there is a NaN."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, PredicateWarning, WriterProperties, sidecar, write_deltalake
from lazydelta.errors import PredicateError
from tests.engines.engine_queries import SQL_ENGINES

NAN = math.nan
_VALUES: list[list[float | None]] = [[0.5, 1.5], [2.5, 3.5], [0.5, NAN], [NAN, NAN], [None, None], [5.5, None]]


def _append(root: Path, writer: Any, first: int) -> None:
    for number, values in enumerate(_VALUES):
        data = pa.table({"id": [first + 2 * number, first + 2 * number + 1], "f": pa.array(values, pa.float64())})
        inner = pa.array([{"x": value} for value in values], pa.struct([("x", pa.float64())]))
        writer.write_deltalake(str(root), data.append_column("s", inner), mode="append")


@pytest.fixture
def mixed(tmp_path: Path) -> DeltaTable:
    """Return a table with files of ours (ids below 100) and of deltalake, which logs a maximum beside a NaN."""
    import lazydelta  # noqa: PLC0415 - handed over as a writer

    _append(tmp_path, lazydelta, 0)
    _append(tmp_path, deltalake, 100)
    return DeltaTable(str(tmp_path))


@pytest.mark.filterwarnings("ignore:Some files cannot be pruned:lazydelta.PredicateWarning")
@pytest.mark.parametrize("tier", ["log", "checkpoint", "sidecar"])
@pytest.mark.parametrize(
    ("where", "ours", "others"),
    [
        ("f > 3", {2, 4, 6, 10}, {102, 100, 104, 106, 110}),
        ("f >= 5.5", {4, 6, 10}, {102, 100, 104, 106, 110}),
        ("s.x > 3", {2, 4, 6, 10}, {102, 100, 104, 106, 110}),
        ("f > 3 AND id < 100", {2, 4, 6, 10}, set()),
        ("f = 'NaN'", {4, 6}, {100, 102, 104, 106, 110}),
    ],
)
@pytest.mark.each_value
def test_files_are_left_out_where_their_writer_is_known(
    mixed: DeltaTable, where: str, ours: set[int], others: set[int], tier: str
) -> None:
    if tier != "log":
        mixed.create_checkpoint()
        mixed.update_incremental()
    if tier == "sidecar":
        sidecar.build(mixed.table_uri)
    first = {pq.read_metadata(file.uri).row_group(0).column(0).statistics.min for file in mixed.files(where)}
    assert first == ours | others


@pytest.mark.filterwarnings("ignore:Some files cannot be pruned:lazydelta.PredicateWarning")
def test_rows_and_row_groups_are_left_out_and_no_nan_is_lost(mixed: DeltaTable) -> None:
    expected = {1 + 2 * number + base for base in (0, 100) for number in (1, 2, 3)} | {6, 10, 106, 110}
    stream = mixed.rows(where="f > 3")
    assert set(stream.read_all()["id"].to_pylist()) == expected
    for engine in SQL_ENGINES.values():
        assert set(engine(mixed, "SELECT id FROM t WHERE f > 3")["id"].to_pylist()) == expected


def test_a_row_group_of_ours_without_nan_is_left_out_by_its_footer(tmp_path: Path) -> None:
    values = [*[0.5] * 100, *[NAN] * 100, *[7.5] * 100, *[1.5] * 100]
    properties = WriterProperties(max_row_group_size=100)
    write_deltalake(str(tmp_path), pa.table({"id": range(400), "f": values}), writer_properties=properties)
    stream = DeltaTable(str(tmp_path)).rows(where="f > 5")
    assert stream.read_all()["id"].to_pylist() == list(range(100, 300))
    assert stream.explain()["rows"]["row_groups_pruned"] == 2


def test_files_that_stay_for_a_nan_that_may_hide_are_told_of_and_refused_by_strict(mixed: DeltaTable) -> None:
    with pytest.warns(PredicateWarning, match=r"Some files cannot be pruned by f > 3") as caught:
        mixed.files("f > 3").collect()
    assert len(caught) == 1
    with pytest.raises(PredicateError, match="Some files cannot be pruned"):
        mixed.files("f > 3", strict=True).collect()
    # Of our own files nothing is hidden, nor where the option says so, nor by tuples, to which NaN is no number.
    mixed.files("f > 3 AND id < 100", strict=True).collect()
    mixed.files([("f", ">", 3)], strict=True).collect()
    mixed.files("f > 3", strict=True, options={"float_max": "trust"}).collect()

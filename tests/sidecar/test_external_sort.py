"""Rows are sorted on disk within memory that neither the number of rows nor that of their buckets changes."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest

from benchmarks.measure import measure
from lazydelta.protocol.schema import TableSchema
from lazydelta.sidecar.building import build
from lazydelta.sidecar.building.build import ExternalSort, assemble
from lazydelta.sidecar.building.plan import SidecarPlan, SpillFile
from lazydelta.sidecar.format.columns import SidecarLayout
from tests.sidecar.sort_work import WAITING, layout_of, rows_of, splitters_of


@pytest.mark.parametrize(
    ("buckets", "waiting"),
    [(1, 50), (2, 1), (3, 1_000), (9, 40), (40, 33), (100, 170), (300, 5_000)],
    ids=str,
)
def test_rows_come_back_in_order_whatever_may_wait(buckets: int, waiting: int) -> None:
    """Rows may be few or many beside their buckets, which are divided once or again and again."""
    rng = random.Random(buckets)
    numbers = [rng.randrange(5_000) for _ in range(2_000)]
    sort = ExternalSort(layout_of(2), splitters_of(5_000, buckets), rows_of([0], 2).schema, most_waiting=waiting)
    at = 0
    while at < len(numbers):
        size = rng.choice([0, 1, 7, 64, 300])
        sort.add(rows_of(numbers[at : at + size], 2))
        at += size
    tables = list(sort.sorted_tables())
    found = pa.concat_tables(tables)
    sort.close()
    assert found.column("min.0").to_pylist() == sorted(numbers)
    assert found.column("min.1").to_pylist() == [number + 1 for number in sorted(numbers)]
    assert found.column("path").to_pylist() == [f"{number:08}" for number in sorted(numbers)]
    assert len(tables) == len({_bucket(number, 5_000, buckets) for number in numbers})


def _bucket(number: int, rows: int, buckets: int) -> int:
    return sum(number >= each * rows // buckets for each in range(1, buckets))


def test_nothing_comes_back_of_nothing() -> None:
    for buckets in (1, 5):
        sort = ExternalSort(layout_of(1), splitters_of(10, buckets), rows_of([0], 1).schema, most_waiting=2)
        sort.add(rows_of([], 1))
        assert list(sort.sorted_tables()) == []
        sort.close()


def test_many_buckets_share_few_files_and_take_rows_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    pieces: list[int] = []

    class Counted(SpillFile):
        def __init__(self, schema: pa.Schema) -> None:
            super().__init__(schema)
            opened.append(1)

        def add(self, rows: pa.RecordBatch) -> int:
            pieces.append(rows.num_rows)
            return super().add(rows)

        def close(self) -> None:
            super().close()
            opened.append(-1)

    monkeypatch.setattr(build, "SpillFile", Counted)
    total = 100 * WAITING
    numbers = random.Random(2).sample(range(total), total)
    sort = ExternalSort(layout_of(1), splitters_of(total, 100), rows_of([0], 1).schema, most_waiting=WAITING)
    for start in range(0, total, 40):
        sort.add(rows_of(numbers[start : start + 40], 1))
    most = 0
    for table in sort.sorted_tables():
        assert table.num_rows == WAITING
        most = max(most, sum(opened))
    sort.close()
    assert (most, sum(opened)) == (2, 0)
    assert sum(pieces) == 2 * total  # divided among ten, and each of them among ten
    assert sum(pieces) / len(pieces) > 12


@pytest.mark.memory
@pytest.mark.timeout(300)
def test_more_rows_of_many_columns_take_no_more_memory_to_sort() -> None:
    """The short version of a sidecar of many columns that is built for more files."""
    imports = ("lazydelta", "lazydelta.sidecar", "tests.sidecar.sort_work")
    few, many = (measure("tests.sidecar.sort_work:sort_rows", buckets, 300, imports=imports) for buckets in (10, 40))
    assert (few.failure, many.failure) == (None, None)
    assert (few.answer, many.answer) == (10 * WAITING, 40 * WAITING)
    assert few.peak_bytes is not None
    assert many.peak_bytes is not None
    assert many.peak_bytes < few.peak_bytes + (10 << 20), (few, many)


def test_parts_of_sorted_rows_are_cut_without_copying_them() -> None:
    tables = [pa.Table.from_batches([rows_of(list(range(start, start + 50)), 2)]) for start in range(0, 500, 50)]
    before = pa.total_allocated_bytes()
    parts = list(assemble(iter(tables), 120))
    assert pa.total_allocated_bytes() == before
    assert [part.num_rows for part in parts] == [120, 120, 120, 120, 20]
    assert [number for part in parts for number in part.column("min.0").to_pylist()] == list(range(500))
    # Many small pieces are put together: each of them would be a piece of every column to the encoder.
    [whole] = assemble(iter(pa.Table.from_batches([rows_of([number], 2)]) for number in range(100)), 200)
    assert whole.column(0).num_chunks == 1


def test_wide_rows_are_encoded_one_part_at_a_time_where_memory_is_scarce() -> None:
    """What Parquet has for each column of a part is more than the rows of it then."""
    fields = [{"name": f"c{n}", "type": "long", "nullable": True, "metadata": {}} for n in range(600)]
    plans = {}
    for count in (1, 600):
        schema = TableSchema.parse(json.dumps({"type": "struct", "fields": fields[:count]}))
        plans[count] = SidecarPlan(schema, SidecarLayout.of(schema, schema.leaves(), ()), ())
    assert [plans[600].encoders(megabytes << 20) for megabytes in (1, 24, 512)] == [1, 1, 2]
    assert [plans[1].encoders(megabytes << 20) for megabytes in (1, 24, 512)] == [1, 2, 2]

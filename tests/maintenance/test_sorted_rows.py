"""Rows in the order of some columns: the same as Python's own sort, however little memory there is."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lazydelta
from lazydelta.errors import OptionError, UnknownColumnError
from lazydelta.maintenance.optimize import OptimizeSettings, optimize
from lazydelta.maintenance.rewrite import _PIECE_ROWS, check_sort_columns, sorted_rows
from lazydelta.sidecar.handle import TableHandle
from tests.rows.files import array_of, column, schema_of

SCHEMA = pa.schema([("n", pa.int64()), ("f", pa.float64()), ("t", pa.string()), ("row", pa.int64())])
ROWS = 3 * _PIECE_ROWS


def _batches(dice: random.Random, count: int) -> list[pa.RecordBatch]:
    few = dice.choice([2, 50, 10**6])
    columns: list[list[Any]] = [
        [None if dice.random() < 0.1 else dice.randrange(few) for _ in range(count)],
        [dice.choice([None, math.nan, dice.uniform(-1, 1), -0.0, math.inf]) for _ in range(count)],
        [None if dice.random() < 0.1 else "äx"[: dice.randrange(3)] + str(dice.randrange(few)) for _ in range(count)],
        list(range(count)),
    ]
    table = pa.table([pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    found: list[pa.RecordBatch] = table.to_batches(max_chunksize=dice.choice([100, 5000, count]))
    return found


def _key(value: Any) -> tuple[Any, ...]:
    """Return what Python sorts by: numbers, then NaN, then null; texts by their bytes."""
    if value is None:
        return (2, 0)
    if isinstance(value, float) and math.isnan(value):
        return (1, 0)
    return (0, value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.one_in(3)
def test_the_order_is_pythons(seed: int) -> None:
    dice = random.Random(seed)
    batches = _batches(dice, dice.choice([0, 1, 1000, ROWS]))
    keys = dice.sample(["n", "f", "t"], dice.randint(1, 3))
    size = sum(each.nbytes for each in batches)
    rows = [row for each in batches for row in each.to_pylist()]
    for memory in (max(size, 1) * 4, max(size // 3, 1), max(size // 20, 1)):
        found = [row for each in sorted_rows(batches, keys, memory) for row in each.to_pylist()]
        assert [[_key(row[name]) for name in keys] for row in found] == sorted(
            [_key(row[name]) for name in keys] for row in rows
        )
        # Each row once, and whole.
        assert repr(sorted(found, key=lambda row: row["row"])) == repr(rows)


def test_little_memory_means_several_runs_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    from lazydelta.maintenance import rewrite as module  # noqa: PLC0415

    spilled: list[int] = []
    real = module._spilled

    def count(run: pa.Table, files: Any) -> Any:
        spilled.append(run.nbytes)
        return real(run, files)

    monkeypatch.setattr(module, "_spilled", count)
    batches = pa.table({"n": pa.array(range(100_000, 0, -1), pa.int64())}).to_batches(max_chunksize=1000)
    found = pa.Table.from_batches(sorted_rows(batches, ["n"], 200_000))
    assert found.column("n").to_pylist() == list(range(1, 100_001))
    assert len(spilled) == 7
    assert max(spilled) <= 110_000


def test_every_primitive_type_of_a_table_has_an_order(tmp_path: Path) -> None:
    values: dict[str, pa.Array] = {
        "b": pa.array([True, None, False]),
        "d": pa.array([date(2026, 1, 2), None, date(1969, 1, 1)]),
        "at": pa.array(
            [datetime(2026, 1, 2, tzinfo=UTC), None, datetime(1, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")
        ),
        "x": pa.array([b"b", None, b"a"]),
        "m": pa.array([Decimal("1.5"), None, Decimal("-2.5")], pa.decimal128(10, 1)),
        "s": pa.array([2, None, 1], pa.int16()),
    }
    for name, array in values.items():
        root = tmp_path / name
        for _ in range(2):
            lazydelta.write_arrow(root, pa.table({name: array}))
        optimize(TableHandle.open(root), settings=OptimizeSettings(sort_by=[name]))
        (file,) = lazydelta.DeltaTable(root).files().collect()
        found = pq.read_table(root / file.path).column(name).to_pylist()
        low, high = sorted(each for each in array.to_pylist() if each is not None)
        assert found == [low, low, high, high, None, None]


def test_columns_without_an_order_are_refused() -> None:
    schema = schema_of(column("id", "long"), column("list", array_of("long")))
    assert check_sort_columns(["ID"], schema) == ("id",)
    with pytest.raises(OptionError, match="'list' of type list"):
        check_sort_columns(["list"], schema)
    with pytest.raises(UnknownColumnError, match="no column 'nonsense'"):
        check_sort_columns(["nonsense"], schema)

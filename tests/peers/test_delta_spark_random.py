"""Delta-Spark finds in random tables of ours what is in them: rows, files, and what a predicate selects."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings

import lazydelta
from tests.support.delta_spark import DeltaSpark
from tests.write.peers import Condition, Ourselves, comparable, normal
from tests.write.random_tables import World, conditions, worlds

# One Spark at a time: all of these run in the same worker.
pytestmark = [pytest.mark.xdist_group("other sparks"), pytest.mark.timeout(900)]

TABLES, MANY = 6, 80
CONDITIONS = 2
QUERY, FILE = "#query", "#file"


def _examples(count: int) -> settings:
    # Not shrunk: an example takes a second, so that it would take many minutes.
    return settings(
        max_examples=count,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def _ask(spark: DeltaSpark, table: Path, wheres: Sequence[Condition | None]) -> list[pa.Table]:
    """Return the rows for which each condition holds, with the file of each, by one query of Spark's.

    Each part of the union is planned on its own, with its own skipping of files. The answer comes as Parquet, which
    keeps types and values as they are.
    """
    queries = [
        f"SELECT {number} AS `{QUERY}`, *, _metadata.file_path AS `{FILE}` FROM delta.`{table}`"
        + ("" if where is None else f" WHERE {where.spark()}")
        for number, where in enumerate(wheres)
    ]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        spark.sql(f"INSERT OVERWRITE DIRECTORY '{answer}' USING parquet {' UNION ALL '.join(queries)}")
        found = pa.concat_tables(
            [pq.read_table(file, coerce_int96_timestamp_unit="us") for file in sorted(answer.glob("*.parquet"))]
        )
    return [found.filter(pc.equal(found[QUERY], number)) for number in range(len(wheres))]


def _files(found: pa.Table, table: Path) -> set[str]:
    return {
        str(Path(unquote(uri.removeprefix("file:").removeprefix("//"))).relative_to(table))
        for uri in set(found[FILE].to_pylist())
    }


def _judged(found: pa.Table, schema: pa.Schema, where: Condition) -> list[str]:
    """Return the rows that all readers agree on: whether NaN is a large number and -0.0 a small one is their affair."""
    rows = comparable(found, schema, ordered=False)
    if pa.types.is_floating(where.kind):
        values = found[where.column].to_pylist()
        rows = [row for row, value in zip(rows, values, strict=True) if value and not math.isnan(value)]
    return sorted(rows)


def _compare(spark: DeltaSpark, world: World, wheres: Sequence[Condition]) -> None:
    everything, *selected = _ask(spark, world.path, [None, *wheres])
    assert comparable(everything, world.schema) == comparable(world.expected(), world.schema)
    assert _files(everything, world.path) == Ourselves().files(world.path)
    assert spark.validate(world.path) == lazydelta.DeltaTable(world.path).version()
    for where, found in zip(wheres, selected, strict=True):
        expected = _judged(world.expected(where), world.schema, where)
        assert _judged(found, world.schema, where) == expected, where


def _drawn(spark: DeltaSpark, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = data.draw(worlds(Path(folder) / "table"))
        drawn = [data.draw(conditions(world)) for _ in range(CONDITIONS)]
        _compare(spark, world, [where for where in drawn if where is not None])


@_examples(TABLES)
@given(data=st.data())
def test_spark_finds_the_same_rows_and_files_in_random_tables(delta_spark: DeltaSpark, data: st.DataObject) -> None:
    _drawn(delta_spark, data)


@pytest.mark.slow
@_examples(MANY)
@given(data=st.data())
def test_spark_finds_the_same_in_many_random_tables(delta_spark: DeltaSpark, data: st.DataObject) -> None:
    _drawn(delta_spark, data)


SKIPPED_BY: dict[str, tuple[pa.DataType, list[list[Any]], Any]] = {
    "integer": (pa.int64(), [[1, 2], [10, 20], [100, None]], 10),
    "string": (pa.string(), [["a" * 40, "b"], ["k" * 40, "l"], ["x", "y" * 40]], "k" * 40),
    "date": (pa.date32(), [[1, 2], [10, 20], [100, None]], dt.date(1970, 1, 11)),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [[1, 2000], [10_001, 20_001], [100_001, None]],
        dt.datetime(1970, 1, 1, 0, 0, 0, 10_001, dt.UTC),
    ),
    "wall_clock": (
        pa.timestamp("us"),
        [[1, 2000], [10_001, 20_001], [100_001, None]],
        dt.datetime(1970, 1, 1, 0, 0, 0, 10_001),  # noqa: DTZ001 - a wall clock has no zone
    ),
    "double": (pa.float64(), [[-1.5, 2.5], [10.5, 20.5], [100.5, None]], 10.5),
    "decimal": (
        pa.decimal128(20, 2),
        [[Decimal("1.00"), None], [Decimal("10.00"), Decimal("20.00")], [Decimal("100.00"), None]],
        Decimal("10.00"),
    ),
}


def test_spark_skips_the_files_that_our_statistics_exclude(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    """Files that are excluded are deleted: if Spark opened one, it would fail."""
    schema = pa.schema([(name, kind) for name, (kind, _, _) in SKIPPED_BY.items()])
    for number in range(3):
        arrays = [pa.array(batches[number], kind) for kind, batches, _ in SKIPPED_BY.values()]
        lazydelta.write_arrow(tmp_path, pa.Table.from_arrays(arrays, schema=schema))
    [kept] = lazydelta.DeltaTable(tmp_path).files([("integer", "=", 10)])
    for file in lazydelta.DeltaTable(tmp_path).files():
        if file.path != kept.path:
            (tmp_path / unquote(file.path)).unlink()
    wheres = [Condition(name, kind, "=", value) for name, (kind, _, value) in SKIPPED_BY.items()]
    for where, found in zip(wheres, _ask(delta_spark, tmp_path, wheres), strict=True):
        values = [normal(each, where.kind) for each in found[where.column].to_pylist()]
        assert values == [normal(where.value, where.kind)], where

"""Delta-Spark and lazydelta take turns in advancing the sequence of an identity column."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lazydelta import DeltaTable, create_table, write_arrow
from lazydelta.schema import Field, PrimitiveType, Schema
from tests.support.delta_spark import DeltaSpark

pytestmark = [pytest.mark.xdist_group("other sparks"), pytest.mark.timeout(900)]


def test_delta_spark_goes_on_with_the_identity_column_that_we_wrote(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    notes = {"delta.identity.start": 5, "delta.identity.step": 5, "delta.identity.allowExplicitInsert": False}
    number = Field("number", PrimitiveType("long"), metadata=notes)
    create_table(tmp_path, Schema([Field("id", PrimitiveType("long")), number]))
    write_arrow(tmp_path, pa.table({"id": [1, 2]}))
    place = f"delta.`{tmp_path}`"
    delta_spark.sql(f"INSERT INTO {place} (id) VALUES (3)")
    write_arrow(tmp_path, pa.table({"id": [4]}))
    delta_spark.sql(f"INSERT INTO {place} (id) VALUES (5)")
    rows = delta_spark.sql(f"SELECT id, number FROM {place} ORDER BY id")
    numbers = [row["number"] for row in rows]
    assert numbers[:2] == [5, 10]
    assert all(each % 5 == 0 for each in numbers)
    assert numbers == sorted(set(numbers))
    assert DeltaTable(tmp_path).to_pyarrow_table().sort_by("id")["number"].to_pylist() == numbers

"""The code blocks of README and docs that need Spark, with what they take for granted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lazydelta import DeltaTable
from tests.project.test_code_blocks import ALL, WITH_SPARK
from tests.support.code_blocks import Block, make_world, run_python, run_shell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark")]

BLOCKS = [block for block in ALL if block.title in WITH_SPARK]
ROWS = 240


def _name(block: Block) -> str:
    return f"{block.page}:{block.line}"


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language == "python"], ids=_name)
def test_a_block_of_python_writes_what_arrived(block: Block, spark: SparkSession, tmp_path: Path) -> None:
    make_world(tmp_path)
    reads = "spark.read." in block.code or "read(spark" in block.code
    uri, arriving = str(tmp_path / ("telemetry" if reads else "written")), str(tmp_path / "incoming")
    df = spark.read.parquet(arriving)
    stream = spark.readStream.schema(df.schema).parquet(arriving)
    names = {
        "spark": spark,
        "df": df,
        "stream": stream,
        "uri": uri,
        "other_uri": uri,
        "checkpoints": str(tmp_path / "checkpoints"),
    }
    follows = "spark.readStream." in block.code
    if follows:
        df.write.format("lazydelta").mode("append").save(uri)
    try:
        run_python(block, names)
        for query in spark.streams.active:
            query.processAllAvailable()
    finally:
        for query in spark.streams.active:
            query.stop()
    if "uri" in block.code and not reads:
        writes = 1 if follows else ("df" in block.code) + ("stream" in block.code)
        assert DeltaTable(uri).count() == ROWS * writes


@pytest.mark.parametrize("block", [each for each in BLOCKS if each.language != "python"], ids=_name)
def test_a_block_of_commands_runs(block: Block, spark: SparkSession, tmp_path: Path) -> None:
    """The session is asked for because it has found Java."""
    make_world(tmp_path)
    before = DeltaTable(tmp_path / "telemetry").count()
    run_shell(block, tmp_path)
    assert DeltaTable(tmp_path / "telemetry").count() == before + ROWS

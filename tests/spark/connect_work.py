"""Writes and reads a table as a client of Spark Connect, over a server of its own; prints what came of it as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from lazydelta.spark import read
from lazydelta.spark.source import LazyDeltaSource


def main(work: dict[str, Any]) -> None:
    """Write some rows, read them through both ways, and say who did it."""
    builder = SparkSession.builder.remote("local[2]")
    for key, value in work["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    found: dict[str, Any] = {"session": type(spark).__module__}
    if work["register"]:
        spark.dataSource.register(LazyDeltaSource)
    uri = work["uri"]
    spark.range(50).selectExpr("id", "id % 3 AS p").write.format("lazydelta").mode("append").option(
        "partitionBy", "p"
    ).save(uri)
    source = spark.read.format("lazydelta").load(uri)
    found["source"] = sorted(row.id for row in source.where("p = 1").collect())
    found["files"] = sorted(row.id for row in read(spark, uri, where="p = 1 AND id > 10").collect())
    source.createOrReplaceTempView("rows")
    found["sql"] = spark.sql("SELECT count(*) AS n FROM rows").collect()[0].n
    print(json.dumps(found))  # noqa: T201 - the test reads it
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

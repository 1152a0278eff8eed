"""Tables as Delta-Spark writes them, one for each thing that makes a table hard to read, and questions about them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

COLUMNS = """
    id bigint, s string, f double, d decimal(20,3), ts timestamp, n timestamp_ntz, day date, b binary,
    a array<int>, m map<string, bigint>, st struct<x: bigint, y: struct<z: string>>, p int
"""
ROWS = """
    SELECT id, if(id % 7 = 0, null, concat('k', id % 50)) s,
      CASE WHEN id % 11 = 0 THEN double('NaN') WHEN id % 13 = 0 THEN null ELSE id * 1.5 END f,
      cast(id * 1.001 as decimal(20,3)) d,
      timestamp'1500-03-01 01:02:03.000004' + make_interval(cast(id % 600 as int), 0, 0, cast(id as int)) ts,
      cast('2020-02-29 12:00:00' as timestamp_ntz) + make_interval(0, 0, 0, cast(id as int)) n,
      date_add(date'1400-01-01', cast(id * 300 as int)) day, cast(concat('b', id) as binary) b,
      if(id % 5 = 0, null, array(cast(id as int), null)) a, map('k', id, 'none', null) m,
      named_struct('x', id, 'y', if(id % 3 = 0, null, named_struct('z', cast(id as string)))) st, cast(id % 4 as int) p
    FROM range({0}, {1}, 1, 2)
"""
QUERIES = (
    "id BETWEEN {low} AND {high}",
    "s = 'k{key}'",
    "s LIKE 'k{digit}%' AND f > {low}",
    "f > {low} OR f IS NULL",
    "NOT (f <= {low})",
    "f = double('NaN')",
    "d >= {low}.5 AND d < {high}",
    "ts >= '{year}-01-01 00:00:00' AND p = {digit4}",
    "day < date'{year}-06-01'",
    "n > timestamp_ntz'2020-03-0{digit1} 00:00:00'",
    "p IN ({digit4}, 9) AND id > {low}",
    "p IS NULL OR st.x < {low}",
    "st.y.z IS NULL AND id < {high}",
    "s IS NOT NULL AND NOT s IN ('k1', 'k{key}')",
    "b = cast('b{low}' as binary)",
)


def question(rng: random.Random) -> str:
    """Return a condition over the columns."""
    low = rng.randrange(0, 600)
    values = {
        "low": low,
        "high": low + rng.randrange(1, 200),
        "key": rng.randrange(50),
        "digit": rng.randrange(10),
        "digit1": rng.randrange(1, 10),
        "digit4": rng.randrange(4),
        "year": rng.randrange(1400, 2100),
    }
    return " AND ".join(each.format(**values) for each in rng.sample(QUERIES, rng.choice([1, 1, 2])))


def _create(spark: SparkSession, table: Path, properties: str = "", clause: str = "PARTITIONED BY (p)") -> str:
    name = f"delta.`{table}`"
    spark.sql(f"CREATE TABLE {name} ({COLUMNS}) USING delta {clause} {properties}")
    spark.sql(f"INSERT INTO {name} {ROWS.format(0, 300)}")
    spark.sql(f"INSERT INTO {name} {ROWS.format(300, 600)}")
    return name


def _vectors(spark: SparkSession, table: Path) -> None:
    name = _create(spark, table, "TBLPROPERTIES (delta.enableDeletionVectors = true)")
    spark.sql(f"DELETE FROM {name} WHERE id % 10 = 3 AND p <> 1")
    spark.sql(f"UPDATE {name} SET s = 'changed' WHERE id = 400")


def _optimized_and_restored(spark: SparkSession, table: Path) -> None:
    name = _create(spark, table)
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"DELETE FROM {name} WHERE id > 100")
    spark.sql(f"RESTORE {name} TO VERSION AS OF 3")


def _mapped(spark: SparkSession, table: Path) -> None:
    name = _create(spark, table, "TBLPROPERTIES (delta.columnMapping.mode = 'name')")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN s TO old")
    spark.sql(f"ALTER TABLE {name} ADD COLUMN s string")
    spark.sql(f"ALTER TABLE {name} DROP COLUMN old")
    spark.sql(f"UPDATE {name} SET s = 'k7' WHERE id % 2 = 0")


def _evolved(spark: SparkSession, table: Path) -> None:
    name = _create(spark, table)
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (more string, st.w int)")
    spark.sql(f"INSERT INTO {name} (id, s, more, p) VALUES (700, 'k1', 'new', null)")


def _widened(spark: SparkSession, table: Path) -> None:
    name = _create(spark, table, "TBLPROPERTIES (delta.enableTypeWidening = true)", "")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN p TYPE bigint")
    spark.sql(f"ALTER TABLE {name} ALTER COLUMN d TYPE decimal(30, 5)")
    spark.sql(f"INSERT INTO {name} (id, p, d) VALUES (800, 9999999999, 12345678901234567890.12345)")


def _clustered_v2(spark: SparkSession, table: Path) -> None:
    properties = "TBLPROPERTIES (delta.checkpointPolicy = 'v2', delta.checkpointInterval = 3)"
    name = _create(spark, table, properties, "CLUSTER BY (id)")
    spark.sql(f"OPTIMIZE {name}")
    spark.sql(f"DELETE FROM {name} WHERE id < 20")
    spark.sql(f"INSERT INTO {name} {ROWS.format(600, 650)}")


def _compacted_log(spark: SparkSession, table: Path) -> None:
    """Put a log compaction over the two inserts; Delta-Spark reads such files and has no command that makes one."""
    name = _create(spark, table, "TBLPROPERTIES (delta.checkpointInterval = 100)")
    log = table / "_delta_log"
    commits = [(log / f"{version:020}.json").read_text().splitlines() for version in (1, 2)]
    adds = [line for commit in commits for line in commit if line.startswith('{"add"')]
    assert adds
    (log / f"{1:020}.{2:020}.compacted.json").write_text("\n".join(adds) + "\n")
    spark.sql(f"DELETE FROM {name} WHERE id = 40")


MADE: dict[str, Callable[[SparkSession, Path], None]] = {
    "deletion vectors": _vectors,
    "OPTIMIZE and RESTORE": _optimized_and_restored,
    "column mapping": _mapped,
    "evolution": _evolved,
    "type widening": _widened,
    "CLUSTER BY, V2 checkpoints": _clustered_v2,
    "log compaction": _compacted_log,
}

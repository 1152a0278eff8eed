"""Tables that Spark wrote, as the tests look at them: rows by other readers, files on the disk, footers."""

from __future__ import annotations

import datetime as dt
import json
import operator
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from tests.write.peers import comparable

PATTERNS = {"month": "%Y%m", "day": "%Y%m%d", "hour": "%Y%m%d%H", "minute": "%Y%m%d%H%M", "second": "%Y%m%d%H%M%S"}


def write(df: DataFrame, table: Path, mode: str = "append", **options: Any) -> None:
    """Write a DataFrame as users do."""
    df.write.format("lazydelta").mode(mode).options(**options).save(str(table))


def read(table: Path) -> pa.Table:
    """Return the rows as deltalake reads them."""
    return pa.table(
        deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table)).execute("SELECT * FROM t").read_all()
    )


def read_by_delta_spark(spark: SparkSession, table: Path) -> pa.Table:
    """Return the rows as Delta-Spark reads them."""
    return spark.read.format("delta").load(str(table)).toArrow()


def ids(table: Path) -> list[int]:
    """Return the column ``id`` in order; what is lost is missing, and what is doubled is there twice."""
    found: list[int] = sorted(read(table)["id"].to_pylist())
    return found


def by_id(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the rows in the order of their ids."""
    return sorted(rows.to_pylist(), key=operator.itemgetter("id"))


def same(found: pa.Table, expected: pa.Table) -> bool:
    """Tell whether two tables have the same rows in the columns of the second."""
    return comparable(found, expected.schema) == comparable(expected, expected.schema)


def logged(table: Path) -> set[str]:
    """Return the data files that the newest version names."""
    return {str(Path(unquote(uri)).relative_to(table)) for uri in deltalake.DeltaTable(table).file_uris()}


def on_disk(table: Path) -> set[str]:
    """Return the data files in the folder, referenced or not, unfinished ones included."""
    found = (each.relative_to(table) for each in table.rglob("*") if each.is_file())
    return {str(each) for each in found if each.parts[0] != "_delta_log"}


def named(table: Path) -> set[str]:
    """Return the data files that some commit has added."""
    return {unquote(each["path"]) for version in commits(table) for each in actions(table, version, "add")}


def added(table: Path) -> list[dict[str, Any]]:
    """Return the files of the newest version with what the log says of them."""
    found: list[dict[str, Any]] = pa.table(deltalake.DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
    return found


def commits(table: Path) -> list[int]:
    """Return the versions in the log."""
    return sorted(int(each.stem) for each in (table / "_delta_log").glob("*.json") if each.stem.isdigit())


def actions(table: Path, version: int, kind: str) -> list[dict[str, Any]]:
    """Return the actions of one kind in a commit."""
    text = (table / "_delta_log" / f"{version:020}.json").read_text()
    return [action[kind] for line in text.splitlines() if kind in (action := json.loads(line))]


def partition_of(timestamp: dt.datetime | dt.date | None, boundary: str) -> str | None:
    """Return the partition value that a timestamp must have; computed here by other means than the product's."""
    if timestamp is None:
        return None
    if isinstance(timestamp, dt.datetime) and timestamp.tzinfo is not None:
        timestamp = timestamp.astimezone(dt.UTC)
    return timestamp.strftime(PATTERNS[boundary])


def check_footers(table: Path, column: str, boundary: str, partition: str) -> int:
    """Assert that each file has the timestamps of its partition only, by its footer; return the number of files."""
    files = added(table)
    for file in files:
        footer = pq.read_metadata(table / unquote(file["path"]))
        expected = file[f"partition.{partition}"]
        assert f"{partition}=" in file["path"]
        for timestamp in _bounds(footer, column):
            assert partition_of(timestamp, boundary) == expected
    return len(files)


def _bounds(footer: pq.FileMetaData, column: str) -> Iterable[dt.datetime | dt.date | None]:
    index = footer.schema.names.index(column)
    for group in range(footer.num_row_groups):
        statistics = footer.row_group(group).column(index).statistics
        assert statistics is not None
        if statistics.has_min_max:
            assert statistics.null_count == 0
            yield from (statistics.min, statistics.max)
        else:
            assert statistics.null_count == footer.row_group(group).num_rows
            yield None

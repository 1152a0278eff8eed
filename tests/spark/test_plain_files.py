"""Which files Spark's own Parquet reader may have: those it reads as the table means them, going by names alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lazydelta import DeltaTable, write_arrow
from lazydelta.handle import TableHandle
from lazydelta.log.actions import DeletionVector
from lazydelta.scan.data_file import StoredFile
from lazydelta.spark.reading.plain_files import PlainFiles
from tests.scan.hand_log import HandLog

PARTITIONED = PlainFiles(("p", "_q"), is_plain_table=True)
VECTOR = DeletionVector(storage_type="i", path_or_inline_dv="x", size_in_bytes=1, cardinality=1)


@pytest.mark.parametrize(
    ("path", "values", "expected"),
    [
        ("p=a/_q=1/f.parquet", {"p": "a", "_q": "1"}, True),
        ("p=a%2520b/_q=1/f.parquet", {"p": "a b", "_q": "1"}, True),
        ("p=a%20b/_q=1/f.parquet", {"p": "a b", "_q": "1"}, True),
        ("p=a%253Db/_q=1/f.parquet", {"p": "a=b", "_q": "1"}, True),
        ("p=__HIVE_DEFAULT_PARTITION__/_q=1/f.parquet", {"p": None, "_q": "1"}, True),
        ("p=__HIVE_DEFAULT_PARTITION__/_q=1/f.parquet", {"p": "", "_q": "1"}, True),
        ("p=a/_q=1/f.parquet", {"p": "b", "_q": "1"}, False),
        ("p=a/_q=1/f.parquet", {"p": None, "_q": "1"}, False),
        ("_q=1/p=a/f.parquet", {"p": "a", "_q": "1"}, False),
        ("p=a/f.parquet", {"p": "a", "_q": "1"}, False),
        ("f.parquet", {"p": "a", "_q": "1"}, False),
        ("p=a/_q=1/more=2/f.parquet", {"p": "a", "_q": "1"}, False),
        ("xy/p=a/_q=1/f.parquet", {"p": "a", "_q": "1"}, False),
        ("_xy/p=a/_q=1/f.parquet", {"p": "a", "_q": "1"}, False),
        (".xy/p=a/_q=1/f.parquet", {"p": "a", "_q": "1"}, False),
        ("p=a/_q=1/_f.parquet", {"p": "a", "_q": "1"}, False),
        ("p=a/_q=1/f%5B1%5D.parquet", {"p": "a", "_q": "1"}, False),
        ("p=%7Ba,b%7D/_q=1/f.parquet", {"p": "{a,b}", "_q": "1"}, False),
        ("/elsewhere/p=a/_q=1/f.parquet", {"p": "a", "_q": "1"}, False),
        ("file:///elsewhere/p=a/_q=1/f.parquet", {"p": "a", "_q": "1"}, False),
        ("s3://bucket/p=a/_q=1/f.parquet", {"p": "a", "_q": "1"}, False),
    ],
    ids=str,
)
def test_a_file_is_plain_if_its_folders_say_what_the_log_says(
    path: str,
    values: dict[str, str | None],
    expected: bool,  # noqa: FBT001 - a parameter of the cases
) -> None:
    """And if Spark takes its path neither for hidden nor for a pattern."""
    assert PARTITIONED.holds(StoredFile(path, 5, values)) is expected
    assert not PARTITIONED.holds(StoredFile(path, 5, values, VECTOR))
    assert not PARTITIONED.holds(StoredFile(path, 0, values))


def test_files_of_our_own_writer_are_plain_whatever_the_partition(tmp_path: Path) -> None:
    """But for names that Spark would take for patterns."""
    values = ["a b", "50%", "a/b", "k=v", "ü", "007", "", None, "..", "_h", ".h", "x\\y", "*", "{}"]
    write_arrow(tmp_path, pa.table({"id": range(len(values)), "p": pa.array(values)}), partition_by=["p"])
    plain = PlainFiles.of(TableHandle.open(tmp_path).snapshot())
    held = {file.partition_values["p"] or None for file in DeltaTable(tmp_path).files() if plain.holds(file.to_read())}
    assert held >= {"a b", "50%", "a/b", "k=v", "ü", "007", None, "..", "_h", ".h"}


@pytest.mark.parametrize("kind", ["timestamp", "double", "decimal(9,2)", "binary"])
def test_partitions_that_spark_reads_by_its_own_rules_are_left_to_the_source(kind: str, tmp_path: Path) -> None:
    """A time goes by the zone of the session, a fraction by how it is written."""
    log = HandLog(tmp_path, {"id": "long", "p": kind}, partitions=["p"])
    log.commit()
    assert not PlainFiles.of(TableHandle.open(tmp_path).snapshot()).is_plain_table

"""Delta-Spark's own validation of a table's state passes on our checksums, and would not on wrong ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from lazydelta import DeltaTable, write_arrow
from lazydelta.storage import open_store
from lazydelta.write.checkpoint.writer import write_checkpoint, write_last_checkpoint
from tests.support.delta_spark import DeltaSpark

# One Spark at a time: all of these run in the same worker.
pytestmark = [pytest.mark.xdist_group("other sparks"), pytest.mark.timeout(600)]


def batch(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def spark_ids(spark: DeltaSpark, path: Path) -> list[int]:
    return sorted(row["id"] for row in spark.sql(f"SELECT id FROM delta.`{path}`"))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("numFiles", 3), ("tableSizeBytes", 7), ("setTransactions", [{"appId": "x", "version": 1}])],
)
def test_spark_refuses_a_checksum_that_is_wrong(
    delta_spark: DeltaSpark, tmp_path: Path, name: str, wrong: object
) -> None:
    """Else its silence about ours would say nothing."""
    for number in range(2):
        write_arrow(tmp_path, batch(number))
    file = tmp_path / "_delta_log" / f"{1:020d}.crc"
    content = json.loads(file.read_text())
    assert content["numFiles"] == 2
    file.write_text(json.dumps(content | {name: wrong}))
    with pytest.raises(AssertionError, match="DELTA_TXN_LOG_FAILED_INTEGRITY"):
        delta_spark.validate(tmp_path)


def test_sparks_validation_passes_on_every_kind_of_commit_of_ours(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    """Creation, append, application, removal, overwrite, evolution, with a checkpoint in between."""
    write_arrow(tmp_path, batch(0, 1), properties={"delta.checkpointInterval": "3"})
    write_arrow(tmp_path, batch(2), app_id="job", app_version=1)
    write_arrow(tmp_path, batch(3), mode="overwrite")
    for number in range(3):
        write_arrow(tmp_path, batch(4 + number), app_id="job", app_version=2 + number)
    write_arrow(tmp_path, batch(7).append_column("more", pa.array(["x"])), schema_mode="merge")
    assert (tmp_path / "_delta_log" / f"{6:020d}.checkpoint.parquet").exists()
    for version in range(7):
        place = tmp_path / f"upto-{version}"
        shutil.copytree(tmp_path / "_delta_log", place / "_delta_log", ignore=_above(version))
        assert delta_spark.validate(place) == version


def _above(version: int) -> Callable[[str, list[str]], list[str]]:
    def ignored(_: str, names: list[str]) -> list[str]:
        return [name for name in names if not name[:20].isdigit() or int(name[:20]) > version]

    return ignored


def test_spark_goes_on_from_the_checksum_that_our_checkpoint_starts(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    """The commits are deltalake's, which writes none."""
    for number in range(4):
        deltalake.write_deltalake(tmp_path, batch(number), mode="append")
    deltalake.DeltaTable(tmp_path).delete("id = 1")
    store = open_store(tmp_path)
    assert write_last_checkpoint(store, write_checkpoint(store))
    checksum = json.loads((tmp_path / "_delta_log" / f"{4:020d}.crc").read_text())
    assert checksum["numFiles"] == 3
    assert delta_spark.validate(tmp_path) == 4
    assert spark_ids(delta_spark, tmp_path) == [0, 2, 3]
    delta_spark.sql(f"INSERT INTO delta.`{tmp_path}` SELECT 5L")
    theirs = json.loads((tmp_path / "_delta_log" / f"{5:020d}.crc").read_text())
    assert delta_spark.validate(tmp_path) == 5
    found = DeltaTable(tmp_path, options={"checksum": "error"}).files().collect()
    assert (theirs["numFiles"], theirs["tableSizeBytes"]) == (4, sum(file.size for file in found))

"""Delta-Spark as the other party of OPTIMIZE and VACUUM: the same files may go, the same rows are there."""

from __future__ import annotations

import datetime as dt
import math
import random
import shutil
import threading
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lazydelta import DeltaTable, write_arrow
from lazydelta.errors import StorageError
from lazydelta.maintenance.optimize import optimize
from lazydelta.maintenance.vacuum import vacuum
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, observe, open_store
from lazydelta.write.checkpoint.distributed import write_checkpoint_in_parts
from lazydelta.write.checkpoint.writer import write_checkpoint, write_last_checkpoint
from tests.maintenance.old_tables import NOW, data_files
from tests.maintenance.random_past import RandomHistory
from tests.support.delta_spark import DeltaSpark
from tests.write.test_spread_checkpoint import failing, in_turn, only_parts, parts

pytestmark = [pytest.mark.xdist_group("other sparks"), pytest.mark.timeout(600)]


def spark_vacuum(spark: DeltaSpark, root: Path, hours: int) -> set[str]:
    """Return the files that Delta-Spark would delete; the empty folders that it names as well are left out."""
    found: set[str] = set()
    for row in spark.sql(f"VACUUM delta.`{root}` RETAIN {hours} HOURS DRY RUN"):
        plain = "/" + str(row["path"]).removeprefix("file:").lstrip("/")
        path = Path(plain) if Path(plain).exists() else Path(unquote(plain))
        assert path.exists()
        if path.is_file():
            found.add(path.relative_to(root).as_posix())
    return found


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 22), marks=pytest.mark.slow)], ids=["2", "20"])
def test_what_would_be_deleted_is_what_spark_would_delete(
    delta_spark: DeltaSpark, tmp_path: Path, seeds: range
) -> None:
    deleted = 0
    for seed in seeds:
        root = tmp_path / f"table{seed}"
        # The tables have their past before NOW, which is not today.
        now = dt.datetime.now(dt.UTC)
        hours = math.ceil((now - NOW) / dt.timedelta(hours=1)) + 24 * (seed % 3) * 4
        configuration = {"delta.deletedFileRetentionDuration": f"interval {hours} hours"}
        # Spark takes it for granted that deletion vectors with an absolute path are elsewhere, and would delete them.
        RandomHistory(root, seed, configuration=configuration, absolute_vectors=False)
        told = vacuum(TableHandle.open(root), now=now).paths
        assert set(told) == spark_vacuum(delta_spark, root, hours), seed
        deleted += len(told)
    assert deleted > 5


def rows(first: int) -> pa.Table:
    return pa.table({"_event_hour": ["a", "b", None] * 4, "id": pa.array(range(first, first + 12), pa.int64())})


def spark_ids(spark: DeltaSpark, root: Path, version: int | None = None) -> list[int]:
    at = "" if version is None else f" VERSION AS OF {version}"
    return sorted(row["id"] for row in spark.sql(f"SELECT id FROM delta.`{root}`{at}"))


def our_ids(root: Path, version: int | None = None) -> list[int]:
    found: list[int] = DeltaTable(root, version).to_pyarrow_table(columns=["id"]).column("id").to_pylist()
    return sorted(found)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table of four small commits, ready for deletion vectors."""
    for number in range(4):
        properties: dict[str, str] = {"delta.enableDeletionVectors": "true"} if number == 0 else {}
        write_arrow(tmp_path, rows(number * 12), partition_by=["_event_hour"], properties=properties)
    return tmp_path


def test_tables_that_we_packed_and_vacuumed_are_read_alike(delta_spark: DeltaSpark, table: Path) -> None:
    delta_spark.sql(f"DELETE FROM delta.`{table}` WHERE id IN (1, 14, 27)")
    handle = TableHandle.open(table)
    assert any(file.deletion_vector is not None for file in DeltaTable(table).files())
    before = [spark_ids(delta_spark, table, version) for version in range(5)]
    packed = optimize(handle)
    assert packed.vectors > 0
    assert delta_spark.validate(table) == packed.version
    assert spark_ids(delta_spark, table) == our_ids(table) == before[4]
    # Within the retention every version is whole for both.
    assert vacuum(handle, dry_run=False).paths == []
    assert [spark_ids(delta_spark, table, version) for version in range(5)] == before
    assert [our_ids(table, version) for version in range(5)] == before
    vacuum(handle, retention=dt.timedelta(0), enforce_retention=False, dry_run=False)
    assert spark_ids(delta_spark, table) == before[4]
    assert delta_spark.validate(table) == DeltaTable(table).version()
    history = delta_spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 3")
    assert [each["operation"] for each in history] == ["VACUUM END", "VACUUM START", "OPTIMIZE"]


def test_sparks_own_upkeep_leaves_ours_working_and_says_the_same_in_the_log(
    delta_spark: DeltaSpark, table: Path
) -> None:
    expected = our_ids(table)
    delta_spark.sql(f"OPTIMIZE delta.`{table}`")
    delta_spark.sql(f"VACUUM delta.`{table}` RETAIN 0 HOURS")
    assert our_ids(table) == expected
    handle = TableHandle.open(table)
    assert optimize(handle).removed.count == 0
    assert vacuum(handle, retention=dt.timedelta(0), enforce_retention=False).paths == []
    write_arrow(table, rows(100), mode="overwrite")
    vacuum(handle, retention=dt.timedelta(0), enforce_retention=False, dry_run=False)
    said: dict[str, list[dict[str, Any]]] = {}
    for each in DeltaTable(table).history():
        said.setdefault(each["operation"], []).append(each)
    for operation in ("VACUUM START", "VACUUM END"):
        mine, theirs = said[operation]
        assert mine["operationParameters"].keys() == theirs["operationParameters"].keys()
        assert mine["operationMetrics"].keys() == theirs["operationMetrics"].keys()


def test_a_deletion_vector_of_sparks_written_meanwhile_is_kept(delta_spark: DeltaSpark, table: Path) -> None:
    done: list[int] = []

    def interrupt(request: Request) -> None:
        if request.verb == "PUT" and request.path.endswith(f"{4:020}.json") and not done:
            done.append(1)
            delta_spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 0")

    with observe(interrupt):
        result = optimize(TableHandle.open(table))
    assert result.conflicts == 4
    assert result.partitions == 2
    assert spark_ids(delta_spark, table) == our_ids(table) == list(range(1, 48))
    optimize(TableHandle.open(table))
    assert spark_ids(delta_spark, table) == list(range(1, 48))
    assert {file.path for file in DeltaTable(table).files()} <= data_files(table)


def test_a_checkpoint_of_many_parts_is_read_and_one_that_is_not_complete_passed_by(
    delta_spark: DeltaSpark, tmp_path: Path
) -> None:
    """Beside it lies the first part of a job that failed, and one of its own parts is empty."""
    root = tmp_path / "whole"
    for number in range(4):
        write_arrow(root, rows(number * 12), partition_by=["_event_hour"], maintain=False)
    store = open_store(root)
    write_last_checkpoint(store, write_checkpoint(store, memory_budget=6))
    some = rows(100).filter(pc.equal(rows(100)["_event_hour"], "a"))
    write_arrow(root, some, mode="overwrite", overwrite_where="_event_hour = 'a'", maintain=False)
    with pytest.raises(StorageError):
        write_checkpoint_in_parts(store, failing, unit_rows=1)
    done = write_checkpoint_in_parts(store, in_turn, unit_rows=1)
    assert done.parts is not None
    expected = our_ids(root)
    for name in ("incomplete", "misled"):
        shutil.copytree(root, tmp_path / name)
        parts(tmp_path / name, 4)[2].unlink()
    assert write_last_checkpoint(store, done)
    shutil.copy(root / "_delta_log" / "_last_checkpoint", tmp_path / "misled" / "_delta_log")
    last = root / "_delta_log" / f"{4:020}.json"
    kept = last.read_bytes()
    only_parts(root, 4)
    last.write_bytes(kept)  # Spark wants a commit for the newest version, and so every clean-up leaves it one
    for name in ("whole", "incomplete", "misled"):
        assert spark_ids(delta_spark, tmp_path / name) == expected, name
    # And Spark goes on from there: commits, a checkpoint of its own, the checksum.
    delta_spark.sql(f"DELETE FROM delta.`{root}` WHERE id = {expected[0]}")
    assert our_ids(root) == spark_ids(delta_spark, root) == expected[1:]


@pytest.mark.parametrize("mode", ["name", pytest.param("id", marks=pytest.mark.slow)])
def test_tables_whose_columns_spark_has_mapped_are_packed(delta_spark: DeltaSpark, tmp_path: Path, mode: str) -> None:
    """Renamed, dropped and made anew under an old name: what a file has is found by what the log says."""
    name, root = f"delta.`{tmp_path}`", tmp_path
    properties = f"'delta.columnMapping.mode'='{mode}', 'delta.enableDeletionVectors'='true'"
    columns = "id BIGINT, hour STRING, gone INT, deep STRUCT<a: INT, b: STRING>"
    delta_spark.sql(f"CREATE TABLE {name} ({columns}) USING delta PARTITIONED BY (hour) TBLPROPERTIES ({properties})")
    delta_spark.sql(f"INSERT INTO {name} SELECT id, CONCAT('h', id % 2), 7, STRUCT(id, 'x') FROM RANGE(0, 8)")
    delta_spark.sql(f"ALTER TABLE {name} DROP COLUMN gone")
    delta_spark.sql(f"ALTER TABLE {name} ADD COLUMN gone STRING")
    delta_spark.sql(f"ALTER TABLE {name} RENAME COLUMN hour TO timestamp")
    delta_spark.sql(f"ALTER TABLE {name} RENAME COLUMN deep.a TO c")
    insert = "SELECT id, CONCAT('h', id % 2), STRUCT(id, 'y'), 'new' FROM RANGE"
    delta_spark.sql(f"INSERT INTO {name} (id, timestamp, deep, gone) {insert}(8, 16)")
    delta_spark.sql(f"DELETE FROM {name} WHERE id IN (2, 9)")
    query = f"SELECT id, timestamp, deep.c, deep.b, gone FROM {name} ORDER BY id"
    before = delta_spark.sql(query)
    packed = optimize(TableHandle.open(root))
    assert packed.vectors > 0
    assert packed.added.count == 2
    assert delta_spark.sql(query) == before
    assert len(before) == 14
    assert our_ids(root) == [each["id"] for each in before]
    assert delta_spark.validate(root) == packed.version
    # And Spark finds its columns where it looks for them next: in what it packs and deletes itself.
    delta_spark.sql(f"DELETE FROM {name} WHERE deep.c = 3")
    assert our_ids(root) == spark_ids(delta_spark, root) == [each["id"] for each in before if each["id"] != 3]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_appends_of_ours_and_deletes_of_sparks_beside_upkeep_and_readers(delta_spark: DeltaSpark, table: Path) -> None:
    """No row is lost, doubled or back again, and every version within the retention is whole at any time."""
    written, doomed, errors = set(range(48)), set[int](), list[BaseException]()

    def append() -> None:
        try:
            for first in range(1000, 1000 + 40 * 12, 12):
                write_arrow(table, rows(first), max_attempts=100)
                written.update(range(first, first + 12))
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    def delete() -> None:
        try:
            for number in range(0, 48, 2):
                doomed.add(number)
                while not _deleted(delta_spark, table, number):
                    pass
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    def read(version: int | None = None) -> set[int]:
        before = set(written)
        found = our_ids(table, version)
        assert len(found) == len(set(found))
        assert version is not None or before - doomed <= set(found)
        return set(found)

    writers = [threading.Thread(target=append), threading.Thread(target=delete)]
    for each in writers:
        each.start()
    handle, dice = TableHandle.open(table), random.Random(1)
    while any(each.is_alive() for each in writers):
        optimize(handle)
        vacuum(handle, dry_run=False)
        read()
        read(dice.randrange(DeltaTable(table).version() + 1))
    assert errors == []
    assert read() == written - doomed
    assert spark_ids(delta_spark, table) == sorted(written - doomed)
    for version in range(DeltaTable(table).version() + 1):
        read(version)


def _deleted(spark: DeltaSpark, root: Path, number: int) -> bool:
    """Let Spark delete a row by a deletion vector; False where another writer was faster, and it has to try again."""
    try:
        spark.sql(f"DELETE FROM delta.`{root}` WHERE id = {number}")
    except AssertionError as error:
        if "CONCURRENT" not in str(error).upper():
            raise
        return False
    return True


def test_spark_finds_rows_with_nan_in_files_that_we_wrote(delta_spark: DeltaSpark, tmp_path: Path) -> None:
    # NaN is the largest value there, and the comparison is pushed to the footers of the files.
    root = tmp_path / "table"
    for first in (0, 10, 20):
        inner = pa.array([{"x": 0.5}, {"x": math.nan}])
        write_arrow(str(root), pa.table({"id": [first, first + 1], "f": [0.5, math.nan], "s": inner}))
    nan = [1, 11, 21]
    conditions = {"f > 5.0": nan, "f = double('NaN')": nan, "f < 5.0": [0, 10, 20], "s.x > 5.0": nan}
    for condition, expected in conditions.items():
        found = delta_spark.sql(f"SELECT id FROM delta.`{root}` WHERE {condition}")
        assert sorted(row["id"] for row in found) == expected
    optimize(TableHandle.open(root))
    assert len(data_files(root)) > 3
    for condition, expected in conditions.items():
        found = delta_spark.sql(f"SELECT id FROM delta.`{root}` WHERE {condition}")
        assert sorted(row["id"] for row in found) == expected

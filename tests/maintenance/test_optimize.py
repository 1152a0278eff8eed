"""OPTIMIZE: small files become large ones, within their partition, and no row is lost, doubled or changed."""

from __future__ import annotations

import json
import pickle
import random
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lazydelta
from lazydelta.errors import (
    CommitConflictError,
    DataFileError,
    OptionError,
    PredicateError,
    StorageError,
    UnknownColumnError,
    UnsupportedFeatureError,
)
from lazydelta.maintenance.optimize import OptimizeResult, OptimizeSettings, optimize, target_size_of
from lazydelta.maintenance.rewrite import Candidates
from lazydelta.maintenance.vacuum import vacuum
from lazydelta.protocol.actions import Metadata
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, observe, open_store
from lazydelta.write.copied_rows import LoggedFile
from lazydelta.write.transaction import CommitResult
from tests.maintenance.deleted_rows import delete_rows
from tests.maintenance.old_tables import data_files
from tests.write.commits import commit_lines

COMMITS = 4


def append(root: Path, first: int, **options: Any) -> None:
    """Append six rows to three partitions, of which one is null."""
    rows = pa.table(
        {
            "hour": pa.array(["a", "a", "b", "b", None, None]),
            "id": pa.array(range(first, first + 6), pa.int64()),
            "text": [f"x{first}", None, "y", "z", "", "ü"],
        }
    )
    lazydelta.write_arrow(root, rows, partition_by=["hour"], **options)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table of four commits, with three files each."""
    for number in range(COMMITS):
        append(tmp_path, number * 6)
    return tmp_path


def run(root: Path, where: Any = None, *, dry_run: bool = False, **settings: Any) -> OptimizeResult:
    return optimize(TableHandle.open(root), where=where, settings=OptimizeSettings(**settings), dry_run=dry_run)


def files(root: Path) -> list[Any]:
    return lazydelta.DeltaTable(root).files().collect()


def rows(root: Path, version: int | None = None) -> list[tuple[Any, ...]]:
    """Return all rows as deltalake reads them, in any order."""
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(root, version=version))
    return _sorted(pa.table(builder.execute("SELECT * FROM t").read_all()).to_pylist())


def _sorted(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(((each["hour"], each["id"], each["text"]) for each in found), key=repr)


# --- what it does


def test_the_files_of_a_partition_become_one(table: Path) -> None:
    before = rows(table)
    result = run(table)
    assert (result.removed.count, result.added.count, result.partitions) == (12, 3, 3)
    assert result.version == COMMITS
    assert sorted(str(each.partition_values["hour"]) for each in files(table)) == ["None", "a", "b"]
    assert [each.num_records for each in files(table)] == [8, 8, 8]
    assert rows(table) == before
    assert _sorted(lazydelta.DeltaTable(table).to_pyarrow_table().to_pylist()) == before


def test_the_commit_says_that_no_data_changed(table: Path) -> None:
    run(table)
    info, *actions = commit_lines(open_store(table), COMMITS)
    assert info["commitInfo"]["operation"] == "OPTIMIZE"
    assert info["commitInfo"]["operationMetrics"]["numRemovedFiles"] == "12"
    assert info["commitInfo"]["isBlindAppend"] is False
    assert {next(iter(each.values()))["dataChange"] for each in actions} == {False}
    removes = [each["remove"] for each in actions if "remove" in each]
    assert all(each["size"] > 0 and each["deletionTimestamp"] > 0 and each["partitionValues"] for each in removes)
    statistics = [json.loads(each["add"]["stats"]) for each in actions if "add" in each]
    assert all(each["numRecords"] == 8 and each["minValues"]["id"] < each["maxValues"]["id"] for each in statistics)


def test_a_second_run_finds_nothing_and_commits_nothing(table: Path) -> None:
    run(table)
    again = run(table)
    assert (again.removed.count, again.version, again.considered) == (0, None, 3)
    assert lazydelta.DeltaTable(table).version() == COMMITS


def test_only_partitions_with_something_to_pack_are_touched(table: Path) -> None:
    run(table)
    before = {each.path for each in files(table)}
    lazydelta.write_arrow(table, pa.table({"hour": ["b"], "id": pa.array([99]), "text": ["new"]}))
    result = run(table)
    assert result.partitions == 1
    assert len(before & {each.path for each in files(table)}) == 2


def test_files_are_packed_up_to_the_target_and_large_ones_are_left(table: Path) -> None:
    size = max(each.size for each in files(table))
    result = run(table, target_size=2 * size)
    assert result.most_files_in_bin == 2
    assert (result.removed.count, result.added.count) == (12, 6)
    assert run(table, target_size=10).removed.count == 0


def test_rows_stay_in_the_order_of_their_files(table: Path) -> None:
    run(table)
    for each in files(table):
        ids = pq.read_table(table / each.path).column("id").to_pylist()
        assert ids == sorted(ids)


def test_a_predicate_chooses_partitions(table: Path) -> None:
    for where, packed in (("hour = 'a'", 1), ([("hour", "in", ["b"])], 1), ({"hour": None}, 1), ("hour = 'zz'", 0)):
        assert run(table, where).partitions == packed
    assert len(files(table)) == 3


@pytest.mark.parametrize("where", ["id > 3", "hour = 'a' AND id = 1"])
def test_a_predicate_on_rows_is_refused(table: Path, where: str) -> None:
    with pytest.raises(PredicateError, match="OPTIMIZE may name partition columns only"):
        run(table, where)
    assert len(files(table)) == 12


def test_a_dry_run_changes_nothing(table: Path) -> None:
    before = data_files(table)
    told = run(table, dry_run=True)
    assert (told.removed.count, told.partitions, told.added.count) == (12, 3, 0)
    assert data_files(table) == before
    assert lazydelta.DeltaTable(table).version() == COMMITS - 1


def test_older_versions_stay_readable(table: Path) -> None:
    before = [rows(table, version) for version in range(COMMITS)]
    run(table)
    assert [rows(table, version) for version in range(COMMITS)] == before


def test_files_that_lack_a_column_get_it(table: Path) -> None:
    more = pa.table({"hour": ["a"], "id": pa.array([50]), "text": ["t"], "more": pa.array([1.5])})
    lazydelta.write_arrow(table, more, schema_mode="merge")
    run(table)
    found = deltalake.DeltaTable(table).to_pyarrow_table()
    assert sorted(each for each in found.column("more").to_pylist() if each) == [1.5]
    assert found.num_rows == 25


def test_partition_values_keep_their_spelling(tmp_path: Path) -> None:
    """Two spellings of one timestamp are two partitions of the log, and neither is made up anew."""
    append(tmp_path, 0)
    store = open_store(tmp_path)
    for spelled in ("50%", "a b", "x/y"):
        lazydelta.write_arrow(tmp_path, pa.table({"hour": [spelled] * 2, "id": pa.array([1, 2]), "text": ["", ""]}))
        lazydelta.write_arrow(tmp_path, pa.table({"hour": [spelled] * 2, "id": pa.array([3, 4]), "text": ["", ""]}))
    before = rows(tmp_path)
    run(tmp_path)
    assert rows(tmp_path) == before
    assert {each.partition_values["hour"] for each in files(tmp_path)} == {"a", "b", None, "50%", "a b", "x/y"}
    assert all(store.exists(each) for each in data_files(tmp_path))


def test_a_table_without_partitions_is_packed(tmp_path: Path) -> None:
    for number in range(3):
        lazydelta.write_arrow(tmp_path, pa.table({"id": pa.array([number])}))
    assert run(tmp_path).added.count == 1
    assert sorted(deltalake.DeltaTable(tmp_path).to_pyarrow_table().column("id").to_pylist()) == [0, 1, 2]


def test_an_append_only_table_may_be_packed(tmp_path: Path) -> None:
    for number in range(3):
        append(tmp_path, number * 6, properties={"delta.appendOnly": "true"})
    assert run(tmp_path).removed.count == 9


def test_the_table_says_how_large_files_become() -> None:
    def size(text: str | None) -> int:
        return target_size_of(Metadata(id="", schema_string="", configuration={"delta.targetFileSize": text}))

    assert [size(each) for each in ("1048576", "2mb", " 1 GB", None, "nonsense", "0")] == [
        1 << 20,
        2 << 20,
        1 << 30,
        128 << 20,
        128 << 20,
        128 << 20,
    ]


def test_the_commit_brings_the_checkpoint_that_it_makes_due(table: Path) -> None:
    append(table, 100, properties={})
    for number in range(5):
        append(table, 200 + number)
    lazydelta.DeltaTable(table).optimize.compact()
    assert lazydelta.DeltaTable(table).version() == 10
    assert (table / "_delta_log" / f"{10:020}.checkpoint.parquet").exists()
    assert len(lazydelta.DeltaTable(table, options={"checksum": "error"}).files().collect()) == 3


# --- deletion vectors


@pytest.fixture
def deleted(tmp_path: Path) -> Path:
    """Return a table with two files in a partition, of which one has lost a row of two."""
    for number in range(2):
        append(tmp_path, number * 6, properties={"delta.enableDeletionVectors": "true"})
    file = next(each for each in files(tmp_path) if each.partition_values["hour"] == "a")
    delete_rows(tmp_path, file, [1])
    return tmp_path


def test_deleted_rows_are_left_out_for_good(deleted: Path) -> None:
    before = _sorted(lazydelta.DeltaTable(deleted).to_pyarrow_table().to_pylist())
    assert len(before) == 11
    result = run(deleted)
    assert result.vectors == 1
    assert all(each.deletion_vector is None for each in files(deleted))
    assert rows(deleted) == before
    removed = [each["remove"] for each in commit_lines(open_store(deleted), 3) if "remove" in each]
    assert sum("deletionVector" in each for each in removed) == 1


def test_a_file_alone_is_rewritten_for_its_deleted_rows(deleted: Path) -> None:
    result = run(deleted, target_size=10)
    assert (result.removed.count, result.added.count, result.vectors) == (1, 1, 1)
    assert len(rows(deleted)) == 11


def test_a_file_of_deleted_rows_only_goes_without_a_successor(tmp_path: Path) -> None:
    append(tmp_path, 0, properties={"delta.enableDeletionVectors": "true"})
    file = next(each for each in files(tmp_path) if each.partition_values["hour"] == "b")
    delete_rows(tmp_path, file, [0, 1])
    result = run(tmp_path)
    assert (result.removed.count, result.added.count) == (1, 0)
    assert len(rows(tmp_path)) == 4


# --- others at work


def once(verb: str, mark: str, work: Any) -> Any:
    """Return an observer that does some work before the first request of a kind."""
    done: list[bool] = []

    def watch(request: Request) -> None:
        if request.verb == verb and mark in request.path and not done:
            done.append(True)
            work()

    return observe(watch)


COMMIT = f"{COMMITS:020}.json"


@pytest.mark.parametrize("timestamp", [("PUT", ".parquet"), ("PUT", COMMIT)], ids=["while writing", "at the commit"])
def test_an_append_meanwhile_is_no_hindrance(table: Path, timestamp: tuple[str, str]) -> None:
    with once(*timestamp, lambda: append(table, 1000)):
        result = run(table)
    assert (result.conflicts, result.removed.count) == (0, 12)
    assert result.version == COMMITS + 1
    assert len(rows(table)) == (COMMITS + 1) * 6
    assert len(files(table)) == 6


@pytest.mark.parametrize("timestamp", [("PUT", ".parquet"), ("PUT", f"{3:020}.json")], ids=["writing", "committing"])
def test_a_deletion_vector_written_meanwhile_is_a_conflict_of_its_bin_alone(
    deleted: Path, timestamp: tuple[str, str]
) -> None:
    file = next(each for each in files(deleted) if each.partition_values["hour"] == "b")
    with once(*timestamp, lambda: delete_rows(deleted, file, [0])):
        result = run(deleted)
    assert result.conflicts == 2
    assert result.partitions == 2
    assert len(rows(deleted)) == 10
    assert {each.path for each in files(deleted)} <= data_files(deleted)
    # What was written in vain is gone again: beside the files of the log there are the vectors only.
    logged = {each.path for version in range(5) for each in lazydelta.DeltaTable(deleted, version).files()}
    assert {each for each in data_files(deleted) if each.endswith(".parquet")} == logged
    assert run(deleted).partitions == 1
    assert len(rows(deleted)) == 10


def test_files_removed_meanwhile_do_not_come_back(table: Path) -> None:
    def overwrite() -> None:
        lazydelta.write_arrow(
            table,
            pa.table({"hour": ["a"], "id": pa.array([77]), "text": ["only"]}),
            mode="overwrite",
            overwrite_where="hour = 'a'",
        )

    with once("PUT", COMMIT, overwrite):
        result = run(table)
    assert result.conflicts == COMMITS
    found = rows(table)
    assert [each[1] for each in found if each[0] == "a"] == [77]
    assert len(found) == COMMITS * 4 + 1


def test_a_change_of_the_metadata_rules_it_out_and_leaves_nothing(table: Path) -> None:
    before = data_files(table)
    more = pa.table({"hour": ["a"], "id": pa.array([50]), "text": ["t"], "more": pa.array([1.5])})
    with (
        once("PUT", COMMIT, lambda: lazydelta.write_arrow(table, more, schema_mode="merge")),
        pytest.raises(CommitConflictError, match="metadata"),
    ):
        run(table)
    assert len(data_files(table) - before) == 1
    assert run(table).removed.count == 13


# --- failures


def test_a_store_that_takes_no_file_leaves_the_table_as_it_was(table: Path) -> None:
    before = data_files(table)
    seen: list[str] = []

    def refuse(request: Request) -> None:
        if request.verb == "PUT" and request.path.endswith(".parquet"):
            seen.append(request.path)
            if len(seen) == 3:
                raise PermissionError(13, "not yours")

    with observe(refuse), pytest.raises(StorageError):
        run(table)
    assert data_files(table) == before
    assert lazydelta.DeltaTable(table).version() == COMMITS - 1


def test_files_stay_where_it_is_not_known_whether_the_commit_arrived(table: Path) -> None:
    before, expected = data_files(table), rows(table)

    def refuse(request: Request) -> None:
        if request.verb == "PUT" and request.path.endswith(COMMIT):
            raise TimeoutError

    with observe(refuse), pytest.raises(StorageError):
        run(table)
    left = data_files(table) - before
    assert len(left) == 3
    assert rows(table) == expected
    handle = TableHandle.open(table)
    assert set(vacuum(handle, retention=timedelta(0), enforce_retention=False, dry_run=False).paths) == left


@pytest.mark.parametrize(
    ("features", "properties"),
    [
        (["rowTracking", "domainMetadata"], {"delta.enableRowTracking": "true"}),
        (["clustering", "domainMetadata"], {}),
    ],
    ids=str,
)
def test_tables_with_features_that_we_do_not_write_are_refused_by_name(
    table: Path, features: list[str], properties: dict[str, str]
) -> None:
    commit = table / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["configuration"] = properties
        if "protocol" in line:
            line["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    commit.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for checksum in (table / "_delta_log").glob("*.crc"):
        checksum.unlink()
    with pytest.raises(UnsupportedFeatureError, match=features[0]):
        run(table)
    assert len(files(table)) == 12


@pytest.mark.parametrize("wrong", [{"target_size": 0}, {"target_size": -1}, {"memory_budget": 0}, {"sort_by": "id"}])
def test_settings_without_sense_are_refused(table: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        run(table, **wrong)


# --- random tables


@pytest.mark.parametrize("seed", range(8))
def test_random_tables_keep_their_rows(tmp_path: Path, seed: int) -> None:
    """Appends, overwrites, deletion vectors, OPTIMIZE with any target, VACUUM; DuckDB counts the rows of the files."""
    dice = random.Random(seed)
    expected: set[int] = set()
    number = 0
    for _ in range(dice.randint(6, 14)):
        match dice.choice(["append", "append", "append", "delete", "optimize", "vacuum"]):
            case "append":
                append(tmp_path, number, properties={"delta.enableDeletionVectors": "true"})
                expected |= set(range(number, number + 6))
                number += 6
            case "delete" if expected:
                file = dice.choice([each for each in files(tmp_path) if each.deletion_vector is None] or [None])
                if file is not None:
                    ids = pq.read_table(tmp_path / file.path).column("id").to_pylist()
                    gone = dice.sample(range(len(ids)), dice.randint(1, len(ids)))
                    delete_rows(tmp_path, file, gone)
                    expected -= {ids[each] for each in gone}
            case "optimize" if number:
                sort = dice.choice([[], ["id"], ["text", "id"]])
                run(tmp_path, target_size=dice.choice([700, 2000, 1 << 20]), sort_by=sort)
            case "vacuum" if number:
                handle = TableHandle.open(tmp_path)
                vacuum(handle, retention=timedelta(0), enforce_retention=False, dry_run=False)
            case _:
                continue
        if number:
            assert sorted(each[1] for each in rows(tmp_path)) == sorted(expected)
    if number:
        run(tmp_path)
        paths = [str(tmp_path / each.path) for each in files(tmp_path)]
        read = f"SELECT id FROM read_parquet({paths!r}) ORDER BY id"
        ids = duckdb.connect().execute(read).fetchall() if paths else []
        assert [each for (each,) in ids] == sorted(expected)


# --- as deltalake calls it


def test_the_metrics_are_deltalakes(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for root in (ours, theirs):
        for number in range(COMMITS):
            append(root, number * 6)
    mine = lazydelta.DeltaTable(ours).optimize.compact()
    other = deltalake.DeltaTable(theirs).optimize.compact()
    assert list(mine) == list(other)
    for key in set(mine) - {"filesAdded", "numBatches"}:
        assert mine[key] == other[key], key
    assert json.loads(mine["filesAdded"]).keys() == json.loads(other["filesAdded"]).keys()
    empty, nothing = lazydelta.DeltaTable(ours).optimize.compact(), deltalake.DeltaTable(theirs).optimize.compact()
    assert empty == nothing


def test_deltalakes_parameters_are_taken(table: Path) -> None:
    optimizer = lazydelta.DeltaTable(table).optimize
    assert optimizer.compact([("hour", "=", "a")], target_size=1 << 20)["partitionsOptimized"] == 1
    assert optimizer.compact(min_commit_interval=timedelta(0), max_concurrent_tasks=2)["partitionsOptimized"] == 2
    assert optimizer.compact(max_spill_size=1 << 30, max_temp_directory_size=1 << 30)["numFilesAdded"] == 0
    assert lazydelta.DeltaTable(table).version() == COMMITS + 2  # a commit for each partition
    for refused in (
        {"writer_properties": object()},
        {"max_temp_directory_size": 1, "sort_by": ["id"]},
        {"commit_properties": object()},
        {"commit_properties": lazydelta.CommitProperties(max_commit_retries=1)},
        {"target_size": 0},
        {"target_size": 1 << 63},
    ):
        with pytest.raises(OptionError):
            optimizer.compact(**refused)
    with pytest.raises(UnknownColumnError):
        optimizer.compact(sort_by=["nonsense"])


@pytest.mark.parametrize("package", [lazydelta, deltalake], ids=lambda each: each.__name__)
def test_what_the_caller_notes_is_in_the_commit_of_an_optimize(table: Path, package: ModuleType) -> None:
    noted = package.CommitProperties(
        custom_metadata={"userName": "me"}, app_transactions=[package.Transaction("job", 7, None)]
    )
    hooks = package.PostCommitHookProperties(create_checkpoint=False)
    package.DeltaTable(table).optimize.compact(commit_properties=noted, post_commithook_properties=hooks)
    found = deltalake.DeltaTable(table)
    assert [found.history(1)[0][key] for key in ("operation", "userName")] == ["OPTIMIZE", "me"]
    assert found.transaction_version("job") == (7 if package is lazydelta else None)  # deltalake leaves it out here
    append(table, 100)
    with pytest.warns(DeprecationWarning, match="positionally"):
        package.DeltaTable(table).optimize.compact(None, None, None, None, None, None, None, hooks, noted)


# --- many files


def test_candidates_come_by_partition_whatever_their_order() -> None:
    dice = random.Random(1)
    made = [
        LoggedFile(f"f{number}", 1, number, (f"p{number % 97}",), {"p": f"p{number % 97}"}, None, None, None)
        for number in range(5000)
    ]
    shuffled = dice.sample(made, len(made))
    candidates = Candidates()
    for start in range(0, len(made), 700):
        candidates.add(shuffled[start : start + 700])
    found = list(candidates.partitions())
    candidates.close()
    assert len(found) == 97
    assert sorted(each.path for files in found for each in files) == sorted(each.path for each in made)
    for part in found:
        assert len({each.partition for each in part}) == 1
        assert [each.modification_time for each in part] == sorted(each.modification_time for each in part)


@pytest.mark.parametrize("kind", ["data file", "interrupt"])
def test_an_error_after_some_commits_says_what_was_committed(
    table: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("lazydelta.maintenance.optimize._COMMIT_FILES", 1)  # a commit for each bin
    before, version = rows(table), lazydelta.DeltaTable(table).version()

    def after(done: CommitResult) -> None:
        if done.version == version + 2:
            raise DataFileError("gone", hint="restore it") if kind == "data file" else KeyboardInterrupt

    with pytest.raises((DataFileError, KeyboardInterrupt)) as raised:
        optimize(TableHandle.open(table), committed=after)
    error = raised.value
    said = f"2 commits of this OPTIMIZE remain, the last is version {version + 2}: 8 files were replaced by 2"
    if isinstance(error, DataFileError):
        found = pickle.loads(pickle.dumps(error)).committed  # noqa: S301 - our own
        assert str(error) == f"gone (restore it; {said})"
        assert (found.commits, found.version, found.partitions) == (2, version + 2, 2)
        assert (found.removed.count, found.added.count) == (8, 2)
    else:
        assert error.__notes__ == [said]
    assert (rows(table), lazydelta.DeltaTable(table).version()) == (before, version + 2)


def test_an_error_before_the_first_commit_says_nothing_of_commits(table: Path) -> None:
    for file in table.glob("hour=b/*.parquet"):
        file.unlink()
    with pytest.raises(DataFileError) as raised:
        run(table)
    assert raised.value.committed is None
    assert "OPTIMIZE remain" not in str(raised.value)

"""VACUUM: what no version within the retention refers to goes, and nothing else."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import lazydelta
from lazydelta.errors import (
    ChecksumMismatchError,
    DataFileError,
    OptionError,
    StorageError,
    TableNotFoundError,
    UnsupportedFeatureError,
)
from lazydelta.maintenance.vacuum import VacuumResult, vacuum
from lazydelta.sidecar.format.columns import manifest_path
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import TEMPORARY, Request, observe
from tests.maintenance.old_tables import NOW, OldTable, data_files
from tests.scan.hand_log import publish


def run(table: OldTable | Path, **keywords: Any) -> VacuumResult:
    """Vacuum a table now NOW."""
    root = table.table if isinstance(table, OldTable) else table
    given: dict[str, Any] = {"now": NOW, "dry_run": False}
    return vacuum(TableHandle.open(root), **given | keywords)


def hours(number: float) -> timedelta:
    return timedelta(hours=number)


# --- what goes and what stays


def test_active_and_lately_removed_files_stay_and_the_rest_goes(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    result = run(table)
    assert sorted(result.paths) == ["_event_hour=h/gone.parquet", "_event_hour=h/orphan.parquet"]
    assert result.size_bytes == 8
    assert data_files(tmp_path) == {"_event_hour=h/active.parquet", "_event_hour=h/lately.parquet"}


def test_a_dry_run_tells_the_same_and_touches_nothing(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    told = run(table, dry_run=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert sorted(told.paths) == sorted(run(table).paths)


@pytest.mark.parametrize("checkpoint", ["none", "classic", "multipart", "v2 json", "v2 parquet"])
@pytest.mark.parametrize("tail", [False, True])
def test_tombstones_count_wherever_they_are(tmp_path: Path, checkpoint: str, *, tail: bool) -> None:
    table = OldTable.simple(tmp_path)
    if checkpoint != "none":
        table.write_checkpoint(checkpoint)
    if tail:
        table.commit_at(1, table.remove("_event_hour=h/active.parquet", 1))
    assert sorted(run(table).paths) == ["_event_hour=h/gone.parquet", "_event_hour=h/orphan.parquet"]


def test_the_table_says_how_long_files_stay(tmp_path: Path) -> None:
    long = OldTable.simple(tmp_path / "l", configuration={"delta.deletedFileRetentionDuration": "interval 20 days"})
    short = OldTable.simple(tmp_path / "s", configuration={"delta.deletedFileRetentionDuration": "interval 1 hour"})
    assert run(long).paths == ["_event_hour=h/orphan.parquet"]
    assert len(run(short).paths) == 3


def test_a_shorter_retention_is_refused_unless_the_check_is_off(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    with pytest.raises(OptionError, match=r"24 hours is shorter than the 168 hours .*deletedFileRetentionDuration"):
        run(table, retention=hours(24))
    assert len(data_files(tmp_path)) == 4
    assert len(run(table, retention=hours(24), enforce_retention=False).paths) == 3
    with pytest.raises(OptionError, match="is not valid"):
        run(table, retention=hours(-1), enforce_retention=False)


def test_a_longer_retention_counts_removals_that_the_checkpoint_forgot(tmp_path: Path) -> None:
    """Checkpoints carry tombstones for the table's own retention; the older commits know more."""
    table = OldTable.simple(tmp_path)
    table.write_checkpoint(forget=lambda path: "gone" in path)
    assert run(table, retention=hours(24 * 15)).paths == ["_event_hour=h/orphan.parquet"]


def test_young_files_stay_whoever_wrote_them(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    table.put("_event_hour=h/young.parquet", 6.9)
    table.put("_event_hour=h/old.parquet", 7.1)
    assert "_event_hour=h/old.parquet" in run(table).paths
    assert "_event_hour=h/young.parquet" in data_files(tmp_path)


def test_a_removal_without_a_time_is_as_young_as_its_commit(tmp_path: Path) -> None:
    table = OldTable(tmp_path)
    young, old = table.put("young.parquet", 30), table.put("old.parquet", 30)
    table.commit_at(30, table.add(young), table.add(old))
    table.commit_at(9, table.remove(old, None))
    table.commit_at(2, table.remove(young, None))
    assert run(table).paths == ["old.parquet"]


def test_a_file_that_is_added_again_stays(tmp_path: Path) -> None:
    table = OldTable(tmp_path)
    path = table.put("x.parquet", 30)
    table.commit_at(30, table.add(path))
    table.commit_at(20, table.remove(path, 20))
    table.commit_at(19, table.add(path))
    assert run(table).paths == []


def test_files_of_deletion_vectors_live_as_long_as_what_they_hide(tmp_path: Path) -> None:
    table = OldTable(tmp_path, features=["deletionVectors"])
    path = table.put("x.parquet", 30)
    plain, first = table.put_vector(30)
    folded, second = table.put_vector(30, "ab")
    absolute, third = table.put_vector(30, absolute=True)
    table.commit_at(30, table.add(path, plain))
    table.commit_at(20, table.remove(path, 20, plain), table.add(path, folded))
    table.commit_at(5, table.remove(path, 5, folded), table.add(path, absolute))
    assert run(table).paths == [first]
    assert data_files(tmp_path) == {"x.parquet", second, third}
    table.write_checkpoint()
    assert run(table, retention=hours(1), enforce_retention=False).paths == [second]


def test_versions_that_are_named_stay_whole(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    assert run(table, keep_versions=[0]).paths == ["_event_hour=h/orphan.parquet"]
    with pytest.raises(OptionError, match="-1 is not a table version"):
        run(table, keep_versions=[-1])


# --- names


def test_partition_folders_are_data_and_other_hidden_names_are_not(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    gone = {
        "_event_hour=x/a.parquet",
        "_change_data/_event_hour=h/cdc-0.parquet",
        "_change_data/cdc-1.parquet",
        "_delta_index/i",
        "plain/b.parquet",
        "c",
        "_event_hour=x/.lazydelta-0123-part.parquet",
        "%5F/d",
        "metadata/v1.metadata.json",
    }
    stays = {
        "_other=x/a.parquet",
        "_event_hours=x/a.parquet",
        "_temporary/0/a.parquet",
        ".hidden/a",
        ".part.crc",
        "_event_hour=x/_SUCCESS",
        "_event_hour=x/.part.crc",
        "_symlink_format_manifest/manifest",
    }
    for path in gone | stays:
        table.put(path, 30)
    simple = {"_event_hour=h/gone.parquet", "_event_hour=h/orphan.parquet"}
    assert set(run(table).paths) == gone | simple
    assert stays <= data_files(tmp_path)


@pytest.mark.parametrize(
    "property_", ["delta.universalFormat.enabledFormats=iceberg", "delta.enableIcebergCompatV2=true"]
)
def test_icebergs_own_files_stay_where_the_table_has_some(tmp_path: Path, property_: str) -> None:
    key, _, value = property_.partition("=")
    table = OldTable.simple(tmp_path, configuration={key: value})
    table.put("metadata/v1.metadata.json", 30)
    assert len(run(table).paths) == 2
    assert "metadata/v1.metadata.json" in data_files(tmp_path)


def test_the_log_is_never_touched(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    table.put("_delta_log/_sidecars/other.parquet", 90)
    table.put("_delta_log/anything", 90)
    before = set((tmp_path / "_delta_log").rglob("*"))
    run(table, retention=hours(0), enforce_retention=False)
    assert before <= set((tmp_path / "_delta_log").rglob("*"))


def test_empty_folders_go_and_young_ones_stay(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    table.put("_event_hour=x/deep/a.parquet", 30)
    for folder, age in (("old/er", 30.0), ("young", 1.0)):
        (tmp_path / folder).mkdir(parents=True)
        table.set_age(folder, age)
    result = run(table)
    assert set(result.folders) == {"_event_hour=x/deep", "_event_hour=x", "old/er", "old"}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["_delta_log", "_event_hour=h", "young"]


def test_odd_partition_values_are_found_again(tmp_path: Path) -> None:
    """The folder is escaped once for the file system and once more for the log."""
    values = ["a b", "50%", "x=y", "ünï", "#?", "a/b", "2026-02-10T14:00:00Z", "%2F"]
    rows = pa.table({"_event_hour": values, "id": range(len(values))})
    for write in (deltalake.write_deltalake, lazydelta.write_arrow):
        root = tmp_path / write.__name__
        write(root, rows, partition_by=["_event_hour"])
        (root / "_event_hour=50%25" / "orphan").write_bytes(b"x")
        later = NOW.replace(year=2100)
        assert run(root, now=later).paths == ["_event_hour=50%25/orphan"]
        assert deltalake.DeltaTable(root).to_pyarrow_table().num_rows == len(values)


# --- other stores


def test_a_table_in_a_store_is_vacuumed_by_the_ages_of_its_objects(azurite: Any, tmp_path: Path) -> None:
    container = azurite.container("vacuum")
    table = OldTable.simple(tmp_path)
    uri = f"abfss://{container}@{azurite.account}.dfs.core.windows.net/a b/table"
    options = azurite.storage_options()
    publish(tmp_path, uri, options)
    handle = TableHandle.open(uri, options)
    assert vacuum(handle, dry_run=False).paths == []  # everything was just written
    result = vacuum(handle, retention=hours(0), enforce_retention=False, dry_run=False)
    assert sorted(result.paths) == [f"_event_hour=h/{name}.parquet" for name in ("gone", "lately", "orphan")]
    left = {each.path for each in handle.store.walk(lambda path: path == "_delta_log")}
    assert left == {"_event_hour=h/active.parquet"}
    assert table.version + 2 == handle.newest().version


# --- refusals


def test_unknown_writer_features_are_refused_by_name(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["vacuumProtocolCheck"],
        "writerFeatures": ["vacuumProtocolCheck", "appendOnly", "filesElsewhere"],
    }
    table.commit_at(1, {"protocol": protocol})
    with pytest.raises(UnsupportedFeatureError, match="filesElsewhere") as raised:
        run(table)
    assert raised.value.features == ("filesElsewhere",)
    assert len(data_files(tmp_path)) == 4
    table.commit_at(1, {"protocol": protocol | {"writerFeatures": ["vacuumProtocolCheck", "appendOnly"]}})
    assert len(run(table).paths) == 2


def test_a_place_without_a_table_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"x")
    with pytest.raises(TableNotFoundError):
        run(tmp_path, retention=hours(0), enforce_retention=False)
    assert (tmp_path / "precious").exists()


def test_a_log_that_contradicts_its_checksum_is_not_trusted(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    table.checksum(files=2)
    with pytest.raises(ChecksumMismatchError):
        run(table)
    assert len(data_files(tmp_path)) == 4


def test_a_deletion_vector_that_cannot_be_found_stops_the_vacuum(tmp_path: Path) -> None:
    table = OldTable(tmp_path, features=["deletionVectors"])
    path = table.put("x.parquet", 30)
    vector, place = table.put_vector(30)
    table.commit_at(30, table.add(path, vector | {"pathOrInlineDv": "~~~not-z85~~~"}))
    with pytest.raises(DataFileError, match="Z85"):
        run(table)
    assert place in data_files(tmp_path)


# --- the record


def test_a_vacuum_is_recorded_as_other_engines_do(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    run(table, retention=hours(24 * 8))
    end, start = lazydelta.DeltaTable(tmp_path).history(2)
    assert (start["operation"], end["operation"]) == ("VACUUM START", "VACUUM END")
    assert start["operationParameters"] == {
        "retentionCheckEnabled": "true",
        "specifiedRetentionMillis": str(8 * 86_400_000),
        "defaultRetentionMillis": str(7 * 86_400_000),
    }
    assert start["operationMetrics"] == {"numFilesToDelete": 2, "sizeOfDataToDelete": 8}
    assert end["operationParameters"] == {"status": "COMPLETED"}
    assert end["operationMetrics"] == {"numDeletedFiles": 2, "numVacuumedDirectories": 0}
    assert deltalake.DeltaTable(tmp_path).version() == table.version + 2


def test_tables_that_we_do_not_write_to_are_vacuumed_without_a_record(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path, configuration={"delta.constraints.positive": "id > 0"})
    assert len(run(table).paths) == 2
    assert lazydelta.DeltaTable(tmp_path).version() == table.version


def test_records_bring_the_checkpoint_that_they_make_due(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path, configuration={"delta.checkpointInterval": "4"})
    run(table)
    assert (tmp_path / "_delta_log" / f"{4:020}.checkpoint.parquet").exists()
    assert table.version == 2


# --- failures


def test_a_file_that_cannot_be_deleted_is_told_and_the_others_go(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    table.put("stuck/x.parquet", 30)

    def refuse(request: Request) -> None:
        if request.verb == "DELETE" and request.path == "stuck/x.parquet":
            raise PermissionError(13, "not yours")

    with observe(refuse):
        result = run(table)
    assert [each.path for each in result.failed] == ["stuck/x.parquet"]
    assert len(result.paths) == 2
    with pytest.raises(StorageError, match=r"1 files of .* could not be deleted, 2 were") as raised:
        result.check("the table")
    assert raised.value.path == "stuck/x.parquet"
    assert lazydelta.DeltaTable(tmp_path).history(1)[0]["operationParameters"] == {"status": "FAILED"}
    assert run(table).paths == ["stuck/x.parquet"]


def test_nothing_is_deleted_where_the_log_cannot_be_written_to(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)

    def refuse(request: Request) -> None:
        if request.verb == "PUT" and "_delta_log" in request.path:
            raise PermissionError(13, "not yours")

    with observe(refuse), pytest.raises(StorageError):
        run(table)
    assert len(data_files(tmp_path)) == 4


def test_what_is_committed_while_the_store_is_listed_stays(tmp_path: Path) -> None:
    """A slow writer wrote its file long ago and commits it now, when it was listed as an orphan already."""
    table = OldTable.simple(tmp_path)
    table.put("slow.parquet", 30)
    table.put("change.parquet", 30)
    listed: list[str] = []

    def commit(request: Request) -> None:
        if request.verb == "LIST" and request.path == "" and not listed:
            listed.append("")
            cdc = {"cdc": {"path": "change.parquet", "partitionValues": {}, "size": 4, "dataChange": False}}
            table.commit_at(0, table.add("slow.parquet"), cdc)

    with observe(commit):
        result = run(table)
    assert listed
    assert sorted(result.paths) == ["_event_hour=h/gone.parquet", "_event_hour=h/orphan.parquet"]
    assert {"slow.parquet", "change.parquet"} <= data_files(tmp_path)


def test_progress_is_told(tmp_path: Path) -> None:
    table = OldTable.simple(tmp_path)
    told: list[tuple[str, int, int | None]] = []
    run(table, progress=lambda what, done, total: told.append((what, done, total)))
    assert told == [("kept", 2, None), ("listed", 4, None), ("deleted", 2, 2)]


# --- as deltalake calls it


def test_the_method_has_deltalakes_answer(tmp_path: Path) -> None:
    for number in range(3):
        lazydelta.write_arrow(tmp_path, pa.table({"id": [number]}), mode="overwrite")
    table = lazydelta.DeltaTable(tmp_path)
    theirs = deltalake.DeltaTable(tmp_path).vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
    assert sorted(table.vacuum(0, enforce_retention_duration=False)) == sorted(theirs)
    assert len(theirs) == 2
    (tmp_path / "stray.parquet").write_bytes(b"no commit names it")
    lite: Any = {"dry_run": True, "enforce_retention_duration": False, "full": False}
    assert sorted(table.vacuum(0, **lite)) == sorted(deltalake.DeltaTable(tmp_path).vacuum(0, **lite)) == sorted(theirs)
    assert "stray.parquet" in table.vacuum(0, enforce_retention_duration=False)
    (tmp_path / "stray.parquet").unlink()
    table.create_checkpoint()  # the removes are in it, and no longer in a commit above it
    assert sorted(table.vacuum(0, **lite)) == sorted(theirs)
    assert table.vacuum() == []
    assert sorted(table.vacuum(0, dry_run=False, enforce_retention_duration=False)) == sorted(theirs)
    assert table.vacuum(0, **lite) == []  # the log still names them, and they are gone
    for hours_asked in (1, -1):
        with pytest.raises((deltalake.exceptions.DeltaError, ValueError)) as refusal:
            deltalake.DeltaTable(tmp_path).vacuum(hours_asked)
        with pytest.raises(OptionError) as own:
            table.vacuum(hours_asked)
        assert str(own.value) == str(refusal.value)
    for wrong in ({"retention_hours": float("nan")}, {"retention_hours": 1e30}, {"commit_properties": object()}):
        with pytest.raises(OptionError):
            table.vacuum(**wrong)
    with pytest.warns(DeprecationWarning, match="positionally"), pytest.raises(OptionError, match="CommitProperties"):
        table.vacuum(None, *[True, True, True])


@pytest.mark.parametrize("package", [lazydelta, deltalake], ids=lambda each: each.__name__)
def test_what_the_caller_notes_is_in_the_commits_of_a_vacuum(tmp_path: Path, package: ModuleType) -> None:
    for _ in range(2):
        package.write_deltalake(tmp_path, pa.table({"id": [1]}), mode="overwrite")
    table = package.DeltaTable(tmp_path)
    noted = package.CommitProperties(custom_metadata={"userName": "me"})
    by_position: Any = {"expected_warning": DeprecationWarning, "match": "positionally"}
    with pytest.warns(**by_position):
        deleted = table.vacuum(0, *[False, False, None, noted, True])
    assert len(deleted) == 1
    assert [each["userName"] for each in deltalake.DeltaTable(tmp_path).history(2)] == ["me", "me"]
    with pytest.warns(**by_position), pytest.raises(TypeError, match="multiple values for 'keep_versions'"):
        table.vacuum(None, *[True, True, None, noted, True, [1]], keep_versions=[2])
    with pytest.warns(**by_position), pytest.raises(TypeError, match="multiple values for 'full'"):
        table.vacuum(None, *[True, True, None, noted, True], full=True)


def test_the_table_moves_to_its_newest_version_as_deltalakes_does(tmp_path: Path) -> None:
    found: list[list[int]] = []
    for library in (lazydelta, deltalake):
        root = tmp_path / library.__name__
        for number in range(3):
            lazydelta.write_arrow(root, pa.table({"id": [number]}))
        table = library.DeltaTable(root)
        versions = [table.version()]
        table.optimize.compact()
        versions.append(table.version())
        table.vacuum(0, dry_run=True, enforce_retention_duration=False)
        versions.append(table.version())
        table.vacuum(0, dry_run=False, enforce_retention_duration=False)
        found.append([*versions, table.version()])
    assert found[0] == found[1] == [2, 3, 3, 5]


def test_old_sidecars_go_with_it(tmp_path: Path) -> None:
    for number in range(3):
        lazydelta.write_arrow(
            tmp_path, pa.table({"id": [number]}), mode="overwrite", properties={"delta.checkpointInterval": "1"}
        )
    newest, left_over = tmp_path / manifest_path(2), tmp_path / manifest_path(1)
    assert newest.exists()
    left_over.write_bytes(b"torn")
    for each in newest.parent.iterdir():
        os.utime(each, (1, 1))
    lazydelta.DeltaTable(tmp_path).vacuum(dry_run=False)
    assert not left_over.exists()
    assert newest.exists()


def test_a_vacuum_with_nothing_to_do_leaves_no_commit(tmp_path: Path) -> None:
    lazydelta.write_arrow(tmp_path, pa.table({"id": [1]}))
    assert lazydelta.DeltaTable(tmp_path).vacuum(dry_run=False) == []
    assert lazydelta.DeltaTable(tmp_path).version() == 0


def test_temporary_files_of_killed_maintenance_go_after_a_day_and_not_before(tmp_path: Path) -> None:
    """In the log and beside the sidecars, where no listing for VACUUM looks; other people's files there stay."""
    root = tmp_path / "t"
    lazydelta.write_arrow(root, pa.table({"id": [1]}))
    folder = root / "_delta_log" / "_sidecars"
    folder.mkdir(exist_ok=True)
    old: list[Path] = []
    young: list[Path] = []
    foreign: list[Path] = []
    for place in (root / "_delta_log", folder):
        for kind, names in ((old, f"{TEMPORARY}old"), (young, f"{TEMPORARY}young"), (foreign, ".theirs.tmp")):
            path = place / names
            path.write_bytes(b"half")
            kind.append(path)
    for path in (*old, *foreign):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    vacuum(TableHandle.open(root), dry_run=False)
    assert {path for path in (*old, *young, *foreign) if path.exists()} == {*young, *foreign}

"""Changes of files, version by version, beside a plain reading of the JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import MissingCommitError, OptionError, VersionNotFoundError
from tests.oracle.random_log import random_log
from tests.oracle.replay import commit_name, read_commit
from tests.scan.hand_log import HandLog, add, remove, vector, watching

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.rows.change_feed import ChangeStream

KINDS = ("add", "remove", "metaData", "protocol")


def expected(log: Path, versions: range, names: dict[str, str]) -> list[tuple[Any, ...]]:
    """Return what the commits say, line by line."""
    found = []
    for version in versions:
        for line in read_commit(log, version):
            kind = next((each for each in KINDS if line.get(each) is not None), None)
            if kind is None:
                continue
            body = line[kind]
            is_file = kind in {"add", "remove"}
            values = body.get("partitionValues") if is_file else None
            dv = body.get("deletionVector") if is_file else None
            found.append(
                (
                    version,
                    kind,
                    body.get("path") if is_file else None,
                    body.get("size") if is_file else None,
                    body.get("modificationTime") if kind == "add" else None,
                    None if values is None else {names.get(name, name): value for name, value in values.items()},
                    None if dv is None else (dv["storageType"], dv["pathOrInlineDv"], dv.get("offset")),
                    body.get("dataChange", True) if is_file else None,
                    None if is_file else json.dumps(body, sort_keys=True),
                )
            )
    return found


def told(changes: ChangeStream) -> list[tuple[Any, ...]]:
    found = []
    for batch in changes:
        assert batch.schema == changes.schema
        for row in batch.to_pylist():
            dv = row["deletion_vector"]
            detail = row["detail"]
            found.append(
                (
                    row["version"],
                    row["action"],
                    row["path"],
                    row["size"],
                    row["modification_time"],
                    None if row["partition_values"] is None else dict(row["partition_values"]),
                    None if dv is None else (dv["storageType"], dv["pathOrInlineDv"], dv["offset"]),
                    row["data_change"],
                    None if detail is None else json.dumps(json.loads(detail), sort_keys=True),
                )
            )
    return found


@pytest.mark.parametrize("seed", range(0, 240, 12))
def test_changes_of_random_logs_are_those_that_their_commits_name(seed: int, tmp_path: Path) -> None:
    log = random_log(seed, tmp_path)
    table = DeltaTable(log.path)
    names = log.expected(log.latest).logical_names
    earliest = min(int(each.name[:20]) for each in log.log.glob("*.json") if each.name[20:] == ".json")
    for since in {earliest - 1, (earliest + log.latest) // 2, log.latest}:
        wanted = expected(log.log, range(since + 1, log.latest + 1), names)
        assert told(table.changes(since, batch_size=3)) == wanted
    if earliest > 0:
        with pytest.raises(VersionNotFoundError, match=f"the earliest that is left is {earliest}") as refused:
            list(table.changes())
        assert (refused.value.version, refused.value.earliest) == (0, earliest)


def test_a_version_that_does_not_exist_yet_is_an_error(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    table = DeltaTable(log.table)
    with pytest.raises(VersionNotFoundError, match=r"Version 1 of .* does not exist yet"):
        table.changes(1)
    assert list(table.changes(0)) == []
    for wrong in (-2, True, "1", 1.5):
        with pytest.raises(OptionError, match="is not a table version"):
            table.changes(wrong)  # type: ignore[arg-type]


def test_a_commit_that_is_lost_is_not_taken_for_a_cleanup(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    for name in "abcd":
        log.commit(add(name))
    table = DeltaTable(log.table)
    log.checkpoint()
    (log.log / commit_name(2)).unlink()
    with pytest.raises(MissingCommitError, match="Commit 2 is missing"):
        list(DeltaTable(log.table).changes(0))
    with pytest.raises(MissingCommitError):
        list(table.changes(0))


def test_times_are_those_that_commits_state(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    (log.log / commit_name(1)).write_text(
        json.dumps({"commitInfo": {"timestamp": 17}}) + "\n" + json.dumps(add("b")) + "\n"
    )
    (log.log / commit_name(2)).write_text(
        json.dumps(add("c")) + "\n" + json.dumps({"commitInfo": {"timestamp": 18, "inCommitTimestamp": 19}}) + "\n"
    )
    times = [row["timestamp"] for batch in DeltaTable(log.table).changes(0) for row in batch.to_pylist()]
    assert times == [17, 19]
    first = DeltaTable(log.table).changes().read_all()["timestamp"].to_pylist()
    assert first[0] == int((log.log / commit_name(0)).stat().st_mtime * 1000)


def test_a_new_deletion_vector_is_a_removal_and_an_addition(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t", features=["deletionVectors"])
    log.commit(add("a"))
    log.commit(remove("a"), add("a", vector=vector("x")))
    found = DeltaTable(log.table).changes(0).read_all().to_pylist()
    assert [(row["action"], row["deletion_vector"] is not None) for row in found] == [("remove", False), ("add", True)]


def test_whoever_stops_early_has_not_read_the_rest_of_the_log(tmp_path: Path) -> None:
    log = HandLog(tmp_path / "t")
    for number in range(300):
        log.commit(add(f"f{number}"))
    table = DeltaTable(log.table)
    with watching() as watched:
        changes = iter(table.changes())
        next(changes)
        changes.close()  # type: ignore[attr-defined]
    assert watched.commits <= 11

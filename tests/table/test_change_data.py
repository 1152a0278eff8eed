"""Change data: equal to deltalake's, and to what plain arithmetic over the rows of each version says."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

import lazydelta
from lazydelta.errors import (
    CorruptLogError,
    OptionError,
    UnknownColumnError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from tests.table.change_log import ENABLED, action, handmade

if TYPE_CHECKING:
    from pathlib import Path

GAINED, LOST = {"insert", "update_postimage"}, {"delete", "update_preimage"}


def rows_of(start: int, count: int) -> pa.Table:
    """Return rows whose number tells them apart."""
    ids = range(start, start + count)
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "part": [f"p{each % 3}" for each in ids], "word": ["new"] * count}
    )


def random_table(root: Path, seed: int, *, partitioned: bool) -> int:
    """Let deltalake append, delete, update, overwrite and merge at random; return the newest version."""
    dice = random.Random(seed)
    by = ["part"] if partitioned else None
    deltalake.write_deltalake(root, rows_of(0, 12), partition_by=by, configuration=ENABLED)
    for step in range(1, 9):
        table, some = deltalake.DeltaTable(root), dice.randrange(0, 40)
        match dice.choice(["append", "delete", "update", "merge", "overwrite", "optimize"]):
            case "append":
                deltalake.write_deltalake(root, rows_of(100 * step, dice.randrange(1, 9)), mode="append")
            case "delete":
                table.delete(f"id % 4 = {some % 4}")
            case "update":
                table.update(updates={"word": f"'changed {step}'"}, predicate=f"id % 3 = {some % 3}")
            case "merge":
                merged = table.merge(rows_of(some, 6), "t.id = s.id", source_alias="s", target_alias="t")
                merged.when_matched_update_all().when_not_matched_insert_all().execute()
            case "overwrite":
                deltalake.write_deltalake(root, rows_of(1000 * step, 5), mode="overwrite")
            case _:
                table.optimize.compact()
    return deltalake.DeltaTable(root).version()


def plain(rows: Any) -> list[str]:
    """Return rows in an order of their own."""
    return sorted(repr(sorted(each.items())) for each in pa.table(rows).to_pylist())


def contents(root: Path, version: int) -> Counter[str]:
    """Count the rows of a version, as deltalake reads them."""
    found = deltalake.DeltaTable(root, version=version).to_pyarrow_table().to_pylist()
    return Counter(repr(sorted(each.items())) for each in found)


@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.each_value
def test_the_changes_of_a_random_history_are_deltalakes_and_add_up(
    tmp_path: Path, seed: int, *, partitioned: bool
) -> None:
    check_changes(tmp_path, random_table(tmp_path, seed, partitioned=partitioned))


def check_changes(root: Path, newest: int) -> None:
    """Hold the changes to deltalake's, and every version's to the rows that the version has and its forerunner had."""
    table = lazydelta.DeltaTable(root)
    assert plain(table.load_cdf().read_all()) == plain(deltalake.DeltaTable(root).load_cdf().read_all())
    state: Counter[str] = Counter()
    for version in range(newest + 1):
        changes = pa.table(table.load_cdf(version, version).read_all()).to_pylist()
        for change in changes:
            row = repr(sorted((key, value) for key, value in change.items() if not key.startswith("_")))
            assert change["_commit_version"] == version
            assert change["_change_type"] in GAINED | LOST
            state[row] += 1 if change["_change_type"] in GAINED else -1
        assert +state == contents(root, version), version
        assert min(state.values(), default=0) >= 0


@pytest.mark.parametrize("seed", range(4))
def test_what_we_write_has_its_changes(tmp_path: Path, seed: int) -> None:
    """Ours, and between them deltalake's, which writes change data of its own."""
    dice = random.Random(seed)
    lazydelta.write_deltalake(tmp_path, rows_of(0, 12), partition_by=["part"], configuration=ENABLED)
    assert "changeDataFeed" in (deltalake.DeltaTable(tmp_path).protocol().writer_features or ())
    for step in range(1, 9):
        rows = rows_of(100 * step, dice.randrange(1, 9))
        match dice.choice(["append", "overwrite", "partition", "optimize", "delete", "update"]):
            case "append":
                lazydelta.write_deltalake(tmp_path, rows, mode="append")
            case "overwrite":
                lazydelta.write_deltalake(tmp_path, rows, mode="overwrite")
            case "partition":
                one = rows.filter(pads.field("part") == "p1")
                lazydelta.write_deltalake(tmp_path, one, mode="overwrite", predicate="part = 'p1'")
            case "optimize":
                lazydelta.DeltaTable(tmp_path).optimize.compact()
            case "delete":
                deltalake.DeltaTable(tmp_path).delete(f"id % 4 = {step % 4}")
            case _:
                deltalake.DeltaTable(tmp_path).update(updates={"word": f"'changed {step}'"}, predicate="id % 3 = 0")
    check_changes(tmp_path, deltalake.DeltaTable(tmp_path).version())


def test_columns_that_change_data_has_are_not_written_to_such_a_table(tmp_path: Path) -> None:
    lazydelta.write_deltalake(tmp_path / "t", rows_of(0, 3), configuration=ENABLED)
    more = rows_of(3, 3).append_column("_Commit_Version", pa.array([1, 2, 3]))
    with pytest.raises(UnsupportedFeatureError, match="_Commit_Version"):
        lazydelta.write_deltalake(tmp_path / "t", more, mode="append", schema_mode="merge")
    with pytest.raises(UnsupportedFeatureError, match="_Commit_Version"):
        lazydelta.write_deltalake(tmp_path / "new", more, configuration=ENABLED)
    assert not (tmp_path / "new").exists()
    assert contents(tmp_path / "t", 0).total() == 3
    assert lazydelta.DeltaTable(tmp_path / "t").version() == 0
    lazydelta.write_deltalake(tmp_path / "other", more)


@pytest.mark.parametrize(
    "asked",
    [
        {"starting_version": 2},
        {"starting_version": 1, "ending_version": 3},
        {"ending_version": 99},
        {"columns": ["id", "_change_type"]},
        {"columns": ["word"]},
        {"predicate": "_change_type = 'insert' AND id < 100"},
        {"predicate": "_commit_version > 2"},
        {"predicate": "part = 'p1'", "columns": ["id"]},
    ],
    ids=str,
)
def test_ranges_columns_and_predicates_select_what_they_do_in_deltalake(tmp_path: Path, asked: dict[str, Any]) -> None:
    random_table(tmp_path, 11, partitioned=True)
    ours = lazydelta.DeltaTable(tmp_path).load_cdf(**asked)
    theirs = deltalake.DeltaTable(tmp_path).load_cdf(**asked)
    # Deltalake puts partition columns last unless an order was requested; ours stay where the table has them.
    assert ours.schema.names == asked.get("columns", ours.schema.names)
    assert set(ours.schema.names) == set(theirs.schema.names)
    assert plain(ours.read_all()) == plain(theirs.read_all())


def test_timestamps_select_versions_as_in_deltalake(tmp_path: Path) -> None:
    for step in range(4):
        deltalake.write_deltalake(tmp_path, rows_of(step, 1), mode="append", configuration=ENABLED)
        date_commit(tmp_path, step, datetime(2026, 2, 10 + step, tzinfo=UTC))
    ours, theirs = lazydelta.DeltaTable(tmp_path), deltalake.DeltaTable(tmp_path)
    for first, last in [
        ("11T00:00:00", None),
        ("10T12:00:00", "12T12:00:00"),
        (None, "11T00:00:00"),
        ("13T00:00:00", None),
    ]:
        asked: dict[str, Any] = {
            "starting_timestamp": None if first is None else f"2026-02-{first}Z",
            "ending_timestamp": None if last is None else f"2026-02-{last}Z",
        }
        assert plain(ours.load_cdf(**asked).read_all()) == plain(theirs.load_cdf(**asked).read_all()), asked
    late: dict[str, Any] = {"starting_timestamp": "2033-01-01T00:00:00Z"}
    with pytest.raises(VersionNotFoundError, match="greater than latest commit timestamp"):
        ours.load_cdf(**late)
    assert ours.load_cdf(**late, allow_out_of_range=True).read_all().num_rows == 0


def date_commit(root: Path, version: int, timestamp: datetime) -> None:
    """Let a commit say that it was made at a timestamp."""
    path = root / "_delta_log" / f"{version:020}.json"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["timestamp"] = int(timestamp.timestamp() * 1000)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_timestamp_is_taken_from_the_commit_and_shown_in_utc(tmp_path: Path) -> None:
    timestamp = datetime(2026, 2, 10, 14, 30, 1, 234000, tzinfo=UTC)
    deltalake.write_deltalake(tmp_path, rows_of(0, 1), configuration=ENABLED)
    date_commit(tmp_path, 0, timestamp)
    ours = lazydelta.DeltaTable(tmp_path).load_cdf().read_all()
    assert ours["_commit_timestamp"].to_pylist() == [timestamp.replace(tzinfo=None)]
    kept = f"_commit_timestamp > '{(timestamp - timedelta(seconds=1)).replace(tzinfo=None).isoformat()}'"
    assert lazydelta.DeltaTable(tmp_path).load_cdf(predicate=kept).read_all().num_rows == 1


def test_nothing_is_read_before_the_first_row_is_asked_for(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, rows_of(0, 3), configuration=ENABLED)
    deltalake.write_deltalake(tmp_path, rows_of(3, 3), mode="append")
    table = lazydelta.DeltaTable(tmp_path)
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    changes = table.load_cdf()
    assert changes.schema.names == ["id", "part", "word", "_change_type", "_commit_version", "_commit_timestamp"]
    with pytest.raises(lazydelta.LazyDeltaError, match="does not exist"):
        changes.read_next_batch()


def test_versions_that_are_not_there_are_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, rows_of(0, 3), configuration=ENABLED)
    table = lazydelta.DeltaTable(tmp_path)
    with pytest.raises(VersionNotFoundError, match="Invalid table version: 4"):
        table.load_cdf(4)
    assert table.load_cdf(4, allow_out_of_range=True).read_all().num_rows == 0
    with pytest.raises(OptionError, match="Start version 2 is greater than end version 1"):
        table.load_cdf(2, 1)
    with pytest.raises(OptionError, match="starting_version=-1"):
        table.load_cdf(-1)
    with pytest.raises(OptionError, match="ISO 8601"):
        table.load_cdf(starting_timestamp="yesterday")
    with pytest.raises(UnknownColumnError, match="nothing"):
        table.load_cdf(columns=["nothing"])
    with pytest.raises(UnknownColumnError, match="nothing"):
        table.load_cdf(predicate="nothing = 1")


def test_a_version_whose_commit_was_cleaned_up_is_an_error_and_not_a_gap(tmp_path: Path) -> None:
    for step in range(4):
        deltalake.write_deltalake(tmp_path, rows_of(step, 1), mode="append", configuration=ENABLED)
    deltalake.DeltaTable(tmp_path, version=2).create_checkpoint()
    for version in (0, 1):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    table = lazydelta.DeltaTable(tmp_path)
    with pytest.raises(VersionNotFoundError, match=r"Invalid table version: 0.*cleaned up"):
        table.load_cdf()
    assert sorted(table.load_cdf(2).read_all()["id"].to_pylist()) == [2, 3]


def test_versions_without_change_data_are_refused_wherever_they_are(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, rows_of(0, 3))
    with pytest.raises(UnsupportedFeatureError, match="version: 0 that does not have change data enabled"):
        lazydelta.DeltaTable(tmp_path).load_cdf()
    table = deltalake.DeltaTable(tmp_path)
    table.alter.set_table_properties(ENABLED)
    deltalake.write_deltalake(tmp_path, rows_of(3, 1), mode="append")
    deltalake.DeltaTable(tmp_path).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    deltalake.write_deltalake(tmp_path, rows_of(4, 1), mode="append")
    ours = lazydelta.DeltaTable(tmp_path)
    assert ours.load_cdf(1, 2).read_all()["id"].to_pylist() == [3]
    with pytest.raises(UnsupportedFeatureError, match="version: 3 that does not"):
        ours.load_cdf(1).read_all()


@pytest.mark.parametrize("seed", range(6))
def test_deletion_vectors_that_follow_each_other_give_the_rows_between_them(tmp_path: Path, seed: int) -> None:
    """Rows that a vector adds were deleted, and those that it lacks came back; large files come in many batches."""
    dice = random.Random(seed)
    count = dice.choice([20, 150_000])
    pq.write_table(pa.table({"id": pa.array(range(count), pa.int64())}), tmp_path / "a.parquet")
    vectors: list[list[int] | None] = [
        None,
        *(dice.sample(range(count), dice.randrange(1, 15)) for _ in range(3)),
        None,
    ]
    commits = [[action("add", "a.parquet", tmp_path)]]
    for old, new in pairwise(vectors):
        commits.append([action("remove", "a.parquet", tmp_path, old), action("add", "a.parquet", tmp_path, new)])
    handmade(tmp_path, *commits)
    table = lazydelta.DeltaTable(tmp_path)
    for index, (old, new) in enumerate(pairwise(vectors)):
        found = pa.table(table.load_cdf(index + 2, index + 2).read_all()).to_pylist()
        changes = {(each["_change_type"], each["id"]) for each in found}
        before, after = set(old or ()), set(new or ())
        assert changes == {("delete", each) for each in after - before} | {("insert", each) for each in before - after}
        assert len(found) == len(changes)


def test_a_file_that_was_only_moved_changed_nothing(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "b.parquet")
    moved = [action("remove", "a.parquet", tmp_path), action("add", "b.parquet", tmp_path)]
    for each in moved:
        next(iter(each.values()))["dataChange"] = False
    handmade(tmp_path, [action("add", "a.parquet", tmp_path)], moved)
    assert lazydelta.DeltaTable(tmp_path).load_cdf(2).read_all().num_rows == 0


def test_a_change_action_that_makes_no_sense_is_an_error_that_names_its_commit(tmp_path: Path) -> None:
    handmade(tmp_path, [{"cdc": {"path": 7}}])
    with pytest.raises(CorruptLogError, match=r"00000000000000000001\.json has a cdc action"):
        lazydelta.DeltaTable(tmp_path).load_cdf().read_all()

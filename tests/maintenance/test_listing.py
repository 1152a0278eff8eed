"""The listing of a VACUUM that is shared out by folders shows what one walk shows, on every kind of store."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lazydelta.maintenance.vacuum import vacuum
from lazydelta.maintenance.vacuum_files import Listed, ListingJob, TableNames
from lazydelta.protocol.actions import Metadata
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Request, Store, observe
from tests.maintenance.old_tables import NOW, OldTable, data_files
from tests.maintenance.random_past import RandomHistory
from tests.storage.conftest import make_place

SCHEMA = '{"type":"struct","fields":[{"name":"d","type":"string","nullable":true,"metadata":{}}]}'
METADATA = Metadata(id="t", schema_string=SCHEMA, partition_columns=("d",))
PATHS = [
    "root.parquet",
    "_hidden/x",
    "_delta_log/1.json",
    "other/_delta_log/1.json",
    "other/x.parquet",
    "other/deep/y.parquet",
    *(f"d={day}/h={hour}/part-{number}.parquet" for day in "abc ü" for hour in range(3) for number in range(2)),
    "d=a/_SUCCESS",
    "d=a/stray.parquet",
    "d=a/h=1/_hidden/x",
    "d=ab/x.parquet",
]


def _in_pieces(job: ListingJob, enough: int) -> Iterator[Listed]:
    folders, above = job.folders(enough)
    yield from above
    for folder in folders:
        # As a task has it: what one folder has shown is not known to the next.
        yield from pickle.loads(pickle.dumps(job.carrying_credentials())).below(folder)  # noqa: S301 - our own


def _sum(listed: Iterator[Listed]) -> tuple[int, list[tuple[str, int]], set[str], set[str], set[str]]:
    found = list(listed)
    return (
        sum(each.count for each in found),
        sorted((old.path, old.size) for each in found for old in each.old),
        {path for each in found for path in each.linked},
        {path for each in found for path in each.nested},
        {path for each in found for path in each.empty},
    )


def _job(store: Store, levels: int = 2) -> ListingJob:
    return ListingJob(store, TableNames(METADATA), 2**62, levels, 0)


@pytest.mark.parametrize("kind", ["local", "abfss", "s3"])
def test_folders_show_together_what_one_walk_shows(request: pytest.FixtureRequest, kind: str) -> None:
    store = make_place(kind, request).open()
    for path in PATHS:
        store.put(path, path.encode())
    expected = _sum(_job(store).below())
    assert expected[0] == len(PATHS) - 5
    assert expected[3] == {"other"}
    for enough, folders in ((1, 1), (2, 7), (8, 16)):
        job = _job(store)
        assert len(job.folders(enough)[0]) == folders
        assert _sum(_in_pieces(job, enough)) == expected
    assert _job(store, levels=0).folders(100) == ([""], [])


def test_links_and_empty_folders_are_told_by_whoever_meets_them(tmp_path: Path) -> None:
    for path in PATHS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "d=empty").mkdir()
    (tmp_path / "d=a" / "h=empty" / "deeper").mkdir(parents=True)
    (tmp_path / "d=a" / "link").symlink_to(tmp_path / "d=b")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    store = TableHandle.open(tmp_path).store
    expected = _sum(_job(store).below())
    assert expected[2] == {"d=b", "other"}
    assert expected[4] == {"d=empty", "d=a/h=empty/deeper"}
    for enough in (2, 8, 100):
        assert _sum(_in_pieces(_job(store), enough)) == expected


@pytest.mark.parametrize("seed", range(6))
def test_random_tables_lose_the_same_files(tmp_path: Path, seed: int) -> None:
    root = RandomHistory(tmp_path / "t", seed).table.table
    dice = random.Random(seed)
    one = vacuum(TableHandle.open(root), now=NOW)
    pieces = vacuum(TableHandle.open(root), now=NOW, lister=lambda job: _in_pieces(job, dice.randint(2, 9)))
    assert sorted(pieces.paths) == sorted(one.paths)
    assert (pieces.listed, pieces.size_bytes, pieces.kept) == (one.listed, one.size_bytes, one.kept)


def test_a_folder_that_cannot_be_listed_is_an_error_and_nothing_is_deleted(tmp_path: Path) -> None:
    table = OldTable(tmp_path / "t")
    table.commit_at(20)
    table.put("_event_hour=h/left.parquet", 20)
    table.put("_event_hour=i/left.parquet", 20)
    before = data_files(table.table)

    def refuse(request: Request) -> None:
        if request.verb == "LIST" and request.path == "_event_hour=i":
            raise PermissionError(13, os.strerror(13))

    with observe(refuse), pytest.raises(Exception, match="_event_hour=i"):
        vacuum(TableHandle.open(table.table), now=NOW, dry_run=False, lister=lambda job: _in_pieces(job, 2))
    assert data_files(table.table) == before

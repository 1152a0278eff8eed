"""A walk shows every object below the root on every store, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lazydelta.storage import Store, observe, open_store
from lazydelta.storage.remote import _PAGE
from tests.storage.conftest import Place, make_place
from tests.support.s3 import S3Server

PATHS = [
    "part-0.parquet",
    "_event_hour=2026021014/part-1.parquet",
    "_event_hour=a%20b/c d=é/part 2.parquet",
    "deep/er/and/deeper/x",
    "_delta_log/00000000000000000000.json",
    "_delta_log/_sidecars/y.parquet",
    "_hidden/z",
    "deep/_hidden/z",
]


def _fill(store: Store, paths: list[str]) -> None:
    for path in paths:
        store.put(path, path.encode())


def _hides(path: str) -> bool:
    return path.rpartition("/")[2] in {"_delta_log", "_hidden"}


def test_all_objects_but_hidden_ones_are_shown_with_their_sizes(store: Store) -> None:
    _fill(store, PATHS)
    found = list(store.walk(_hides))
    assert sorted(each.path for each in found) == sorted(PATHS[:4])
    assert {each.path: each.size for each in found} == {path: len(path.encode()) for path in PATHS[:4]}
    assert [store.head(each.path) for each in found] == found


def test_what_is_beside_the_root_is_not_shown(place: Place) -> None:
    store = place.open()
    _fill(store, ["inside/x", "y"])
    beside = Place(f"{place.uri}-beside", place.options).open()
    beside.put("z", b"z")
    assert {each.path for each in store.walk(lambda _: False)} == {"inside/x", "y"}


def test_an_empty_place_has_nothing(store: Store) -> None:
    assert list(store.walk(lambda _: False)) == []


def test_a_walk_can_be_deleted_as_it_was_shown(store: Store) -> None:
    _fill(store, PATHS)
    for each in list(store.walk(_hides)):
        store.delete(each.path, missing_ok=False)
    assert list(store.walk(_hides)) == []
    assert len(list(store.walk(lambda _: False))) == 4


def test_a_hidden_folder_of_many_pages_is_jumped_over(request: pytest.FixtureRequest) -> None:
    place = make_place("s3", request)
    store = place.open()
    server: S3Server = request.getfixturevalue("s3_server")
    bucket, _, folder = place.uri.removeprefix("s3://").partition("/")
    server.fill(bucket, [f"{folder}/_delta_log/{number:020}.json" for number in range(2 * _PAGE + 10)])
    _fill(store, ["_a=1/x", "_z=1/x", "b"])
    asked: list[str] = []
    with observe(lambda each: asked.append(each.verb)):
        found = {each.path for each in store.walk(_hides)}
    assert found == {"_a=1/x", "_z=1/x", "b"}
    assert asked == ["LIST", "LIST"]


# --- file systems


def test_links_are_not_followed_and_their_targets_are_told(tmp_path: Path) -> None:
    root, outside = tmp_path / "table", tmp_path / "outside"
    for folder in (root / "real", root / "other", outside):
        folder.mkdir(parents=True)
        (folder / "x").write_bytes(b"x")
    (root / "inwards").symlink_to(root / "real")
    (root / "outwards").symlink_to(outside)
    (root / "other" / "file").symlink_to(root / "other" / "x")
    (root / "broken").symlink_to(tmp_path / "nowhere")
    walk = open_store(root).walk(lambda _: False)
    assert sorted(each.path for each in walk) == ["other/x", "real/x"]
    assert sorted(walk.linked) == ["other/x", "real"]


def test_a_root_that_is_a_link_is_walked(tmp_path: Path) -> None:
    (tmp_path / "real" / "a").mkdir(parents=True)
    (tmp_path / "real" / "a" / "x").write_bytes(b"x")
    (tmp_path / "real" / "link").symlink_to(tmp_path / "real" / "a")
    (tmp_path / "table").symlink_to(tmp_path / "real")
    walk = open_store(tmp_path / "table").walk(lambda _: False)
    assert [each.path for each in walk] == ["a/x"]
    assert walk.linked == ["a"]


def test_empty_folders_are_told_and_names_that_are_no_text_are_passed_by(tmp_path: Path) -> None:
    (tmp_path / "empty" / "er").mkdir(parents=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")).write_bytes(b"x")
    os.utime(tmp_path / "empty" / "er", (1000, 1000))
    walk = open_store(tmp_path).walk(lambda _: False)
    assert [each.path for each in walk] == ["full/x"]
    assert walk.empty == [("empty/er", 1_000_000)]


def test_only_an_empty_folder_is_deleted_and_never_the_root(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert not store.delete_empty_folder("a")
    assert store.delete_empty_folder("a/b")
    assert not store.delete_empty_folder("a/b")
    assert store.delete_empty_folder("a")
    assert not store.delete_empty_folder("")
    assert tmp_path.is_dir()

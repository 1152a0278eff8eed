"""Listings are sorted, not recursive, start where asked, and stop when the caller stops."""

from __future__ import annotations

import itertools
import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lazydelta.storage import open_store, remote
from tests.storage.conftest import Place
from tests.storage.relay import Relay
from tests.support.rounds import quick

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lazydelta.storage import Store
    from tests.support.azurite import Azurite
    from tests.support.s3 import S3Server


def fill(store: Store, paths: list[str]) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda path: store.put(path, b"x"), paths))


def names(store: Store, folder: str, after: str = "") -> list[str]:
    return [info.path.removeprefix(f"{folder}/") for info in store.list(folder, after=after)]


SCRAMBLED = ["b", "a", "a-b", "a.b", "a/inner", "aa", "a0", "B", "_x", "é", "z/y/x", "10", "9", "\U0001f600", "ﬀ"]
SORTED = ["10", "9", "B", "_x", "a", "a-b", "a.b", "a0", "aa", "b", "é", "ﬀ", "\U0001f600"]


def test_names_come_in_byte_order_without_those_in_subfolders(place: Place) -> None:
    # On a disk "a" cannot be a file and a folder at once.
    scrambled = [name for name in SCRAMBLED if not place.uri.startswith("/") or name != "a"]
    store = place.open()
    fill(store, [f"f/{name}" for name in scrambled] + ["fa", "f.x/1", "f0/1"])
    expected = [name for name in SORTED if name in scrambled]
    assert names(store, "f") == expected
    for position, name in enumerate(expected):
        assert names(store, "f", after=name) == expected[position + 1 :]
    assert names(store, "f", after="a/zz") == [name for name in expected if name > "a/zz"]


def test_a_folder_that_does_not_exist_is_empty(store: Store) -> None:
    store.put("f/a", b"x")
    assert names(store, "nothing") == []
    assert names(store, "f/a") == []


def test_the_root_can_be_listed(store: Store) -> None:
    fill(store, ["b", "a", "c/d"])
    assert [info.path for info in store.list("")] == ["a", "b"]


@pytest.mark.parametrize("place", ["memory", "local"], indirect=True)
def test_more_than_a_page_is_listed_completely(place: Place) -> None:
    store = place.open()
    numbers = [f"{number:020}.json" for number in range(2_500)]
    fill(store, [f"f/{name}" for name in numbers])
    assert names(store, "f") == numbers
    assert names(store, "f", after=numbers[1_700]) == numbers[1_701:]


@pytest.mark.parametrize("page", quick([50, None], 1), ids=["small", "azure"])
def test_more_than_a_page_of_azure_is_listed_completely(
    azurite: Azurite, page: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service's own pages take thousands of objects, so the quick round has it give smaller ones."""
    container = azurite.container("pages")
    uri, options = f"az://{container}/{uuid.uuid4().hex}", azurite.storage_options()
    numbers = [f"{number:020}.json" for number in range(5_200 if page is None else page + page // 2)]
    fill(open_store(uri, options), [f"f/{name}" for name in numbers])
    if page is not None:
        monkeypatch.setattr(remote, "_PAGE", page)
        monkeypatch.setitem(remote._PAGE_OF, "azure", page)
        options = {key: value for key, value in options.items() if not key.endswith("_key")}
        options |= {"sas_token": azurite.sas(container)}
    with Relay(azurite.port, page=page) as relay:
        watched = Place(uri, options, azurite.port).through(relay.port).open()
        assert names(watched, "f") == numbers
        assert (watched.counters.lists, relay.lists()) == (2, 2)
        first = next(watched.list("f"))
        assert first.path == f"f/{numbers[0]}"
        assert (watched.counters.lists, relay.lists()) == (3, 3)
        assert "maxresults" not in str(relay.requests)  # pages are as large as the service will have them


pages = pytest.mark.xdist_group("pages of s3")  # made once


@pytest.fixture(scope="module")
def s3_pages(s3_server: S3Server) -> Place:
    """Fill a folder of more than two pages, and one with a sub-folder of more than two pages."""
    bucket = s3_server.bucket("listing")
    place = Place(f"s3://{bucket}/t", s3_server.storage_options(), s3_server.port)
    numbers = [f"{number:05}" for number in range(2_100)]
    s3_server.fill(bucket, [f"t/{folder}/{name}" for folder in ("n", "s/m") for name in numbers])
    fill(place.open(), ["s/a", "s/z", "s/m0", "s/m-"])
    return place


@pages
def test_more_than_a_page_of_s3_is_listed_completely(s3_pages: Place) -> None:
    store = s3_pages.open()
    numbers = [f"{number:05}" for number in range(2_100)]
    assert names(store, "n") == numbers
    assert names(store, "n", after="01050") == numbers[1_051:]


@pages
def test_an_abandoned_listing_asks_for_no_further_page(s3_pages: Place) -> None:
    with Relay(s3_pages.port) as relay:
        watched = s3_pages.through(relay.port).open()
        assert len(list(itertools.islice(watched.list("n"), 900))) == 900
        assert relay.lists() == 1
        assert len(list(itertools.islice(watched.list("n"), 1_001))) == 1_001
        assert relay.lists() == 3
        assert watched.counters.lists == 3


@pages
def test_a_subfolder_of_many_pages_is_jumped_over(s3_pages: Place) -> None:
    with Relay(s3_pages.port) as relay:
        watched = s3_pages.through(relay.port).open()
        assert names(watched, "s") == ["a", "m-", "m0", "z"]
        assert relay.lists() == 2


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_files_that_were_not_asked_for_are_not_looked_at(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store = place.open()
    fill(store, [f"f/{number:03}" for number in range(100)])
    looked: list[str] = []
    stat = os.stat

    def look(path: str) -> os.stat_result:
        looked.append(path)
        return stat(path)

    monkeypatch.setattr("lazydelta.storage.local.os.stat", look)
    assert len(list(itertools.islice(store.list("f", after="049"), 3))) == 3
    assert len([path for path in looked if "/f/" in path]) == 3


@pytest.mark.parametrize("place", ["local"], indirect=True)
def test_half_written_files_are_not_listed(place: Place) -> None:
    store = place.open()
    seen: list[list[str]] = []

    def chunks() -> Iterator[bytes]:
        yield b"1"
        seen.append([info.path for info in store.list("f")])

    store.put_stream("f/a", chunks())
    assert seen == [[]]
    assert names(store, "f") == ["a"]


# Temporary files of local writers.


def leave(folder: Path, name: str, hours: float) -> Path:
    """Leave a temporary file of this age."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f".lazydelta-{name}"
    file.write_bytes(b"half of it")
    timestamp = time.time() - hours * 3600
    os.utime(file, (timestamp, timestamp))
    return file


def test_leftovers_are_what_listings_hide(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, ["f/a", "f/b"])
    file = leave(tmp_path / "f", "x", 1)
    (tmp_path / "f" / ".lazydelta-folder").mkdir()
    assert names(store, "f") == ["a", "b"]
    [found] = store.leftovers("f")
    assert (found.path, found.size) == (f"f/{file.name}", 10)
    store.delete(found.path)
    assert list(store.leftovers("f")) == []
    assert list(store.leftovers("nothing")) == []


@pytest.mark.parametrize("place", ["memory"], indirect=True)
def test_stores_without_temporary_files_have_no_leftovers(place: Place) -> None:
    store = place.open()
    store.put("f/.lazydelta-x", b"an object like any other")
    assert list(store.leftovers("f")) == []
    assert names(store, "f") == [".lazydelta-x"]


def test_a_writer_removes_what_was_left_in_its_folder_a_day_ago(tmp_path: Path) -> None:
    old, young = leave(tmp_path / "f", "old", 25), leave(tmp_path / "f", "young", 23)
    elsewhere = leave(tmp_path / "g", "old", 25)
    store = open_store(tmp_path)
    store.put("f/a", b"x")
    assert (old.exists(), young.exists(), elsewhere.exists()) == (False, True, True)
    store.put_if_absent("g/a", b"x")
    assert not elsewhere.exists()


def test_a_file_that_cannot_be_tidied_up_does_not_fail_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = leave(tmp_path / "f", "old", 25)
    real = os.unlink

    def unlink(path: str, **keywords: int) -> None:
        if path == old.name:
            raise PermissionError(path)
        real(path, **keywords)

    monkeypatch.setattr(os, "unlink", unlink)
    store = open_store(tmp_path)
    store.put("f/a", b"x")
    assert store.get("f/a") == b"x"
    assert old.exists()

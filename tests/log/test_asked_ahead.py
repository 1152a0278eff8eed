"""Objects that are asked for before anybody knows whether they exist, and commits that are kept once they were read."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec
import pytest

from lazydelta import DeltaTable
from lazydelta.log.asked_ahead import AskedAhead
from lazydelta.log.commit_cache import CommitCache
from lazydelta.log.names import LogFile
from lazydelta.log.reverse_commits import ReverseCommitReader
from lazydelta.storage import Request, Store, observe, open_store
from tests.log.support import Log, name_of, requests

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store() -> Store:
    """Return a store with two objects."""
    found = open_store(f"memory://{uuid.uuid4().hex}/t")
    found.put("a", b"first")
    found.put("b", b"second")
    return found


def test_an_answer_stays_until_it_is_dropped_and_is_asked_for_once(store: Store) -> None:
    ahead, asked = AskedAhead(), list[Request]()
    with observe(asked.append):
        ahead.ask(store, ["a", "b"])
        ahead.ask(store, ["a"])
        assert (ahead.read("a"), ahead.read("a"), ahead.read("b")) == (b"first", b"first", b"second")
    assert sorted(each.path for each in asked) == ["a", "b"]
    assert "a" in ahead
    assert [ahead.drop("a"), ahead.drop("a")] == [True, False]
    assert ahead.read("a") is None


def test_what_does_not_exist_or_was_not_asked_for_is_left_to_the_caller(store: Store) -> None:
    ahead = AskedAhead()
    ahead.ask(store, ["nothing"])
    assert ahead.read("nothing") is None
    assert ahead.read("a") is None
    assert "nothing" not in ahead, "the next one asks again: it may be there by then"


def test_what_is_not_wanted_is_dropped(store: Store) -> None:
    ahead = AskedAhead()
    ahead.ask(store, ["a", "b"])
    ahead.keep_only({"b"})
    assert (ahead.read("a"), ahead.read("b")) == (None, b"second")


def test_a_cache_that_is_full_keeps_what_came_first() -> None:
    """Commits come newest first each time; to let the newest go would be to fetch all of them again."""
    cache = CommitCache(limit=10)
    for name in ("newest", "newer", "older", "oldest"):
        cache.put(name, b"12345")
    assert [cache.get(name) for name in ("newest", "newer", "older", "oldest")] == [b"12345", b"12345", None, None]


def test_a_tail_larger_than_the_cache_is_fetched_again_only_for_what_did_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTA_CACHE_SIZE", "0")
    log = Log(tmp_path).commits(0, 40)
    log.checkpoint(0, hint=True)
    size = sum((tmp_path / "_delta_log" / name_of(version)).stat().st_size for version in range(1, 41))
    monkeypatch.setattr(CommitCache.__init__, "__defaults__", (None, None, size // 2))
    with requests() as seen:
        DeltaTable(tmp_path).files().collect()
    fetched = [name for name in seen.gets if name.endswith(".json") and "manifest" not in name]
    assert {*fetched} == {name_of(version) for version in range(1, 41)}
    assert 40 < len(fetched) <= 62


def commits(tmp_path: Path, count: int) -> tuple[Store, list[LogFile]]:
    """Write commits, and return them as they are listed."""
    from lazydelta.log.segment import load_segment  # noqa: PLC0415 - of this function only

    Log(tmp_path).commits(0, count - 1)
    store = open_store(str(tmp_path))
    return store, list(load_segment(store).commits)


def under_way(store: Store, files: list[LogFile], **keywords: int | bool | None) -> list[int]:
    """Return how many commits were asked for by the time that each one is taken."""
    asked: list[Request] = []
    with observe(asked.append):
        return [len(asked) for _ in ReverseCommitReader(store, files, **keywords)]  # type: ignore[arg-type]


def test_the_first_round_is_ten_and_each_commit_that_is_taken_widens_it(tmp_path: Path) -> None:
    store, files = commits(tmp_path, 100)
    asked = under_way(store, files)
    assert asked[:6] == [10, 12, 14, 16, 18, 20], "doubled by the time that the first ten are taken"
    assert asked[-1] == 100


def test_who_wants_all_of_them_begins_with_many(tmp_path: Path) -> None:
    store, files = commits(tmp_path, 200)
    assert under_way(store, files, whole=True)[0] == 192


def test_a_number_that_is_given_is_kept_to(tmp_path: Path) -> None:
    store, files = commits(tmp_path, 40)
    for whole in (False, True):
        asked = under_way(store, files, parallelism=3, whole=whole)
        assert all(started - taken <= 3 for taken, started in enumerate(asked))


def test_large_commits_are_not_asked_for_by_the_hundred(tmp_path: Path) -> None:
    """Beyond ten, what is on its way stays below eight megabytes, as the listing has them."""
    store, files = commits(tmp_path, 60)
    for file in files[1:]:
        path = tmp_path / file.path
        path.write_bytes(b'{"commitInfo":{"a":"' + b"x" * 700_000 + b'"}}\n')
    large = [parsed for file in files[1:] for parsed in [_relisted(store, file)]]
    assert under_way(store, large, whole=True)[0] == 11


def _relisted(store: Store, file: LogFile) -> LogFile:
    return msgspec.structs.replace(file, info=store.head(file.path))

"""Objects that are asked for before anybody knows whether they exist, and commits that are kept once they were read."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import msgspec
import pytest

from lazydelta import DeltaTable
from lazydelta.log.commits import CommitCache, Prefetch
from lazydelta.log.replay import ReverseCommitReader
from lazydelta.protocol.file_names import LogFile
from lazydelta.sidecar.building.build import build
from lazydelta.sidecar.building.deltas import build_deltas
from lazydelta.storage import Request, Store, observe, open_store
from lazydelta.testing import make_table
from tests.log.support import Log, name_of, requests
from tests.scan.hand_log import HandLog, add, publish

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
    prefetch, asked = Prefetch(), list[Request]()
    with observe(asked.append):
        prefetch.request(store, ["a", "b"])
        prefetch.request(store, ["a"])
        assert (prefetch.read("a"), prefetch.read("a"), prefetch.read("b")) == (b"first", b"first", b"second")
    assert sorted(each.path for each in asked) == ["a", "b"]
    assert "a" in prefetch
    assert [prefetch.drop("a"), prefetch.drop("a")] == [True, False]
    assert prefetch.read("a") is None


def test_what_does_not_exist_or_was_not_asked_for_is_left_to_the_caller(store: Store) -> None:
    prefetch = Prefetch()
    prefetch.request(store, ["nothing"])
    assert prefetch.read("nothing") is None
    assert prefetch.read("a") is None
    assert "nothing" not in prefetch, "the next one asks again: it may be there by then"


def test_what_is_not_wanted_is_dropped(store: Store) -> None:
    prefetch = Prefetch()
    prefetch.request(store, ["a", "b"])
    prefetch.keep_only({"b"})
    assert (prefetch.read("a"), prefetch.read("b")) == (None, b"second")


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


@pytest.mark.parametrize("versions", [0, 3])
def test_how_many_versions_are_asked_for_before_they_are_listed_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, versions: int
) -> None:
    monkeypatch.setattr(Store, "is_remote", property(lambda _: True))
    log = HandLog(tmp_path / "t")
    log.commit(add("a"))
    log.checkpoint()
    log.commit(add("b"))
    uri = publish(log.table, f"memory://{uuid.uuid4().hex}/t")
    asked = list[Request]()
    with observe(asked.append):
        table = DeltaTable(uri, options={"delta.open.prefetched_versions": versions})
    assert table.version() == 1
    absent = {each.path for each in asked if each.verb == "GET" and f"/{2:020d}"[:-1] in each.path}
    beyond = [path for path in absent if int(path.rpartition("/")[2][:20]) > 1]
    assert len(beyond) == max(0, versions - 1)  # commits 2 and 3; a hint without a checksum promises none of versions


@pytest.mark.parametrize("tail", [20, 150])
@pytest.mark.parametrize("proof", ["none", "older checksum", "delta sidecars"])
def test_a_limit_of_one_asks_for_what_settles_protocol_and_metadata_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: int, proof: str
) -> None:
    """Without a checksum of the version, each commit since the newest checksum or checkpoint counts, once."""
    make_table(tmp_path, files=400, hours=4, tail=tail, adds_per_commit=2, checksum=proof == "older checksum")
    build(tmp_path)
    for path in (tmp_path / "_delta_log").glob("*.crc"):
        path.rename(path.with_stem(f"{int(path.stem) - 3:020d}"))  # protocol and metadata are the same there
    uri = publish(tmp_path, f"memory://{uuid.uuid4().hex}/t")
    if proof == "delta sidecars":
        build_deltas(uri)
    monkeypatch.setattr(Store, "is_remote", property(lambda _: True))
    asked = list[Request]()
    with observe(asked.append):
        assert len(list(DeltaTable(uri).files(limit=1))) == 1
    names = [each.path.rpartition("/")[2] for each in asked]
    commits = [name for name in names if re.fullmatch(r"\d{20}\.json", name)]
    assert len(commits) == len(set(commits)), "each commit once"
    if proof == "none" or (proof == "delta sidecars" and tail < 50):
        # The hint, the listing, the manifest, the end of the checkpoint that proves it, the list of delta sidecars.
        assert len(commits) == tail
        assert len(names) <= tail + 5, names
    else:
        # Ten were asked for beside the listing; of the others those count that nothing else covers.
        assert len(commits) <= 10 + 3 + 10, commits
        assert len(names) - len(commits) <= 15, names

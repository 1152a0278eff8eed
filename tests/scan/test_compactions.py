"""Compacted commits that contradict themselves or are torn: the single commits are read, and nothing is lost."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable, sidecar
from lazydelta.errors import CorruptLogError
from lazydelta.log import keys as remove_set
from lazydelta.log import replay
from lazydelta.storage import observe
from tests.oracle.replay import Snapshot, commit_name, read_commit
from tests.scan.hand_log import HandLog, add, key, paths, remove, vector, watching

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lazydelta.storage import Request
    from tests.oracle.replay import Json

both = pytest.mark.parametrize("strategy", ["reverse", "forward"])
settled = pytest.mark.parametrize("checksum", [True, False], ids=["checksum", "replay"])


def name_of(first: int, last: int) -> str:
    """Return the name of a compaction."""
    return f"{first:020d}.{last:020d}.compacted.json"


def actions_of(log: HandLog, first: int, last: int) -> list[Json]:
    """Return all actions of some commits, the newest commit first, as an early kernel wrote them."""
    return [action for version in range(last, first - 1, -1) for action in read_commit(log.log, version)]


def reconciled(log: HandLog, first: int, last: int) -> list[Json]:
    """Return what a right compaction of some commits holds."""
    state = Snapshot()
    for version in range(first, last + 1):
        state.apply(version, read_commit(log.log, version))
    found: list[Json] = [{"add": each} for each in state.files.values()]
    found += [{"remove": each} for each in state.tombstones.values()]
    found += [{"txn": each} for each in state.transactions.values()]
    return found


def compact(log: HandLog, first: int, last: int, actions: Iterable[Json]) -> Path:
    """Write a compaction."""
    path = log.log / name_of(first, last)
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return path


@pytest.fixture
def log(tmp_path: Path) -> HandLog:
    """Write twelve files one by one, all but one of which are removed again, and the last one gets a vector."""
    log = HandLog(tmp_path, features=["deletionVectors"])
    log.commit(add("base"))
    for number in range(12):
        log.commit(add(f"f{number}"), {"txn": {"appId": "app", "version": number}})
    log.commit(*(remove(f"f{number}") for number in range(11)))
    log.commit(remove("f11"), add("f11", vector=vector("dv")))
    return log


def found(log: HandLog, strategy: str = "auto", **options: Any) -> list[Any]:
    """Return the keys that a scan finds, having checked that they are those of a replay."""
    stream = DeltaTable(str(log.table), options=options).files(strategy=strategy)
    keys = sorted(map(key, stream.collect()), key=repr)
    assert keys == sorted(log.state().files, key=repr)
    return [keys, stream.metrics]


@both
@settled
def test_a_compaction_with_the_add_and_the_remove_of_one_file_gives_way_to_its_commits(
    checksum: bool,  # noqa: FBT001
    strategy: str,
    log: HandLog,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An early kernel wrote every action, the newest first: an add that stands behind its remove is no add."""
    if checksum:
        log.checksum()
    compact(log, 1, 14, actions_of(log, 1, 14))
    keys, metrics = found(log, strategy)
    assert len(keys) == 2
    assert (metrics.compactions_rejected, metrics.commits_scanned) == (1, 15)
    assert f"{name_of(1, 14)} holds more than one action for 'f" in caplog.text


TWICE: dict[str, list[Json]] = {
    "two adds": [add("x"), add("x")],
    "two removes": [remove("f1"), remove("f1")],
    "two spellings": [add("a b"), remove("a%20b")],
    "one vector twice": [add("x", vector=vector("v")), remove("x", vector=vector("v"))],
    "two protocols": [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}] * 2,
    "two metadata": [{"metaData": {"id": "a", "schemaString": "{}"}}, {"metaData": {"id": "b", "schemaString": "{}"}}],
    "two versions of an application": [
        {"txn": {"appId": "app", "version": 3}},
        {"txn": {"appId": "app", "version": 9}},
    ],
    "two words on a domain": [
        {"domainMetadata": {"domain": "d", "configuration": "", "removed": gone}} for gone in (True, False)
    ],
}


@both
@settled
@pytest.mark.parametrize("actions", TWICE.values(), ids=TWICE)
def test_whatever_a_compaction_says_twice_makes_it_useless(
    actions: list[Json],
    checksum: bool,  # noqa: FBT001
    strategy: str,
    log: HandLog,
) -> None:
    """Files, applications, domains, protocol and metadata: one action for each key, or none of them counts."""
    if checksum:
        log.checksum()
    compact(log, 1, 14, [*reconciled(log, 1, 14), *actions])
    _, metrics = found(log, strategy)
    assert metrics.compactions_rejected == 1
    assert DeltaTable(str(log.table)).transaction_version("app") == 11


@both
def test_a_file_under_two_deletion_vectors_is_two_keys(strategy: str, log: HandLog) -> None:
    """The key is path and vector: an update of a vector is an add and a remove of different keys."""
    compact(log, 1, 14, reconciled(log, 1, 14))
    _, metrics = found(log, strategy)
    assert metrics.compactions_rejected == 0
    table = DeltaTable(str(log.table))
    with watching() as watch:
        table.files().collect()
    assert watch.commits <= 1


def torn(data: bytes, how: str) -> bytes:
    """Return what is left of a file."""
    lines = data.splitlines(keepends=True)
    return {
        "truncated": data[: len(data) * 2 // 3],
        "without its last byte": data[:-2],
        "garbage in the middle": b"".join([*lines[:5], b"\x00\x00\x00\x00\n", *lines[5:]]),
        "zeros behind": data + bytes(512),
        "an add without a path": data + b'{"add":{"size":1,"modificationTime":1,"partitionValues":{}}}\n',
    }[how]


DAMAGE = ["truncated", "without its last byte", "garbage in the middle", "zeros behind", "an add without a path"]


@both
@settled
@pytest.mark.parametrize("how", DAMAGE)
def test_a_torn_compaction_gives_way_to_its_commits(
    how: str,
    checksum: bool,  # noqa: FBT001
    strategy: str,
    log: HandLog,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A scan does not fail over a file that it can do without."""
    if checksum:
        log.checksum()
    path = compact(log, 1, 14, reconciled(log, 1, 14))
    path.write_bytes(torn(path.read_bytes(), how))
    _, metrics = found(log, strategy)
    assert metrics.compactions_rejected == 1
    assert name_of(1, 14) in caplog.text


@both
def test_a_compaction_that_is_emptied_or_deleted_after_the_listing_gives_way_too(strategy: str, log: HandLog) -> None:
    """The table was pinned with it."""
    log.checksum()
    path = compact(log, 1, 14, reconciled(log, 1, 14))
    table = DeltaTable(str(log.table), options={"cache_size": 0})
    path.unlink()
    stream = table.files(strategy=strategy)
    assert sorted(map(key, stream), key=repr) == sorted(log.state().files, key=repr)
    assert stream.metrics.compactions_rejected == 1


@both
def test_the_next_best_compactions_of_the_range_are_used_and_none_that_leaves_it(strategy: str, log: HandLog) -> None:
    """Of overlapping ones a bad one may hide good ones; what reaches beyond the range was read already."""
    compact(log, 2, 10, actions_of(log, 2, 13))  # the longest of those that begin at 2, and wrong
    compact(log, 2, 13, actions_of(log, 2, 13))
    compact(log, 3, 5, reconciled(log, 3, 5))
    compact(log, 6, 9, actions_of(log, 6, 13))
    compact(log, 12, 14, reconciled(log, 12, 14))
    log.checksum()
    table = DeltaTable(str(log.table), options={"cache_size": 0})
    with watching() as watch:
        stream = table.files(strategy=strategy)
        assert sorted(map(key, stream), key=repr) == sorted(log.state().files, key=repr)
    read = {request.path.rpartition("/")[2] for request in watch.requests if request.verb == "GET"}
    assert name_of(12, 14) not in read
    assert name_of(3, 5) in read
    assert {commit_name(version) for version in (0, 1, 2, 6, 7, 8, 9, 10, 11, 12, 13, 14)} <= read
    assert not read & {commit_name(version) for version in (3, 4, 5)}
    assert stream.metrics.compactions_rejected == 3


def test_what_a_compaction_says_of_versions_below_the_checkpoint_does_not_matter(log: HandLog) -> None:
    """After a clean-up the commits of such a range are gone in part, and the compaction is left over."""
    expected = sorted(log.state().files, key=repr)
    log.checkpoint()
    log.commit(add("new"))
    log.commit(remove("new"), add("newer"))
    compact(log, 3, 16, actions_of(log, 3, 16))
    compact(log, 15, 16, actions_of(log, 15, 16))
    for version in range(12):
        (log.log / commit_name(version)).unlink()
    stream = DeltaTable(str(log.table)).files()
    assert sorted(map(key, stream), key=repr) == sorted([*expected, ("newer", None)], key=repr)
    assert stream.metrics.compactions_rejected == 1


@both
def test_where_the_commits_are_gone_too_the_error_names_file_and_key(strategy: str, log: HandLog) -> None:
    """Nothing is guessed."""
    log.checksum()
    compact(log, 1, 14, actions_of(log, 1, 14))
    table = DeltaTable(str(log.table), options={"cache_size": 0})
    (log.log / commit_name(5)).unlink()
    with pytest.raises(CorruptLogError) as caught:
        table.files(strategy=strategy).collect()
    assert caught.value.path == f"_delta_log/{name_of(1, 14)}"
    assert commit_name(5) in str(caught.value)
    assert "more than one action for 'f" in str(caught.value)


def large(count: int = 20_000) -> list[Json]:
    """Return actions of more than one chunk."""
    return [add(f"part-{number:08d}-{'x' * 60}") for number in range(count)]


@both
def test_a_large_compaction_is_checked_in_bounded_memory_before_anything_of_it_leaves(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line contradicts the first: keys in between went to disk, and no file had left."""
    monkeypatch.setattr(remove_set, "_LEAST", 1 << 16)
    log = HandLog(tmp_path)
    log.commit(add("base"))
    log.commit(*large())
    log.commit(remove(f"part-{0:08d}-{'x' * 60}"))
    log.checksum(20_000)
    compact(log, 1, 2, [*large(), remove(f"part-{0:08d}-{'x' * 60}")])
    held: list[int] = []
    record = remove_set.RemoveSet.add_hashes

    def spy(self: remove_set.RemoveSet, hashes: Any) -> None:
        record(self, hashes)
        held.append(self.memory)

    monkeypatch.setattr(remove_set.RemoveSet, "add_hashes", spy)
    table = DeltaTable(str(tmp_path), options={"remove_set_memory_limit": 1 << 16})
    files = list(stream := table.files(strategy=strategy))
    assert stream.metrics.compactions_rejected == 1
    assert {file.version for file in files} == {0, 1}
    assert len(set(paths(files))) == len(files) == 20_000
    assert max(held) < 20_000 * 16 * 2


@both
def test_a_large_compaction_in_order_is_read_twice_once_and_then_once(strategy: str, tmp_path: Path) -> None:
    """The first scan checks it, later ones of the table know it."""
    log = HandLog(tmp_path)
    log.commit(add("base"))
    log.commit(*large())
    log.commit(add("last"))
    log.checksum(20_002)
    compact(log, 1, 2, [*large(), add("last")])
    table = DeltaTable(str(tmp_path))
    for expected in (2, 1):
        with watching() as watch:
            stream = table.files(strategy=strategy)
            assert len(stream.collect()) == 20_002
        assert watch.count("compacted") == expected
        assert stream.metrics.compactions_rejected == 0


def test_a_large_compaction_that_is_replaced_between_its_two_readings_fails_the_scan(tmp_path: Path) -> None:
    """What was checked is not what was read."""
    log = HandLog(tmp_path)
    log.commit(add("base"))
    log.commit(*large())
    log.commit(add("last"))
    log.checksum(20_002)
    path = compact(log, 1, 2, [*large(), add("last")])
    table = DeltaTable(str(tmp_path))
    seen = 0

    def replace(request: Request) -> None:
        nonlocal seen
        if "compacted" in request.path and request.verb == "GET":
            seen += 1
            if seen == 2:
                compact(log, 1, 2, large()[:-1])

    with observe(replace), pytest.raises(CorruptLogError, match=f"{path.name} was replaced while it was read"):
        table.files().collect()


@settled
def test_a_refresh_of_the_sidecar_does_not_believe_a_bad_compaction(
    checksum: bool,  # noqa: FBT001
    log: HandLog,
    tmp_path: Path,
) -> None:
    """It takes the change between two checkpoints from the same files."""
    for number in range(200):
        log.commit(add(f"more{number}"))
    log.checkpoint()
    assert sidecar.build(tmp_path).action == "built"
    first = log.version + 1
    for number in range(5):
        log.commit(add(f"n{number}"))
        log.commit(remove(f"n{number}"), remove(f"more{number}"))
    compact(log, first, log.version, actions_of(log, first, log.version))
    log.checkpoint(hint=False)
    if checksum:
        log.checksum()
    assert sidecar.refresh(tmp_path).action == "refreshed"
    assert sidecar.verify(tmp_path).problems == []
    table = DeltaTable(str(tmp_path))
    stream = table.files()
    assert sorted(map(key, stream), key=repr) == sorted(log.state().files, key=repr)
    assert stream.metrics.tier == 1


def test_the_check_finds_any_pair_among_random_actions() -> None:
    """In one chunk or across many."""
    rng = random.Random(7)
    for _ in range(200):
        names = [f"file-{number}" for number in range(rng.randrange(1, 40))]
        rng.shuffle(names)
        twice = rng.random() < 0.5
        if twice:
            names.insert(rng.randrange(len(names) + 1), rng.choice(names))
        size = rng.randrange(1, 10)
        lines = [_line(rng, name) for name in names]
        chunks = [lines[start : start + size] for start in range(0, len(lines), size)]
        if twice:
            with pytest.raises(CorruptLogError, match="more than one action for 'file-"):
                replay.check_reconciled(iter(chunks), _FILE)
        else:
            replay.check_reconciled(iter(chunks), _FILE)


def _line(rng: random.Random, name: str) -> Any:
    import msgspec  # noqa: PLC0415

    from lazydelta.protocol.actions import LogLine  # noqa: PLC0415

    action = rng.choice([add(name), remove(name)])
    return msgspec.convert(action, LogLine)


def _file() -> Any:
    from lazydelta.protocol.file_names import parse_log_file  # noqa: PLC0415
    from lazydelta.storage import ObjectInfo  # noqa: PLC0415

    return parse_log_file(ObjectInfo(f"_delta_log/{name_of(1, 2)}", 100, 0, None))


_FILE = _file()

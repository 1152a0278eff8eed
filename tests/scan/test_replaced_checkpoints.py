"""A checkpoint that another one replaces under a pinned table: the scan goes on, each file comes once, none is lost."""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lazydelta import DeltaTable, sidecar
from lazydelta.errors import CorruptLogError, LogError, MissingCommitError, ObjectChangedError
from lazydelta.log import commits
from lazydelta.log.checkpoint import reader as checkpoint_reading
from lazydelta.scan import base
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.storage import Store, input, observe, open_store  # noqa: A004 - the module that reads ahead
from lazydelta.write.checkpoint.writer import write_checkpoint
from tests.oracle.checkpoints import CheckpointWriter, hint_for
from tests.oracle.replay import commit_name, replay
from tests.scan.hand_log import HandLog, add, key, publish, remove, vector
from tests.support.rounds import quick

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lazydelta.storage import Request
    from tests.oracle.replay import Key

both = pytest.mark.parametrize("strategy", ["reverse", "forward"])
places = pytest.mark.parametrize("place", quick(["local", "memory"], 1))
KINDS = ["classic", "multipart", "v2-parquet", "v2-json", "v2-classic", "v2-json without sidecars"]
ADVICE = "delete"


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small checkpoints take many requests and batches."""
    monkeypatch.setattr(input, "_FIRST_BLOCK", 2 << 10)
    monkeypatch.setattr(checkpoint_reading, "_BUFFER", 2 << 10)
    shared_cache.clear()


def made(folder: Path, kind: str, files: int = 60) -> HandLog:
    """Make a table whose checkpoint has many files, some under deletion vectors, and a tail that masks some of them."""
    log = HandLog(folder, features=["deletionVectors", "v2Checkpoint"])
    log.commit(
        *(add(f"base-{number:04d}", ids=(number, number)) for number in range(files)),
        *(add(f"vector-{number}", ids=(number, number), vector=vector(f"v{number}")) for number in range(10)),
        {"txn": {"appId": "app", "version": 7}},
    )
    write(log, kind, seed=0)
    log.commit(remove("base-0003"), add("new", ids=(500, 500)))
    log.commit(add("base-0004", ids=(4, 4)), remove("vector-1", vector=vector("v1")))
    return log


def write(log: HandLog, kind: str, seed: int, version: int = 0) -> None:
    """Write the checkpoint of a version in some way; the same files come in another order with another seed."""
    snapshot = replay(log.log, version)
    rng = random.Random(seed)
    names = list(snapshot.files)
    rng.shuffle(names)
    snapshot.files = {name: snapshot.files[name] for name in names}
    writer = CheckpointWriter(log.log, snapshot, rng)
    writer.stats = "json" if seed % 2 == 0 else "both"
    main, _, without = kind.partition(" ")
    match main:
        case "classic":
            paths = writer.classic()
        case "multipart":
            paths = writer.multipart(3)
        case _:
            paths = writer.v2(main=main.removeprefix("v2-"), sidecars=0 if without else 3)
    (log.log / "_last_checkpoint").write_text(json.dumps(hint_for(snapshot, paths)))


def _belongs(name: str) -> bool:
    """Tell whether a file is the checkpoint of version 0 or one of its sidecars, and not one of ours."""
    is_sidecar = name.endswith(".parquet") and name[:1] not in {"v", "."} and ".checkpoint." not in name
    return name.startswith(f"{0:020d}.checkpoint.") or is_sidecar


@dataclass
class Pinned:
    """A table that was opened before its checkpoint is replaced, on some store."""

    log: HandLog
    store: Store
    table: DeltaTable
    expected: list[Key]

    def replace(self, kind: str, seed: int) -> None:
        """Write another checkpoint of the same version, and delete what belonged to the old one."""
        for path in list(self.log.log.rglob("*")):
            if path.is_file() and _belongs(path.name):
                path.unlink()
        write(self.log, kind, seed)
        if not self.store.uri.startswith("memory"):
            return
        kept = {
            path.relative_to(self.log.table).as_posix(): path.read_bytes()
            for path in self.log.log.rglob("*")
            if path.is_file() and _belongs(path.name)
        }
        for folder in ("_delta_log", "_delta_log/_sidecars"):
            for info in list(self.store.list(folder)):
                if _belongs(info.path.rpartition("/")[2]) and info.path not in kept:
                    self.store.delete(info.path)
        for name, data in kept.items():
            self.store.put(name, data)

    def check(self, strategy: str = "auto", where: Any = None) -> Any:
        """Scan, check that every file came once and none is missing, and return the metrics."""
        stream = self.table.files(where, strategy=strategy, batch_size=4)
        assert sorted(map(key, stream), key=repr) == self.expected
        return stream.metrics


def pinned(folder: Path, kind: str, place: str) -> Pinned:
    """Open a table with a checkpoint of this kind."""
    log = made(folder, kind)
    uri = str(folder) if place == "local" else publish(folder, f"memory://{uuid.uuid4().hex}/table")
    table = DeltaTable(uri, options={"cache_size": 0, "delta.sidecar.enabled": False})
    return Pinned(log, open_store(uri), table, sorted(log.state().files, key=repr))


def counted(hook: Callable[[int], None], *, text: str = "checkpoint") -> Callable[[Request], None]:
    """Return an observer that is called with the number of each read of a checkpoint, but not with its own."""
    number, busy = 0, False

    def observer(request: Request) -> None:
        nonlocal number, busy
        if busy or request.verb != "GET" or (text not in request.path and "_sidecars/" not in request.path):
            return
        number += 1
        busy = True
        try:
            hook(number)
        finally:
            busy = False

    return observer


@both
@places
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.each_value
def test_a_checkpoint_that_was_replaced_before_the_scan_is_found_again(
    kind: str, place: str, strategy: str, tmp_path: Path
) -> None:
    """Same version, same files, other bytes: nothing is wrong with it, and nothing is said to be."""
    table = pinned(tmp_path / "table", kind, place)
    table.replace(kind, seed=1)
    metrics = table.check(strategy)
    assert metrics.checkpoints_replaced == 1
    assert metrics.tier == 3


@both
@places
@pytest.mark.parametrize(
    ("before", "after"), [("classic", "multipart"), ("multipart", "v2-json"), ("v2-json", "classic")]
)
def test_a_checkpoint_of_another_kind_may_take_its_place(
    before: str, after: str, place: str, strategy: str, tmp_path: Path
) -> None:
    """The old files are gone."""
    table = pinned(tmp_path / "table", before, place)
    table.replace(after, seed=1)
    assert table.check(strategy).checkpoints_replaced >= 1


@both
@places
@pytest.mark.parametrize("kind", quick(KINDS, 2))
@pytest.mark.each_value
def test_a_checkpoint_may_be_replaced_at_any_read_of_a_scan(
    kind: str, place: str, strategy: str, tmp_path: Path
) -> None:
    """Before its first byte, in the middle of a row group, between its parts: no file twice, none missing."""
    number, replaced = 0, 0
    while True:
        number += 1 + number // 4  # every read at first, then fewer and fewer of them
        table = pinned(tmp_path / str(number), kind, place)
        happened = False

        def hook(count: int, table: Pinned = table, wanted: int = number) -> None:
            nonlocal happened
            if count == wanted:
                happened = True
                table.replace(kind, seed=1)

        with observe(counted(hook)):
            metrics = table.check(strategy)
        if not happened:
            break
        replaced += metrics.checkpoints_replaced
    assert number > 2
    assert place == "local" or replaced > 0


@places
@pytest.mark.parametrize("kind", ["classic", "multipart", "v2-parquet"])
def test_replacements_may_follow_each_other(kind: str, place: str, tmp_path: Path) -> None:
    """Three in one scan, at random reads."""
    for seed in range(4):
        rng = random.Random(seed)
        table = pinned(tmp_path / str(seed), kind, place)
        timestamps = {rng.randrange(1, 12), rng.randrange(12, 24), rng.randrange(24, 40)}

        def hook(count: int, table: Pinned = table, timestamps: set[int] = timestamps) -> None:
            if count in timestamps:
                table.replace(kind, seed=count)

        with observe(counted(hook)):
            table.check()


def test_a_checkpoint_that_never_stays_is_an_error_that_says_so(tmp_path: Path) -> None:
    """It is not called damaged."""
    table = pinned(tmp_path / "table", "classic", "memory")
    with observe(counted(lambda number: table.replace("classic", seed=number))), pytest.raises(ObjectChangedError) as e:
        table.table.files().collect()
    assert "replaced faster than it can be read" in str(e.value)
    assert ADVICE not in str(e.value)


def test_the_same_rows_in_another_order_and_of_the_same_size_are_never_mixed(tmp_path: Path) -> None:
    """Pages of both would fit together, and give some files twice and others never."""
    log = made(tmp_path / "table", "classic")
    path = log.log / f"{0:020d}.checkpoint.parquet"
    rows = pq.read_table(path)
    plain = {"compression": "none", "use_dictionary": False, "row_group_size": 7, "write_statistics": False}
    size = 0
    for number in range(1, 200, 9):
        pq.write_table(rows, path, **plain)
        size = path.stat().st_size
        uri = publish(log.table, f"memory://{uuid.uuid4().hex}/table")
        table = DeltaTable(uri, options={"cache_size": 0})
        order = list(range(rows.num_rows))
        # Rows of files only, and of the same length: the paths are.
        some = [row for row, each in enumerate(rows.column("add").to_pylist()) if each and "base" in each["path"]]
        for before, after in zip(some, reversed(some), strict=True):
            order[before] = after
        pq.write_table(rows.take(pa.array(order)), path, **plain)
        assert path.stat().st_size == size
        happened = False

        def hook(count: int, wanted: int = number, uri: str = uri) -> None:
            nonlocal happened
            if count == wanted:
                happened = True
                open_store(uri).put(f"_delta_log/{path.name}", path.read_bytes())

        with observe(counted(hook)):
            found = sorted(map(key, table.files(batch_size=4)), key=repr)
        assert found == sorted(log.state().files, key=repr)
        if not happened:
            break
    assert number > 5


@places
@pytest.mark.parametrize("kind", ["v2-parquet", "v2-json"])
def test_a_sidecar_of_a_v2_checkpoint_may_be_written_anew_under_its_name(kind: str, place: str, tmp_path: Path) -> None:
    """Its size is not what the checkpoint says any more."""
    table = pinned(tmp_path / "table", kind, place)
    for path in sorted((table.log.log / "_sidecars").iterdir())[1:]:
        rows = pq.read_table(path)
        pq.write_table(rows.take(pa.array(range(rows.num_rows))[::-1]), path, compression="none", row_group_size=3)
        table.store.put(path.relative_to(table.log.table).as_posix(), path.read_bytes())
    assert table.check().checkpoints_replaced == 2


@both
def test_a_newer_checkpoint_serves_where_the_old_one_was_cleaned_up(strategy: str, tmp_path: Path) -> None:
    """The tail masks what it has in common with it."""
    table = pinned(tmp_path / "table", "classic", "local")
    write(table.log, "multipart", seed=3, version=1)
    (table.log.log / f"{0:020d}.checkpoint.parquet").unlink()
    assert table.check(strategy).checkpoints_replaced == 1


@both
@places
@pytest.mark.parametrize("timestamp", ["before", "after"])
def test_what_is_proven_broken_is_still_an_error_with_the_advice(
    timestamp: str, place: str, strategy: str, tmp_path: Path
) -> None:
    """A checkpoint that is as it was listed and cannot be read, and one that a broken one replaced."""
    table = pinned(tmp_path / "table", "classic", place)
    name = f"_delta_log/{0:020d}.checkpoint.parquet"
    data = table.store.get(name)
    table.store.put(name, data[: len(data) // 2])
    if timestamp == "before":
        table.table = (
            DeltaTable(
                table.store.uri if place == "memory" else str(table.log.table),
                options={"cache_size": 0, "delta.sidecar.enabled": False, "enable_fallback": True},
            )
            if _opens(table)
            else table.table
        )
    with pytest.raises(CorruptLogError, match=ADVICE) as caught:
        table.check(strategy)
    assert caught.value.path == name


def _opens(table: Pinned) -> bool:
    """Write the checksum that lets a table with a broken checkpoint be opened."""
    table.log.checksum()
    crc = f"_delta_log/{table.log.version:020d}.crc"
    table.store.put(crc, (table.log.table / crc).read_bytes())
    return True


@both
@places
def test_a_log_whose_commits_were_replaced_too_is_another_log(place: str, strategy: str, tmp_path: Path) -> None:
    """The table was rewound and written again: nothing of it is mixed with what is cached."""
    table = pinned(tmp_path / "table", "classic", place)
    name = f"_delta_log/{commit_name(1)}"
    table.store.put(name, table.store.get(name) + b'{"commitInfo":{"operation":"REWRITE"}}\n')
    table.replace("classic", seed=1)
    with pytest.raises(MissingCommitError, match="the log is a different one"):
        table.check(strategy)


@places
def test_a_commit_that_was_replaced_by_something_unreadable_fails_the_scan(place: str, tmp_path: Path) -> None:
    """Commits are never replaced by anybody in their right mind."""
    table = pinned(tmp_path / "table", "classic", place)
    table.store.put(f"_delta_log/{commit_name(2)}", b'{"add":')
    fresh = DeltaTable(
        table.store.uri if place == "memory" else str(table.log.table), version=1, options={"cache_size": 0}
    )
    assert fresh.version() == 1
    with pytest.raises(LogError, match=commit_name(2)):
        DeltaTable(table.store.uri if place == "memory" else str(table.log.table)).files().collect()


@places
@pytest.mark.parametrize("kind", KINDS)
def test_transactions_and_domains_are_found_in_the_new_checkpoint(kind: str, place: str, tmp_path: Path) -> None:
    """They are read from the checkpoint on every access."""
    table = pinned(tmp_path / "table", kind, place)
    table.replace(kind, seed=1)
    assert table.table.transaction_version("app") == 7
    assert table.table.domain_metadata() == {}


@places
def test_the_sidecar_of_the_new_checkpoint_serves_a_table_that_knows_the_old_one(place: str, tmp_path: Path) -> None:
    """Its manifest mirrors the checkpoint that is there, not the one that the table has listed."""
    table = pinned(tmp_path / "table", "classic", place)
    uri = table.store.uri if place == "memory" else str(table.log.table)
    table.table = DeltaTable(uri, options={"cache_size": 0})
    table.replace("classic", seed=1)
    assert sidecar.build(uri).action == "built"
    metrics = table.check()
    assert (metrics.tier, metrics.sidecar_hits, metrics.checkpoints_replaced) == (1, 1, 0)


@pytest.mark.parametrize("work", ["build", "refresh", "checkpoint"])
@places
def test_whoever_reads_a_checkpoint_to_write_goes_on_with_the_new_one(work: str, place: str, tmp_path: Path) -> None:
    """Builders of sidecars and writers of the next checkpoint, at any of their reads."""
    number = 0
    while True:
        number += 2 + number // 2
        table = pinned(tmp_path / str(number), "classic", place)
        uri = table.store.uri if place == "memory" else str(table.log.table)
        happened = False

        def hook(count: int, table: Pinned = table, wanted: int = number) -> None:
            nonlocal happened
            if count == wanted:
                happened = True
                table.replace("classic", seed=1)

        with observe(counted(hook, text=f"{0:020d}.checkpoint")):
            if work == "checkpoint":
                write_checkpoint(open_store(uri))
            else:
                (sidecar.build if work == "build" else sidecar.refresh)(uri)
        if work != "checkpoint":
            sidecar.refresh(uri)  # of a checkpoint that was replaced just after it was read, the sidecar is stale
            assert sidecar.verify(uri).problems == []
        fresh = DeltaTable(uri)
        assert sorted(map(key, fresh.files()), key=repr) == table.expected
        if not happened:
            break
    assert number > 5


def test_deltalake_replaces_a_checkpoint_under_a_table_that_is_open(tmp_path: Path) -> None:
    """As it does whenever it is asked to."""
    for number in range(30):
        deltalake.write_deltalake(tmp_path, pa.table({"id": [number]}), mode="append")
    deltalake.DeltaTable(tmp_path).create_checkpoint()
    ours = DeltaTable(tmp_path, options={"cache_size": 0})
    path = next((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
    rows, before = pq.read_table(path), path.stat()
    for _ in range(5):
        deltalake.DeltaTable(tmp_path).create_checkpoint()
    if path.stat().st_size == before.st_size:
        pq.write_table(rows, path, compression="none")  # whatever it does next time, this one has another size
    assert len({file.path for file in ours.files()}) == len(ours.files().collect()) == 30


def test_the_keys_of_a_long_scan_lie_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number is not bounded, so their memory is."""
    monkeypatch.setattr(base, "_IN_MEMORY", 64)
    monkeypatch.setattr(base, "_AT_ONCE", 3)
    table = pinned(tmp_path / "table", "multipart", "memory")

    def hook(count: int) -> None:
        if count == 9:
            table.replace("multipart", seed=1)

    with observe(counted(hook)):
        assert table.check().checkpoints_replaced == 1


@both
def test_a_long_json_checkpoint_may_be_replaced_between_its_two_readings(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read for its files, and again for its sidecars: from files inside to sidecars, none must be lost."""
    monkeypatch.setattr(commits, "CHUNK_SIZE", 256)
    monkeypatch.setattr("lazydelta.scan.base.CHUNK_SIZE", 256)
    for before, after in (("v2-json", "v2-json without sidecars"), ("v2-json without sidecars", "v2-json")):
        for timestamp in (1, 2, 3):
            table = pinned(tmp_path / f"{before}-{timestamp}", before, "memory")

            def hook(count: int, table: Pinned = table, wanted: int = timestamp, after: str = after) -> None:
                if count == wanted:
                    table.replace(after, seed=1)

            with observe(counted(hook)):
                table.check(strategy)

"""Delta sidecars: what they cost and save, how they are chained and merged, and who deletes them."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable
from lazydelta.maintenance.vacuum import vacuum
from lazydelta.maintenance.watch import TableWatch, WatchSettings
from lazydelta.sidecar import build, build_deltas, clean, drop
from lazydelta.sidecar.building.deltas import write_deltas
from lazydelta.sidecar.format import part_file
from lazydelta.sidecar.format.columns import DELTA_MANIFEST
from lazydelta.sidecar.format.delta_file import DeltaManifest
from lazydelta.sidecar.handle import TableHandle
from lazydelta.sidecar.reading import delta_spans
from lazydelta.sidecar.reading import delta_spans as delta_rows
from lazydelta.sidecar.reading.discovery import shared_cache
from lazydelta.storage import open_store
from tests.log.test_differential import differences
from tests.scan.hand_log import HandLog, add, publish, remove, watching
from tests.scan.test_long_tails import lively, replayed
from tests.sidecar.deltas import listed
from tests.sidecar.sidecars import DISABLED, rest
from tests.sidecar.test_cli_sidecar import run, run_json
from tests.support.latency import LatencyProxy

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.scan.file import DataFile
    from tests.support.azurite import Azurite

LATENCY = 0.3


def gap(table: Path, commits: int, adds: int, removes: int, *, checksum: bool = False) -> HandLog:
    """Write a checkpoint and commits behind it that add and remove so many files each."""
    log = HandLog(table, {"id": "long", "hour": "string"}, partitions=["hour"])
    log.commit(*(add(f"base-{number}", ids=(0, 1), partition={"hour": "0"}) for number in range(10)))
    log.checkpoint()
    for number in range(commits):
        came = [
            add(
                f"hour={number}/f{number:05d}-{each}.parquet",
                ids=(number, number + each),
                partition={"hour": str(number)},
            )
            for each in range(adds)
        ]
        gone = [
            remove(f"hour={number - 1}/f{number - 1:05d}-{each}.parquet") for each in range(removes if number else 0)
        ]
        log.commit(*came, *gone, {"txn": {"appId": "stream", "version": number}})
    if checksum:
        log.checksum(10 + commits * adds - (commits - 1) * removes)
    return log


def lowest(file: DataFile) -> Any:
    """Return the lowest values of a file, None if there are none."""
    return (file.stats or {}).get("minValues") or None


def answer(table: DeltaTable, where: Any = None) -> tuple[list[Any], list[Any], Any]:
    """Return the files of the tail in the order in which they come, those of the base, and the scan's metrics."""
    stream = table.files(where)
    # Who asks for some statistics gets these from a sidecar, and all of them from a commit.
    found = [(file.path, file.version, file.size, lowest(file) if where is None else None) for file in stream]
    tail = [each for each in found if each[1] is not None]
    return tail, sorted(found[len(tail) :], key=repr), stream.metrics


def assert_same(path: Path, where: Any = None) -> Any:
    """Check that delta sidecars change nothing, not even the order; return the metrics of the scan with them."""
    *found, metrics = answer(DeltaTable(path), where)
    *expected, _ = answer(DeltaTable(path, options=DISABLED), where)
    assert found == expected
    return metrics


@pytest.mark.parametrize("checksum", [True, False], ids=["by checksum", "by manifest"])
@pytest.mark.parametrize(
    ("commits", "adds", "removes"),
    [(200, 25, 5), pytest.param(1_000, 100, 20, marks=pytest.mark.slow)],
    ids=["short", "full"],
)
def test_a_long_gap_opens_and_scans_in_four_round_trips(
    azurite: Azurite, tmp_path: Path, commits: int, adds: int, removes: int, *, checksum: bool
) -> None:
    """A thousand commits are a manifest and a file, where they would be a thousand requests."""
    gap(tmp_path, commits, adds, removes, checksum=checksum)
    name = azurite.container(f"gap-{commits}-{str(checksum).lower()}")
    uri = f"abfss://{name}@{azurite.account}.dfs.core.windows.net/table"
    publish(tmp_path, uri, azurite.storage_options())
    if not checksum:
        build(uri, storage_options=azurite.storage_options())  # protocol and metadata without a look at the checkpoint
    result = build_deltas(uri, storage_options=azurite.storage_options())
    assert (result.covered, result.commits) == (commits, commits)
    shared_cache.clear()
    with LatencyProxy(azurite.port, LATENCY) as proxy, watching() as watch:
        options = azurite.storage_options() | {
            "azure_storage_endpoint": f"http://127.0.0.1:{proxy.port}/{azurite.account}"
        }
        began = time.perf_counter()
        with DeltaTable(uri, storage_options=options).files(strategy="reverse") as stream:
            first = next(stream)
            assert proxy.round_trips(began, time.perf_counter()) <= 4
            files = [first, *rest(stream)]
        # The ten behind the checkpoint are asked for beside the listing, and with a checksum the ten newest ones.
        assert watch.commits <= 20
    assert first.version == commits
    assert len(files) == 10 + commits * adds - (commits - 1) * removes
    assert stream.metrics.delta_commits == commits
    assert stream.metrics.commits_scanned == 0


def test_what_is_newer_than_the_delta_sidecars_is_read_from_the_commits(tmp_path: Path) -> None:
    log = gap(tmp_path, 150, 2, 1)
    build_deltas(tmp_path)
    for number in range(20):
        log.commit(
            add(f"new-{number}", ids=(7, 8), partition={"hour": "n"}), remove(f"hour=149/f00149-{number % 2}.parquet")
        )
    metrics = assert_same(tmp_path)
    assert (metrics.delta_commits, metrics.commits_scanned) == (150, 20)


def test_a_table_with_a_short_tail_is_not_asked_for_delta_sidecars(tmp_path: Path) -> None:
    gap(tmp_path, 49, 1, 0)
    build_deltas(tmp_path, at_least=1)
    with watching() as watch:
        assert DeltaTable(tmp_path).files().collect()
    assert watch.count("_sidecars/deltas") == 0


def test_statistics_prune_and_are_read_later_by_those_who_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_file, "ROWS_PER_GROUP", 40)
    monkeypatch.setattr(delta_rows, "_WHOLE", 0)
    gap(tmp_path, 120, 3, 1)
    build_deltas(tmp_path)
    metrics = assert_same(tmp_path, "id >= 100")
    assert metrics.files_pruned > 200
    assert_same(tmp_path)
    # Lost between listing and asking: the commits have them, too.
    files = DeltaTable(tmp_path).files().collect()
    (tmp_path / listed(tmp_path).spans[0].file).unlink()
    plain = DeltaTable(tmp_path, options=DISABLED).files()
    assert {file.path: lowest(file) for file in files} == {file.path: lowest(file) for file in plain}


@pytest.mark.parametrize("strategy", ["reverse", "forward"])
def test_a_delta_sidecar_that_fails_half_way_is_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """What was read of it counts, the commits below answer for the rest, and no file comes twice or is lost."""
    monkeypatch.setattr(part_file, "ROWS_PER_GROUP", 50)
    monkeypatch.setattr(delta_rows, "_WHOLE", 0)
    log = lively(tmp_path, 200, 3)
    build_deltas(tmp_path)
    (entry,) = listed(tmp_path).spans
    group = entry.row_groups[len(entry.row_groups) // 2]
    file = tmp_path / entry.file
    data = bytearray(file.read_bytes())
    for place in range(group.byte_offset, group.byte_offset + group.core_byte_length):
        data[place] ^= 0xFF
    file.write_bytes(data)
    stream = DeltaTable(tmp_path).files(strategy=strategy)
    found = stream.collect()
    assert {(file.path, file.version) for file in found} == {
        (path, version or None) for (path, _), (version, _) in replayed(log).items()
    }
    assert len(found) == len(replayed(log))
    metrics = stream.metrics
    assert metrics.delta_sidecars_rejected == 1
    assert 0 < metrics.delta_commits < 200
    assert metrics.delta_commits + metrics.commits_scanned == 200
    assert "not used" in str(stream.explain())
    assert build_deltas(tmp_path).action == "written", "and another build replaces it"
    assert assert_same(tmp_path).delta_sidecars_rejected == 0


def test_protocol_and_metadata_end_a_delta_sidecar(tmp_path: Path) -> None:
    log = gap(tmp_path, 60, 2, 1)
    log.columns["later"] = "long"
    log.commit(log.metadata())
    stats = {"minValues": {"later": 5}, "maxValues": {"later": 9}, "nullCount": {"later": 0}}
    for number in range(60):
        log.commit(add(f"l{number}", stats=stats, partition={"hour": "x"}))
    log.commit(log.protocol())
    result = build_deltas(tmp_path)
    assert [(each.first, each.last) for each in result.deltas] == [(1, 60), (62, 121)]
    metrics = assert_same(tmp_path, "later > 7")
    assert metrics.delta_commits == 120
    assert assert_same(tmp_path, "later > 100").files_emitted == 10 + 60 * 2 - 59, "files of before have no statistics"
    assert DeltaTable(tmp_path).schema().to_arrow().names == ["id", "hour", "later"]
    assert differences(DeltaTable(tmp_path), log.state()) == []


def test_transactions_and_domains_come_from_delta_sidecars(tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(add("base"))
    log.checkpoint()
    for number in range(120):
        domain = {"domain": f"d{number % 3}", "configuration": str(number), "removed": number == 119}
        log.commit(
            add(f"f{number}"), {"txn": {"appId": f"a{number % 5}", "version": number}}, {"domainMetadata": domain}
        )
    build_deltas(tmp_path)
    table = DeltaTable(tmp_path)
    with watching() as watch:
        assert [table.transaction_version(f"a{number}") for number in range(6)] == [115, 116, 117, 118, 119, None]
        assert table.domain_metadata() == {"d0": "117", "d1": "118"}
        assert DeltaTable(tmp_path, version=110).domain_metadata() == {"d0": "108", "d1": "109", "d2": "107"}
    assert watch.commits == 0


def test_any_version_and_any_checkpoint_in_between_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = lively(tmp_path, 150, 4)
    build_deltas(tmp_path)
    expected = {
        version: differences(DeltaTable(tmp_path, version=version), _at(log, version)) for version in (101, 149)
    }
    assert expected == {101: [], 149: []}
    monkeypatch.setattr(delta_spans, "LONG_TAIL", 5)
    log.version = 150
    log.checkpoint()
    for _ in range(6):
        log.commit(add("again", ids=(1, 2)), remove("p3"))
    build_deltas(tmp_path, at_least=5)
    assert [(each.first, each.last) for each in listed(tmp_path).spans] == [(151, 156)], "what is below is given up"
    assert differences(DeltaTable(tmp_path), log.state()) == []


def _at(log: HandLog, version: int) -> Any:
    from tests.oracle.replay import replay  # noqa: PLC0415

    return replay(log.log, version)


def test_delta_sidecars_are_chained_and_small_ones_merged(tmp_path: Path) -> None:
    """However often a gap is looked at, it has few files, without overlap, and what was merged stays for a while."""
    log = gap(tmp_path, 100, 3, 1)
    names = set()
    for number in range(12):
        result = build_deltas(tmp_path, at_least=10)
        names |= set(result.written)
        assert result.covered == result.commits == log.version
        assert len(result.deltas) <= 4
        for each in range(10):
            log.commit(add(f"n{number}-{each}", ids=(number, each), partition={"hour": "z"}))
    assert all((tmp_path / name).exists() for name in names)
    metrics = assert_same(tmp_path)
    assert metrics.delta_commits == log.version - 10
    assert build_deltas(tmp_path, at_least=11).action == "unchanged"


def test_chained_delta_sidecars_that_are_too_large_to_merge_are_read_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lazydelta.sidecar.building.plan.PART_ROWS", 100)
    monkeypatch.setattr("lazydelta.sidecar.building.deltas.PART_ROWS", 100)
    log = gap(tmp_path, 120, 3, 1)
    log.commit(*(add(f"many-{number}", partition={"hour": "m"}) for number in range(200)))
    log.commit(add("last", partition={"hour": "m"}))
    result = build_deltas(tmp_path)
    assert len(result.deltas) >= 4
    assert all(before.last + 1 == after.first for before, after in zip(result.deltas, result.deltas[1:], strict=False))
    assert result.covered == 120, "a commit that is too large stays JSON, and one alone behind it"
    assert assert_same(tmp_path).delta_commits == 120


def test_two_builders_at_once_leave_a_sound_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who finds that another one has published looks again, and nothing is listed twice."""
    gap(tmp_path, 120, 2, 1)
    handle = TableHandle.open(tmp_path)
    rivals = [True]
    plain = type(handle.store).put_if_absent

    def raced(store: Any, path: str, data: bytes) -> None:
        if path == DELTA_MANIFEST and rivals and rivals.pop():
            write_deltas(TableHandle.open(tmp_path))
        plain(store, path, data)

    monkeypatch.setattr(type(handle.store), "put_if_absent", raced)
    result = write_deltas(handle)
    assert (result.covered, len(result.deltas)) == (120, 1)
    assert assert_same(tmp_path).delta_commits == 120


def test_a_copied_table_reads_its_commits_until_its_delta_sidecars_are_made_anew(tmp_path: Path) -> None:
    import shutil  # noqa: PLC0415

    gap(tmp_path / "one", 120, 2, 1)
    build_deltas(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two", copy_function=shutil.copyfile)
    metrics = assert_same(tmp_path / "two")
    assert (metrics.delta_sidecars_rejected, metrics.commits_scanned) == (1, 120)
    assert build_deltas(tmp_path / "two").action == "written"
    assert assert_same(tmp_path / "two").delta_commits == 120


def test_a_rewound_log_does_not_match(tmp_path: Path) -> None:
    """The same versions, written again with other files of names as long as before."""
    log = gap(tmp_path, 120, 1, 0)
    build_deltas(tmp_path)
    for version in range(61, 121):
        path = log.log / f"{version:020d}.json"
        text = path.read_text().replace("/f", "/g")
        path.unlink()
        path.write_text(text)
    metrics = assert_same(tmp_path)
    assert metrics.delta_sidecars_rejected == 1
    assert metrics.commits_scanned == 120


def test_clean_and_drop_delete_what_nobody_needs(tmp_path: Path) -> None:
    log = gap(tmp_path, 110, 2, 1)
    first = build_deltas(tmp_path).written
    for number in range(20):
        log.commit(add(f"n{number}", partition={"hour": "n"}))
    second = build_deltas(tmp_path, at_least=20).deltas
    assert [(each.first, each.last) for each in second] == [(1, 130)], "merged"
    foreign = tmp_path / "_delta_log/_sidecars/somebody.delta.parquet"
    foreign.write_bytes(b"x")
    assert clean(tmp_path).deleted == [], "all are young"
    _age(tmp_path)
    assert clean(tmp_path).deleted == [*first, "_delta_log/_sidecars/v110_130.delta.parquet"]
    assert assert_same(tmp_path).delta_commits == 130
    log.checkpoint()
    gone = clean(tmp_path).deleted
    assert gone == [DELTA_MANIFEST, second[0].file], "the manifest first, once a checkpoint has it all"
    for number in range(120):
        log.commit(add(f"m{number}", partition={"hour": "n"}))
    build_deltas(tmp_path)
    assert len(drop(tmp_path).deleted) == 2
    assert foreign.exists()
    assert assert_same(tmp_path).delta_commits == 0


def _age(table: Path) -> None:
    old = time.time() - 48 * 3600
    for path in (table / "_delta_log/_sidecars").iterdir():
        os.utime(path, (old, old))


def test_vacuum_and_log_cleanup_leave_delta_sidecars_alone(tmp_path: Path) -> None:
    gap(tmp_path, 110, 1, 0)
    build_deltas(tmp_path)
    _age(tmp_path)
    before = sorted((tmp_path / "_delta_log/_sidecars").iterdir())
    vacuum(TableHandle.open(tmp_path), retention=timedelta(0), enforce_retention=False, dry_run=False)
    assert sorted((tmp_path / "_delta_log/_sidecars").iterdir()) == before
    assert assert_same(tmp_path).delta_commits == 110


def test_a_watch_writes_delta_sidecars_as_the_gap_grows(tmp_path: Path) -> None:
    log = gap(tmp_path, 30, 2, 1)
    watch = TableWatch(TableHandle.open(tmp_path), WatchSettings(delta_every=40))
    assert not watch.foresee().deltas
    assert watch.look().deltas == 0
    for _ in range(10):
        log.commit(add(f"w{log.version}", partition={"hour": "w"}))
    assert watch.foresee().deltas
    look = watch.look()
    assert (look.state, look.deltas, look.metrics.deltas_written) == ("done", 1, 1)
    assert watch.look().state == "unchanged"
    for _ in range(80):
        log.commit(add(f"w{log.version}", partition={"hour": "w"}))
    assert watch.look().deltas == 1
    assert TableWatch(TableHandle.open(tmp_path), WatchSettings(delta_every=None)).look().deltas == 0
    assert assert_same(tmp_path).delta_commits == 120


def test_a_damaged_manifest_is_replaced_also_where_no_commit_is_behind_the_checkpoint(tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(add("a.parquet"))
    log.checkpoint()
    store = open_store(tmp_path)
    store.put(DELTA_MANIFEST, b"{damaged")
    assert build_deltas(tmp_path, at_least=1).deltas == []
    assert DeltaManifest.decode(store.get(DELTA_MANIFEST)).spans == ()


def test_the_command_writes_them_and_says_so(tmp_path: Path) -> None:
    gap(tmp_path, 30, 2, 1)
    assert "0 of 30 commits" in run("delta", tmp_path)
    assert "30 of 30 commits since checkpoint 0" in run("delta", tmp_path, "--at-least", "10")
    told = run_json("delta", tmp_path)
    assert (told["action"], told["covered"], told["deltas"][0]["removes"]) == ("unchanged", 30, 29)
    drop(tmp_path)
    assert "would bring the sidecar to it, write delta sidecars" in run("watch", tmp_path, "--dry-run", "--delta", "10")
    assert "1 delta sidecar written" in run("watch", tmp_path, "--once", "--delta", "10")

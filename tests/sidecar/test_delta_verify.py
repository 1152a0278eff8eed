"""``verify`` and ``show`` of delta sidecars: what equals the commits passes, and nothing else does."""

from __future__ import annotations

import importlib
import random
import shutil
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from lazydelta import sidecar
from lazydelta.errors import OptionError
from lazydelta.log.segment import list_commits
from lazydelta.sidecar.building.deltas import collect_deltas, publish_delta
from lazydelta.sidecar.format import part_file
from lazydelta.sidecar.format.columns import DELTA_MANIFEST
from lazydelta.sidecar.format.delta_file import DeltaManifest, VersionedLine, encode_delta, other_actions
from lazydelta.sidecar.format.part_file import PartFooter, typed
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import open_store
from tests.scan.hand_log import HandLog, add, publish, remove, vector
from tests.sidecar.deltas import DAMAGES, listed, put
from tests.sidecar.sidecars import flipped
from tests.sidecar.test_cli_sidecar import run, run_json
from tests.sidecar.test_delta_property import covered_logs
from tests.support.rounds import quick

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lazydelta.sidecar.format.delta_file import DeltaEntry
    from tests.support.azurite import Azurite

verification = importlib.import_module("lazydelta.sidecar.verification")
COLUMNS = {"id": "long", "hour": "string", "at": "timestamp", "price": "decimal(10,2)", "ratio": "double"}


def busy_log(table: Path) -> HandLog:
    """Write a checkpoint and twenty commits behind it."""
    log = HandLog(table, COLUMNS, partitions=["hour"])
    log.commit(*(add(f"base-{number}", ids=(0, 1), partition={"hour": "0"}) for number in range(20)))
    log.checkpoint()
    go_on(log, 20)
    return log


def go_on(log: HandLog, last: int) -> None:
    """Write commits up to this one, with statistics of several types, vectors, tags and transactions."""
    for number in range(log.version + 1, last + 1):
        low = {"id": number, "at": f"2026-02-{number:02}T01:02:03.456Z", "price": number + 0.25, "ratio": -number / 3}
        came = add(
            f"hour={number}/new-{number}",
            partition={"hour": str(number)},
            stats={"minValues": low, "maxValues": low | {"id": number + 1}, "nullCount": dict.fromkeys(low, 0)},
            vector=vector(f"v{number}") if number % 3 == 0 else None,
        )
        came["add"]["tags"] = {"kind": str(number)}
        log.commit(came, remove(f"base-{number - 1}"), {"txn": {"appId": "stream", "version": number}})


def cover_runs(table: Path, *runs: tuple[int, int]) -> list[DeltaEntry]:
    """Write a delta sidecar for each of these runs of commits."""
    handle = TableHandle.open(table)
    entries: list[DeltaEntry] = []
    for first, last in runs:
        found = collect_deltas(
            handle.store,
            list(list_commits(handle.store, first, last)),
            handle.snapshot,
            parallelism=None,
            memory_budget=512 << 20,
            progress=lambda _: None,
        )
        entries += [publish_delta(handle.store, *each.encoded(), "0" * 8) for each in found]
    put(table, entries)
    return entries


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table with a sidecar and two delta sidecars behind it, of commits 1 to 12 and 13 to 20."""
    log = busy_log(tmp_path / "t")
    sidecar.build(log.table)
    assert len(cover_runs(log.table, (1, 12), (13, 20))) == 2
    return log.table


def test_what_equals_the_commits_passes_and_is_counted(table: Path) -> None:
    report = sidecar.verify(table)
    assert report.problems == []
    assert report.deltas is not None
    assert (report.deltas.files, report.deltas.commits, report.deltas.actions) == (2, 20, 40)
    assert (report.deltas.gaps, report.deltas.leftovers) == ([], [])
    output = run("verify", table)
    assert "2 delta sidecars compared with 20 commits: 40 actions" in output
    assert run_json("verify", table)["deltas"]["actions"] == 40


def test_delta_sidecars_on_azure_are_compared_with_the_commits_there(tmp_path: Path, azurite: Azurite) -> None:
    """Whole they pass; with a bit turned over, and with a commit that says something else, they are named."""
    uri, options = f"az://{azurite.container('delta-verify')}/{uuid.uuid4().hex}", azurite.storage_options()
    publish(busy_log(tmp_path).table, uri, options)
    sidecar.build(uri, storage_options=options)
    assert sidecar.build_deltas(uri, at_least=1, storage_options=options).commits == 20
    report = sidecar.verify(uri, storage_options=options)
    assert (report.ok, report.problems) == (True, [])
    assert report.deltas is not None
    assert (report.deltas.files, report.deltas.commits, report.deltas.actions) == (1, 20, 40)
    store = open_store(uri, options)
    (span,) = DeltaManifest.decode(store.get(DELTA_MANIFEST)).spans
    commit = f"_delta_log/{15:020d}.json"
    for path, damage in (
        (span.file, lambda data: flipped(data, len(data) * 4)),
        (commit, lambda data: data.replace(b"new-15", b"odd-15")),
    ):
        whole = store.get(path)
        store.put(path, damage(whole))
        found = sidecar.verify(uri, storage_options=options)
        assert not found.ok
        assert span.file in str(found.problems)
        store.put(path, whole)


@pytest.mark.parametrize("chunk", quick(range(20), 1))
def test_delta_sidecars_of_random_logs_equal_an_independent_parse_of_the_commits(
    chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics of all types, deletion vectors, tags, partition values, transactions and odd texts among them."""

    def no_checkpoint(*_: object) -> Any:
        raise OptionError("Only delta sidecars are looked at", hint="none")

    monkeypatch.setattr(part_file, "ROWS_PER_GROUP", 12)
    monkeypatch.setattr(verification, "snapshot_at_checkpoint", no_checkpoint)
    compared = 0
    for log, _ in covered_logs(170_000 + 1_000 * chunk, 10, tmp_path):
        report = sidecar.verify(log.path)
        assert report.problems == [], (log.seed, log.notes)
        assert report.deltas is not None
        compared += report.deltas.actions
    assert compared > 100


@pytest.mark.parametrize("kind", DAMAGES)
def test_every_damage_is_told(kind: str, table: Path) -> None:
    """Torn, flipped, missing, another's: told with what to do, and what is damaged stands for no commit."""
    DAMAGES[kind](table, random.Random(kind))
    report = sidecar.verify(table)
    assert not report.ok
    assert "`lazydelta sidecar delta` writes it anew" in report.problems[-1]
    assert report.deltas is not None
    assert report.deltas.gaps
    assert run_json("verify", table, code=1)["problems"] == report.problems


def rewritten(
    table: Path,
    change: Callable[[pa.Table], pa.Table],
    lines: Callable[[list[VersionedLine]], list[VersionedLine]] = list,
) -> None:
    """Write the second delta sidecar anew with other rows, sealed as if they were right."""
    store = TableHandle.open(table).store
    first, second = listed(table).spans
    data = store.get(second.file)
    footer = PartFooter(data[second.footer_offset :], expected=second.footer_sha256)
    layout, state = footer.state.layout, TableHandle.open(table).snapshot()
    names = [column.name for column in layout.columns]
    rows = typed(
        pa.Table.from_batches([footer.read(0, names, [(0, data)], second.size)]), layout.arrow_schema(state.schema)
    )
    commits = list(list_commits(store, second.first, second.last))
    others = lines(other_actions(footer, second.first, second.last))
    written, entry = encode_delta(change(rows), others, commits, layout, state.metadata, second.file)
    store.put(second.file, written)
    put(table, [first, entry])


def with_value(name: str, value: Any, row: int = 0) -> Callable[[pa.Table], pa.Table]:
    """Return what puts a value into a column of one row."""

    def change(rows: pa.Table) -> pa.Table:
        place = rows.schema.get_field_index(name)
        kind = rows.schema.field(place).type
        values = rows.column(place).to_pylist()
        values[row] = value
        return rows.set_column(place, rows.schema.field(place), pa.chunked_array([pa.array(values, kind)]))

    return change


def without_row(row: int) -> Callable[[pa.Table], pa.Table]:
    """Return what leaves a row out."""
    return lambda rows: pa.concat_tables([rows.slice(0, row), rows.slice(row + 1)])


TAMPERED: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "another path": (with_value("path", "hour=20/other"), "path is 'hour=20/other'"),
    "another size": (with_value("size", 11), "size is 11, and 10 in the log"),
    "another partition": (with_value("hour", "21"), "hour is '21', and '20' in the log"),
    "another map": (with_value("partition_values", [("hour", "21")]), "partition_values is"),
    "a wider minimum": (with_value("min.id", 19), "min.id is 19, and 20 in the log"),
    "no maximum": (with_value("max.id", None), "max.id is None, and 21 in the log"),
    "another timestamp": (with_value("max.at", 1_771_549_323_457_000), "max.at is 1771549323457000"),
    "another double": (with_value("min.ratio", -6.6666), "min.ratio is -6.6666"),
    "another count": (with_value("null_count.id", 1), "null_count.id is 1, and 0 in the log"),
    "no tags": (with_value("tags", None), "tags is None"),
    "a vector less": (with_value("dv.cardinality", 5, row=4), "dv.cardinality is 5, and 1 in the log"),
    "a remove that adds": (with_value("removed", value=False, row=1), "base-19 is added, and not in the log"),
    "another remove": (with_value("path", "base-3", row=1), "path is 'base-3'"),
    "an add less": (without_row(0), "of commit 20, base-19 is removed, and not in the log"),
    "a remove less": (without_row(1), "commit 20 has an action about base-19 that is not there"),
    "a row more": (lambda rows: pa.concat_tables([rows, rows.slice(rows.num_rows - 1)]), "does not have"),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_a_value_that_is_not_that_of_the_commit_is_told_though_it_is_sealed(kind: str, table: Path) -> None:
    change, expected = TAMPERED[kind]
    rewritten(table, change)
    report = sidecar.verify(table)
    assert any(expected in problem for problem in report.problems), report.problems
    assert report.deltas is not None
    assert report.deltas.gaps == [(13, 20)]


def test_other_transactions_are_told(table: Path) -> None:
    rewritten(table, lambda rows: rows, lambda lines: lines[1:])
    (problem,) = sidecar.verify(table).problems
    assert "transactions and domains of commit 13 are others" in problem


def test_a_file_that_differs_in_all_of_it_is_told_in_few_words(table: Path) -> None:
    rewritten(table, lambda rows: rows.set_column(3, rows.schema.field(3), pa.chunked_array([[0] * rows.num_rows])))
    problems = sidecar.verify(table).problems
    assert len(problems) == 6
    assert "in more than these" in problems[-1]


def test_gaps_and_leftovers_are_told_and_are_no_problem(tmp_path: Path) -> None:
    """Commits in no delta sidecar are read as JSON; unneeded files wait for `clean`."""
    log = busy_log(tmp_path / "t")
    sidecar.build(log.table)
    entries = cover_runs(log.table, (1, 5), (8, 12), (13, 16))
    put(log.table, entries[:2])
    report = sidecar.verify(log.table)
    assert report.ok
    assert report.deltas is not None
    assert report.deltas.gaps == [(6, 7), (13, 20)]
    assert report.deltas.leftovers == [entries[2].file]
    output = run("verify", log.table)
    assert "Commits that are in no good one, and read as JSON: 6 to 7, 13 to 20" in output
    assert entries[2].file in output
    log.checkpoint()
    sidecar.build(log.table)
    report = sidecar.verify(log.table)
    assert report.ok
    assert report.deltas is not None
    assert (report.deltas.gaps, len(report.deltas.leftovers)) == ([], 3)


def test_commits_that_the_log_has_cleaned_away_are_not_missed(tmp_path: Path) -> None:
    """What a checkpoint has is taken from no delta sidecar."""
    log = HandLog(tmp_path / "t", COLUMNS, partitions=["hour"])
    log.commit()
    go_on(log, 15)
    log.checkpoint()
    go_on(log, 20)
    entries = cover_runs(log.table, (1, 12), (13, 20))
    for version in range(14):
        (log.log / f"{version:020}.json").unlink()
    sidecar.build(log.table)
    report = sidecar.verify(log.table)
    assert report.problems == []
    assert report.deltas is not None
    assert (report.deltas.commits, report.deltas.gaps) == (7, [])
    assert report.deltas.leftovers == [entries[0].file]


def test_a_table_without_a_checkpoint_has_its_delta_sidecars_verified_and_shown(table: Path) -> None:
    for path in (*(table / "_delta_log").glob("*.checkpoint*"), *(table / "_delta_log").glob("_last_checkpoint")):
        path.unlink()
    sidecar.drop(table)
    cover_runs(table, (1, 20))
    report = sidecar.verify(table)
    assert (report.ok, report.version) == (True, None)
    assert "There is no checkpoint" in run("verify", table)
    assert "has no sidecar of a checkpoint" in run("show", table)
    assert [each["last"] for each in run_json("show", table)["deltas"]] == [20]
    with pytest.raises(OptionError, match="no complete checkpoint of version 3"):
        sidecar.verify(table, 3)


def test_show_lists_them_with_what_they_are_good_for(table: Path) -> None:
    found = sidecar.show(table)
    assert [(each.first, each.last, each.adds, each.removes, each.state) for each in found.deltas] == [
        (1, 12, 12, 12, "good"),
        (13, 20, 8, 8, "good"),
    ]
    output = run("show", table)
    assert "2 delta sidecars" in output
    assert f"{found.deltas[1].file}: commits 13 to 20, 8 files added, 8 removed" in output
    DAMAGES["rewritten commit"](table, random.Random(1))
    (table / found.deltas[0].file).unlink()
    states = [each["state"] for each in run_json("show", table)["deltas"]]
    assert states[0] == "missing"
    assert set(states) <= {"missing", "stale", "good"}
    shutil.copy(table / found.deltas[1].file, table / found.deltas[0].file.replace("v0_12", "v3_9"))
    assert sidecar.show(table).other_files == found.other_files + 1
    (table / DELTA_MANIFEST).write_bytes(b"{}")
    assert "its digest does not match" in run("show", table)

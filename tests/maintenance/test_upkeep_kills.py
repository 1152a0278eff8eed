"""OPTIMIZE and VACUUM that are killed anywhere: nothing is lost, and the next run finishes.

After each kill all readers find the same rows, every version within the retention has all its files, and no file is
left over once the next run is through.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import deltalake
import msgspec
import pyarrow as pa
import pytest

import lazydelta
from lazydelta.maintenance.optimize import optimize
from lazydelta.maintenance.vacuum import vacuum
from lazydelta.protocol.actions import Add
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import open_store
from lazydelta.write.commit import removal_of
from tests.maintenance.old_tables import data_files
from tests.oracle.replay import read_commit, replay
from tests.rows.files import stored_vector
from tests.support.points import KINDS
from tests.write.commits import begin

ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = "from tests.maintenance.upkeep_work import main; main()"
Ask: TypeAlias = Callable[[str, Path, str, int], dict[str, Any]]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Return a function that lets a process do a deed and die at a point of it."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def deed(name: str, table: Path, kind: str, at: int) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"deed": name, "table": str(table), "kind": kind, "at": at}) + "\n")
            process.stdin.flush()
            told: dict[str, Any] = json.loads(process.stdout.readline())
            return told

        yield deed
        process.stdin.close()
        process.wait(60)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table with three partitions of several files, removed files, a deletion vector and an orphan."""
    root = tmp_path_factory.mktemp("killed") / "table"
    for number in range(4):
        rows = pa.table({"p": ["a", "b", None] * 2, "id": pa.array([number * 6 + each for each in range(6)])})
        properties = {"delta.enableDeletionVectors": "true"}
        lazydelta.write_arrow(root, rows, partition_by=["p"], properties=properties)
    gone = pa.table({"p": ["gone"], "id": pa.array([1000])})
    lazydelta.write_arrow(root, gone)
    lazydelta.write_arrow(root, gone, mode="overwrite", overwrite_where="p = 'gone'")
    vector, _ = stored_vector(root, [1])
    add = next(each["add"] for each in read_commit(root / "_delta_log", 0) if "add" in each)
    with begin(open_store(root)) as transaction:
        old = msgspec.convert(add, Add)
        transaction.remove(removal_of(old, 1))
        transaction.add(msgspec.structs.replace(old, deletion_vector=vector))
        transaction.commit()
    (root / "p=a" / "orphan.parquet").write_bytes(b"x")
    return root


def _rows(root: Path) -> list[int]:
    builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(root))
    found: list[int] = pa.table(builder.execute("SELECT id FROM t").read_all()).column("id").to_pylist()
    return sorted(found)


def _judge(root: Path, expected: list[int]) -> None:
    """Read the table with others and with ours, and compare the log with the disk."""
    assert _rows(root) == expected
    ours = lazydelta.DeltaTable(root, options={"checksum": "error"}).to_pyarrow_table(columns=["id"])
    assert sorted(ours.column("id").to_pylist()) == expected
    state = replay(root / "_delta_log")
    assert {path for path, _ in state.files} <= data_files(root)


def _named(root: Path) -> set[str]:
    """Return the files that some commit names."""
    found: set[str] = set()
    for commit in (root / "_delta_log").glob("[0-9]*.json"):
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            found |= {action[kind]["path"] for kind in ("add", "remove") if kind in action}
    return found


def _points(counts: dict[str, int], wanted: int) -> list[tuple[str, int]]:
    """Return so many points of a deed, spread over all kinds and from the first to the last."""
    every = [(kind, at) for kind in KINDS for at in range(1, counts[kind] + 1)]
    return [every[number * (len(every) - 1) // (wanted - 1)] for number in range(wanted)]


def _kill(ask: Ask, template: Path, tmp_path: Path, deed: str, kills: int) -> None:
    expected = _rows(template)
    whole = tmp_path / "whole"
    shutil.copytree(template, whole)
    told = ask(deed, whole, "", 0)
    assert told["code"] == 0
    _judge(whole, expected)
    deaths = 0
    for number, (kind, at) in enumerate(_points(told["counts"], kills)):
        root = tmp_path / str(number)
        shutil.copytree(template, root)
        died = ask(deed, root, kind, at)
        # Threads share the work of some requests, so the last point of a kind may not be reached again.
        assert died["code"] in {-9, 0}
        deaths += died["code"] == -9
        _judge(root, expected)
        if deed == "optimize":
            optimize(TableHandle.open(root))
            _judge(root, expected)
            assert len(lazydelta.DeltaTable(root).files().collect()) == 4
        handle = TableHandle.open(root)
        vacuum(handle, retention=timedelta(0), enforce_retention=False, dry_run=False)
        _judge(root, expected)
        left = {each for each in data_files(root) if not each.endswith(".bin")}
        assert left == {path for path, _ in replay(root / "_delta_log").files}
        assert left <= _named(root)
    assert deaths >= kills - 2


@pytest.mark.parametrize("deed", ["optimize", "vacuum"])
def test_killed_at_a_few_points(ask: Ask, template: Path, tmp_path: Path, deed: str) -> None:
    _kill(ask, template, tmp_path, deed, 5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("deed", ["optimize", "vacuum"])
def test_killed_at_forty_points(ask: Ask, template: Path, tmp_path: Path, deed: str) -> None:
    _kill(ask, template, tmp_path, deed, 40)


def test_a_deletion_that_is_killed_deletes_all_or_nothing(ask: Ask, template: Path, tmp_path: Path) -> None:
    before = _rows(template)
    after = [each for each in before if each not in {2, 3, 9, 18, 20, 23}]
    assert len(after) < len(before)
    whole = tmp_path / "whole"
    shutil.copytree(template, whole)
    told = ask("delete", whole, "", 0)
    assert told["code"] == 0
    _judge(whole, after)
    seen = set()
    for number, (kind, at) in enumerate(_points(told["counts"], 8)):
        root = tmp_path / str(number)
        shutil.copytree(template, root)
        died = ask("delete", root, kind, at)
        assert died["code"] in {-9, 0}
        expected = after if _rows(root) == after else before
        seen.add(len(expected))
        _judge(root, expected)
        if expected == before:
            lazydelta.DeltaTable(root).delete("id IN (2, 3, 9, 18, 20, 23)")
        _judge(root, after)
        vacuum(TableHandle.open(root), retention=timedelta(0), enforce_retention=False, dry_run=False)
        _judge(root, after)
        left = {each for each in data_files(root) if not each.endswith(".bin")}
        assert left == {path for path, _ in replay(root / "_delta_log").files}
    assert len(before) in seen

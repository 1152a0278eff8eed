"""Many writers in processes of their own: versions without a gap, and every row where its writer was told it is."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

import deltalake
import pytest

import lazydelta
from lazydelta.storage import Store
from tests.write.commits import new_table, rows, versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.azurite import Azurite

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Outcome:
    """What one writer was told about one transaction."""

    row: int
    kind: str
    version: int | None = None
    removed: list[int] = field(default_factory=list)


# Each writer appends, replaces one file that it sees, or overwrites the whole table; it reports what it was told.
_WRITER = """
import json, pickle, random, sys
from lazydelta.errors import CommitConflictError
from tests.write.commits import begin, files_of, put_file, removal
from tests.write.test_concurrency import row_in

store, writer, count = pickle.loads(bytes.fromhex(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
dice = random.Random(writer)
print("ready", flush=True)
sys.stdin.readline()
for turn in range(count):
    if turn == count // 2:
        print("half", flush=True)
        sys.stdin.readline()
    row = writer * 1000 + turn
    kind = dice.choices(["append", "replace", "overwrite"], [6, 3, 1])[0]
    transaction = begin(store)
    chosen = []
    if kind == "replace":
        seen = files_of(transaction)
        chosen = dice.sample(seen, min(len(seen), 1))
        transaction.remove(*[removal(file) for file in chosen])
    elif kind == "overwrite":
        transaction.remove_all()
    transaction.add(put_file(store, [row], "r%d" % row))
    try:
        version = transaction.commit(max_attempts=60).version
    except CommitConflictError:
        version = None
    told = {"row": row, "kind": kind, "version": version, "removed": [row_in(file.path) for file in chosen]}
    print(json.dumps(told), flush=True)
"""
_CHECKPOINTER = """
import pickle, sys, time
from lazydelta.write.checkpoint.writer import write_checkpoint
from lazydelta.write.checkpoint.writer import write_last_checkpoint

store = pickle.loads(bytes.fromhex(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
while True:
    write_last_checkpoint(store, write_checkpoint(store))
    print("checkpoint", flush=True)
    time.sleep(0.05)
"""


def row_in(path: str) -> int:
    """Return the row of a file, which its partition names."""
    return int(path.partition("p=r")[2].partition("/")[0])


def _start(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _lines(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _go(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()


def _write_together(store: Store, writers: int, commits: int) -> list[Outcome]:
    """Let all writers begin at once, one more process checkpointing meanwhile, and collect what they were told.

    When all have done half of it, they wait for a checkpoint: the second half has one below it.
    """
    shipped = pickle.dumps(store.carrying_credentials()).hex()
    checkpointer = _start(_CHECKPOINTER, shipped)
    processes = [_start(_WRITER, shipped, str(number), str(commits)) for number in range(1, writers + 1)]
    everyone = [checkpointer, *processes]
    try:
        assert [_lines(process).readline() for process in everyone] == ["ready\n"] * len(everyone)
        _go(everyone)
        told = [line for process in processes for line in iter(_lines(process).readline, "half\n")]
        assert _lines(checkpointer).readline() == "checkpoint\n"
        _go(processes)
        told += [line for process in processes for line in process.communicate()[0].splitlines()]
        assert [process.returncode for process in processes] == [0] * writers
        assert checkpointer.poll() is None, "the checkpointing process failed"
    finally:
        for process in everyone:
            process.kill()
            process.wait()
    checkpointer.communicate()
    return [Outcome(**json.loads(line)) for line in told]


def _judge(store: Store, outcomes: Sequence[Outcome], commits: int) -> list[int]:
    """Compare the table with what its writers were told; return the rows that must be there."""
    assert len(outcomes) == commits
    acknowledged = sorted((each for each in outcomes if each.version is not None), key=lambda each: each.version or 0)
    assert [each.version for each in acknowledged] == list(range(1, len(acknowledged) + 1))
    assert versions(store) == list(range(len(acknowledged) + 1))
    expected: set[int] = set()
    for each in acknowledged:
        if each.kind == "overwrite":
            expected.clear()
        # A file is removed once only: its second remover must have been refused.
        assert set(each.removed) <= expected
        expected = expected.difference(each.removed) | {each.row}
    return sorted(expected)


def _check(store: Store, writers: int, commits: int) -> None:
    outcomes = _write_together(store, writers, commits)
    expected = _judge(store, outcomes, writers * commits)
    assert rows(store) == expected
    refused = {each.row for each in outcomes if each.version is None}
    assert not refused.intersection(expected)
    # Whichever writer wrote it, the newest checksum must be that of a full replay.
    table = lazydelta.DeltaTable(store.uri, storage_options=store._settings.options, options={"checksum": "error"})
    assert len(table.files().collect()) == len(expected)


def _azure(azurite: Azurite) -> Store:
    container = azurite.container("writers")
    uri = f"abfss://{container}@{azurite.account}.dfs.core.windows.net/{uuid.uuid4().hex}"
    return new_table(uri, azurite.storage_options())


def test_writers_on_a_local_disk_lose_nothing(tmp_path: Path) -> None:
    store = new_table(tmp_path / "table")
    _check(store, writers=4, commits=8)
    theirs = deltalake.DeltaTable(store.uri).to_pyarrow_table().column("id").to_pylist()
    assert sorted(theirs) == rows(store)


def test_writers_on_azure_lose_nothing(azurite: Azurite) -> None:
    _check(_azure(azurite), writers=4, commits=8)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_writers_on_a_local_disk_lose_nothing(tmp_path: Path) -> None:
    _check(new_table(tmp_path / "table"), writers=8, commits=25)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_writers_on_azure_lose_nothing(azurite: Azurite) -> None:
    _check(_azure(azurite), writers=8, commits=25)

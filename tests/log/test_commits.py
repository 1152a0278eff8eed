"""Commits: lines of JSON, read chunk by chunk, whatever their size and line ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lazydelta import DeltaTable
from lazydelta.errors import CorruptLogError, MissingCommitError
from lazydelta.log.commits import CHUNK_SIZE, decode_actions
from lazydelta.protocol.actions import LogLine
from tests.log.support import Log, add, lines, metadata, name_of, paths, protocol, remove, requests

if TYPE_CHECKING:
    from collections.abc import Iterable

MB = 1 << 20
SMALL, LARGE = 200_000, 1_000_000
CHILD = """
import re, sys
import lazydelta, obstore, pyarrow.parquet

def peak():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1]) * 1024

before = peak()
table = lazydelta.DeltaTable(sys.argv[1])
print({expression}, peak() - before)
"""
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")


def in_child(expression: str, root: Path) -> tuple[int, int]:
    """Evaluate an expression over ``table`` in a process of its own; return its number and the growth of the peak."""
    program = CHILD.replace("{expression}", expression)
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=True)
    value, growth = done.stdout.split()
    return int(value), int(growth)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log of the versions 0 to 3."""
    return Log(tmp_path).commits(0, 3)


def decoded(chunks: Iterable[bytes]) -> list[str]:
    """Return the paths that the chunks add."""
    return [line.add.path for part in decode_actions(chunks, "c", 1) for line in part if line.add is not None]


# --- a million adds


def write_large_commit(root: Path, count: int) -> Path:
    """Write a table whose version 1 adds ``count`` files, without holding them; return that commit."""
    log = Log(root)
    log.commit(0, protocol(), metadata())
    template = json.dumps(add("part-%08d-3a0d65cd-4056-49b8-937b-95f9e3ee90e5.c000.snappy.parquet")) + "\n"
    commit = log.folder / name_of(1)
    with commit.open("w", encoding="utf-8") as file:
        for start in range(0, count, 10_000):
            file.write("".join([template % index for index in range(start, start + 10_000)]))
    return commit


@pytest.mark.memory
@needs_proc
def test_a_commit_of_a_million_adds_holds_only_its_keys_and_a_chunk(tmp_path: Path) -> None:
    """Opening and scanning it grows by the keys alone: five times the adds cost at most 40 bytes for each one more."""
    growth = {}
    for count in (SMALL, LARGE):
        root = tmp_path / str(count)
        commit = write_large_commit(root, count)
        assert commit.stat().st_size > 230 * count
        found, growth[count] = in_child("sum(batch.num_rows for batch in table.files().batches())", root)
        assert found == count
        commit.unlink()
    assert growth[LARGE] < 120 * MB, growth
    assert growth[LARGE] - growth[SMALL] <= 40 * (LARGE - SMALL), growth


@pytest.mark.memory
@needs_proc
def test_the_history_of_a_large_commit_holds_no_more_than_a_chunk_of_it(tmp_path: Path) -> None:
    """Writers may put the provenance last; it is looked for chunk by chunk."""
    commit = write_large_commit(tmp_path, SMALL)
    with commit.open("ab") as file:
        file.write(lines({"commitInfo": {"operation": "WRITE"}}))
    found, growth = in_child("len(table.history(1)[0]['operation'])", tmp_path)
    commit.unlink()
    assert (found, growth < 60 * MB) == (len("WRITE"), True), growth


def test_a_large_commit_is_read_in_one_request_a_pass_and_not_kept(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.commit(0)
    log.commit(1, *[add(f"part-{index}") for index in range(10_000)])
    assert (log.folder / name_of(1)).stat().st_size > 2 * CHUNK_SIZE
    with requests() as seen:
        table = DeltaTable(log.in_memory())
        assert len(table.files().collect()) == 10_001
    assert seen.gets.count(name_of(1)) == 2  # for protocol and metadata, then for the files


# --- compacted commits


def test_compacted_commits_are_read_in_place_of_their_range(log: Log) -> None:
    log.commits(4, 9)
    compaction = log.compaction(2, 8)
    with requests() as seen:
        table = DeltaTable(log.root)
        assert paths(table.files()) == [f"f{v}" for v in range(10)]
    read = [name for name in seen.gets if name != "_last_checkpoint"]
    assert sorted(read) == sorted([name_of(0), name_of(1), compaction.name, name_of(9)])


def test_a_compaction_that_reaches_above_the_version_is_not_read(log: Log) -> None:
    log.compaction(1, 3)
    with requests() as seen:
        assert paths(DeltaTable(log.root, version=2).files()) == ["f0", "f1", "f2"]
    assert not any("compacted" in name for name in seen.gets)


def test_removes_in_a_compaction_hide_older_adds(log: Log) -> None:
    log.commit(4, remove("f1"))
    log.commit(5, add("f5"), remove("f0"))
    log.write(f"{4:020}.{5:020}.compacted.json", lines(remove("f0"), add("f5"), remove("f1")))
    with requests() as seen:
        assert paths(DeltaTable(log.root).files()) == ["f2", "f3", "f5"]
    assert not {name_of(4), name_of(5)} & set(seen.gets)


def test_metadata_is_found_in_a_compaction(log: Log) -> None:
    log.commit(4, metadata({"who": "four"}))
    log.compaction(3, 4)
    assert DeltaTable(log.root).metadata().configuration == {"who": "four"}


def test_a_file_of_a_compaction_has_no_version_of_its_own(log: Log) -> None:
    log.compaction(1, 2)
    assert {file.path: file.version for file in DeltaTable(log.root).files()} == {
        "f0": 0,
        "f1": None,
        "f2": None,
        "f3": 3,
    }


# --- lines


CONTENT = lines(add("a"), add("bä"), {"commitInfo": {}}, add("c"))


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, len(CONTENT)), max_size=8))
def test_lines_may_be_cut_anywhere_between_chunks(cuts: list[int]) -> None:
    ends = sorted(cuts)
    chunks = [CONTENT[start:end] for start, end in zip([0, *ends], [*ends, len(CONTENT)], strict=True)]
    assert decoded(chunks) == ["a", "bä", "c"]


def test_a_line_longer_than_a_chunk_is_put_together(log: Log) -> None:
    long = add("long")
    long["add"]["stats"] = json.dumps({"numRecords": 7, "minValues": {"id": "x" * (3 * CHUNK_SIZE)}})
    log.commit(4, long, add("short"))
    found = {file.path: file.num_records for file in DeltaTable(log.root).files()}
    assert found == {"f0": 1, "f1": 1, "f2": 1, "f3": 1, "long": 7, "short": 1}


@pytest.mark.parametrize(
    "content",
    [
        CONTENT.replace(b"\n", b"\r\n"),
        CONTENT.rstrip(b"\n"),
        CONTENT.replace(b"\n", b"\n\n"),
        b"\n\n" + CONTENT + b"\n \n\t\n",
        b"\r\n" + CONTENT.replace(b"\n", b"\r\n\r\n"),
        CONTENT.replace(b"{", b" { "),
    ],
    ids=["CRLF", "no last line end", "empty lines", "empty ends", "CRLF with empty lines", "spaces"],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_line_ends_and_empty_lines_do_not_matter(content: bytes, size: int) -> None:
    chunks = [content[start : start + size] for start in range(0, len(content), size)]
    assert decoded(chunks) == ["a", "bä", "c"]


def test_unknown_actions_and_fields_are_ignored(log: Log) -> None:
    known = add("f4")
    known["add"]["fromTheFuture"] = {"deep": [1, {}]}
    log.commit(4, {"fromTheFuture": {"path": "x"}}, {"cdc": {"path": "x"}}, known, {})
    assert paths(DeltaTable(log.root).files()) == ["f0", "f1", "f2", "f3", "f4"]


@pytest.mark.parametrize("count", [50, 5000], ids=["small commit", "large commit"])
def test_only_lines_without_a_file_are_searched_for_unknown_actions(
    log: Log, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    asked: list[LogLine] = []
    answer = LogLine.is_unknown

    def noted(line: LogLine) -> bool:
        asked.append(line)
        return answer(line)

    monkeypatch.setattr(LogLine, "is_unknown", noted)
    files = [add(f"g{number}") for number in range(count)]
    removed = [remove("f2"), remove("f3")]
    log.commit(4, {"commitInfo": {}}, {"fromTheFuture": {"path": "x"}}, *files, *removed, {"cdc": {"path": "x"}}, {})
    stream = DeltaTable(log.root).files()
    assert len(paths(stream)) == count + 2
    assert stream.metrics.unknown_actions == 2
    assert not [line for line in asked if line.add is not None or line.remove is not None]


# --- damage


@pytest.mark.parametrize(
    "bad",
    [
        b'{"add": {"path": "x"',
        b'{"add": {"path": "x"}}',
        b'{"add": {"path": "", "size": 1, "modificationTime": 1, "partitionValues": {}}}',
        b'{"add": {"path": "x", "size": "ten", "modificationTime": 1, "partitionValues": {}}}',
        b'{"add": {"path": "x", "size": -1, "modificationTime": 1, "partitionValues": {}}}',
        b'{"add": {"path": "x", "size": 9223372036854775808, "modificationTime": 1, "partitionValues": {}}}',
        b'{"remove": {}}',
        b'{"txn": {"appId": 7, "version": 1}}',
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 10_000,
    ],
    ids=lambda bad: repr(bad[:40]),
)
def test_a_line_that_cannot_be_decoded_is_an_error_that_names_file_and_line(bad: bytes, log: Log) -> None:
    log.commit(2, content=lines(add("x"), add("y")) + b"\n" + bad + b"\n" + lines(add("z")))
    with pytest.raises(CorruptLogError, match=rf"{name_of(2)} cannot be decoded at line 4\b") as caught:
        DeltaTable(log.root).files().collect()
    assert (caught.value.version, caught.value.path) == (2, f"_delta_log/{name_of(2)}")


def test_the_line_number_counts_all_chunks_before() -> None:
    content = lines(*[add(f"f{index}") for index in range(100)], {"add": 7}, add("z"))
    chunks = [content[start : start + 1000] for start in range(0, len(content), 1000)]
    with pytest.raises(CorruptLogError, match="line 101"):
        decoded(chunks)


def test_a_commit_that_ends_in_mid_line_is_an_error(log: Log) -> None:
    log.commit(3, content=lines(add("x"), add("y"))[:-20])
    with pytest.raises(CorruptLogError, match=rf"{name_of(3)} cannot be decoded at line 2\b"):
        DeltaTable(log.root)


def test_a_commit_that_vanishes_after_the_listing_is_an_error_that_names_it(log: Log) -> None:
    log.checksum(3)  # settles protocol and metadata, so opening reads no commit
    table = DeltaTable(log.root)
    log.delete(1)
    with pytest.raises(MissingCommitError, match=name_of(1)) as caught:
        table.files().collect()
    assert caught.value.version == 1

"""``_last_checkpoint`` is a hint: right, it saves a listing; wrong in any way, it changes nothing."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from lazydelta import DeltaTable
from lazydelta.log.hint import hint_checksum, read_hint
from lazydelta.log.segment import load_segment
from tests.log.support import Log, name_of, paths, requests, versions
from tests.oracle.checkpoints import hint_checksum as oracle_checksum

if TYPE_CHECKING:
    from pathlib import Path

ALL = [f"f{version}" for version in range(7)]


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open every table as a fresh process would: what another test has read is not remembered."""
    monkeypatch.setenv("DELTA_CACHE_SIZE", "0")


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log of the versions 0 to 6 with checkpoints at 2 and 5."""
    log = Log(tmp_path).commits(0, 6)
    log.checkpoint(2)
    log.checkpoint(5)
    return log


def test_the_checksum_is_that_of_the_protocols_example() -> None:
    example = {
        "k0": "'v 0'",
        "checksum": "adsaskfljadfkjadfkj",
        "k1": {"k2": 2, "k3": ["v3", [1, 2], {"k4": "v4", "k5": ["v5", "v6", "v7"]}]},
    }
    assert hint_checksum(example) == "6a92d155a59bf2eecbd4b4ec7fd1f875"


@pytest.mark.parametrize(
    "content",
    [
        {"version": 5, "size": 9, "tags": {"a b": "ü/ö", "z": None, "n": True}},
        {"version": 5, "checkpointSchema": {"fields": [{"name": "a", "type": "long"}] * 12}},
        {"version": 5, "size": 1.5, "": ""},
    ],
)
def test_the_checksum_of_nested_content_equals_an_independent_one(content: dict[str, object]) -> None:
    assert hint_checksum(content) == oracle_checksum(content)


def test_a_hint_with_its_right_checksum_is_taken(log: Log) -> None:
    content = {"version": 5, "size": 8, "tags": {"writer": "näme"}}
    log.hint(**content, checksum=hint_checksum(content))
    hint = read_hint(log.store)
    assert hint is not None
    assert hint.version == 5


def test_unknown_fields_of_a_hint_are_ignored_but_covered_by_the_checksum(log: Log) -> None:
    content = {"version": 5, "size": 8, "v2Checkpoint": {"path": "x"}}
    log.hint(**(content | {"v2Checkpoint": {"path": "y"}}), checksum=hint_checksum(content))
    assert read_hint(log.store) is None


def test_a_hint_with_a_wrong_checksum_is_ignored_with_a_warning(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.hint(version=2, size=5, checksum="0" * 32)
    with caplog.at_level(logging.WARNING, "lazydelta"):
        assert read_hint(log.store) is None
    assert any("fails its checksum" in message for message in caplog.messages)
    assert paths(DeltaTable(log.root).files()) == ALL


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"size": 3}',
        b'{"version": "5"}',
        b'{"version": -1}',
        b'{"version": 5.5}',
        b'{"version": 9223372036854775808}',
        b'{"version": 5, "checksum": 7}',
        b'{"version": 5' + b"," * 100_000,
        b'{"version": 5, "tags": ' + b"[" * 100_000,
    ],
    ids=lambda content: repr(content[:30]),
)
def test_a_corrupt_hint_is_ignored_with_a_warning(content: bytes, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.write("_last_checkpoint", content)
    with caplog.at_level(logging.WARNING, "lazydelta"):
        table = DeltaTable(log.root)
    assert any("_last_checkpoint" in message for message in caplog.messages)
    assert (table.version(), paths(table.files())) == (6, ALL)


def test_a_missing_hint_is_normal(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lazydelta"):
        assert read_hint(log.store) is None
    assert caplog.messages == []


def test_a_stale_hint_still_finds_the_newest_checkpoint(log: Log) -> None:
    log.hint(version=2, size=5)
    segment = load_segment(log.store, hint=read_hint(log.store))
    assert (segment.base_version, versions(segment)) == (5, [6])


@pytest.mark.parametrize("version", [0, 3, 6, 7, 1000, 2**63 - 1])
def test_a_hint_to_a_checkpoint_that_is_not_there_falls_back_to_listing(version: int, log: Log) -> None:
    log.hint(version=version, size=1)
    table = DeltaTable(log.root)
    assert (table.version(), paths(table.files())) == (6, ALL)


def test_a_hint_to_an_incomplete_checkpoint_falls_back_to_listing(log: Log) -> None:
    log.writer(6).multipart(3)[1].unlink()
    log.hint(version=6, size=9, parts=3)
    segment = load_segment(log.store, hint=read_hint(log.store))
    assert (segment.version, segment.base_version) == (6, 5)


def test_a_hint_to_an_empty_checkpoint_falls_back_to_listing(log: Log) -> None:
    log.write(name_of(6, "checkpoint.parquet"), b"")
    log.hint(version=6, size=9)
    assert paths(DeltaTable(log.root).files()) == ALL


def test_the_parts_that_a_hint_counts_need_not_be_those_that_are_there(log: Log) -> None:
    log.hint(version=5, size=9, parts=4)
    assert paths(DeltaTable(log.root).files()) == ALL


def test_a_right_hint_costs_one_listing_and_a_wrong_one_a_second(log: Log) -> None:
    log.hint(version=5, size=8)
    with requests() as right:
        DeltaTable(log.root)
    log.hint(version=6, size=8)
    with requests() as wrong:
        DeltaTable(log.root)
    assert (right.lists, wrong.lists) == (1, 2)


def test_the_size_that_a_hint_tells_counts_only_for_its_own_checkpoint(log: Log) -> None:
    log.hint(version=2, size=5, sizeInBytes=10**12)
    segment = load_segment(log.store, hint=read_hint(log.store))
    assert segment.base_bytes < 10**6
    log.hint(version=5, size=5, sizeInBytes=10**12)
    assert load_segment(log.store, hint=read_hint(log.store)).base_bytes == 10**12


def test_a_hint_is_read_before_anything_is_listed(log: Log) -> None:
    log.write("_last_checkpoint", json.dumps({"version": 5, "size": 8}).encode())
    with requests() as seen:
        DeltaTable(log.root)
    assert [(each.verb, each.path) for each in seen[:2]] == [
        ("GET", "_delta_log/_last_checkpoint"),
        ("LIST", "_delta_log"),
    ]

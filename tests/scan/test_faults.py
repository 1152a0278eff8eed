"""What goes wrong while a scan runs: it fails, says on which object, and never gives a wrong answer instead."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import (
    AccessDeniedError,
    CorruptLogError,
    LazyDeltaError,
    MissingCommitError,
    ObjectNotFoundError,
    StorageError,
    StorageTimeoutError,
)
from lazydelta.storage import observe
from lazydelta.testing import make_table
from tests.oracle.replay import commit_name
from tests.scan.hand_log import HandLog, add, paths, publish, read_ahead_threads, watching

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lazydelta.scan.file import DataFile
    from lazydelta.scan.stream import FileStream
    from lazydelta.storage import Request

both = pytest.mark.parametrize("strategy", ["reverse", "forward"])
places = pytest.mark.parametrize("place", ["local", "memory"])


ERRORS = [StorageError, StorageTimeoutError, AccessDeniedError, ConnectionResetError, ValueError]


def failing(text: str, kind: type[BaseException], *, after: int = 0) -> Callable[[Request], None]:
    """Return an observer that fails requests for objects whose path holds ``text``, but for the first ``after``."""
    seen = 0

    def hook(request: Request) -> None:
        nonlocal seen
        if text in request.path and request.verb == "GET":
            seen += 1
            if seen > after:
                raise kind("injected", path=request.path) if issubclass(kind, LazyDeltaError) else kind("injected")

    return hook


def drain(stream: FileStream, how: str) -> list[DataFile]:
    """Pull everything, and return what came even if an error follows."""
    files: list[DataFile] = []

    async def pull() -> None:
        async for file in stream:
            files.append(file)  # noqa: PERF401 - what came before the error counts

    try:
        if how == "async":
            asyncio.run(pull())
        elif how == "batches":
            for batch in stream.batches():
                files.extend(batch.column("path").to_pylist())
        else:
            for file in stream:
                files.append(file)  # noqa: PERF402
    except LazyDeltaError as error:
        error.files = files  # type: ignore[attr-defined]
        raise
    return files


ways = pytest.mark.parametrize("how", ["sync", "async", "batches"])


@pytest.fixture
def tail_table(tmp_path: Path) -> Path:
    """Make a base of 500 files, thirty commits since, and a checksum, so that opening reads no old commit."""
    make_table(tmp_path, files=500, columns=1, tail=30, adds_per_commit=2, checksum=True)
    return tmp_path


def opened(table: Path, place: str, **options: Any) -> DeltaTable:
    """Open the table on disk, or a copy of it in memory."""
    uri = str(table) if place == "local" else publish(table, f"memory://{uuid.uuid4().hex}/table")
    return DeltaTable(uri, options=options)


@ways
@both
@places
@pytest.mark.parametrize("kind", ERRORS, ids=lambda each: each.__name__)
@pytest.mark.each_value
def test_a_commit_that_cannot_be_read_fails_the_scan_and_no_base_file_leaves(
    kind: type[Exception], place: str, strategy: str, how: str, tail_table: Path
) -> None:
    """The error is one of ours, names the object, and only newer files of the tail came before it."""
    table = opened(tail_table, place)
    with observe(failing(commit_name(15), kind)), pytest.raises(StorageError) as caught:
        drain(table.files(strategy=strategy), how)
    assert commit_name(15) in f"{caught.value.path} {caught.value}"
    files: list[DataFile] = caught.value.files  # type: ignore[attr-defined]
    if how == "batches":
        assert len(files) <= 25 * 2
    else:
        assert all(file.version is not None and file.version > 15 for file in files)
    assert read_ahead_threads() == []


@both
@places
@pytest.mark.parametrize("kind", ERRORS, ids=lambda each: each.__name__)
def test_the_error_of_a_commit_that_cannot_be_read_knows_its_version(
    kind: type[Exception], place: str, strategy: str, tail_table: Path
) -> None:
    table = opened(tail_table, place)
    with observe(failing(commit_name(15), kind)), pytest.raises(StorageError) as caught:
        table.files(strategy=strategy).collect()
    assert caught.value.version == 15


@ways
@both
@places
def test_a_commit_that_is_gone_fails_the_scan_by_version(place: str, strategy: str, how: str, tail_table: Path) -> None:
    """Deleted between opening and scanning: never skipped."""
    table = opened(tail_table, place)
    with (
        observe(failing(commit_name(15), ObjectNotFoundError)),
        pytest.raises(MissingCommitError, match=r"15\.json was listed and is gone") as caught,
    ):
        drain(table.files(strategy=strategy), how)
    assert caught.value.version == 15


@both
def test_a_commit_that_was_deleted_after_opening_fails_the_scan(strategy: str, tail_table: Path) -> None:
    table = DeltaTable(tail_table)
    (tail_table / "_delta_log" / commit_name(15)).unlink()
    with pytest.raises(MissingCommitError) as caught:
        table.files(strategy=strategy).collect()
    assert caught.value.version == 15
    with pytest.raises(MissingCommitError, match="Commit 15 is missing"):
        DeltaTable(tail_table)


def test_a_gap_that_closes_while_it_is_looked_at_again_is_no_error(tmp_path: Path) -> None:
    """An eventually consistent listing shows the commit at the second look."""
    log = HandLog(tmp_path)
    for number in range(4):
        log.commit(add(f"f{number}"))
    missing = log.log / commit_name(2)
    content = missing.read_bytes()
    missing.unlink()
    lists = 0

    def appear(request: Request) -> None:
        nonlocal lists
        lists += request.verb == "LIST"
        if lists == 2 and not missing.exists():
            missing.write_bytes(content)

    with observe(appear):
        assert sorted(paths(DeltaTable(tmp_path).files())) == ["f0", "f1", "f2", "f3"]
    assert lists == 2


@ways
@both
@places
@pytest.mark.each_value
def test_a_checkpoint_that_fails_midway_fails_the_scan(place: str, strategy: str, how: str, tmp_path: Path) -> None:
    """The files before it were right; the error names the checkpoint."""
    make_table(tmp_path, files=20_000, columns=1, row_group_size=500, tail=2, adds_per_commit=2, checksum=True)
    table = opened(tmp_path, place)
    with watching() as watch:
        assert len(drain(table.files(strategy=strategy, batch_size=500), how)) == 20_004
    half = watch.count(".checkpoint.") // 2
    with observe(failing(".checkpoint.", StorageError, after=half)), pytest.raises(LazyDeltaError) as caught:
        drain(table.files(strategy=strategy, batch_size=500), how)
    assert "checkpoint.parquet" in f"{caught.value.path} {caught.value}"
    assert 4 < len(caught.value.files) < 20_004  # type: ignore[attr-defined]
    assert read_ahead_threads() == []


@both
@places
@pytest.mark.parametrize("kind", [*ERRORS, KeyError], ids=lambda each: each.__name__)
@pytest.mark.each_value
def test_whatever_fails_in_a_checkpoint_is_an_error_of_ours(
    kind: type[Exception], place: str, strategy: str, tail_table: Path
) -> None:
    table = opened(tail_table, place)
    with observe(failing(".checkpoint.", kind)), pytest.raises(LazyDeltaError) as caught:
        table.files(strategy=strategy).collect()
    assert ".checkpoint.parquet" in f"{caught.value.path} {caught.value}"


@both
def test_a_missing_part_of_the_checkpoint_fails_the_scan(strategy: str, tmp_path: Path) -> None:
    """The part disappears after opening; the files of the others are no answer."""
    make_table(tmp_path, files=2_000, columns=1, checkpoint="multipart", parts=4, tail=1)
    table = DeltaTable(tmp_path)
    (part,) = (tmp_path / "_delta_log").glob("*.checkpoint.0000000003.*")
    part.unlink()
    with pytest.raises(CorruptLogError, match="is part of the checkpoint 10 and is gone") as caught:
        table.files(strategy=strategy).collect()
    assert caught.value.path == f"_delta_log/{part.name}"
    assert caught.value.version == 10


@both
def test_a_damaged_part_fails_where_the_damage_is(strategy: str, tmp_path: Path) -> None:
    make_table(tmp_path, files=2_000, columns=1, checkpoint="multipart", parts=4, tail=1)
    (part,) = (tmp_path / "_delta_log").glob("*.checkpoint.0000000003.*")
    part.write_bytes(part.read_bytes()[:-40] + b"x" * 40)
    stream = DeltaTable(tmp_path).files(strategy=strategy)
    with pytest.raises(CorruptLogError, match=part.name):
        drain(stream, "sync")
    assert read_ahead_threads() == []


@both
def test_a_damaged_commit_fails_the_scan_with_its_line(strategy: str, tmp_path: Path) -> None:
    log = HandLog(tmp_path)
    log.commit(add("a"))
    log.checkpoint()
    log.commit(add("b"))
    log.commit(add("c"))
    log.checksum()
    (log.log / commit_name(1)).write_text('{"commitInfo":{}}\n{"add":{"path":1}}\n')
    stream = DeltaTable(tmp_path).files(strategy=strategy)
    with pytest.raises(CorruptLogError, match="line 2") as caught:
        drain(stream, "sync")
    assert caught.value.version == 1
    assert paths(caught.value.files) == ["c"]  # type: ignore[attr-defined]


def test_an_error_of_the_read_ahead_thread_waits_for_its_turn(tmp_path: Path) -> None:
    """The base fails at once, in another thread; the files of the tail still come, then the error."""
    make_table(tmp_path, files=500, columns=1, tail=5, adds_per_commit=2, checksum=True)
    table = DeltaTable(tmp_path)
    with observe(failing(".checkpoint.", StorageError)), pytest.raises(StorageError, match="injected") as caught:
        drain(table.files(strategy="forward"), "sync")
    assert [file.version for file in caught.value.files] == [15, 15, 14, 14, 13, 13, 12, 12, 11, 11]  # type: ignore[attr-defined]
    assert read_ahead_threads() == []


@ways
@both
def test_a_failed_stream_stays_ended(strategy: str, how: str, tail_table: Path) -> None:
    """After its error a stream makes no further request, and a new one of the same table works."""
    table = DeltaTable(tail_table)
    stream = table.files(strategy=strategy)
    with watching() as watch:
        with observe(failing(commit_name(20), StorageError)), pytest.raises(StorageError):
            drain(stream, how)
        stream.close()
        assert watch.grows() == []
    assert len(table.files(strategy=strategy).collect()) == 560


def test_an_interrupt_ends_the_scan_as_it_is(tail_table: Path) -> None:
    """Ctrl-C is not turned into an error of storage."""
    table = DeltaTable(tail_table)
    stream = table.files(strategy="reverse")
    with observe(failing(commit_name(15), KeyboardInterrupt)), pytest.raises(KeyboardInterrupt):
        stream.collect()
    stream.close()
    assert len(table.files().collect()) == 560

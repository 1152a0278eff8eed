"""Maintenance after a commit: compaction, checkpoint, hint, sidecar and log cleanup.

The steps can be interrupted at any point: each one only speeds up what works without it, and the next run completes
what an interrupted one left out. The commit is acknowledged first, so failures are logged and not raised.

Several processes may run maintenance concurrently. Each object is written with put-if-absent, or only ever moved
forward, so the slower process does redundant but harmless work.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from lazydelta.errors import (
    CorruptLogError,
    LazyDeltaError,
    ObjectExistsError,
    OptionError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lazydelta.log.checkpoint.reader import CheckpointReader
from lazydelta.log.commits import decode_whole
from lazydelta.log.replay import ReverseCommitReader, action_keys
from lazydelta.log.segment import Checkpoint, commits_in_order, list_commits, list_from, load_segment
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.log.time_travel import in_commit_since, milliseconds, version_at
from lazydelta.maintenance.optimize import auto_compact
from lazydelta.maintenance.policy import MaintenancePolicy, due_after
from lazydelta.protocol.actions import Metadata
from lazydelta.protocol.features import check_writable
from lazydelta.protocol.file_names import LOG, FileKind, LogFile
from lazydelta.protocol.properties import TableProperties
from lazydelta.runtime.threads import Bell
from lazydelta.sidecar.building.build import Progress
from lazydelta.sidecar.building.deltas import write_deltas
from lazydelta.sidecar.building.publish import BuildResult
from lazydelta.sidecar.building.refresh import refresh_at
from lazydelta.sidecar.handle import TableHandle
from lazydelta.sidecar.reading.delta_spans import WRITTEN_EVERY
from lazydelta.storage import Store, is_plain
from lazydelta.storage.staged_files import delete_paths
from lazydelta.write.checkpoint.writer import MEMORY_BUDGET, write_checkpoint, write_last_checkpoint
from lazydelta.write.job import mark_in, mark_of
from lazydelta.write.transaction import CommitResult

__all__ = [
    "CleanupResult",
    "Maintain",
    "MaintenanceRun",
    "Outcome",
    "after_commit",
    "checkpoint_at",
    "clean_log",
    "compact_log",
    "delete_orphaned_files",
    "find_due",
    "run_once",
    "sidecar_beside",
]


# Log cleanup: delete old commits and checkpoints that no version within the retention needs.


logger = logging.getLogger(__name__)

Maintain: TypeAlias = bool | Literal["keep log"]


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """Files that were deleted, or would be. ``floor`` is the oldest version that stays readable, None if all do."""

    paths: tuple[str, ...] = ()
    size: int = 0
    floor: int | None = None
    dry_run: bool = False


def clean_log(handle: TableHandle, *, dry_run: bool = False, now: datetime | None = None) -> CleanupResult:
    """Delete the log files that ``delta.logRetentionDuration`` has expired, oldest first, so interruption is harmless.

    A table with ``delta.enableExpiredLogCleanup`` set to false keeps everything.
    """
    store, snapshot = handle.store, handle.newest()
    check_writable(snapshot.protocol, snapshot.metadata, path=store.uri)
    properties = TableProperties.of(snapshot.metadata)
    if not properties.expired_log_cleanup:
        return CleanupResult(dry_run=dry_run)
    cutoff = _cutoff(now or datetime.now(UTC), properties.log_retention)
    first = next((file for file in list_from(store, 0) if file.kind is FileKind.COMMIT), None)
    if first is not None and first.info.last_modified > cutoff and in_commit_since(snapshot.metadata) is None:
        return CleanupResult(dry_run=dry_run)  # the usual case, without the times of all commits
    try:
        oldest = version_at(store, snapshot.metadata, cutoff)
    except VersionNotFoundError:
        return CleanupResult(dry_run=dry_run)  # every commit is newer
    checkpoint = load_segment(store, version=oldest).checkpoint
    if checkpoint is None:
        return CleanupResult(dry_run=dry_run)
    _check(store, checkpoint)
    floor = checkpoint.version
    if floor < properties.protected_before:
        # Below that version the log may use features that this writer does not know: delete all of it or nothing.
        return CleanupResult(dry_run=dry_run)
    expired = [file for file in list_from(store, 0, floor) if _is_expired(file, floor)]
    if not dry_run:
        for file in expired:
            store.delete(file.path)
        if expired:
            logger.info("%d files below version %d were deleted from the log of %s", len(expired), floor, store.uri)
    return CleanupResult(tuple(file.path for file in expired), sum(file.info.size for file in expired), floor, dry_run)


def _cutoff(now: datetime, retention: timedelta) -> int:
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        return milliseconds(midnight - retention)
    except OverflowError:
        return -1  # the retention exceeds the datetime range: keep everything


def _check(store: Store, checkpoint: Checkpoint) -> None:
    """Open the checkpoint that replaces everything below it. A name in a listing does not prove that it is readable."""
    if next(CheckpointReader(store, checkpoint).actions("protocol"), None) is None:
        path = checkpoint.files[0].path
        message = f"{path} holds no protocol, so the log below it is not cleaned up"
        raise CorruptLogError(message, path=path, version=checkpoint.version, hint="write a new checkpoint")


def _is_expired(file: LogFile, floor: int) -> bool:
    if file.kind is FileKind.COMPACTION:
        return file.version <= floor
    return file.version < floor


# A checkpoint on request, with the hint that leads readers to it.


def checkpoint_at(store: Store, version: int, known: LogSnapshot | None = None) -> None:
    """Write the checkpoint of a version, unless it exists, and point the hint at it."""
    write_last_checkpoint(store, write_checkpoint(store, version, known=known))


def compact_log(handle: TableHandle, first: int, last: int) -> str:
    """Write the compaction of the commits ``first`` to ``last``, unless it exists, and return its path.

    It has the newest action for each file, application and domain, and readers read it instead of the commits, which
    stay. All actions of these commits are held in memory.
    """
    store, snapshot = handle.store, handle.newest()
    check_writable(snapshot.protocol, snapshot.metadata, path=store.uri)
    if not 0 <= first < last <= snapshot.version:
        message = f"Versions {first} to {last} cannot be compacted: the newest version is {snapshot.version}"
        raise OptionError(message, hint="pass two versions of the table, the earlier one first")
    path = f"{LOG}/{first:020}.{last:020}.compacted.json"
    if next((each for each in list_from(store, first, first) if each.path == path), None) is not None:
        return path
    kept: dict[bytes, bytes] = {}
    for file in commits_in_order(store, first, last):
        kept |= _newest_actions(store.get(file.path), file)
    with suppress(ObjectExistsError):
        store.put_if_absent(path, b"\n".join((*kept.values(), b"")))
    return path


def _newest_actions(commit: bytes, file: LogFile) -> dict[bytes, bytes]:
    """Return the lines of a commit by the key of their action; an add counts more than a remove."""
    actions = [action for actions in decode_whole(commit, file.path, file.version) for action in actions]
    written = [line for line in commit.splitlines() if line.strip()]
    pairs = sorted(zip(actions, written, strict=True), key=lambda pair: pair[0].add is not None)
    found: dict[bytes, bytes] = {}
    for action, line in pairs:
        hashes = action_keys([action])[1]
        if hashes.size:
            found[hashes.tobytes()] = line
    return found


def sidecar_beside(
    handle: TableHandle, *, memory_budget: int = MEMORY_BUDGET, progress: Progress | None = None
) -> BuildResult | None:
    """Update the sidecar to the newest checkpoint, unless the table's options switch sidecars off.

    Readers do without it, so a failure is logged and returns None.
    """
    if not handle.options.sidecar_enabled:
        return None
    try:
        return refresh_at(handle, memory_budget=memory_budget, progress=progress)
    except LazyDeltaError as error:
        logger.warning("The checkpoint of %s is written, and its sidecar is not: %s", handle.uri, error)
        return None


# Orphaned files of drivers killed before their commit, and of late attempts.
#
# Files of a batch that the log records (a micro-batch, or a write with an application id) carry its mark in their
# names. After the batch is committed, no other file with that mark can be committed, so unreferenced files with the
# mark in recently written partitions are orphaned. Files without a recorded batch may belong to an active writer:
# VACUUM removes them by age.


_log = logging.getLogger(__name__)

_LOOK_BACK = 40
# A backfill into more partitions is left to VACUUM, because each partition costs a listing.
_MOST_FOLDERS = 64
# So are files beyond this many in a folder: listing millions of files on every run would cost too much.
_MOST_LISTED = 10_000


def delete_orphaned_files(handle: TableHandle, version: int) -> list[str]:
    """Delete the files orphaned by other attempts at the batches up to ``version``, and return their paths."""
    store, first = handle.store, max(0, version - _LOOK_BACK + 1)
    commits = _last_run(list_commits(store, first, version))
    marks: set[str] = set()
    named: set[str] = set()
    folders: set[str] = set()
    for commit in ReverseCommitReader(store, commits):
        for lines in commit.actions:
            marks |= {mark_of(line.txn) for line in lines if line.txn is not None}
            for line in lines:
                action = line.add or line.remove
                if action is not None:
                    path = action.path if is_plain(action.path) else unquote(action.path)
                    folder, _, name = path.rpartition("/")
                    named.add(name)
                    if line.add is not None:
                        folders.add(folder)
    if not marks or not commits or len(folders) > _MOST_FOLDERS:
        return []
    # A file older than all of these commits may be referenced by an earlier commit.
    since = 0 if commits[0].version == 0 else commits[0].info.last_modified
    left = [
        info.path
        for folder in sorted(folders)
        if ":" not in folder and not folder.startswith("/")  # external locations hold no files of lazydelta
        for info in islice(store.list(folder), _MOST_LISTED)
        if info.last_modified > since and (name := info.path.rpartition("/")[2]) not in named and mark_in(name) in marks
    ]
    if left:
        _log.info("%d files of attempts that were never committed are deleted from %s", len(left), store.uri)
        delete_paths(store, left)
    return left


def _last_run(listed: Iterable[LogFile]) -> list[LogFile]:
    """Return the commits after the last gap: a missing commit may reference files with a later mark."""
    run: list[LogFile] = []
    for file in listed:
        run = [*run, file] if run and run[-1].version + 1 == file.version else [file]
    return run


def after_commit(
    handle: TableHandle,
    version: int,
    metadata: Metadata,
    *,
    sidecar: bool = True,
    memory_budget: int = MEMORY_BUDGET,
    maintain: Maintain = True,
) -> None:
    """Run the maintenance due after the commit of ``version``: every ``delta.checkpointInterval`` commits, else none.

    ``maintain`` is false for no maintenance at all, and ``keep log`` for all but the cleanup of the log.

    If this process is already maintaining the table, that run takes over the work and continues with the newest
    version committed in the meantime.
    """
    due = find_due(handle, version, metadata) if maintain else None
    if due is not None:
        due = replace(due, cleans_log=due.cleans_log and maintain is True)
        _tables.do(MaintenanceRun(handle, due, sidecar, memory_budget))


def run_once(run: MaintenanceRun, report: Callable[[Outcome], None]) -> None:
    """Run when no other run of this process is active on the table, then run what was queued in the meantime."""
    _tables.do(run, report, patient=True)


def find_due(
    handle: TableHandle, version: int, metadata: Metadata, *, since: int | None = None, force: bool = False
) -> MaintenancePolicy | None:
    """Return what is due, as `due_after` does. Invalid properties are logged, and nothing is due."""
    found: MaintenancePolicy | None = _attempt(
        "read the properties", handle, lambda: due_after(version, metadata, since=since, force=force), []
    )
    return found


# --- a single run


@dataclass(frozen=True, slots=True)
class MaintenanceRun:
    """A single maintenance run."""

    handle: TableHandle
    due: MaintenancePolicy
    sidecar: bool
    memory_budget: int
    progress: Progress | None = None


@dataclass(slots=True)
class Outcome:
    """Result of a run, including its errors. ``build_ms`` is the duration of the sidecar build."""

    checkpoint: int | None = None
    checkpoint_written: bool = False
    sidecar: int | None = None
    built: BuildResult | None = None
    build_ms: float = 0.0
    compaction: int | None = None
    errors: list[str] = field(default_factory=list)


def _maintain(run: MaintenanceRun) -> Outcome:
    handle, store, due, done = run.handle, run.handle.store, run.due, Outcome()
    if due.compacts:
        due = _compact(run, done)
    if due.enough is not None:
        written = _attempt(
            f"write the checkpoint {due.version}",
            handle,
            lambda: write_checkpoint(store, due.version, enough=due.enough, memory_budget=run.memory_budget),
            done.errors,
        )
        if written is None:
            return done
        done.checkpoint, done.checkpoint_written = written.version, written.action == "written"
        _attempt("move _last_checkpoint", handle, lambda: write_last_checkpoint(store, written), done.errors)
    elif due.deltas and run.sidecar:
        _attempt(
            "write delta sidecars",
            handle,
            lambda: write_deltas(handle, at_least=WRITTEN_EVERY, memory_budget=run.memory_budget),
            done.errors,
        )
    if due.enough is None and not due.follows:
        return done
    if run.sidecar:
        _refresh(run, done)
    if due.enough is not None:
        _attempt("delete orphaned files", handle, lambda: delete_orphaned_files(handle, due.version), done.errors)
    if due.cleans_log:
        _attempt("clean the log", handle, lambda: _clean(handle), done.errors)
    return done


def _refresh(run: MaintenanceRun, done: Outcome) -> None:
    started = time.perf_counter()
    built: BuildResult | None = _attempt(
        "refresh the sidecar",
        run.handle,
        lambda: refresh_at(run.handle, memory_budget=run.memory_budget, progress=run.progress),
        done.errors,
    )
    if built is not None:
        done.built, done.sidecar = built, built.version
        done.build_ms = round((time.perf_counter() - started) * 1000, 3)


def _compact(run: MaintenanceRun, done: Outcome) -> MaintenancePolicy:
    """Compact small files, and return what is due afterwards: the new commit may make a checkpoint due."""
    handle, due = run.handle, run.due
    packed: CommitResult | None = _attempt(
        "compact the files",
        handle,
        lambda: auto_compact(handle, due.version, run.memory_budget),
        done.errors,
    )
    if packed is None:
        return due
    done.compaction = packed.version
    following = find_due(handle, packed.version, packed.metadata, since=due.version)
    enough = due.enough if following is None or following.enough is None else following.enough
    cleans = due.cleans_log or (following is not None and following.cleans_log)
    return replace(due, version=packed.version, enough=enough, cleans_log=cleans)


def _clean(handle: TableHandle) -> None:
    try:
        clean_log(handle)
    except UnsupportedFeatureError as error:
        # Not a failure: a writer that supports these features cleans up the log.
        logger.info("The log of %s is left as it is: %s", handle.uri, error)


def _attempt(what: str, handle: TableHandle, work: Callable[[], Any], errors: list[str]) -> Any:
    """Return the result of ``work``. On failure, log and record the error and return None."""
    try:
        return work()
    except Exception as error:
        # Any exception: the commit is valid, and its writer must not see a failure.
        logger.exception("Could not %s of %s; its commits are unharmed, and a later one tries again", what, handle.uri)
        errors.append(f"{what}: {error}")
        return None


# --- one run at a time


@dataclass(slots=True)
class _OneAtATime:
    """The tables being maintained in this process, each with the run that is queued for it."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    left: Bell = field(default_factory=Bell)
    waiting: dict[str, MaintenanceRun | None] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)

    def do(
        self, run: MaintenanceRun, report: Callable[[Outcome], None] | None = None, *, patient: bool = False
    ) -> None:
        """Run now or, if another run is active, after it with ``patient``; otherwise leave the work to that run."""
        table = run.handle.uri
        following: MaintenanceRun | None = run
        try:
            while not self._enter(table, run, patient=patient):
                if not patient:
                    return
                self.left.wait()
            while following is not None:
                done = _maintain(following)
                if report is not None:
                    report(done)
                with self.lock:
                    following, self.waiting[table] = self.waiting[table], None
                    if following is None:
                        self._leave(table)
        except BaseException:
            with self.lock:
                if self.owners.get(table) == threading.get_ident():
                    self._leave(table)
            raise

    def _enter(self, table: str, run: MaintenanceRun, *, patient: bool) -> bool:
        """Claim the table and return True. Otherwise queue the run, unless ``patient``, and return False."""
        with self.lock:
            if table not in self.waiting:
                self.owners[table] = threading.get_ident()
                self.waiting[table] = None
                return True
            other = self.waiting[table]
            if not patient and (other is None or other.due.version < run.due.version):
                self.waiting[table] = replace(run, due=run.due.after(None if other is None else other.due))
            return False

    def _leave(self, table: str) -> None:
        self.waiting.pop(table, None)
        self.owners.pop(table, None)
        self.left.ring()


_tables = _OneAtATime()


def _forget_after_fork() -> None:
    """Reset the state in a forked child, which has none of its parent's threads."""
    global _tables  # noqa: PLW0603 - per process
    _tables = _OneAtATime()


os.register_at_fork(after_in_child=_forget_after_fork)

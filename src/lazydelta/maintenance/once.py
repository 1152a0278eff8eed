"""Doing once what is due: compaction, the checkpoint, the hint, the sidecar, the clean-up of the log.

The order is safe to interrupt anywhere: each step only makes faster what already works without it, and the next one
that is due finds and completes what an interrupted one left out. The commit is acknowledged before any of it, so a
failure is logged and goes no further.

Several processes may do it at once. Each object is put where there is none, or only ever moved forward, so that the
slower one does work in vain and no harm.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from lazydelta.errors import UnsupportedFeatureError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Metadata
from lazydelta.log.checkpoint.writing.checkpoint_writer import MEMORY_BUDGET, write_checkpoint
from lazydelta.log.hint.hint_writer import write_last_checkpoint
from lazydelta.maintenance.due import Due, due_after
from lazydelta.maintenance.left_behind import clear_left_behind
from lazydelta.maintenance.log_cleanup import clean_log
from lazydelta.maintenance.optimize.auto_compaction import auto_compact
from lazydelta.sidecar.building.builder import Progress
from lazydelta.sidecar.building.publication import BuildResult
from lazydelta.sidecar.building.refresher import refresh_at
from lazydelta.write.transaction import CommitResult

__all__ = ["Outcome", "Run", "after_commit", "find_due", "run_once"]

logger = logging.getLogger(__name__)


def after_commit(
    handle: TableHandle,
    version: int,
    metadata: Metadata,
    *,
    sidecar: bool = True,
    memory_budget: int = MEMORY_BUDGET,
) -> None:
    """Do what is due after the commit of ``version``: every ``delta.checkpointInterval`` commits, else nothing.

    If this process is at it for the same table, the work is left to that run, which goes on with the newest version
    that came meanwhile.
    """
    due = find_due(handle, version, metadata)
    if due is not None:
        _tables.do(Run(handle, due, sidecar, memory_budget))


def run_once(run: Run, report: Callable[[Outcome], None]) -> None:
    """Do a run when no other one of this process is at the table, and then what was left to it meanwhile."""
    _tables.do(run, report, patient=True)


def find_due(
    handle: TableHandle, version: int, metadata: Metadata, *, since: int | None = None, force: bool = False
) -> Due | None:
    """Return what is due, as `due_after` does; properties that make no sense are logged, and nothing is due."""
    found: Due | None = _attempt(
        "read the properties", handle, lambda: due_after(version, metadata, since=since, force=force), []
    )
    return found


# --- one run


@dataclass(frozen=True, slots=True)
class Run:
    """One run to do."""

    handle: TableHandle
    due: Due
    sidecar: bool
    memory_budget: int
    progress: Progress | None = None


@dataclass(slots=True)
class Outcome:
    """What a run has done, and what went wrong in it; ``build_ms`` is what the sidecar took."""

    checkpoint: int | None = None
    checkpoint_written: bool = False
    sidecar: int | None = None
    built: BuildResult | None = None
    build_ms: float = 0.0
    compaction: int | None = None
    errors: list[str] = field(default_factory=list)


def _maintain(run: Run) -> Outcome:
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
    elif not due.follows:
        return done
    if run.sidecar:
        _refresh(run, done)
    if due.enough is not None:
        _attempt("clear what attempts left behind", handle, lambda: clear_left_behind(handle, due.version), done.errors)
    if due.cleans_log:
        _attempt("clean the log", handle, lambda: _clean(handle), done.errors)
    return done


def _refresh(run: Run, done: Outcome) -> None:
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


def _compact(run: Run, done: Outcome) -> Due:
    """Pack small files, and return what is due then: the commit that it takes may be one that brings a checkpoint."""
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
        # A fact of the table and no failure: whoever writes such tables cleans their log.
        logger.info("The log of %s is left as it is: %s", handle.uri, error)


def _attempt(what: str, handle: TableHandle, work: Callable[[], Any], errors: list[str]) -> Any:
    """Return what ``work`` returns; a failure is logged and noted, and None."""
    try:
        return work()
    except Exception as error:
        # Whatever it is: the commit stands, and its writer must not be told that it failed.
        logger.exception("Could not %s of %s; its commits are unharmed, and a later one tries again", what, handle.uri)
        errors.append(f"{what}: {error}")
        return None


# --- one run at a time


@dataclass(slots=True)
class _OneAtATime:
    """The tables that are being worked on in this process, each with the run that waits for it."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: dict[str, Run | None] = field(default_factory=dict)

    def do(self, run: Run, report: Callable[[Outcome], None] | None = None, *, patient: bool = False) -> None:
        """Do a run now, or after the run that is under way; who is not ``patient`` leaves it to that one."""
        table = run.handle.uri
        with self.changed:
            if table in self.waiting and not patient:
                other = self.waiting[table]
                if other is None or other.due.version < run.due.version:
                    self.waiting[table] = replace(run, due=run.due.after(None if other is None else other.due))
                return
            self.changed.wait_for(lambda: table not in self.waiting)
            self.waiting[table] = None
        following: Run | None = run
        try:
            while following is not None:
                done = _maintain(following)
                if report is not None:
                    report(done)
                with self.changed:
                    following, self.waiting[table] = self.waiting[table], None
                    if following is None:
                        self._leave(table)
        except BaseException:
            with self.changed:
                self._leave(table)
            raise

    def _leave(self, table: str) -> None:
        self.waiting.pop(table, None)
        self.changed.notify_all()


_tables = _OneAtATime()


def _forget_after_fork() -> None:
    """Start anew in a forked child, which has none of its parent's threads."""
    global _tables  # noqa: PLW0603 - of this process
    _tables = _OneAtATime()


os.register_at_fork(after_in_child=_forget_after_fork)

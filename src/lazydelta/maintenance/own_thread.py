"""Maintenance in a thread of its own, behind the back of a writer that goes on committing."""

from __future__ import annotations

# Where pandas is installed, pyarrow imports this when it first makes an array of Python objects, and Python forbids to
# begin with it while a program ends, which is when a run may get there.
import concurrent.futures.thread  # noqa: F401
import os
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from lazydelta.errors import OptionError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Metadata
from lazydelta.log.checkpoint.writing.checkpoint_writer import MEMORY_BUDGET
from lazydelta.maintenance.once import Outcome, Run, find_due, run_once

__all__ = ["BackgroundMaintenance", "MaintenanceStatus"]


@dataclass(frozen=True, slots=True)
class MaintenanceStatus:
    """How far maintenance is.

    ``running`` and ``waiting`` are versions. ``runs`` counts those that are over, ``failures`` those of them in which a
    step failed. ``last_checkpoint`` and ``last_sidecar`` are the newest that were written or found there.
    ``last_error`` is that of the latest run, None if it went well.
    """

    running: int | None = None
    waiting: int | None = None
    runs: int = 0
    failures: int = 0
    last_checkpoint: int | None = None
    last_sidecar: int | None = None
    last_error: str | None = None


class BackgroundMaintenance:
    """Maintenance of one table in a thread of its own, for a writer that goes on committing meanwhile.

    At most one run is under way and one waits, the newest that fell due. The program waits at its end for what was
    offered. A forked child has none of it and starts anew.
    """

    def __init__(
        self,
        table: TableHandle | str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        *,
        sidecar: bool = True,
        memory_budget: int = MEMORY_BUDGET,
    ) -> None:
        """Make no request and start no thread; ``table`` is a URI, or the handle of a table that is open."""
        if isinstance(table, TableHandle):
            if storage_options is not None:
                raise OptionError("storage_options belong to a URI", hint="a table that is open has its own")
            self._handle = table
        else:
            self._handle = TableHandle.open(table, storage_options)
        self._sidecar = sidecar
        self._memory_budget = memory_budget
        self._begin()
        _living.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._next: Run | None = None
        self._seen: int | None = None
        self._closed = False
        self._status = MaintenanceStatus()

    def offer(self, version: int, metadata: Metadata, *, force: bool = False) -> bool:
        """Tell of a commit; return at once whether that makes maintenance due, which the thread then does.

        It falls due with each multiple of ``delta.checkpointInterval``, also where another writer made that very
        commit, or with ``force``. Every commit should be offered.
        """
        with self._changed:
            if self._closed:
                return False
            due = find_due(self._handle, version, metadata, since=self._seen, force=force)
            self._seen = version if self._seen is None else max(self._seen, version)
            if due is None:
                return False
            if self._next is None or self._next.due.version < version:
                # An older version that still waits is not worth a checkpoint of its own.
                due = due.after(None if self._next is None else self._next.due)
                self._next = Run(self._handle, due, self._sidecar, self._memory_budget)
                self._status = replace(self._status, waiting=version)
            if self._thread is None:
                # No daemon: Python waits for it before it takes anything down that the run needs.
                self._thread = threading.Thread(target=self._run, name="lazydelta-maintenance", daemon=False)
                self._thread.start()
        return True

    @property
    def status(self) -> MaintenanceStatus:
        """How far it is."""
        with self._changed:
            return self._status

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way nor waits; False if that took longer than ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def close(self, *, wait: bool = True, timeout: float | None = None) -> bool:
        """Take no more offers; finish what was offered, or without ``wait`` drop what has not begun.

        False if ``timeout`` seconds were not enough, or if, without ``wait``, a run is still under way.
        """
        with self._changed:
            self._closed = True
            if not wait:
                self._next = None
                self._status = replace(self._status, waiting=None)
        return self.wait(timeout if wait else 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                run, self._next = self._next, None
                self._status = replace(self._status, running=None if run is None else run.due.version, waiting=None)
                if run is None:
                    self._end()
                    return
            try:
                run_once(run, self._note)
            except BaseException:
                with self._changed:
                    self._end()  # else whoever waits would wait for ever
                raise

    def _end(self) -> None:
        self._thread = None
        self._status = replace(self._status, running=None)
        self._changed.notify_all()

    def _note(self, done: Outcome) -> None:
        with self._changed:
            before = self._status
            self._status = replace(
                before,
                runs=before.runs + 1,
                failures=before.failures + bool(done.errors),
                last_checkpoint=before.last_checkpoint if done.checkpoint is None else done.checkpoint,
                last_sidecar=before.last_sidecar if done.sidecar is None else done.sidecar,
                last_error="; ".join(done.errors) or None,
            )


_living: weakref.WeakSet[BackgroundMaintenance] = weakref.WeakSet()


def _forget_after_fork() -> None:
    """Start anew in a forked child: it has neither the threads nor the work of its parent."""
    for each in list(_living):
        each._begin()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_forget_after_fork)

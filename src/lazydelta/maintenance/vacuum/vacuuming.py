"""One VACUUM, from the log and a listing to what is deleted.

What may go is decided by the listing alone: only objects that a walk below the table's root has shown are ever deleted,
and the log can do no more than protect them. The order is such that nothing is lost, whoever works on the table:

1. the newest version is pinned, and everything that it refers to within the retention is kept;
2. the store is listed: what is older than the retention and not kept is an orphan;
3. the VACUUM is recorded in the log, and what others have committed meanwhile is kept as well;
4. the orphans are deleted, in any order. A run that is killed leaves orphans for the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from lazydelta.errors import LazyDeltaError, OptionError, StorageError
from lazydelta.handle import TableHandle
from lazydelta.log.snapshot import Snapshot
from lazydelta.maintenance.once import after_commit
from lazydelta.maintenance.vacuum.kept_files import KeptFiles
from lazydelta.maintenance.vacuum.listing import Lister, ListingJob, in_one_walk
from lazydelta.maintenance.vacuum.orphans import Orphan, Orphans
from lazydelta.maintenance.vacuum.references import keep_active, keep_committed, keep_removed
from lazydelta.maintenance.vacuum.table_names import TableNames
from lazydelta.maintenance.vacuum.vacuum_record import VacuumRecord
from lazydelta.maintenance.vacuum.vacuum_rules import Retention, check_vacuumable
from lazydelta.sidecar.upkeep.lifecycle import sweep
from lazydelta.storage import Store
from lazydelta.write.commit_note import CommitNote

__all__ = ["FailedDelete", "VacuumProgress", "VacuumResult", "vacuum"]

_log = logging.getLogger(__name__)

VacuumProgress: TypeAlias = Callable[[str, int, int | None], None]
"""Told what is being done (``kept``, ``listed``, ``deleted``), how many files it was done to, and of how many."""

_PARALLEL_DELETES = 16
# A store that refuses so many will refuse the rest as well.
_MOST_FAILURES = 1000


@dataclass(frozen=True, slots=True)
class FailedDelete:
    """A file that the store would not delete, and what it said."""

    path: str
    error: str


@dataclass(slots=True)
class VacuumResult:
    """What was deleted, or would be with ``dry_run``: paths below the table's root, decoded.

    ``failed`` are files that are still there because the store would not delete them; ``folders`` were empty and are
    gone. ``listed`` counts what the walk has shown, ``kept`` what the log refers to.
    """

    version: int
    dry_run: bool
    retention_hours: float
    cutoff: int
    paths: list[str] = field(default_factory=list)
    size_bytes: int = 0
    listed: int = 0
    kept: int = 0
    folders: list[str] = field(default_factory=list)
    failed: list[FailedDelete] = field(default_factory=list)

    def check(self, uri: str) -> None:
        """Raise if a file could not be deleted."""
        if self.failed:
            first = self.failed[0]
            message = f"{len(self.failed)} files of {uri} could not be deleted, {len(self.paths)} were: {first.error}"
            raise StorageError(message, path=first.path, hint="nothing that is needed is gone; run VACUUM again")


def vacuum(  # noqa: PLR0913 - keyword-only but for the table
    handle: TableHandle,
    *,
    retention: timedelta | None = None,
    dry_run: bool = True,
    enforce_retention: bool = True,
    keep_versions: Sequence[int] = (),
    progress: VacuumProgress | None = None,
    now: datetime | None = None,
    note: CommitNote | None = None,
    lister: Lister = in_one_walk,
) -> VacuumResult:
    """Delete the files below the table's root that no version within the retention refers to.

    ``retention`` is by default what the table promises in ``delta.deletedFileRetentionDuration`` (7 days where it says
    nothing), and may be shorter only without ``enforce_retention``. Files that are younger stay whoever wrote them: a
    writer may be about to commit them. ``keep_versions`` stay readable however old they are.
    ``note`` is what the commits say that record it, ``lister`` shows what there is.
    """
    snapshot = handle.newest()
    check_vacuumable(snapshot.protocol, path=handle.uri)
    settled = Retention(retention, snapshot.metadata, enforce=enforce_retention, now=now)
    result = VacuumResult(snapshot.version, dry_run, settled.duration / timedelta(hours=1), settled.cutoff)
    work = _Vacuum(handle, snapshot, settled, result, progress)
    try:
        work.keep(keep_versions)
        work.find(lister)
        if dry_run:
            work.tell()
        else:
            work.delete(enforced=enforce_retention, note=note or CommitNote())
    finally:
        work.close()
    return result


class _Vacuum:
    def __init__(
        self,
        handle: TableHandle,
        snapshot: Snapshot,
        retention: Retention,
        result: VacuumResult,
        progress: VacuumProgress | None,
    ) -> None:
        self._handle, self._store, self._snapshot = handle, handle.store, snapshot
        self._retention, self._result = retention, result
        self._progress = progress or (lambda _what, _done, _total: None)
        self._kept = KeptFiles(handle.store, handle.options.remove_set_memory_limit)
        self._orphans = Orphans()
        self._spared: tuple[str, ...] = ()
        self._empty: list[str] = []

    def close(self) -> None:
        self._kept.close()
        self._orphans.close()

    def keep(self, versions: Sequence[int]) -> None:
        """Note what has to stay."""
        kept, cutoff = self._kept, self._retention.cutoff
        keep_active(self._handle, self._snapshot, kept)
        keep_removed(self._snapshot, cutoff, kept, beyond_checkpoint=self._retention.exceeds_promise)
        for version in versions:
            if isinstance(version, bool) or version < 0:
                raise OptionError(f"{version!r} is not a table version", hint="versions are numbers from 0")
            keep_active(self._handle, self._handle.snapshot(version), kept)
        self._result.kept = len(kept)
        self._progress("kept", len(kept), None)

    def find(self, lister: Lister) -> None:
        """Find the orphans."""
        result, levels = self._result, len(self._snapshot.metadata.partition_columns)
        spared: set[str] = set()
        nested: set[str] = set()
        names = TableNames(self._snapshot.metadata)
        for listed in lister(ListingJob(self._store, names, self._retention.cutoff, levels, len(self._kept))):
            result.listed += listed.count
            stays = self._kept.has([each.path for each in listed.old])
            for each, kept in zip(listed.old, stays, strict=True):
                if not kept:
                    self._orphans.add(each.path, each.size)
            spared.update(listed.linked)
            nested.update(listed.nested)
            self._empty.extend(listed.empty)
            if listed.count:
                self._progress("listed", result.listed, None)
        for folder in sorted(nested):
            _log.warning("%s in %s has a log of its own and is left alone", folder, self._store.uri)
        self._spared = tuple(spared | nested)

    def tell(self) -> None:
        """Say what would go."""
        for batch in self._doomed():
            self._result.paths.extend(each.path for each in batch)
            self._result.size_bytes += sum(each.size for each in batch)

    def delete(self, *, enforced: bool, note: CommitNote) -> None:
        """Delete the orphans, and tell the log."""
        result, record = self._result, VacuumRecord(self._handle, self._snapshot, note)
        if not self._orphans.count:
            # A commit for nothing, every night, would only make the log longer.
            self._delete_folders()
            sweep(self._store, self._snapshot)
            return
        record.begin(self._retention, enforced=enforced, files=self._orphans.count, size=self._orphans.size)
        keep_committed(self._snapshot, self._kept)
        complete = False
        try:
            self._delete_all()
            self._delete_folders()
            complete = not result.failed
        finally:
            record.end(deleted=len(result.paths), folders=len(result.folders), complete=complete)
        sweep(self._store, self._snapshot)
        if record.last is not None:
            after_commit(self._handle, record.last.version, record.last.metadata)

    def _delete_all(self) -> None:
        result = self._result
        with ThreadPoolExecutor(_PARALLEL_DELETES, thread_name_prefix="lazydelta-vacuum") as pool:
            for batch in self._doomed():
                for each, error in zip(batch, pool.map(self._delete_one, batch), strict=True):
                    if error is None:
                        result.paths.append(each.path)
                        result.size_bytes += each.size
                    else:
                        result.failed.append(FailedDelete(each.path, error))
                        _log.warning("could not delete %s, which no version refers to: %s", each.path, error)
                self._progress("deleted", len(result.paths), self._orphans.count)
                if len(result.failed) >= _MOST_FAILURES:
                    return

    def _delete_one(self, orphan: Orphan) -> str | None:
        try:
            self._store.delete(orphan.path)
        except LazyDeltaError as error:
            return str(error)
        return None

    def _doomed(self) -> Iterator[list[Orphan]]:
        """Yield the orphans that nobody has committed or linked to meanwhile."""
        for batch in self._orphans.batches():
            stays = self._kept.has([each.path for each in batch])
            found = [
                each
                for each, kept in zip(batch, stays, strict=True)
                if not kept and not _is_below(each.path, self._spared)
            ]
            if found:
                yield found

    def _delete_folders(self) -> None:
        """Delete folders that hold nothing any more, from the innermost outwards."""
        for folder in sorted(_folders_of(self._result.paths, self._empty), key=_depth, reverse=True):
            if not _is_below(folder, self._spared) and _discard(self._store, folder):
                self._result.folders.append(folder)


def _discard(store: Store, folder: str) -> bool:
    try:
        return store.delete_empty_folder(folder)
    except LazyDeltaError as error:
        _log.warning("could not delete the empty folder %s: %s", folder, error)
        return False


def _folders_of(paths: Iterable[str], empty: Iterable[str]) -> set[str]:
    found = set(empty)
    for path in (*paths, *empty):
        folder = path.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def _depth(folder: str) -> int:
    return folder.count("/")


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == each or path.startswith(f"{each}/") or not each for each in folders)

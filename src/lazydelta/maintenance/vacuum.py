"""VACUUM: delete the files that the log no longer references.

Only objects that a listing below the table's root has shown are ever deleted. The log can only protect them. The order
of the steps is safe with concurrent readers and writers:

1. Pin the newest version, and keep every file that it references within the retention.
2. List the store. A file older than the retention that is not kept is an orphan.
3. Record the VACUUM in the log, and also keep the files of concurrent commits.
4. Delete the orphans, in any order. A killed run leaves orphans for the next one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from lazydelta.errors import (
    CommitConflictError,
    LazyDeltaError,
    OptionError,
    StorageError,
    UnsupportedFeatureError,
    WriteError,
)
from lazydelta.log.time_travel import milliseconds
from lazydelta.maintenance.after_commit import after_commit
from lazydelta.maintenance.vacuum_files import (
    KeptFiles,
    Lister,
    ListingJob,
    Orphan,
    Orphans,
    TableNames,
    in_one_walk,
    keep_active,
    keep_committed,
    keep_removed,
    removed_files,
)
from lazydelta.protocol.actions import Metadata, Protocol
from lazydelta.protocol.features import COPIED_FEATURES, check_writable
from lazydelta.protocol.file_names import LOG
from lazydelta.protocol.properties import TableProperties
from lazydelta.runtime.threads import in_parallel
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.sidecar.lifecycle import sweep
from lazydelta.storage import TEMPORARY, Store
from lazydelta.storage.staged_files import delete_paths
from lazydelta.write.commit import CommitNote
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = ["VacuumProgress", "VacuumResult", "vacuum"]


# Preconditions of VACUUM: known features only, and a retention that does not break readers unless requested.


_TABLE_FEATURES_VERSION = 7
# Store and client clocks differ by seconds. A larger skew means that the clock was never set.
_MOST_SKEW = 5 * 60 * 1000


def check_vacuumable(protocol: Protocol, *, path: str) -> None:
    """Raise if the table has an unknown writer feature, which may reference files in its own way.

    The feature ``vacuumProtocolCheck`` requires this check; here it applies to every table.
    """
    version, features = protocol.min_writer_version, set(protocol.writer_features or ())
    unknown = tuple(sorted(features - COPIED_FEATURES))
    if version > _TABLE_FEATURES_VERSION:
        unknown = (f"minWriterVersion {version}",)
    if unknown:
        message = f"The table has features under which lazydelta does not support what to keep: {', '.join(unknown)}"
        hint = "vacuum it with a writer that implements them; nothing was deleted"
        raise UnsupportedFeatureError(message, features=unknown, path=path, hint=hint)


def check_clock(snapshot: Snapshot) -> None:
    """Raise if the local clock is behind the newest commit, because file ages cannot be computed from it."""
    segment = snapshot.segment
    newest = segment.commits[-1] if segment.commits else segment.checkpoint_commit
    now = milliseconds(datetime.now(UTC))
    if newest is None or newest.info.last_modified - now <= _MOST_SKEW:
        return
    behind = timedelta(milliseconds=newest.info.last_modified - now)
    message = f"The clock of this machine is {behind} behind the newest commit of {snapshot.store.uri}"
    raise WriteError(message, path=newest.path, version=newest.version, hint="nothing was deleted; set the clock")


class Retention:
    """How long removed files are kept. Files removed before ``cutoff`` (epoch milliseconds) may be deleted."""

    def __init__(self, asked: timedelta | None, metadata: Metadata, *, enforce: bool, now: datetime | None) -> None:
        promised = TableProperties.of(metadata).deleted_file_retention
        self.asked, self.promised = asked, promised
        self.duration = promised if asked is None else asked
        if self.duration < timedelta():
            raise OptionError(f"A retention of {self.duration} is not valid", hint="use 0 or more")
        if enforce and self.duration < promised:
            message = (
                f"A retention of {_hours(self.duration)} hours is shorter than the {_hours(promised)} hours that the "
                "table promises (delta.deletedFileRetentionDuration): readers of older versions and writers at work "
                "may lose files"
            )
            hint = (
                "use a longer retention, or disable the check if the table has no readers or writers: "
                "--no-retention-check, in Python enforce_retention_duration=False"
            )
            raise OptionError(message, hint=hint)
        try:
            self.cutoff = milliseconds((now or datetime.now(UTC)) - self.duration)
        except OverflowError:
            self.cutoff = -(2**62)  # the retention exceeds the datetime range: keep everything


def _hours(duration: timedelta) -> str:
    return f"{duration / timedelta(hours=1):g}"


# The record of a VACUUM in the log: one commit before and one after, as Delta-Spark and deltalake write them.
#
# They do not change the table. They show when a missing file was deleted and by which writer. The first one also proves
# that the log is writable before anything is deleted.


_ATTEMPTS = 5
_MILLISECOND = timedelta(milliseconds=1)


class VacuumRecord:
    """Writes the two commits, unless the table has features that lazydelta cannot write."""

    def __init__(self, snapshot: Snapshot, note: CommitNote) -> None:
        self._table = snapshot.table
        self._note = note
        self.last: CommitResult | None = None
        try:
            check_writable(snapshot.protocol, snapshot.metadata, path=snapshot.uri)
        except UnsupportedFeatureError as error:
            self._writes = False
            _log.info("The VACUUM of %s is not recorded in its log: %s", snapshot.uri, error)
        else:
            self._writes = True

    def begin(self, retention: Retention, *, enforced: bool, files: int, size: int) -> None:
        """Record what is about to be deleted."""
        parameters: dict[str, Any] = {"retentionCheckEnabled": enforced}
        if retention.asked is not None:
            parameters["specifiedRetentionMillis"] = retention.duration // _MILLISECOND
        parameters["defaultRetentionMillis"] = retention.promised // _MILLISECOND
        self._commit("VACUUM START", parameters, {"numFilesToDelete": files, "sizeOfDataToDelete": size})

    def end(self, *, deleted: int, folders: int, complete: bool) -> None:
        """Record what was deleted."""
        parameters = {"status": "COMPLETED" if complete else "FAILED"}
        self._commit("VACUUM END", parameters, {"numDeletedFiles": deleted, "numVacuumedDirectories": folders})

    def _commit(self, operation: str, parameters: Mapping[str, Any], metrics: Mapping[str, int]) -> None:
        if not self._writes:
            return
        for remaining in reversed(range(_ATTEMPTS)):
            with Transaction.begin(self._table, operation=operation, parameters=parameters) as transaction:
                transaction.note = self._note
                transaction.metrics = metrics  # numbers, as deltalake writes them; Spark reads both
                try:
                    self.last = transaction.commit()
                except CommitConflictError:
                    # A concurrent metadata change does not affect the record: try again.
                    if not remaining:
                        raise
                else:
                    return


_log = logging.getLogger(__name__)

VacuumProgress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the phase (``kept``, ``listed``, ``deleted``), the number of files processed, and the total if known."""

_PARALLEL_DELETES = 16
# A store that refuses this many deletes will refuse the rest as well.
_MOST_FAILURES = 1000


@dataclass(frozen=True, slots=True)
class FailedDelete:
    """A file that the store failed to delete, and the error."""

    path: str
    error: str


@dataclass(slots=True)
class VacuumResult:
    """Files that were deleted, or would be with ``dry_run``, as decoded paths below the table's root.

    ``failed`` are files that the store failed to delete. ``folders`` were empty and have been deleted. ``listed`` is
    the number of listed files, and ``kept`` the number of files that the log references.
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
            raise StorageError(message, path=first.path, hint="no active file was deleted; run VACUUM again")


def vacuum(  # noqa: PLR0913 - keyword-only options after the table
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
    lite: bool = False,
) -> VacuumResult:
    """Delete the files below the table's root that no version within the retention references.

    ``retention`` defaults to ``delta.deletedFileRetentionDuration`` of the table (7 days if unset). A shorter one
    requires ``enforce_retention=False``. Newer files are always kept, because a writer may be about to commit them.
    ``keep_versions`` stay readable regardless of their age. ``note`` is added to the commits that record the VACUUM.
    ``lister`` lists the files. With ``lite`` nothing is listed: only files that the log names as removed are deleted.
    """
    snapshot = handle.newest()
    check_vacuumable(snapshot.protocol, path=handle.uri)
    settled = Retention(retention, snapshot.metadata, enforce=enforce_retention, now=now)
    if now is None:
        check_clock(snapshot)
    result = VacuumResult(snapshot.version, dry_run, settled.duration / timedelta(hours=1), settled.cutoff)
    work = _Vacuum(snapshot, settled, result, progress)
    try:
        work.keep(keep_versions)
        work.find(removed_files(snapshot) if lite else lister)
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
        snapshot: Snapshot,
        retention: Retention,
        result: VacuumResult,
        progress: VacuumProgress | None,
    ) -> None:
        self._store, self._snapshot = snapshot.store, snapshot
        self._retention, self._result = retention, result
        self._progress = progress or (lambda _what, _done, _total: None)
        self._kept = KeptFiles(snapshot.store, snapshot.options.remove_set_memory_limit)
        self._orphans = Orphans()
        self._spared: tuple[str, ...] = ()
        self._empty: list[str] = []

    def close(self) -> None:
        self._kept.close()
        self._orphans.close()

    def keep(self, versions: Sequence[int]) -> None:
        """Collect the files that must be kept."""
        kept, cutoff = self._kept, self._retention.cutoff
        keep_active(self._snapshot, kept)
        keep_removed(self._snapshot, cutoff, kept)
        for version in versions:
            if isinstance(version, bool) or version < 0:
                raise OptionError(f"{version!r} is not a table version", hint="versions are numbers of at least 0")
            keep_active(self._snapshot.table.snapshot(version), kept)
        self._result.kept = len(kept)
        self._progress("kept", len(kept), None)

    def find(self, lister: Lister) -> None:
        """Collect the orphans."""
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
        """Report what would be deleted."""
        for batch in self._doomed():
            self._result.paths.extend(each.path for each in batch)
            self._result.size_bytes += sum(each.size for each in batch)

    def delete(self, *, enforced: bool, note: CommitNote) -> None:
        """Delete the orphans, and record it in the log."""
        result, record = self._result, VacuumRecord(self._snapshot, note)
        if not self._orphans.count:
            # An empty commit every night would only make the log longer.
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
            after_commit(self._snapshot.table, record.last.version, record.last.metadata)

    def _delete_all(self) -> None:
        result = self._result
        for batch in self._doomed():
            with closing(
                in_parallel(
                    self._delete_one, batch, threads=_PARALLEL_DELETES, stop=lambda: None, name="lazydelta-vacuum"
                )
            ) as errors:
                for each, error in zip(batch, errors, strict=True):
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
        """Yield the orphans that have not been committed or linked in the meantime."""
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
        """Delete folders that are now empty, innermost first."""
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


# Orphaned files of a job that failed before its table existed: lazydelta data files in a folder without a log.
#
# Without a log, nothing identifies a table's folder. Only files named like those of lazydelta's writers are deleted, in
# the folder or in partition folders, and lazydelta's temporary files. Nothing is deleted if there is a log.


_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OURS = re.compile(
    rf"(?:[^/]+=[^/]*/)*(?:part-\d{{5,}}-{_UUID}\.(?:c000|ld\d+)(?:\.[a-z]+)?\.parquet|{re.escape(TEMPORARY)}[^/]*)"
)


def vacuum_without_log(
    handle: TableHandle,
    *,
    retention: timedelta | None = None,
    dry_run: bool = True,
    enforce_retention: bool = True,
    now: datetime | None = None,
) -> VacuumResult:
    """Delete lazydelta data files older than the retention (7 days) from a folder that is not a table."""
    promised = TableProperties().deleted_file_retention
    duration = promised if retention is None else retention
    if duration < timedelta() or (enforce_retention and duration < promised):
        message = f"A retention of {duration} is shorter than {promised}: a job may still be about to commit"
        raise OptionError(message, hint="use a longer retention, or disable the check: enforce_retention")
    store = handle.store
    cutoff = milliseconds((now or datetime.now(UTC)) - duration)
    result = VacuumResult(-1, dry_run, duration / timedelta(hours=1), cutoff)
    _refuse_log(store)
    for info in store.walk(lambda path: path.rpartition("/")[2] == LOG):
        result.listed += 1
        if info.last_modified < cutoff and _OURS.fullmatch(info.path):
            result.paths.append(info.path)
            result.size_bytes += info.size
    if not dry_run:
        _refuse_log(store)  # a table created in the meantime may reference these files
        delete_paths(store, result.paths)
    return result


def _refuse_log(store: Store) -> None:
    if next(iter(store.list(LOG)), None) is not None:
        message = f"There is a log at {store.uri}, which determines what may be deleted"
        raise OptionError(message, path=store.uri, hint="vacuum the table instead")

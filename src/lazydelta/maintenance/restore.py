"""Changes of which files belong to a table, without writing any: ``restore``, ``repair``, and manifests for others.

RESTORE commits the difference between the newest version and an older one. Its memory depends on the number of files
that differ, as the keys of both versions are spilled. Files of the older version that VACUUM deleted are an error.
"""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import unquote

import msgspec

from lazydelta.errors import (
    CommitConflictError,
    OptionError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedFeatureError,
    VersionNotFoundError,
    WriteError,
)
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.keys import RemoveSet
from lazydelta.log.time_travel import milliseconds, version_at
from lazydelta.protocol.actions import Add, DeletionVector, Metadata
from lazydelta.protocol.deletion_vectors import vector_path
from lazydelta.protocol.features import check_writable
from lazydelta.protocol.properties import Key
from lazydelta.protocol.values import logged_path
from lazydelta.runtime.arrays import boolean_array
from lazydelta.runtime.threads import in_parallel
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.storage import Store
from lazydelta.warned import LazyDeltaWarning
from lazydelta.write.checkpoint.rows import json_stats
from lazydelta.write.commit import CommitNote, removal_of
from lazydelta.write.identity import with_marks_of
from lazydelta.write.row_changes.choice import Progress, RowChoice, candidate_files, reported
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = [
    "CloneResult",
    "RepairResult",
    "RestoreResult",
    "repair_table",
    "restore_table",
    "shallow_clone",
    "write_manifests",
]


_THREADS = 8
_ATTEMPTS = 5
_MANIFESTS = "_symlink_format_manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """Result of a restoration, or its preview with ``dry_run``. ``missing`` are files that are left out."""

    dry_run: bool
    restored_version: int
    removed_files: int
    restored_files: int
    missing: list[str] = field(default_factory=list)
    version: int | None = None
    commit: CommitResult | None = field(default=None, repr=False)


def restore_table(
    handle: TableHandle,
    target: int | str | datetime,
    *,
    ignore_missing_files: bool = False,
    protocol_downgrade_allowed: bool = False,
    note: CommitNote | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> RestoreResult:
    """Make the table what it was at a version, or at a timestamp, in a new version.

    Rows and metadata are restored. The protocol stays, unless ``protocol_downgrade_allowed``. Files that are gone are
    an error; with ``ignore_missing_files`` they are left out.
    """
    for remaining in reversed(range(_ATTEMPTS)):
        try:
            return _restored(
                handle,
                target,
                note or CommitNote(),
                ignores=ignore_missing_files,
                downgrades=protocol_downgrade_allowed,
                dry_run=dry_run,
                progress=progress,
            )
        except CommitConflictError:
            if not remaining:
                raise
    raise AssertionError("the last attempt returns or raises")  # pragma: no cover


def _restored(
    handle: TableHandle,
    target: int | str | datetime,
    note: CommitNote,
    *,
    ignores: bool,
    downgrades: bool,
    dry_run: bool,
    progress: Progress | None,
) -> RestoreResult:
    with _begun(handle, "RESTORE", note) as (transaction, newest):
        version = _version(handle, newest, target)
        transaction.parameters = {"version" if isinstance(target, int) else "timestamp": str(target)}
        older = handle.snapshot(version)
        # A row that is added meanwhile would stay, and a removed file that both versions have would be missing.
        transaction.rest_on_table()
        missing: list[str] = []
        restored = removed = 0
        for add in reported(_only_in(older, newest), progress):
            restored += 1
            if not _is_there(handle, add):
                missing.append(add.path)
                if not ignores:
                    _refuse(add.path, version)
                continue
            if not dry_run:
                transaction.add(add)
        now = transaction.deletion_time()
        for add in reported(_only_in(newest, older), progress):
            removed += 1
            if not dry_run:
                transaction.remove_found(removal_of(add, now))
        if downgrades and older.protocol != newest.protocol:
            transaction.set_protocol(older.protocol)
        metadata = with_marks_of(_with_highest_id(older.metadata, newest.metadata), newest.metadata)
        if metadata != newest.metadata:
            transaction.set_metadata(metadata)
        transaction.metrics = {
            "numRestoredFiles": str(restored - len(missing)),
            "numRemovedFiles": str(removed),
        }
        done = None if dry_run else transaction.commit()
    return RestoreResult(
        dry_run=dry_run,
        restored_version=version,
        removed_files=removed,
        restored_files=restored - len(missing),
        missing=missing,
        version=None if done is None else done.version,
        commit=done,
    )


class _begun:  # noqa: N801 - used like a function
    """Begins a transaction on a table that exists."""

    def __init__(self, handle: TableHandle, operation: str, note: CommitNote) -> None:
        self._transaction = Transaction.begin(handle, operation=operation)
        self._uri, self._note = handle.uri, note

    def __enter__(self) -> tuple[Transaction, Snapshot]:
        snapshot = self._transaction.snapshot
        if snapshot is None:
            message = f"There is no Delta table at {self._uri}"
            raise TableNotFoundError(message, path=self._uri, hint="check the path")
        self._transaction.note = self._note
        self._note.check_seen(snapshot.transaction_version, self._uri)
        return self._transaction, snapshot

    def __exit__(self, *_: object) -> None:
        self._transaction.close()


def _version(handle: TableHandle, newest: Snapshot, target: int | str | datetime) -> int:
    if isinstance(target, bool) or not isinstance(target, int | str | datetime):
        message = f"A table is restored to a version or a timestamp, not to {target!r}"
        raise OptionError(message, hint="pass a number, a datetime or an ISO 8601 string")
    if isinstance(target, str | datetime):
        try:
            return version_at(handle.store, newest.metadata, milliseconds(target))
        except VersionNotFoundError as error:
            if error.earliest != 0:
                raise  # the table state at that time has been cleaned up
            warnings.warn(f"{error}: version 0 is restored, as deltalake does", LazyDeltaWarning, stacklevel=3)
            return 0
    if not 0 <= target <= newest.version:
        message = f"The table has no version {target}, its newest is {newest.version}"
        raise VersionNotFoundError(message, path=handle.uri, latest=newest.version)
    return target


def _only_in(these: Snapshot, others: Snapshot) -> Iterator[Add]:
    """Yield the files of one version that another does not have, with their statistics."""
    request = ScanRequest(strategy=ScanStrategy.FORWARD, extra=True)
    with closing(RemoveSet()) as known:
        for batch in others.scan(request).batches():
            known.add(batch.path, batch.deletion_vector)
        for batch in these.scan(request).batches():
            new = ~known.find(batch.path, batch.deletion_vector)
            if new.any():
                yield from _adds(batch.filter(boolean_array(new)))


def _adds(batch: FileBatch) -> Iterator[Add]:
    batch = batch.with_stats()
    nothing = [None] * len(batch)
    extra = nothing if batch.extra is None else batch.extra.to_pylist()
    for path, size, time_, values, vector, stats, more in zip(
        batch.path.to_pylist(),
        batch.size.to_pylist(),
        batch.modification_time.to_pylist(),
        batch.partition_values.to_pylist(),
        nothing if batch.deletion_vector is None else batch.deletion_vector.to_pylist(),
        json_stats(batch).to_pylist(),
        extra,
        strict=True,
    ):
        rest = more or {}
        yield Add(
            path=path,
            size=size,
            modification_time=time_,
            partition_values=dict(values or ()),
            stats=stats,
            tags=dict(rest["tags"]) if rest.get("tags") else None,
            deletion_vector=None if vector is None else msgspec.convert(vector, DeletionVector),
            base_row_id=rest.get("baseRowId"),
            default_row_commit_version=rest.get("defaultRowCommitVersion"),
            clustering_provider=rest.get("clusteringProvider"),
        )


def _is_there(handle: TableHandle, add: Add) -> bool:
    """Return whether a file exists, and the file of its deletion vector."""
    home, path = handle.store.locate(add.path)
    if not home.exists(path):
        return False
    vector = add.deletion_vector
    if vector is None or vector.storage_type == "i":
        return True
    if vector.storage_type == "p":
        home, path = handle.store.locate(vector.path_or_inline_dv)
        return home.exists(path)
    return handle.store.exists(vector_path(vector, add.path))


def _refuse(path: str, version: int) -> None:
    message = f"Version {version} cannot be restored: its file {path} is gone"
    hint = "VACUUM deleted it; restore a newer version, or pass ignore_missing_files=True and lose its rows"
    raise WriteError(message, path=path, version=version, hint=hint)


def _with_highest_id(older: Metadata, newest: Metadata) -> Metadata:
    """Return restored metadata in which no id of a later column is given again."""
    highest = max(int(each.property(Key.MAX_COLUMN_ID) or 0) for each in (older, newest))
    if not highest or older.property(Key.MAX_COLUMN_ID) == str(highest):
        return older
    return msgspec.structs.replace(
        older, configuration=dict(older.configuration or {}) | {Key.MAX_COLUMN_ID: str(highest)}
    )


# REPAIR, also known as FSCK: files that are gone leave the log.


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    """Result of a repair, or its preview with ``dry_run``."""

    dry_run: bool
    files_removed: list[str]
    version: int | None = None
    commit: CommitResult | None = field(default=None, repr=False)


def repair_table(
    handle: TableHandle, *, dry_run: bool = False, note: CommitNote | None = None, progress: Progress | None = None
) -> RepairResult:
    """Remove the files from the log that do not exist, with the rows that they had."""
    with _begun(handle, "FSCK", note or CommitNote()) as (transaction, snapshot):
        lost: list[str] = []
        now = transaction.deletion_time()
        files = (
            add
            for batch in snapshot.scan(ScanRequest(strategy=ScanStrategy.FORWARD, extra=True)).batches()
            for add in _adds(batch)
        )
        looked = in_parallel(
            lambda add: (add, _is_there(handle, add)), reported(files, progress), threads=_THREADS, stop=lambda: None
        )
        with closing(looked):
            for add, is_there in looked:
                if not is_there:
                    lost.append(unquote(add.path))
                    transaction.remove(removal_of(add, now))
        if dry_run or not lost:
            return RepairResult(dry_run=dry_run, files_removed=lost)
        transaction.parameters = {"dryRun": False}
        done = transaction.commit()
        return RepairResult(dry_run=False, files_removed=lost, version=done.version, commit=done)


# Manifests for engines that read lists of files, such as Presto and Athena.


def write_manifests(handle: TableHandle, *, dry_run: bool = False, progress: Progress | None = None) -> list[str]:
    """Write a manifest for each partition, with the locations of its files, and return the paths of the manifests.

    The manifests of partitions without files become empty. Such engines do not know deletion vectors and mapped
    columns, so tables with them are refused. A dry run writes nothing.
    """
    snapshot = handle.newest()
    if snapshot.schema.column_mapping != "none":
        message = "Engines that read manifests do not know mapped columns"
        raise UnsupportedFeatureError(
            message, features=("columnMapping",), path=handle.uri, hint="query the Delta table itself"
        )
    columns = snapshot.schema.partition_columns
    by_folder: dict[str, list[str]] = {}
    files = 0
    for batch in snapshot.scan(ScanRequest(strategy=ScanStrategy.FORWARD)).batches():
        if batch.deletion_vector is not None and batch.deletion_vector.null_count < len(batch):
            message = "Engines that read manifests do not know deletion vectors, and would read deleted rows"
            hint = "purge the deleted rows first: optimize.purge()"
            raise UnsupportedFeatureError(message, features=("deletionVectors",), path=handle.uri, hint=hint)
        files += len(batch)
        if progress is not None:
            progress(files, None)
        for path in batch.path.to_pylist():
            plain = unquote(path)
            folder = "/".join(plain.split("/")[: len(columns)]) if columns else ""
            by_folder.setdefault(folder, []).append(handle.store.uri_of(path))
    for old in _old_manifests(handle):
        by_folder.setdefault(old, [])
    if not by_folder:
        by_folder[""] = []
    written: list[str] = []
    for folder, places in by_folder.items():
        path = "/".join(filter(None, (_MANIFESTS, folder, "manifest")))
        if not dry_run:
            handle.store.put(path, "".join(f"{each}\n" for each in places).encode())
        written.append(path)
    return written


def _old_manifests(handle: TableHandle) -> Iterator[str]:
    for info in handle.store.walk(lambda _: False, below=_MANIFESTS):
        if info.path.endswith("/manifest"):
            yield info.path.removeprefix(f"{_MANIFESTS}/").removesuffix("manifest").rstrip("/")


# Shallow clones: new tables whose log refers to the files of another table.


_AT_ONCE = 10_000
# When in-commit timestamps began is a property of one log.
_OF_THE_LOG = frozenset({Key.IN_COMMIT_SINCE_VERSION.lower(), Key.IN_COMMIT_SINCE_TIMESTAMP.lower()})


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneResult:
    """Result of a clone: the version of the source, and the number and total size of the files referred to.

    A dry run has no commit.
    """

    source_version: int
    files: int
    size: int
    commit: CommitResult | None = field(repr=False)


def shallow_clone(
    source: Snapshot, target: TableHandle, *, dry_run: bool = False, progress: Progress | None = None
) -> CloneResult:
    """Create a table at ``target`` with the rows, columns and properties of ``source``.

    The new table has an id of its own and no history. Raises if there is a table already.
    """
    if source.uri.rstrip("/") == target.uri.rstrip("/"):
        raise OptionError(f"{target.uri} would be a clone of itself", hint="choose another location")
    check_writable(source.protocol, source.metadata, path=source.uri)
    parameters = {"source": source.uri, "sourceVersion": str(source.version), "isShallow": "true"}
    with Transaction.begin(target, operation="CLONE", parameters=parameters) as transaction:
        if transaction.snapshot is not None:
            message = f"A table already exists at {target.uri}"
            raise TableExistsError(message, path=target.uri, hint="clone to another location")
        transaction.note = CommitNote()
        transaction.set_protocol(source.protocol)
        transaction.set_metadata(_metadata(source.metadata))
        files = size = 0
        waiting: list[Add] = []
        every = candidate_files(source, RowChoice(source.schema, None, None), with_stats=True)
        for found in reported(every, progress):
            waiting.append(_absolute(found.add, source.store))
            files, size = files + 1, size + found.add.size
            if len(waiting) >= _AT_ONCE:
                transaction.add(*waiting)
                waiting = []
        transaction.add(*waiting)
        transaction.metrics = {"sourceNumOfFiles": str(files), "sourceTableSize": str(size), "numCopiedFiles": "0"}
        commit = None if dry_run else transaction.commit()
    return CloneResult(source_version=source.version, files=files, size=size, commit=commit)


def _metadata(source: Metadata) -> Metadata:
    kept = {key: value for key, value in (source.configuration or {}).items() if key.lower() not in _OF_THE_LOG}
    now = time.time_ns() // 1_000_000
    return msgspec.structs.replace(source, id=str(uuid.uuid4()), created_time=now, configuration=kept)


def _absolute(add: Add, store: Store) -> Add:
    """Return a file of another table with the address of its own, and with that of its deletion vector."""
    home, path = store.locate(add.path)
    vector = add.deletion_vector
    if vector is not None and vector.storage_type == "u":
        place = _address(store, vector_path(vector, add.path))
        vector = msgspec.structs.replace(vector, storage_type="p", path_or_inline_dv=place)
    return msgspec.structs.replace(add, path=_address(home, path), deletion_vector=vector, data_change=True)


def _address(store: Store, path: str) -> str:
    return f"{store.uri.rstrip('/')}/{logged_path(path)}"

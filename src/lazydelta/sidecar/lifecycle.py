"""Deletion of obsolete sidecars: ``clean``, ``drop``, and the sweep at the end of every build.

A manifest is *kept* while the log still has the checkpoint that it mirrors. The newest valid manifest is always kept.
So is everything younger than the grace period, because a build can be using it. Files that no kept manifest references
are deleted, manifests first, so that no reader is directed to files about to be deleted. Temporary files of killed
writers are deleted by age alone.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from lazydelta.errors import LazyDeltaError, ObjectNotFoundError, OptionError, StorageError
from lazydelta.log.snapshot import LogSnapshot, open_snapshot
from lazydelta.protocol.file_names import LOG, MAX_VERSION
from lazydelta.sidecar.format.columns import DELTA_MANIFEST, FOLDER
from lazydelta.sidecar.format.delta_file import DeltaManifest
from lazydelta.sidecar.format.leaves import every_part
from lazydelta.sidecar.format.manifest import (
    CheckpointFile,
    FolderFile,
    ManifestIndex,
    SidecarError,
    list_folder,
    listed_checkpoints,
)
from lazydelta.sidecar.format.part_file import checkpoint_of
from lazydelta.sidecar.handle import TableHandle
from lazydelta.sidecar.reading.discovery import read_single
from lazydelta.storage import Store

__all__ = ["CleanResult", "clean", "drop", "list_deltas", "sweep"]


# Find obsolete delta sidecars. Files in the manifest stay as long as one of them reaches beyond the newest checkpoint;
# then all are deleted with the manifest. A file that is not listed was merged, or belongs to an active or killed run:
# it is deleted by age.


_UUID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_NAME = rf"v(?:0|[1-9]\d{{0,18}})_(?P<last>[1-9]\d{{0,18}})(?:-{_UUID})?\.delta\.parquet"


def list_deltas(store: Store) -> list[FolderFile]:
    """Return the delta sidecars in the folder and their manifest, and nothing else."""
    found: list[FolderFile] = []
    for info in store.list(FOLDER):
        match = re.fullmatch(_NAME, info.path.rpartition("/")[2])
        if info.path == DELTA_MANIFEST:
            found.append(FolderFile(info, -1, "manifest"))
        elif match is not None and int(match["last"]) <= MAX_VERSION:
            found.append(FolderFile(info, int(match["last"]), "delta"))
    return found


def parted_deltas(
    store: Store, files: Sequence[FolderFile], base_version: int, deadline: float
) -> tuple[list[FolderFile], list[FolderFile]]:
    """Return the files to delete and those to keep, given the newest checkpoint; files after ``deadline`` stay."""
    named = _named(store, files, base_version)
    young = {file.path for file in files if file.info.last_modified > deadline}
    if DELTA_MANIFEST in young:
        named |= _named(store, files, -1)  # a young manifest stays, with all files that it references
    doomed = [file for file in files if file.path not in named | young]
    return doomed, [file for file in files if file.path in named | young]


def _named(store: Store, files: Sequence[FolderFile], base_version: int) -> set[str]:
    """Return the manifest and its files if it reaches beyond a version; empty if not, or if it is damaged."""
    if not any(file.path == DELTA_MANIFEST for file in files):
        return set()
    try:
        spans = DeltaManifest.decode(store.get(DELTA_MANIFEST)).spans
    except (SidecarError, ObjectNotFoundError):
        return set()
    return (
        {DELTA_MANIFEST, *(each.file for each in spans)} if any(each.last > base_version for each in spans) else set()
    )


logger = logging.getLogger(__name__)

GRACE_HOURS = 24.0
_HOUR_MS = 3_600_000
_MANIFESTS_READ_AT_ONCE = 32
_MAX_ROUNDS = 10

Deleted = Callable[[int, int | None], None]
"""Called with the number of files deleted so far and the total."""


class CleanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The files deleted, or to delete (``dry_run``), in order of deletion, and the versions that keep a manifest."""

    deleted: list[str]
    size_bytes: int
    kept_versions: list[int]
    kept_files: int
    dry_run: bool = False


def clean(
    table_uri: str | os.PathLike[str],
    *,
    grace_hours: float = GRACE_HOURS,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Deleted | None = None,
) -> CleanResult:
    """Delete sidecar files that no kept manifest references and that are older than the grace period.

    Only files with lazydelta's names are considered; sidecars of official V2 checkpoints share the folder and stay. On
    local disks, temporary files of killed writers are deleted too: those of sidecars after the grace period, those of
    the log after a day.
    """
    if not grace_hours >= 0:
        raise OptionError(f"A grace period of {grace_hours} hours is not valid", hint="use 0 or more")
    store = _open(table_uri, storage_options, options)
    snapshot = open_snapshot(store)
    survey = _survey(store, snapshot.metadata.id, list_folder(store), grace_hours)
    _survey_deltas(store, snapshot, survey, grace_hours)
    survey.doomed.extend(_abandoned(store, FOLDER, grace_hours))
    # Commits and checkpoints are written to the log at any time, so a short grace period does not apply there.
    survey.doomed.extend(_abandoned(store, LOG, max(grace_hours, GRACE_HOURS)))
    return _delete(store, survey, dry_run=dry_run, progress=progress)


def drop(
    table_uri: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Deleted | None = None,
) -> CleanResult:
    """Delete every sidecar and manifest of a table; scans then read the checkpoint.

    A concurrent build or refresh can publish a manifest over parts that are being deleted. The folder is therefore
    checked again until nothing is left: either the sidecar is deleted, or the builder noticed and rewrote all of it.
    """
    store = _open(table_uri, storage_options, options)
    results: list[CleanResult] = []
    for _ in range(_MAX_ROUNDS):
        doomed = [*list_folder(store), *list_deltas(store), *_abandoned(store, FOLDER, 0)]
        if not doomed and results:
            break
        results.append(_delete(store, _Survey([], doomed, []), dry_run=dry_run, progress=progress))
        if dry_run or not doomed:
            break
    return msgspec.structs.replace(
        results[0],
        deleted=[path for each in results for path in each.deleted],
        size_bytes=sum(each.size_bytes for each in results),
    )


def sweep(store: Store, snapshot: LogSnapshot) -> None:
    """Delete the orphaned files of earlier builds, after a build; failures are left to ``clean``.

    Each manifest takes a request to read, so a folder with very many of them is left to ``clean`` as well. On local
    disks, temporary files of killed writers are deleted too, after a day.
    """
    try:
        for file in (*_abandoned(store, FOLDER, GRACE_HOURS), *_abandoned(store, LOG, GRACE_HOURS)):
            store.delete(file.path)
        files = list_folder(store)
        now = _now()
        old = [file for file in files if now - file.info.last_modified > GRACE_HOURS * _HOUR_MS]
        if old and sum(file.kind == "manifest" for file in files) <= _MANIFESTS_READ_AT_ONCE:
            survey = _survey(store, snapshot.metadata.id, files, GRACE_HOURS)
            _survey_deltas(store, snapshot, survey, GRACE_HOURS)
            _delete(store, survey, dry_run=False, progress=None)
    except LazyDeltaError as error:
        logger.warning("old sidecar files of %s are left to clean: %s", store.uri, error)


@dataclass(frozen=True, slots=True)
class _Read:
    """The relevant facts of a manifest; ``files`` are those that it references, None if its leaves are lost."""

    version: int
    table_id: str
    checkpoint: Sequence[CheckpointFile]
    files: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class _Survey:
    kept: list[_Read]
    doomed: list[FolderFile]
    staying: list[FolderFile]


def _open(
    table_uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None, options: Mapping[str, Any] | None
) -> Store:
    return TableHandle.open(table_uri, storage_options, options).store


def _survey(store: Store, table_id: str, files: Sequence[FolderFile], grace_hours: float) -> _Survey:
    """Decide which lazydelta files to keep and which to delete."""
    deadline = _now() - grace_hours * _HOUR_MS
    manifests = sorted((file for file in files if file.kind == "manifest"), key=lambda file: file.version)
    versions = [file.version for file in files if file.kind in {"manifest", "single"}]
    checkpoints = listed_checkpoints(store, min(versions), max(versions)) if versions else frozenset()
    sizes = {file.path: file.info.size for file in files}
    readable = {file.path: found for file in manifests if (found := _read(store, file)) is not None}
    valid = [
        found
        for found in readable.values()
        if found.table_id == table_id
        and found.files is not None
        and all(sizes.get(path) == size for path, size in found.files.items())
    ]
    kept = [found for found in valid if found is valid[-1] or _has(checkpoints, found.checkpoint)]
    referenced = {path for found in kept for path in found.files or ()}
    served = {found.version for found in kept}
    staying: set[str] = set(referenced)
    singles = [file for file in files if file.kind == "single" and file.path not in referenced]
    for file in files:
        if file.info.last_modified > deadline:
            staying.add(file.path)
            # A young manifest is always kept, together with the files that it references.
            found = readable.get(file.path)
            staying |= set() if found is None else set(found.files or ())
        elif file.kind == "manifest" and file.version in served:
            staying.add(file.path)
    for file in singles:
        # A single file is a sidecar even without a manifest, and so are the parts that an overview lists.
        is_served = file.version in served
        alone = _alone(store, file, table_id, None if is_served else checkpoints)
        if alone is not None and (alone or not is_served) and alone.items() <= sizes.items():
            staying |= {file.path, *alone}
    doomed = [file for file in files if file.path not in staying]
    return _Survey(kept, doomed, [file for file in files if file.path in staying])


def _survey_deltas(store: Store, snapshot: LogSnapshot, survey: _Survey, grace_hours: float) -> None:
    """Decide which delta sidecars to keep and which to delete."""
    deadline = _now() - grace_hours * _HOUR_MS
    doomed, staying = parted_deltas(store, list_deltas(store), snapshot.segment.base_version, deadline)
    survey.doomed.extend(doomed)
    survey.staying.extend(staying)


def _abandoned(store: Store, folder: str, grace_hours: float) -> list[FolderFile]:
    """Return the temporary files without a write during the grace period."""
    deadline = _now() - grace_hours * _HOUR_MS
    return [FolderFile(info, -1, "temporary") for info in store.leftovers(folder) if info.last_modified <= deadline]


def _read(store: Store, file: FolderFile) -> _Read | None:
    try:
        found = ManifestIndex.decode(store.get(file.path))
    except (SidecarError, ObjectNotFoundError):
        return None
    if found.version != file.version:
        return None
    try:
        files = every_part(store, found).files
    except (SidecarError, ObjectNotFoundError):
        files = None
    return _Read(found.version, found.table_id, found.checkpoint, files)


def _alone(
    store: Store, file: FolderFile, table_id: str, checkpoints: frozenset[tuple[str, int]] | None
) -> dict[str, int] | None:
    """Return the files that a single file lists, if it is a whole sidecar or an overview of one; otherwise None.

    It must mirror one of the ``checkpoints``, if these are given.
    """
    try:
        part, footer = read_single(store, file.path)
        state = footer.state
        mirrored = checkpoint_of(state)
    except (SidecarError, StorageError, msgspec.MsgspecError):
        return None
    whole = state.num_files == part.num_rows + sum(each.num_rows for each in state.parts)
    is_ours = state.table_id == table_id and whole and (checkpoints is None or _has(checkpoints, mirrored))
    return {path: size for each in state.parts for path, size in each.files.items()} if is_ours else None


def _has(checkpoints: frozenset[tuple[str, int]], recorded: Sequence[CheckpointFile]) -> bool:
    return all(each.identity in checkpoints for each in recorded)


def _delete(store: Store, survey: _Survey, *, dry_run: bool, progress: Deleted | None) -> CleanResult:
    doomed = sorted(survey.doomed, key=lambda file: (file.kind != "manifest", file.path))
    for number, file in enumerate(() if dry_run else doomed, 1):
        store.delete(file.path)
        if progress is not None:
            progress(number, len(doomed))
    return CleanResult(
        deleted=[file.path for file in doomed],
        size_bytes=sum(file.info.size for file in doomed),
        kept_versions=sorted(found.version for found in survey.kept),
        kept_files=len(survey.staying),
        dry_run=dry_run,
    )


def _now() -> float:
    return time.time() * 1000

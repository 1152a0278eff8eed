"""What becomes of sidecars that nobody needs: ``clean``, ``drop``, and the sweep at the end of every build.

A manifest is *kept* while the log still has the checkpoint that it mirrors; the newest valid one is kept whatever
happened to the log, and so is everything younger than the grace period, because a build may be at work on it. What no
kept manifest refers to goes: manifests first, so that no reader is sent to files that are about to vanish. Temporary
files of writers that were killed go by their age alone.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from lazydelta.errors import LazyDeltaError, ObjectNotFoundError, OptionError, StorageError
from lazydelta.handle import TableHandle
from lazydelta.log.names import LOG
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.snapshot_opening import open_snapshot
from lazydelta.sidecar.layout.folder import FolderFile, list_folder, listed_checkpoints
from lazydelta.sidecar.layout.leaves import every_part
from lazydelta.sidecar.layout.manifest import CheckpointFile, ManifestIndex, SidecarError
from lazydelta.sidecar.layout.part_file import checkpoint_of
from lazydelta.sidecar.layout.sidecar_columns import FOLDER
from lazydelta.sidecar.reading.discovery import read_single
from lazydelta.sidecar.upkeep.delta_upkeep import list_deltas, parted_deltas
from lazydelta.storage import Store

__all__ = ["GRACE_HOURS", "CleanResult", "clean", "drop", "sweep"]

logger = logging.getLogger(__name__)

GRACE_HOURS = 24.0
_HOUR_MS = 3_600_000
_MANIFESTS_READ_AT_ONCE = 32
_MAX_ROUNDS = 10

Deleted = Callable[[int, int | None], None]
"""Called with the files deleted so far and how many there are to delete."""


class CleanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted, or would be (``dry_run``), in the order of deletion; and which versions keep a manifest."""

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
    """Delete sidecar files that no kept manifest refers to and that are older than the grace period.

    Only files with our names are looked at; the sidecars of official V2 checkpoints share the folder and stay. On local
    disks the temporary files of killed writers go too: of sidecars after the grace period, of the log after a day.
    """
    if not grace_hours >= 0:
        raise OptionError(f"A grace period of {grace_hours} hours makes no sense", hint="0 or more")
    store = _open(table_uri, storage_options, options)
    snapshot = open_snapshot(store)
    survey = _survey(store, snapshot.metadata.id, list_folder(store), grace_hours)
    _survey_deltas(store, snapshot, survey, grace_hours)
    survey.doomed.extend(_abandoned(store, FOLDER, grace_hours))
    # Commits and checkpoints are written there at any time: a short grace period was not meant for them.
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
    """Delete every sidecar and manifest of a table; scans go on from the checkpoint.

    A build or refresh at the same time may publish a manifest over parts that are about to vanish. So it is looked for
    again until nothing is left: either the sidecar is gone, or the builder noticed and wrote all of it anew.
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


def sweep(store: Store, snapshot: Snapshot) -> None:
    """Remove what earlier builds left behind, after a build; what fails here is left to ``clean``.

    Reading manifests costs a request each, so a folder with very many of them is left to ``clean`` as well. On local
    disks the temporary files of killed writers go too, after a day.
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
    """What counts of a manifest; ``files`` are those that it refers to, None where its leaves are lost."""

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
    """Decide about every file of ours."""
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
    for file in files:
        if file.info.last_modified > deadline:
            staying.add(file.path)
            # A young manifest is not judged, and what it refers to stays with it.
            found = readable.get(file.path)
            staying |= set() if found is None else set(found.files or ())
        elif (file.kind == "manifest" and file.version in served) or (
            # A single file is a sidecar without a manifest too.
            file.kind == "single" and file.version not in served and _mirrors(store, file, table_id, checkpoints)
        ):
            staying.add(file.path)
    doomed = [file for file in files if file.path not in staying]
    return _Survey(kept, doomed, [file for file in files if file.path in staying])


def _survey_deltas(store: Store, snapshot: Snapshot, survey: _Survey, grace_hours: float) -> None:
    """Decide about delta sidecars, too."""
    deadline = _now() - grace_hours * _HOUR_MS
    doomed, staying = parted_deltas(store, list_deltas(store), snapshot.segment.base_version, deadline)
    survey.doomed.extend(doomed)
    survey.staying.extend(staying)


def _abandoned(store: Store, folder: str, grace_hours: float) -> list[FolderFile]:
    """Return the temporary files that nobody has written to during the grace period."""
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


def _mirrors(store: Store, file: FolderFile, table_id: str, checkpoints: frozenset[tuple[str, int]]) -> bool:
    try:
        part, footer = read_single(store, file.path)
        state = footer.state
        mirrored = checkpoint_of(state)
    except (SidecarError, StorageError, msgspec.MsgspecError):
        return False
    whole = state.num_files == part.num_rows
    return state.table_id == table_id and whole and _has(checkpoints, mirrored)


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

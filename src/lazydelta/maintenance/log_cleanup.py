"""Log cleanup: delete old commits and checkpoints that no version within the retention needs.

This follows the protocol. The retention ends at midnight (UTC). The newest commit at or before that time is the oldest
version that must stay readable. It is read from the newest complete checkpoint at or below that version. That
checkpoint, the commit of its version and everything above are kept; everything below is deleted. Without such a
checkpoint nothing is deleted, because all commits are needed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lazydelta.errors import CorruptLogError, VersionNotFoundError
from lazydelta.log.checkpoint.reader import CheckpointReader
from lazydelta.log.segment import Checkpoint, list_from, load_segment
from lazydelta.log.time_travel import milliseconds, version_at
from lazydelta.protocol.features import check_writable
from lazydelta.protocol.file_names import FileKind, LogFile
from lazydelta.protocol.properties import TableProperties
from lazydelta.sidecar.handle import TableHandle
from lazydelta.storage import Store

__all__ = ["CleanupResult", "clean_log"]

logger = logging.getLogger(__name__)


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
    try:
        oldest = version_at(store, snapshot.metadata, _cutoff(now or datetime.now(UTC), properties.log_retention))
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
        raise CorruptLogError(message, path=path, version=checkpoint.version, hint="write another checkpoint")


def _is_expired(file: LogFile, floor: int) -> bool:
    if file.kind is FileKind.COMPACTION:
        return file.version <= floor
    return file.version < floor

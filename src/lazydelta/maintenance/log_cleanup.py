"""Log cleanup: old commits and checkpoints that no version within the retention needs.

The protocol's rule. The retention ends at a midnight (UTC). The newest commit that is not younger is the oldest
version that must stay readable, and the newest complete checkpoint that is not above that version is what it is read
from. That checkpoint, the commit of its version and everything above stay; everything below goes. Where there is no
such checkpoint nothing goes, because all commits are needed then.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from lazydelta.errors import CorruptLogError, VersionNotFoundError
from lazydelta.handle import TableHandle
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader
from lazydelta.log.features.writable import check_writable
from lazydelta.log.names import FileKind, LogFile
from lazydelta.log.properties import TableProperties
from lazydelta.log.segment import Checkpoint, list_from, load_segment
from lazydelta.log.travel import milliseconds, version_at
from lazydelta.storage import Store

__all__ = ["CleanupResult", "clean_log"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """What was deleted, or would be; ``floor`` is the oldest version that can be read then, None if all stay."""

    paths: tuple[str, ...] = ()
    size: int = 0
    floor: int | None = None
    dry_run: bool = False


def clean_log(handle: TableHandle, *, dry_run: bool = False, now: datetime | None = None) -> CleanupResult:
    """Delete what ``delta.logRetentionDuration`` lets go, oldest first, so that stopping half-way does no harm.

    A table whose property ``delta.enableExpiredLogCleanup`` is false keeps everything.
    """
    store, snapshot = handle.store, handle.newest()
    check_writable(snapshot.protocol, snapshot.metadata, path=store.uri)
    properties = TableProperties.of(snapshot.metadata)
    if not properties.expired_log_cleanup:
        return CleanupResult(dry_run=dry_run)
    try:
        oldest = version_at(store, snapshot.metadata, _cutoff(now or datetime.now(UTC), properties.log_retention))
    except VersionNotFoundError:
        return CleanupResult(dry_run=dry_run)  # every commit is younger
    checkpoint = load_segment(store, version=oldest).checkpoint
    if checkpoint is None:
        return CleanupResult(dry_run=dry_run)
    _check(store, checkpoint)
    floor = checkpoint.version
    if floor < properties.protected_before:
        # Before that version the log needs features that who cleans up might not know: all of it goes, or nothing.
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
        return -1  # a retention longer than there is time: everything stays


def _check(store: Store, checkpoint: Checkpoint) -> None:
    """Open the checkpoint that everything below is given up for; a name in a listing is no checkpoint yet."""
    if next(CheckpointReader(store, checkpoint).actions("protocol"), None) is None:
        path = checkpoint.files[0].path
        message = f"{path} holds no protocol, so the log below it is not cleaned up"
        raise CorruptLogError(message, path=path, version=checkpoint.version, hint="write another checkpoint")


def _is_expired(file: LogFile, floor: int) -> bool:
    if file.kind is FileKind.COMPACTION:
        return file.version <= floor
    return file.version < floor

"""A retention guard from the table's own promise: scans of versions whose files VACUUM may have deleted are refused.

A file is deleted when it was removed longer ago than ``delta.deletedFileRetentionDuration``. So a version is whole
while it is the newest, and after that for as long as the version that followed it is younger than that. How old the
version itself is, or the checkpoint below it, says nothing: a table that nobody has written to for a year is whole.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lazydelta.errors import RetentionGuardError
from lazydelta.log.properties import TableProperties
from lazydelta.log.segment import list_commits
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.travel import commit_info, milliseconds
from lazydelta.scan.request import RetentionGuard

__all__ = ["table_retention_guard"]


def table_retention_guard(snapshot: Snapshot, *, now: datetime | None = None) -> RetentionGuard:
    """Return the guard of a version; it looks at the log when the scan begins, in one listing."""

    def guard(_version: int, _timestamp: int) -> bool:
        retention = TableProperties.of(snapshot.metadata).deleted_file_retention
        following = next(iter(list_commits(snapshot.store, snapshot.version + 1, snapshot.version + 1)), None)
        if following is None:
            return True
        stamp = commit_info(snapshot.store, following).get("inCommitTimestamp")
        replaced = stamp if isinstance(stamp, int) else following.info.last_modified
        age = timedelta(milliseconds=milliseconds(now or datetime.now(UTC)) - replaced)
        if age <= retention:
            return True
        message = (
            f"Version {snapshot.version} of {snapshot.store.uri} was replaced {age} ago, and the table keeps removed "
            f"files for {retention} only (delta.deletedFileRetentionDuration): VACUUM may have deleted some"
        )
        raise RetentionGuardError(
            message, version=snapshot.version, path=following.path, hint="scan a newer version, or without the guard"
        )

    return guard

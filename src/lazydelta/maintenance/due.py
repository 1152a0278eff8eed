"""What is due to a table, and when: the one rule, whoever asks and wherever it is done then."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lazydelta.log.actions import Metadata
from lazydelta.log.properties import TableProperties

__all__ = ["COMPACTION_INTERVAL", "Due", "due_after", "is_due"]

# After so many commits a table that wants it is compacted. Rarely enough that the work is worth its commit, and often
# enough that a scan between two runs meets a handful of small files in each partition.
COMPACTION_INTERVAL = 5


@dataclass(frozen=True, slots=True)
class Due:
    """A checkpoint of ``version``, its hint and the sidecar; any checkpoint from ``enough`` on will do.

    No checkpoint is due where ``enough`` is None. ``cleans_log`` is whether the table wants its log cleaned then, and
    ``compacts`` whether its small files are to be packed before. With ``follows`` the sidecar follows the newest
    checkpoint also where somebody else wrote it.
    """

    version: int
    enough: int | None
    cleans_log: bool
    compacts: bool = False
    follows: bool = False

    def after(self, older: Due | None) -> Due:
        """Return what is due where ``older`` was, and was left to this one."""
        if older is None:
            return self
        return replace(
            self,
            enough=older.enough if self.enough is None else self.enough,
            cleans_log=self.cleans_log or older.cleans_log,
            compacts=self.compacts or older.compacts,
            follows=self.follows or older.follows,
        )


def due_after(version: int, metadata: Metadata, *, since: int | None = None, force: bool = False) -> Due | None:
    """Return what fell due with the versions after ``since`` (the one before) up to ``version``, None if nothing did.

    It falls due with each multiple of ``delta.checkpointInterval``, or with ``force``; compaction with each fifth
    version of a table that has ``delta.autoOptimize.autoCompact``.
    """
    properties = TableProperties.of(metadata)
    interval = properties.checkpoint_interval
    before = max(version - 1 if since is None else since, 0)
    enough: int | None = None
    if force or version // interval > before // interval:
        enough = version if force else version - version % interval
    passed = force or version // COMPACTION_INTERVAL > before // COMPACTION_INTERVAL
    compacts = properties.auto_compact and passed
    if enough is None and not compacts:
        return None
    return Due(version, enough, properties.expired_log_cleanup and enough is not None, compacts)


def is_due(version: int, metadata: Metadata, *, since: int | None = None) -> bool:
    """Tell whether anything fell due after ``since``, the version before unless it is said."""
    return due_after(version, metadata, since=since) is not None

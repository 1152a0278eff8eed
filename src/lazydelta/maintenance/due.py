"""What is due to a table, and when: the one rule, whoever asks and wherever it is done then."""

from __future__ import annotations

from dataclasses import dataclass

from lazydelta.log.actions import Metadata
from lazydelta.log.properties import TableProperties

__all__ = ["Due", "due_after", "is_due"]


@dataclass(frozen=True, slots=True)
class Due:
    """A checkpoint of ``version``, its hint and the sidecar; any checkpoint from ``enough`` on will do.

    ``cleans_log`` is whether the table wants its log cleaned then.
    """

    version: int
    enough: int
    cleans_log: bool


def due_after(version: int, metadata: Metadata, *, since: int | None = None, force: bool = False) -> Due | None:
    """Return what fell due with the versions after ``since`` (the one before) up to ``version``, None if nothing did.

    It falls due with each multiple of ``delta.checkpointInterval``, or with ``force``.
    """
    properties = TableProperties.of(metadata)
    interval = properties.checkpoint_interval
    before = version - 1 if since is None else since
    if not force and version // interval <= max(before, 0) // interval:
        return None
    enough = version if force else version - version % interval
    return Due(version, enough, properties.expired_log_cleanup)


def is_due(version: int, metadata: Metadata, *, since: int | None = None) -> bool:
    """Tell whether anything fell due after ``since``, the version before unless it is said."""
    return due_after(version, metadata, since=since) is not None

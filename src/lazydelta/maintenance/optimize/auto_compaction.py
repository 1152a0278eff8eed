"""Auto-compaction: what a stream of small commits leaves behind is packed while it goes on.

Only partitions that were written to lately are looked at, and only files well below the target size are packed, so that
a file is rewritten a few times on its way there and not with every run.
"""

from __future__ import annotations

import logging

from lazydelta.errors import CommitConflictError, PredicateError, UnsupportedFeatureError
from lazydelta.handle import TableHandle
from lazydelta.log.reverse_commits import ReverseCommitReader
from lazydelta.log.segment import list_commits
from lazydelta.maintenance.due import COMPACTION_INTERVAL
from lazydelta.maintenance.optimize.optimizing import OptimizeSettings, optimize, target_size_of
from lazydelta.pruning import Where
from lazydelta.types.schema import TableSchema
from lazydelta.write.transaction import CommitResult

__all__ = ["auto_compact"]

_log = logging.getLogger(__name__)

# A run may have failed or been left out: the one after it makes it good.
_LOOK_BACK = 4 * COMPACTION_INTERVAL
_LEAST_FILES = 3
_SMALL_SHARE = 4


def auto_compact(handle: TableHandle, version: int, memory_budget: int) -> CommitResult | None:
    """Pack what the commits before ``version`` left; return the last commit that this took, None if it took none."""
    snapshot = handle.newest()
    target = target_size_of(snapshot.metadata)
    settings = OptimizeSettings(
        target_size=target,
        below=max(1, target // _SMALL_SHARE),
        least_files=_LEAST_FILES,
        memory_budget=memory_budget,
        auto=True,
    )
    where = _written_lately(handle, version, snapshot.schema)
    done: list[CommitResult] = []
    try:
        try:
            optimize(handle, where=where, settings=settings, committed=done.append)
        except PredicateError:
            # Partition values that cannot be compared: all partitions are looked at.
            optimize(handle, settings=settings, committed=done.append)
    except UnsupportedFeatureError as error:
        # A fact of the table and no failure: whoever writes such tables compacts them.
        _log.info("The files of %s are left as they are: %s", handle.uri, error)
    except CommitConflictError as error:
        _log.info(
            "The compaction of %s was ruled out by another writer; a later one tries again: %s", handle.uri, error
        )
    return done[-1] if done else None


def _written_lately(handle: TableHandle, version: int, schema: TableSchema) -> Where:
    """Return a predicate on the first partition column; what it lets through beside is looked at in vain."""
    if not schema.partition_columns:
        return None
    name, logged = schema.partition_columns[0], schema.physical_partition_columns[0]
    found: set[str | None] = set()
    commits = list(list_commits(handle.store, max(0, version - _LOOK_BACK + 1), version))
    for commit in ReverseCommitReader(handle.store, commits):
        for lines in commit.actions:
            found |= {line.add.partition_values.get(logged) or None for line in lines if line.add is not None}
    values = sorted(each for each in found if each is not None)
    alternatives: list[list[tuple[object, ...]]] = [[(name, "in", values)]] if values else []
    if None in found:
        alternatives.append([(name, "is null")])
    return alternatives or None

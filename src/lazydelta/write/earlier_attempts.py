"""What attempts of a task have left that died with their machine: known by name, deleted by whoever commits the job.

All files of a job have half of their names in common. A task that is run again writes the same rows to the same
partitions, so files of its earlier attempts lie beside its own, under names with the same beginning. Once the job is
committed, nobody will ever name them. Who commits looks for them only where a task was run again: a listing for each of
that task's files, of those names alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote

from lazydelta.errors import LazyDeltaError
from lazydelta.log.actions import Add
from lazydelta.storage import Store
from lazydelta.write.task_result import TaskResult
from lazydelta.write.uploads import delete_paths

__all__ = ["FAMILY_DIGITS", "clear_earlier_attempts"]

_log = logging.getLogger(__name__)

FAMILY_DIGITS = 16
"""How many digits of the names of its files belong to a job; the others to the file."""
_HYPHENS = 2


def clear_earlier_attempts(store: Store, results: Sequence[TaskResult], committed: Iterable[Add]) -> None:
    """Delete what earlier attempts of tasks have left of a job that is committed; what fails is left to VACUUM."""
    again = [add for each in results if each.run_again for add in each.adds]
    if not again:
        return
    named = {unquote(each.path) for each in committed}
    try:
        left = {path for add in again for path in _siblings(store, unquote(add.path)) if path not in named}
    except LazyDeltaError as error:
        _log.warning("what earlier attempts left in %s is left to VACUUM: %s", store.uri, error)
        return
    if left:
        _log.info("%d files of earlier attempts are deleted from %s", len(left), store.uri)
        delete_paths(store, sorted(left))


def _siblings(store: Store, path: str) -> Iterator[str]:
    """Yield the files whose names begin as that of a file does, up to what is the job's."""
    folder, _, name = path.rpartition("/")
    start = name.index("-", name.index("-") + 1) + 1
    beginning = name[: start + FAMILY_DIGITS + _HYPHENS]
    for info in store.list(folder, after=beginning):
        if not info.path.rpartition("/")[2].startswith(beginning):
            return
        yield info.path

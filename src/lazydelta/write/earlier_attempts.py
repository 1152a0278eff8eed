"""What attempts of a task have left that died with their machine: known by name, deleted by whoever commits the job.

Names of all files of a job begin alike. A task that is run again writes the same rows to the same partitions, so files
of its earlier attempts lie beside its own, under names with the same beginning. Once the job is committed, nobody will
ever name them. Who commits looks for them only where a task was run again: a listing for each of that task's files, of
those names alone.

A job whose driver was killed is done again by another one, with other names. What both have in common is the batch that
they write, where the log counts batches: the names have a mark of it, by which maintenance finds what the first one
left (`lazydelta.maintenance.left_behind`).
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote

from lazydelta.errors import LazyDeltaError
from lazydelta.log.actions import Add, Txn
from lazydelta.storage import Store
from lazydelta.write.task_result import TaskResult
from lazydelta.write.uploads import delete_paths

__all__ = ["FAMILY_DIGITS", "clear_earlier_attempts", "mark_in", "mark_of", "marked", "new_family"]

_log = logging.getLogger(__name__)

FAMILY_DIGITS = 12
"""How many digits of the names of its files belong to a job; then come those of the batch, and the file's own."""
_MARK_DIGITS = 10
_HYPHENS = 1
_NAME = re.compile(r"part-\d{5,}-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.c000(?:\.[a-z]+)?\.parquet")


def new_family(txn: Txn | None = None) -> str:
    """Return what the names of the files of a new job begin with, the mark of its batch included."""
    return marked(uuid.uuid4().hex, txn)


def marked(family: str, txn: Txn | None) -> str:
    """Return how names of the same job begin, for a batch; one that the log does not count has a mark by chance."""
    mark = uuid.uuid4().hex[:_MARK_DIGITS] if txn is None else mark_of(txn)
    return family[:FAMILY_DIGITS] + mark


def mark_of(txn: Txn) -> str:
    """Return the digits by which the files of a batch are known, whoever writes it."""
    return hashlib.sha256(f"{txn.app_id}\0{txn.version}".encode()).hexdigest()[:_MARK_DIGITS]


def mark_in(name: str) -> str | None:
    """Return the mark in the name of a data file, None if it is no name of ours."""
    found = _NAME.fullmatch(name)
    return None if found is None else found[1].replace("-", "")[FAMILY_DIGITS : FAMILY_DIGITS + _MARK_DIGITS]


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

"""What drivers left that were killed before their commit, and attempts that came too late: cleared when it is noticed.

Files of a batch that the log counts (a micro-batch, a write with an application id) have a mark of it in their names,
whoever writes it. Once a commit has recorded the batch, nobody can ever commit another file with that mark: what bears
it beside the named ones, in the partitions that were written to lately, is nobody's. Jobs that the log does not count
leave files that nobody can tell from those of a writer at work; VACUUM judges them by their age.
"""

from __future__ import annotations

import logging
from itertools import islice
from urllib.parse import unquote

from lazydelta.handle import TableHandle
from lazydelta.log.reverse_commits import ReverseCommitReader
from lazydelta.log.segment import list_commits
from lazydelta.storage import is_plain
from lazydelta.write.earlier_attempts import mark_in, mark_of
from lazydelta.write.uploads import delete_paths

__all__ = ["clear_left_behind"]

_log = logging.getLogger(__name__)

_LOOK_BACK = 40
# A backfill into more partitions than that is left to VACUUM: each of them would be listed.
_MOST_FOLDERS = 64
# And so is what lies behind so many files of a folder: a listing of millions would be a burden on every run.
_MOST_LISTED = 10_000


def clear_left_behind(handle: TableHandle, version: int) -> list[str]:
    """Delete what other attempts at the batches before ``version`` have left, and return their paths."""
    store, first = handle.store, max(0, version - _LOOK_BACK + 1)
    commits = list(list_commits(store, first, version))
    marks: set[str] = set()
    named: set[str] = set()
    folders: set[str] = set()
    for commit in ReverseCommitReader(store, commits):
        for lines in commit.actions:
            marks |= {mark_of(line.txn) for line in lines if line.txn is not None}
            for line in lines:
                action = line.add or line.remove
                if action is not None:
                    path = action.path if is_plain(action.path) else unquote(action.path)
                    folder, _, name = path.rpartition("/")
                    named.add(name)
                    if line.add is not None:
                        folders.add(folder)
    if not marks or not commits or len(folders) > _MOST_FOLDERS:
        return []
    # A file that is older than all of these commits may have been named by one before them.
    since = 0 if commits[0].version == 0 else commits[0].info.last_modified
    left = [
        info.path
        for folder in sorted(folders)
        if ":" not in folder and not folder.startswith("/")  # of another place, where nothing of ours is
        for info in islice(store.list(folder), _MOST_LISTED)
        if info.last_modified > since and (name := info.path.rpartition("/")[2]) not in named and mark_in(name) in marks
    ]
    if left:
        _log.info("%d files of attempts that were never committed are deleted from %s", len(left), store.uri)
        delete_paths(store, left)
    return left

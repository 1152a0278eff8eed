"""Which commits of others a transaction may go behind, and which rule it out.

Files are compared by path and not by key: whoever changes a file's deletion vector has changed the file. What fits
behind any commit but a change of metadata or protocol is the blind append: it rests on nothing that was there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lazydelta.arrays import string_array
from lazydelta.errors import CommitConflictError, MissingCommitError
from lazydelta.log.actions import LogLine
from lazydelta.log.checksum.checksum_totals import Change
from lazydelta.log.commits import decode_actions
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.names import LOG, LogFile, commit_name
from lazydelta.log.remove_set import RemoveSet
from lazydelta.log.reverse_commits import ReverseCommitReader
from lazydelta.log.segment import list_commits
from lazydelta.storage import Store
from lazydelta.write.row_changes.row_choice import RowChoice
from lazydelta.write.selection import PartitionSelection

__all__ = ["Footprint", "commits_since", "judge"]

_AGAIN = "read the table again and repeat the operation on its newest version"
_LISTING_PAUSES = (0.05, 0.2, 0.8)


class Footprint:
    """What a transaction rests on: files by path, and where it overwrites also the absence of others.

    ``rows`` are those that it deletes, and whether also a blind append of such rows rules it out.
    """

    def __init__(
        self,
        *,
        overwrites_all: bool = False,
        selections: Sequence[PartitionSelection] = (),
        rows: tuple[RowChoice, bool] | None = None,
    ) -> None:
        self._rows: RowChoice | None = None if rows is None else rows[0]
        self._any_append = rows is not None and rows[1]
        self._paths = RemoveSet()
        self._overwrites_all = overwrites_all
        self._selections = tuple(selections)

    def rest_on(self, paths: Sequence[str]) -> None:
        """Add files that nobody else may have changed."""
        if paths:
            self._paths.add(string_array(paths))

    def rest_on_lines(self, chunks: Iterable[bytes]) -> None:
        """Add the files of encoded actions: those we remove, and those we add, which nobody else may add too."""
        for lines in decode_actions(chunks, "the commit to be written", -1):
            self.rest_on([action.path for line in lines if (action := line.add or line.remove) is not None])

    def objection(self, lines: Sequence[LogLine]) -> str | None:
        """Return what in the actions of another commit rules the transaction out."""
        for line in lines:
            if line.has("protocol"):
                return "changed the table's protocol"
            if line.has("meta_data"):
                return "changed the table's metadata"
        adds = [line.add for line in lines if line.add is not None]
        paths = [action.path for line in lines if (action := line.add or line.remove) is not None]
        if paths:
            hits = np.flatnonzero(self._paths.find(string_array(paths)))
            if len(hits):
                path = paths[int(hits[0])]
                told = f"changed the file {path}, which this transaction reads, adds or removes"
                is_gone = path not in {each.path for each in adds}
                # deltalake's words for it, by which programs tell conflicts apart.
                return f"{told}: a concurrent transaction deleted data this operation read" if is_gone else told
        if adds and self._overwrites_all:
            return f"added the file {adds[0].path} to the table that this transaction overwrites"
        if adds and self._selections:
            batch = FileBatch.from_adds(adds)
            for selection in self._selections:
                hits = np.flatnonzero(selection.matches(batch))
                if len(hits):
                    added = adds[int(hits[0])].path
                    return f"added the file {added} to the partitions that this transaction overwrites"
        return None

    def objection_to_rows(self, lines: Sequence[LogLine]) -> str | None:
        """Return which file of another commit may hold rows that the transaction would have deleted."""
        if self._rows is None:
            return None
        adds = [line.add for line in lines if line.add is not None and line.add.data_change]
        if not adds:
            return None
        hits = np.flatnonzero(self._rows.may_hold(FileBatch.from_adds(adds)))
        return f"added the file {adds[int(hits[0])].path}, which may hold rows that it selects" if len(hits) else None

    def is_ruled_out_by(self, info: dict[str, Any] | None) -> bool:
        """Tell whether rows of a commit that says so of itself matter: a blind append rests on nothing we do."""
        return self._any_append or (info or {}).get("isBlindAppend") is not True

    def close(self) -> None:
        """Give back memory and temporary files."""
        self._paths.close()


def commits_since(store: Store, version: int) -> list[LogFile]:
    """Return the commits behind ``version``, of which there is at least one: somebody else's stood in our way."""
    expected = version + 1
    for pause in (*_LISTING_PAUSES, None):
        files = list(list_commits(store, expected))
        if files and [file.version for file in files] == list(range(expected, expected + len(files))):
            return files
        if pause is not None:
            time.sleep(pause)
    path = f"{LOG}/{commit_name(expected)}"
    message = f"Commit {expected} of {store.uri} is there and is not listed"
    hint = "the log was cleaned up meanwhile, or the listing lags behind; begin the transaction again"
    raise MissingCommitError(message, path=path, version=expected, hint=hint)


def judge(store: Store, winners: Sequence[LogFile], footprint: Footprint) -> tuple[Change, CommitConflictError | None]:
    """Return what the winners did, and the oldest of them that rules the transaction out."""
    newest_first: list[Change] = []
    conflict: CommitConflictError | None = None
    for commit in ReverseCommitReader(store, winners):
        change, objection, of_rows = Change(), None, None
        for lines in commit.actions:
            change.note(lines)
            objection = objection or footprint.objection(lines)
            of_rows = of_rows or footprint.objection_to_rows(lines)
        if objection is None and of_rows is not None and footprint.is_ruled_out_by(change.info):
            objection = of_rows
        newest_first.append(change)
        if objection is not None:
            conflict = _conflict(commit.file, objection, change.info)
    return Change.of(newest_first), conflict


def _conflict(file: LogFile, objection: str, info: dict[str, Any] | None) -> CommitConflictError:
    """Return the error for a transaction that another commit rules out."""
    who = info or {}
    if file.version == 0:
        objection = "created the table"
    by = " by ".join(str(who[key]) for key in ("operation", "engineInfo") if who.get(key))
    message = f"Version {file.version}{f' ({by})' if by else ''}, committed meanwhile, {objection}"
    return CommitConflictError(message, path=file.path, version=file.version, hint=_AGAIN)

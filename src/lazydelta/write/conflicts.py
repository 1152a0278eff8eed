"""Conflict detection: which concurrent commits a transaction can be rebased onto, and which rule it out.

Files are compared by path and not by key: a changed deletion vector counts as a changed file. A blind append can follow
any commit except a change of metadata or protocol, because it depends on no existing data.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lazydelta.errors import CommitConflictError, MissingCommitError, VersionNotFoundError
from lazydelta.log.checksum.writer import Change
from lazydelta.log.commits import decode_actions
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.keys import RemoveSet
from lazydelta.log.replay import ReverseCommitReader
from lazydelta.log.segment import commits_in_order
from lazydelta.protocol.actions import LogLine
from lazydelta.protocol.file_names import LogFile
from lazydelta.runtime.arrays import string_array
from lazydelta.storage import Store
from lazydelta.write.commit import PartitionSelection
from lazydelta.write.row_changes.choice import RowChoice

__all__ = ["REFUSED", "Footprint", "commits_since", "judge"]

_AGAIN = "read the table again and repeat the operation on its newest version"
REFUSED = (
    "nothing was committed: files written for it are deleted, or left to VACUUM where the log does not rule them out; "
    f"files that the caller gave are kept; {_AGAIN}"
)
"""Tells the user what happened to the files of a refused operation, and what to do next."""
_LISTING_PAUSES = (0.05, 0.2, 0.8)


class Footprint:
    """What a transaction depends on: files by path and, for an overwrite, the absence of other files.

    ``rows`` are the rows that it deletes, and whether a blind append of such rows conflicts too. ``whole_table`` makes
    every change of rows a conflict, also in files that the transaction leaves as they are.
    """

    def __init__(
        self,
        *,
        overwrites_all: bool = False,
        selections: Sequence[PartitionSelection] = (),
        rows: tuple[RowChoice, bool] | None = None,
        whole_table: bool = False,
    ) -> None:
        self._rows: RowChoice | None = None if rows is None else rows[0]
        self._any_append = rows is not None and rows[1]
        self._paths = RemoveSet()
        self._overwrites_all = overwrites_all
        self._whole_table = whole_table
        self._selections = tuple(selections)

    def rest_on(self, paths: Sequence[str]) -> None:
        """Add files that no other writer may have changed."""
        if paths:
            self._paths.add(string_array(paths))

    def rest_on_lines(self, chunks: Iterable[bytes]) -> None:
        """Add the files of encoded actions: files to remove, and files to add, which no other writer may add too."""
        for lines in decode_actions(chunks, "the commit to be written", -1):
            self.rest_on([action.path for line in lines if (action := line.add or line.remove) is not None])

    def objection(self, lines: Sequence[LogLine]) -> str | None:
        """Return which action of another commit conflicts with the transaction, or None."""
        for line in lines:
            if line.has("protocol"):
                return "changed the table's protocol"
            if line.has("meta_data"):
                return "changed the table's metadata"
            action = line.add or line.remove
            if self._whole_table and action is not None and action.data_change:
                return f"changed the file {action.path}, and this transaction depends on all rows of the table"
        adds = [line.add for line in lines if line.add is not None]
        paths = [action.path for line in lines if (action := line.add or line.remove) is not None]
        if paths:
            hits = np.flatnonzero(self._paths.find(string_array(paths)))
            if len(hits):
                path = paths[int(hits[0])]
                told = f"changed the file {path}, which this transaction reads, adds or removes"
                is_gone = path not in {each.path for each in adds}
                # The wording of deltalake, which programs match to classify conflicts.
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
        """Return which file of another commit may hold rows that the transaction would have deleted, or None."""
        if self._rows is None:
            return None
        adds = [line.add for line in lines if line.add is not None and line.add.data_change]
        if not adds:
            return None
        hits = np.flatnonzero(self._rows.may_hold(FileBatch.from_adds(adds)))
        return f"added the file {adds[int(hits[0])].path}, which may hold rows that it selects" if len(hits) else None

    def is_ruled_out_by(self, info: dict[str, Any] | None) -> bool:
        """Return whether the rows of a commit matter: those of a blind append do not depend on this transaction."""
        return self._any_append or (info or {}).get("isBlindAppend") is not True

    def close(self) -> None:
        """Release memory and temporary files."""
        self._paths.close()


def commits_since(
    store: Store, version: int, last: int | None = None, *, before: list[LogFile] | None = None
) -> list[LogFile]:
    """Return the commits after ``version``, up to ``last`` if given, with one LIST request.

    If a commit is missing, it is unknown what other writers did, and the operation conflicts. A gap may be a stale
    listing and is retried. A log that was cleaned up is not. ``before`` receives the files of ``version`` itself. If
    there are none, and nothing after them, the table was deleted, which is a conflict too.
    """
    for pause in (*_LISTING_PAUSES, None):
        try:
            if before is not None:
                before.clear()
            found = list(commits_in_order(store, version + 1, last, before=before))
        except VersionNotFoundError as error:
            left = error.earliest or error.latest
            message = (
                f"The log of {store.uri} was checkpointed and cleaned up to version {left} since this operation read "
                f"version {version}, so the changes of other writers are unknown"
            )
            raise CommitConflictError(message, path=store.uri, version=version + 1, hint=REFUSED) from error
        except MissingCommitError as error:
            if pause is None:
                raise CommitConflictError(
                    str(error.args[0]), path=error.path, version=error.version, hint=REFUSED
                ) from error
            time.sleep(pause)
        else:
            if before is not None and version >= 0 and not found and not before:
                message = f"The table at {store.uri} was deleted since this operation read version {version}"
                raise CommitConflictError(message, path=store.uri, version=version, hint=REFUSED)
            return found
    raise AssertionError("the last round returns or raises")  # pragma: no cover


def judge(store: Store, winners: Sequence[LogFile], footprint: Footprint) -> tuple[Change, CommitConflictError | None]:
    """Return the combined change of the winning commits, and the conflict with the oldest one that conflicts."""
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
    """Return the error for a transaction that conflicts with another commit."""
    who = info or {}
    if file.version == 0:
        objection = "created the table"
    by = " by ".join(str(who[key]) for key in ("operation", "engineInfo") if who.get(key))
    message = f"Version {file.version}{f' ({by})' if by else ''}, committed meanwhile, {objection}"
    return CommitConflictError(message, path=file.path, version=file.version, hint=_AGAIN)

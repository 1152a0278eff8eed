"""What a commit changed, file by file.

A commit that has ``cdc`` actions says itself which rows it changed: their files hold the rows, and its adds and removes
say nothing more. In any other commit all rows of an added file were inserted, and all of a removed one deleted. A file
that was removed and added again with another deletion vector lost, or got back, the rows in which the vectors differ.
Files that were only moved (``dataChange`` false, as by OPTIMIZE) changed nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from lazydelta.errors import CorruptLogError, UnsupportedFeatureError
from lazydelta.log.actions import Add, DeletionVector, LogLine, Metadata, Remove
from lazydelta.log.commits import read_actions
from lazydelta.log.names import LogFile
from lazydelta.log.properties import is_true
from lazydelta.scan.data_file import StoredFile
from lazydelta.storage import Store

__all__ = ["ENABLED", "ChangedFile", "changed_files", "check_enabled"]

ENABLED = "delta.enableChangeDataFeed"


class _Cdc(msgspec.Struct, rename="camel", frozen=True):
    path: str
    partition_values: dict[str, str | None] = {}
    size: int = 0


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """Rows of a file that a commit changed, all in the same way; None where the file says for each row.

    With ``other`` the rows are those that are live in ``file`` and deleted by the vector ``other``.
    """

    file: StoredFile
    change: str | None
    other: DeletionVector | None = None


@dataclass(slots=True)
class _Commit:
    adds: dict[str, Add] = field(default_factory=dict)
    removes: dict[str, Remove] = field(default_factory=dict)
    changes: list[_Cdc] = field(default_factory=list)


def changed_files(store: Store, commit: LogFile) -> Iterator[ChangedFile]:
    """Yield what a commit changed; one that switches change data off is an error that names it.

    The file actions of one commit are held, because only its last line tells whether there is change data.
    """
    found = _Commit()
    for lines in read_actions(store, commit):
        for line in lines:
            _take(found, line, commit)
    if found.changes:
        for each in found.changes:
            yield ChangedFile(StoredFile(each.path, each.size, each.partition_values), None)
        return
    for path, add in found.adds.items():
        before = found.removes.pop(path, None)
        mine = StoredFile(path, add.size, add.partition_values, add.deletion_vector)
        if before is None:
            yield ChangedFile(mine, "insert")
            continue
        old = before.deletion_vector
        if add.deletion_vector is not None:  # rows that were live before, and are not now
            yield ChangedFile(StoredFile(path, add.size, add.partition_values, old), "delete", add.deletion_vector)
        if old is not None:
            yield ChangedFile(mine, "insert", old)
    for path, remove in found.removes.items():
        values = remove.partition_values or {}
        yield ChangedFile(StoredFile(path, remove.size or 0, values, remove.deletion_vector), "delete")


def _take(found: _Commit, line: LogLine, commit: LogFile) -> None:
    if line.add is not None and line.add.data_change:
        found.adds[line.add.path] = line.add
    elif line.remove is not None and line.remove.data_change:
        found.removes[line.remove.path] = line.remove
    elif line.cdc is not None:
        try:
            found.changes.append(msgspec.convert(line.cdc, _Cdc))
        except msgspec.ValidationError as error:
            message = f"{commit.path} has a cdc action that makes no sense: {error}"
            raise CorruptLogError(message, path=commit.path, version=commit.version) from error
    elif line.has("meta_data"):
        check_enabled(msgspec.json.decode(line.meta_data, type=Metadata), commit.version)


def check_enabled(metadata: Metadata, version: int) -> None:
    """Refuse a version whose changes nobody has recorded."""
    if not is_true(metadata, ENABLED):
        message = f"Reading a table version: {version} that does not have change data enabled"
        hint = f"the table's property {ENABLED} was not true then; begin with a version from which on it is"
        raise UnsupportedFeatureError(message, version=version, features=("changeDataFeed",), hint=hint)

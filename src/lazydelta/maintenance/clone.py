"""Shallow clones: new tables whose log refers to the files of another table.

No data is copied. Both tables then change independently of each other; a VACUUM of the source deletes files that it no
longer needs, and a clone may still refer to them.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

import msgspec

from lazydelta.errors import OptionError, TableExistsError
from lazydelta.protocol.actions import Add, Metadata
from lazydelta.protocol.deletion_vectors import vector_path
from lazydelta.protocol.features import check_writable
from lazydelta.protocol.values import logged_path
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.storage import Store
from lazydelta.write.commit import CommitNote
from lazydelta.write.row_changes.choice import RowChoice, candidate_files
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = ["CloneResult", "shallow_clone"]

_AT_ONCE = 10_000
# When in-commit timestamps began is a property of one log.
_OF_THE_LOG = frozenset({"delta.incommittimestampenablementversion", "delta.incommittimestampenablementtimestamp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneResult:
    """Result of a clone: the version of the source, and the number and total size of the files referred to."""

    source_version: int
    files: int
    size: int
    commit: CommitResult = field(repr=False)


def shallow_clone(source: Snapshot, target: TableHandle) -> CloneResult:
    """Create a table at ``target`` with the rows, columns and properties of ``source``.

    The new table has an id of its own and no history. Raises if there is a table already.
    """
    if source.uri.rstrip("/") == target.uri.rstrip("/"):
        raise OptionError(f"{target.uri} would be a clone of itself", hint="give another place")
    check_writable(source.protocol, source.metadata, path=source.uri)
    parameters = {"source": source.uri, "sourceVersion": str(source.version), "isShallow": "true"}
    with Transaction.begin(target, operation="CLONE", parameters=parameters) as transaction:
        if transaction.snapshot is not None:
            message = f"A table already exists at {target.uri}"
            raise TableExistsError(message, path=target.uri, hint="clone to another place")
        transaction.note = CommitNote()
        transaction.set_protocol(source.protocol)
        transaction.set_metadata(_metadata(source.metadata))
        files = size = 0
        waiting: list[Add] = []
        for found in candidate_files(source, RowChoice(source.schema, None, None), with_stats=True):
            waiting.append(_absolute(found.add, source.store))
            files, size = files + 1, size + found.add.size
            if len(waiting) >= _AT_ONCE:
                transaction.add(*waiting)
                waiting = []
        transaction.add(*waiting)
        transaction.metrics = {"sourceNumOfFiles": str(files), "sourceTableSize": str(size), "numCopiedFiles": "0"}
        commit = transaction.commit()
    return CloneResult(source_version=source.version, files=files, size=size, commit=commit)


def _metadata(source: Metadata) -> Metadata:
    kept = {key: value for key, value in (source.configuration or {}).items() if key.lower() not in _OF_THE_LOG}
    now = time.time_ns() // 1_000_000
    return msgspec.structs.replace(source, id=str(uuid.uuid4()), created_time=now, configuration=kept)


def _absolute(add: Add, store: Store) -> Add:
    """Return a file of another table with the address of its own, and with that of its deletion vector."""
    home, path = store.locate(add.path)
    vector = add.deletion_vector
    if vector is not None and vector.storage_type == "u":
        place = _address(store, vector_path(vector, add.path))
        vector = msgspec.structs.replace(vector, storage_type="p", path_or_inline_dv=place)
    return msgspec.structs.replace(add, path=_address(home, path), deletion_vector=vector, data_change=True)


def _address(store: Store, path: str) -> str:
    return f"{store.uri.rstrip('/')}/{logged_path(path)}"

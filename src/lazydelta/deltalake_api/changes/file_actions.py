"""Actions that a caller has made himself, and their commit: for those who write data files with tools of their own.

What a file holds is the caller's promise. What the log will say of it is checked: files are where they are said to be,
columns and partition values are the table's, and only active files are removed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from lazydelta.deltalake_api.commit_properties import (
    CommitProperties,
    PostCommitHookProperties,
    attempts_of,
    maintains,
    note_of,
)
from lazydelta.errors import ObjectNotFoundError, OptionError, SchemaMismatchError, TableNotFoundError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Add, DeletionVector, Remove
from lazydelta.log.snapshot import Snapshot
from lazydelta.maintenance.once import after_commit
from lazydelta.pruning import Where
from lazydelta.scan.request import ScanRequest
from lazydelta.types.delta_types import Schema
from lazydelta.write.transaction import Transaction

__all__ = ["AddAction", "RemoveAction", "commit_actions"]

_ATTEMPTS = 15


@dataclass
class AddAction:
    """A data file that is in place, to become part of a table; ``path`` is below its root, percent-encoded."""

    path: str
    size: int
    partition_values: Mapping[str, str | None]
    modification_time: int
    data_change: bool
    stats: str


@dataclass(repr=False)
class RemoveAction:
    """An active file that is to leave a table."""

    path: str
    data_change: bool
    deletion_timestamp: int
    size: int | None = None
    partition_values: Mapping[str, str | None] | None = None

    def __repr__(self) -> str:
        shown = (f"{name}={value}" for name, value in vars(self).items())
        return f"RemoveAction({', '.join(shown)})"


class NoActionError(OptionError, TypeError):
    """Something else than an action was to be committed."""


def commit_actions(
    handle: TableHandle,
    actions: Sequence[AddAction | RemoveAction],
    *,
    mode: str,
    schema: Schema | pa.Schema,
    partition_by: Sequence[str],
    partition_filters: Where,
    properties: tuple[CommitProperties | None, PostCommitHookProperties | None],
    transaction_version: Callable[[str], int | None],
) -> None:
    """Commit files that were added and removed as one version; with ``mode="overwrite"`` all others are removed.

    ``partition_filters`` lets an overwrite remove the files of some partitions only.
    """
    commit, hooks = properties
    maintain, note = maintains(hooks), note_of(commit, transaction_version)
    if mode not in {"append", "overwrite"}:
        raise OptionError(f"mode={mode!r} makes no sense", hint="say 'append' or 'overwrite'")
    adds, removes = _sorted(actions)
    if removes and mode == "overwrite":
        message = "A RemoveAction is not for mode='overwrite', which removes files by itself"
        raise OptionError(message, hint="say mode='append', or leave the removes out")
    told = {"mode": mode.capitalize(), "partitionBy": list(partition_by)}
    with Transaction.begin(handle, operation="WRITE", parameters=told) as transaction:
        snapshot = transaction.snapshot
        if snapshot is None:
            raise TableNotFoundError(
                f"There is no Delta table at {handle.uri}", path=handle.uri, hint="create it first"
            )
        note.check_seen(snapshot.transaction_version, handle.uri)
        transaction.note = note
        _check_table(snapshot, schema, partition_by)
        if mode == "overwrite" and partition_filters:
            transaction.remove_partitions(partition_filters)
        elif mode == "overwrite":
            transaction.remove_all()
        if removes:
            transaction.remove(*_removals(handle, snapshot, removes))
        transaction.add(*(_add(handle, snapshot, each) for each in adds))
        done = transaction.commit(max_attempts=attempts_of(commit, _ATTEMPTS))
    if maintain:
        after_commit(handle, done.version, done.metadata)


def _sorted(actions: Sequence[Any]) -> tuple[list[AddAction], list[RemoveAction]]:
    adds = [each for each in actions if isinstance(each, AddAction)]
    removes = [each for each in actions if isinstance(each, RemoveAction)]
    strange = next((each for each in actions if not isinstance(each, AddAction | RemoveAction)), None)
    if strange is not None:
        message = f"A {type(strange).__name__} is no action that can be committed"
        raise NoActionError(message, hint="give an AddAction or a RemoveAction")
    counted = Counter([each.path for each in adds] + [each.path for each in removes])
    twice = [path for path, count in counted.items() if count > 1]
    if twice:
        message = f"The same file path is named twice in one transaction: {twice[0]}"
        raise OptionError(message, hint="a file is either added or removed, and once")
    return adds, removes


def _check_table(snapshot: Snapshot, schema: Schema | pa.Schema, partition_by: Sequence[str]) -> None:
    arrow = pa.schema(schema.to_arrow()) if isinstance(schema, Schema) else pa.schema(schema)
    table = snapshot.schema.to_arrow()
    if not arrow.remove_metadata().equals(table.remove_metadata()):
        message = f"The files have the columns [{_brief(arrow)}] and the table [{_brief(table)}]"
        hint = "an action cannot change the columns of a table; write_deltalake(schema_mode=…) can"
        raise SchemaMismatchError(message, path=snapshot.store.uri, hint=hint)
    own = snapshot.metadata.partition_columns
    if partition_by and tuple(partition_by) != own:
        message = f"The table is partitioned by {list(own)}, not by {list(partition_by)}"
        raise SchemaMismatchError(message, path=snapshot.store.uri, hint="leave partition_by out")


def _add(handle: TableHandle, snapshot: Snapshot, action: AddAction) -> Add:
    path = action.path
    if path.startswith("/") or "://" in path:
        message = f"The file {path} is not named by its path below the table's root"
        raise OptionError(message, path=path, hint="give the relative path")
    try:
        found = handle.store.head(unquote(path))
    except ObjectNotFoundError as error:
        message = f"The file {path} to be added is not there"
        raise OptionError(message, path=path, hint="put it in place before it is committed") from error
    if found.size != action.size:
        message = f"The file {path} has {found.size:,} bytes, and the action says {action.size:,}"
        raise OptionError(message, path=path, hint="give its size; readers look for the end of the file there")
    expected = set(snapshot.schema.physical_partition_columns)
    if set(action.partition_values) != expected:
        message = f"The file {path} has values of the partition columns {sorted(action.partition_values)}"
        raise OptionError(f"{message}, and the table has {sorted(expected)}", path=path, hint="give a value for each")
    try:
        is_object = not action.stats or isinstance(json.loads(action.stats), dict)
    except ValueError:
        is_object = False
    if not is_object:
        raise OptionError(f"The statistics of {path} are no JSON object: {action.stats[:80]!r}", path=path)
    return Add(
        path=path,
        size=action.size,
        modification_time=action.modification_time,
        partition_values=dict(action.partition_values),
        data_change=action.data_change,
        stats=action.stats or None,
    )


def _removals(handle: TableHandle, snapshot: Snapshot, actions: Sequence[RemoveAction]) -> list[Remove]:
    """Return the removes with the deletion vectors of the files, without which they would be other files to readers."""
    wanted, vectors = {each.path for each in actions}, dict[str, Any]()
    for batch in handle.scan(snapshot, ScanRequest()).batches():
        logged = [None] * len(batch) if batch.deletion_vector is None else batch.deletion_vector.to_pylist()
        vectors |= {path: dv for path, dv in zip(batch.path.to_pylist(), logged, strict=True) if path in wanted}
    lost = wanted.difference(vectors)
    if lost:
        message = f"The file {min(lost)} to be removed is not part of version {snapshot.version}"
        raise OptionError(message, path=min(lost), hint="read the table again; somebody may have removed it")
    return [
        Remove(
            path=each.path,
            deletion_timestamp=each.deletion_timestamp,
            data_change=each.data_change,
            extended_file_metadata=each.size is not None and each.partition_values is not None,
            partition_values=None if each.partition_values is None else dict(each.partition_values),
            size=each.size,
            deletion_vector=None if vectors[each.path] is None else msgspec.convert(vectors[each.path], DeletionVector),
        )
        for each in actions
    ]


def _brief(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)[:300]

"""Commits of caller-defined actions, for callers that write data files with their own tools.

The caller is responsible for the contents of the files. The log entries are checked: the files must exist, columns and
partition values must be the table's, and only active files can be removed.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from lazydelta.deltalake_names.commit_properties import (
    CommitProperties,
    PostCommitHookProperties,
    WriterProperties,
    attempts_of,
    compression_of,
    encoding_of,
    maintains,
    note_of,
)
from lazydelta.engines.datafusion import SqlColumn
from lazydelta.errors import ObjectNotFoundError, OptionError, SchemaMismatchError, TableNotFoundError
from lazydelta.maintenance.after_commit import Maintain, after_commit
from lazydelta.predicates import Where
from lazydelta.protocol.actions import Add, DeletionVector, Remove
from lazydelta.protocol.delta_types import Schema
from lazydelta.runtime import compute as pc
from lazydelta.scan.request import ScanRequest
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.write.row_changes.rewriter import FileRecipe
from lazydelta.write.row_changes.statements import ColumnValues, DeleteResult, DeleteSettings, delete_rows, update_rows
from lazydelta.write.transaction import Transaction

__all__ = [
    "AddAction",
    "RemoveAction",
    "change_settings",
    "commit_actions",
    "delete_call",
    "lenient",
    "new_columns",
    "update_call",
]


_ATTEMPTS = 15


@dataclass
class AddAction:
    """An existing data file to add to a table; ``path`` is relative to the root and percent-encoded."""

    path: str
    size: int
    partition_values: Mapping[str, str | None]
    modification_time: int
    data_change: bool
    stats: str


@dataclass(repr=False)
class RemoveAction:
    """An active file to remove from a table."""

    path: str
    data_change: bool
    deletion_timestamp: int
    size: int | None = None
    partition_values: Mapping[str, str | None] | None = None

    def __repr__(self) -> str:
        shown = (f"{name}={value}" for name, value in vars(self).items())
        return f"RemoveAction({', '.join(shown)})"


class NoActionError(OptionError, TypeError):
    """Raised if an object to commit is not an action."""


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
    """Commit added and removed files as one version; ``mode="overwrite"`` removes all other files.

    ``partition_filters`` restricts an overwrite to the files of some partitions.
    """
    commit, hooks = properties
    maintain, note = maintains(hooks), note_of(commit, transaction_version)
    if mode not in {"append", "overwrite"}:
        raise OptionError(f"mode={mode!r} is not valid", hint="use 'append' or 'overwrite'")
    adds, removes = _sorted(actions)
    if removes and mode == "overwrite":
        message = "A RemoveAction is not for mode='overwrite', which removes files by itself"
        raise OptionError(message, hint="pass mode='append', or omit the removes")
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
        whole = mode == "overwrite" and not partition_filters
        active = _active(snapshot, [] if whole else adds, removes)
        if removes:
            transaction.remove(*_removals(snapshot, removes, active))
        transaction.add(*(_add(snapshot, each) for each in adds))
        done = transaction.commit(max_attempts=attempts_of(commit, _ATTEMPTS))
    after_commit(handle, done.version, done.metadata, maintain=maintain)


def _sorted(actions: Sequence[Any]) -> tuple[list[AddAction], list[RemoveAction]]:
    # As in deltalake, slashes at the beginning are the root of the table. In a log they would be that of the machine.
    adds = [replace(each, path=each.path.lstrip("/")) for each in actions if isinstance(each, AddAction)]
    removes = [each for each in actions if isinstance(each, RemoveAction)]
    strange = next((each for each in actions if not isinstance(each, AddAction | RemoveAction)), None)
    if strange is not None:
        message = f"A {type(strange).__name__} is not an action that can be committed"
        raise NoActionError(message, hint="pass an AddAction or a RemoveAction")
    counted = Counter([each.path for each in adds] + [each.path for each in removes])
    twice = [path for path, count in counted.items() if count > 1]
    if twice:
        message = f"The same file path is named twice in one transaction: {twice[0]}"
        raise OptionError(message, hint="add or remove each file once")
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
        raise SchemaMismatchError(message, path=snapshot.store.uri, hint="omit partition_by")


def _add(snapshot: Snapshot, action: AddAction) -> Add:
    path = action.path
    if "://" in path:
        message = f"The file {path} is not given by its path relative to the table's root"
        raise OptionError(message, path=path, hint="pass the path relative to the table's root")
    try:
        found = snapshot.store.head(unquote(path))
    except ObjectNotFoundError as error:
        message = f"The file {path} to be added is not there"
        raise OptionError(message, path=path, hint="write the file before committing it") from error
    if found.size != action.size:
        message = f"The file {path} has {found.size:,} bytes, and the action says {action.size:,}"
        raise OptionError(
            message, path=path, hint="pass the actual size; readers look for the footer at the end of the file"
        )
    expected = set(snapshot.schema.physical_partition_columns)
    if set(action.partition_values) != expected:
        message = f"The file {path} has values of the partition columns {sorted(action.partition_values)}"
        raise OptionError(
            f"{message}, and the table has {sorted(expected)}", path=path, hint="pass a value for each partition column"
        )
    try:
        is_object = not action.stats or isinstance(json.loads(action.stats), dict)
    except ValueError:
        is_object = False
    if not is_object:
        raise OptionError(f"The statistics of {path} are not a JSON object: {action.stats[:80]!r}", path=path)
    return Add(
        path=path,
        size=action.size,
        modification_time=action.modification_time,
        partition_values=dict(action.partition_values),
        data_change=action.data_change,
        stats=action.stats or None,
    )


def _active(
    snapshot: Snapshot, adds: Sequence[AddAction], removes: Sequence[RemoveAction]
) -> dict[str, tuple[int, Any]]:
    """Return size and deletion vector of the active files to remove; raise if a file to add is active."""
    if not adds and not removes:
        return {}
    added, wanted, found = {unquote(each.path) for each in adds}, {each.path for each in removes}, {}
    for batch in snapshot.scan(ScanRequest()).batches():
        vectors = [None] * len(batch) if batch.deletion_vector is None else batch.deletion_vector.to_pylist()
        for path, size, vector in zip(batch.path.to_pylist(), batch.size.to_pylist(), vectors, strict=True):
            if path in wanted:
                found[path] = (size, vector)
            if unquote(path) in added:
                message = f"The file {path} to be added is already part of version {snapshot.version}"
                raise OptionError(message, path=path, hint="omit it; each file is added once")
    return found


def _removals(
    snapshot: Snapshot, actions: Sequence[RemoveAction], active: Mapping[str, tuple[int, Any]]
) -> list[Remove]:
    """Return the removes with the sizes and deletion vectors of the files, which are part of their identity."""
    wanted = {each.path for each in actions}
    lost = wanted.difference(active)
    if lost:
        message = f"The file {min(lost)} to be removed is not part of version {snapshot.version}"
        raise OptionError(message, path=min(lost), hint="read the table again; another writer may have removed it")
    return [
        Remove(
            path=each.path,
            deletion_timestamp=each.deletion_timestamp,
            data_change=each.data_change,
            extended_file_metadata=each.partition_values is not None,
            partition_values=None if each.partition_values is None else dict(each.partition_values),
            # Extended metadata is whole, or it is left out as the caller did.
            size=None if each.size is None and each.partition_values is None else active[each.path][0],
            deletion_vector=_vector(active[each.path][1]),
        )
        for each in actions
    ]


def _vector(logged: Any) -> DeletionVector | None:
    return None if logged is None else msgspec.convert(logged, DeletionVector)


def _brief(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)[:300]


# DELETE and UPDATE with the parameters and metrics of deltalake.


_VALUES = (bool, int, float, str, bytes, list, dt.date, Decimal)
Properties: TypeAlias = tuple[CommitProperties | None, PostCommitHookProperties | None]


def delete_call(
    handle: TableHandle,
    predicate: Where,
    writer_properties: WriterProperties | None,
    properties: Properties,
    transaction_version: Callable[[str], int | None],
) -> dict[str, Any]:
    """Delete rows of a table and return deltalake's metrics."""
    maintain = maintains(properties[1])
    result = delete_rows(handle, predicate, change_settings(writer_properties, properties[0], transaction_version))
    _maintained(handle, result, maintain=maintain)
    metrics = _metrics(result, "num_deleted_rows")
    metrics["rewrite_time_ms"] = round(result.deleted.rewrite_seconds * 1000)
    return {key: value for key, value in metrics.items() if value is not None}


def update_call(
    handle: TableHandle,
    columns: Mapping[str, ColumnValues],
    predicate: Where,
    writer_properties: WriterProperties | None,
    properties: Properties,
    transaction_version: Callable[[str], int | None],
) -> dict[str, Any]:
    """Update rows of a table and return deltalake's metrics."""
    maintain = maintains(properties[1])
    settings = change_settings(writer_properties, properties[0], transaction_version)
    result = update_rows(handle, columns, predicate, settings)
    _maintained(handle, result, maintain=maintain)
    return _metrics(result, "num_updated_rows")


def new_columns(updates: Mapping[str, Any] | None, new_values: Mapping[str, Any] | None) -> dict[str, ColumnValues]:
    """Return the expressions for the new column values: SQL expressions, or Python values."""
    if isinstance(new_values, str):
        raise OptionError(
            "new_values is a string, not a mapping from columns to values", hint=f"write where={new_values!r}"
        )
    if updates is not None and new_values is not None:
        raise OptionError("Passing updates and new_values at same time is not allowed, pick one.")
    if updates is not None:
        if not all(isinstance(each, str) for pair in updates.items() for each in pair):
            message = f"The values of the updates parameter must all be SQL strings. Got {updates}."
            raise OptionError(f"{message} Did you mean to use the new_values parameter?")
        return {name: SqlColumn(text) for name, text in updates.items()}
    if new_values is None:
        raise OptionError("Either updates or new_values need to be passed to update the table.")
    if not all(value is None or isinstance(value, _VALUES) for value in new_values.values()):
        message = "Invalid datatype provided in new_values, only int, float, bool, list, str or datetime or accepted."
        raise OptionError(message)
    return {name: _Same(name, value) for name, value in new_values.items()}


def lenient(columns: Mapping[str, ColumnValues]) -> dict[str, ColumnValues]:
    """Return expressions whose values become null where the column cannot hold them."""
    return {name: _Lenient(name, made) for name, made in columns.items()}


@dataclass(frozen=True, slots=True)
class _Lenient:
    column: str
    made: ColumnValues

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        return _fitting(self.made(rows), _type_of(self.column, rows.schema))


def _type_of(column: str, schema: pa.Schema) -> pa.DataType:
    names = [each for each in schema.names if each.lower() == column.lower()]
    return schema.field(column if column in names else names[0]).type


def _fitting(values: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return pc.cast(values, kind)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return pa.nulls(1, kind)
        half = len(values) // 2
        return pa.concat_arrays([_fitting(values[:half], kind), _fitting(values[half:], kind)])


@dataclass(frozen=True, slots=True)
class _Same:
    """One value for all rows."""

    column: str
    value: Any

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        kind = _type_of(self.column, rows.schema)
        try:
            return pa.array([self.value] * rows.num_rows, kind)
        except (pa.ArrowException, TypeError, OverflowError, ValueError) as error:
            message = f"Column {self.column!r} of type {kind} does not hold {self.value!r}: {error}"
            raise SchemaMismatchError(
                message, hint="nothing was committed; pass a value of the column's type"
            ) from error


def change_settings(
    writer_properties: WriterProperties | None,
    commit: CommitProperties | None,
    transaction_version: Callable[[str], int | None],
) -> DeleteSettings:
    """Return how a change of rows writes files and commits."""
    recipe = FileRecipe(compression=compression_of(writer_properties, "zstd"), encoding=encoding_of(writer_properties))
    return DeleteSettings(
        recipe=recipe,
        note=note_of(commit, transaction_version),
        max_attempts=attempts_of(commit, DeleteSettings().max_attempts),
    )


def _metrics(result: DeleteResult, rows: str) -> dict[str, int | None]:
    """Return deltalake's metrics of a delete or update; ``rows`` is its name for the selected rows."""
    found = result.deleted
    return {
        "num_added_files": found.added_files,
        "num_removed_files": found.removed_files,
        rows: found.rows,
        "num_copied_rows": found.copied_rows,
        "execution_time_ms": round(result.seconds * 1000),
        "scan_time_ms": round(found.scan_seconds * 1000),
    }


def _maintained(handle: TableHandle, result: DeleteResult, *, maintain: Maintain) -> None:
    if result.version is not None:
        after_commit(handle, result.version, result.metadata, maintain=maintain)

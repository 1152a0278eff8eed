"""DELETE and UPDATE with the parameters and the answers that deltalake's users know."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from lazydelta.deltalake_api.commit_properties import (
    CommitProperties,
    PostCommitHookProperties,
    attempts_of,
    maintains,
    note_of,
)
from lazydelta.deltalake_api.parquet_properties import WriterProperties, compression_of, encoding_of
from lazydelta.engines.sql_column import SqlColumn
from lazydelta.errors import OptionError, SchemaMismatchError
from lazydelta.handle import TableHandle
from lazydelta.maintenance.once import after_commit
from lazydelta.pruning import Where
from lazydelta.write.row_changes.deleting import DeleteResult, DeleteSettings, delete_rows
from lazydelta.write.row_changes.row_rewriter import FileRecipe
from lazydelta.write.row_changes.updating import ColumnValues, update_rows

__all__ = ["delete_call", "new_columns", "update_call"]

_VALUES = (bool, int, float, str, bytes, list, dt.date, Decimal)
Properties: TypeAlias = tuple[CommitProperties | None, PostCommitHookProperties | None]


def delete_call(
    handle: TableHandle,
    predicate: Where,
    writer_properties: WriterProperties | None,
    properties: Properties,
    transaction_version: Callable[[str], int | None],
) -> dict[str, Any]:
    """Delete rows of a table, and return deltalake's metrics."""
    maintain = maintains(properties[1])
    result = delete_rows(handle, predicate, _settings(writer_properties, properties[0], transaction_version))
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
    """Update rows of a table, and return deltalake's metrics."""
    maintain = maintains(properties[1])
    settings = _settings(writer_properties, properties[0], transaction_version)
    result = update_rows(handle, columns, predicate, settings)
    _maintained(handle, result, maintain=maintain)
    return _metrics(result, "num_updated_rows")


def new_columns(updates: Mapping[str, Any] | None, new_values: Mapping[str, Any] | None) -> dict[str, ColumnValues]:
    """Return what computes the new values of columns: expressions of SQL, or values of Python."""
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


@dataclass(frozen=True, slots=True)
class _Same:
    """One value for all rows."""

    column: str
    value: Any

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        names = [each for each in rows.schema.names if each.lower() == self.column.lower()]
        kind = rows.schema.field(self.column if self.column in names else names[0]).type
        try:
            return pa.array([self.value] * rows.num_rows, kind)
        except (pa.ArrowException, TypeError, OverflowError, ValueError) as error:
            message = f"Column {self.column!r} of type {kind} does not hold {self.value!r}: {error}"
            raise SchemaMismatchError(message, hint="give a value of its type; nothing was committed") from error


def _settings(
    writer_properties: WriterProperties | None,
    commit: CommitProperties | None,
    transaction_version: Callable[[str], int | None],
) -> DeleteSettings:
    recipe = FileRecipe(compression=compression_of(writer_properties, "zstd"), encoding=encoding_of(writer_properties))
    return DeleteSettings(
        recipe=recipe,
        note=note_of(commit, transaction_version),
        max_attempts=attempts_of(commit, DeleteSettings().max_attempts),
    )


def _metrics(result: DeleteResult, rows: str) -> dict[str, int | None]:
    """Return what deltalake tells of either; ``rows`` is its name for those that were chosen."""
    found = result.deleted
    return {
        "num_added_files": found.added_files,
        "num_removed_files": found.removed_files,
        rows: found.rows,
        "num_copied_rows": found.copied_rows,
        "execution_time_ms": round(result.seconds * 1000),
        "scan_time_ms": round(found.scan_seconds * 1000),
    }


def _maintained(handle: TableHandle, result: DeleteResult, *, maintain: bool) -> None:
    if maintain and result.version is not None:
        after_commit(handle, result.version, result.metadata)

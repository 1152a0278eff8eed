"""``DeltaTable.alter``, ``restore`` and ``repair`` with the parameters and metrics of deltalake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from lazydelta.deltalake_names.actions import Properties
from lazydelta.deltalake_names.changes import ChangesTable
from lazydelta.deltalake_names.commit_properties import (
    CommitProperties,
    PostCommitHookProperties,
    TableFeatures,
    maintains,
    note_of,
)
from lazydelta.deltalake_names.parameters import deprecate_positional_commit_args
from lazydelta.errors import OptionError, WriteError
from lazydelta.maintenance.after_commit import Maintain, after_commit
from lazydelta.maintenance.restore import repair_table, restore_table
from lazydelta.missing_names import AnswersNames
from lazydelta.protocol.delta_types import Field
from lazydelta.sidecar.handle import snapshot_of
from lazydelta.write.alter import TableChange, alter_table
from lazydelta.write.transaction import CommitResult

__all__ = ["TableAlterer", "repair_call", "restore_call"]

_NAMES = {
    "TimestampWithoutTimezone": "timestampNtz",
    "VariantTypePreview": "variantType-preview",
}


class TableAlterer(AnswersNames):
    """The operations of ``DeltaTable.alter``. Each is one commit, and the table then moves to its newest version.

    ``args`` are the commit properties by position, which deltalake deprecates.
    """

    def __init__(self, table: ChangesTable) -> None:
        """Create an alterer for a table."""
        self._table = table

    def _commit(self, change: TableChange, properties: Properties) -> None:
        handle = snapshot_of(self._table).table
        maintain = maintains(properties[1])
        done = alter_table(handle, change, note=note_of(properties[0], self._table.transaction_version))
        _maintained(self._table, done, maintain=maintain)
        self._table.update_incremental()

    def add_columns(
        self,
        fields: Field | pa.Field | Sequence[Field | pa.Field],
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Add nullable columns, or fields of structs that the table has. Rows have nulls in them."""
        given = deprecate_positional_commit_args("add_columns", args, commit_properties, post_commithook_properties)
        self._commit(TableChange.add_columns([fields] if isinstance(fields, Field | pa.Field) else fields), given)

    def rename_column(
        self,
        column_name: str,
        new_name: str,
        *,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Rename a column of a table with mapped columns (``delta.columnMapping.mode``); no file changes."""
        properties = (commit_properties, post_commithook_properties)
        self._commit(TableChange.rename_column(column_name, new_name), properties)

    def drop_columns(
        self,
        column_names: str | Sequence[str],
        *,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Drop columns of a table with mapped columns (``delta.columnMapping.mode``); no file changes."""
        names = [column_names] if isinstance(column_names, str) else column_names
        self._commit(TableChange.drop_columns(names), (commit_properties, post_commithook_properties))

    def drop_column_not_null(
        self,
        column_name: str,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Let a column hold nulls."""
        self._commit(TableChange.drop_not_null(column_name), (commit_properties, post_commithook_properties))

    def add_constraint(
        self,
        constraints: Mapping[str, str] | Any,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Add a CHECK constraint, ``{name: SQL}``. Every row of the table is read and must satisfy it."""
        if isinstance(constraints, str):
            raise OptionError("Constraints have names", hint="write {'name': 'SQL condition'}")
        given = deprecate_positional_commit_args(
            "add_constraint",
            args,
            commit_properties,
            post_commithook_properties,
            legacy_order=("post_commithook_properties", "commit_properties"),
        )
        self._commit(TableChange.add_constraints(constraints), given)

    def drop_constraint(
        self,
        name: str,
        raise_if_not_exists: bool = True,  # noqa: FBT001, FBT002
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Drop a CHECK constraint."""
        given = deprecate_positional_commit_args(
            "drop_constraint",
            args,
            commit_properties,
            post_commithook_properties,
            legacy_order=("post_commithook_properties", "commit_properties"),
        )
        self._commit(TableChange.drop_constraint(name, must_exist=raise_if_not_exists), given)

    def set_table_properties(
        self,
        properties: Mapping[str, str | bool | int] | Any,
        raise_if_not_exists: bool = True,  # noqa: FBT001, FBT002
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Set properties. The features that they need are added to the protocol.

        A property that Delta does not define is refused unless ``raise_if_not_exists`` is false.
        """
        if isinstance(properties, str):
            raise OptionError("Properties have values", hint=f"write {{{properties!r}: value}}")
        given = deprecate_positional_commit_args(
            "set_table_properties", args, commit_properties, post_commithook_properties
        )
        for key in properties if raise_if_not_exists else ():
            if not key.lower().startswith("delta."):
                message = f"{key!r} is not a Delta table property"
                raise WriteError(
                    message, hint="table properties begin with delta.; pass raise_if_not_exists=False to set others"
                )
        plain = {key: str(each).lower() if isinstance(each, bool | int) else each for key, each in properties.items()}
        self._commit(TableChange.set_properties(plain), given)

    def unset_table_properties(
        self,
        names: Sequence[str],
        *,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Unset properties, which then have their defaults."""
        change = TableChange.set_properties(dict.fromkeys(names))
        self._commit(change, (commit_properties, post_commithook_properties))

    def set_table_name(
        self,
        name: str,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Set the name of the table, at most 255 characters."""
        given = deprecate_positional_commit_args("set_table_name", args, commit_properties, post_commithook_properties)
        self._commit(TableChange.describe(name=name), given)

    def set_table_description(
        self,
        description: str,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Set the description of the table, at most 4,000 characters."""
        given = deprecate_positional_commit_args(
            "set_table_description", args, commit_properties, post_commithook_properties
        )
        self._commit(TableChange.describe(description=description), given)

    def set_column_metadata(
        self,
        column: str,
        metadata: Mapping[str, str],
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Set metadata of a column, such as its ``comment``."""
        given = deprecate_positional_commit_args(
            "set_column_metadata", args, commit_properties, post_commithook_properties
        )
        self._commit(TableChange.set_column_metadata(column, metadata), given)

    def add_feature(
        self,
        feature: TableFeatures | str | Sequence[TableFeatures | str],
        allow_protocol_versions_increase: bool = False,  # noqa: FBT001, FBT002
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Add features to the protocol of the table, by the protocol's names or deltalake's."""
        given = deprecate_positional_commit_args("add_feature", args, commit_properties, post_commithook_properties)
        features = [feature] if isinstance(feature, TableFeatures | str) else list(feature)
        given_names = [each if isinstance(each, str) else each.value for each in features]
        names = [_NAMES.get(each, each[0].lower() + each[1:]) for each in given_names]
        self._commit(TableChange.add_features(names, may_raise_versions=allow_protocol_versions_increase), given)


def restore_call(
    table: ChangesTable,
    target: int | datetime | str,
    properties: Properties,
    *,
    ignore_missing_files: bool,
    protocol_downgrade_allowed: bool,
) -> dict[str, Any]:
    """Restore a table and return deltalake's metrics."""
    maintain = maintains(properties[1])
    _check(properties)
    result = restore_table(
        snapshot_of(table).table,
        target,
        ignore_missing_files=ignore_missing_files,
        protocol_downgrade_allowed=protocol_downgrade_allowed,
        note=note_of(properties[0], table.transaction_version),
    )
    _maintained(table, result.commit, maintain=maintain)
    return {"numRemovedFile": result.removed_files, "numRestoredFile": result.restored_files}


def repair_call(table: ChangesTable, properties: Properties, *, dry_run: bool) -> dict[str, Any]:
    """Repair a table and return deltalake's metrics."""
    maintain = maintains(properties[1])
    _check(properties)
    note = note_of(properties[0], table.transaction_version)
    result = repair_table(snapshot_of(table).table, dry_run=dry_run, note=note)
    _maintained(table, result.commit, maintain=maintain)
    return {"dry_run": result.dry_run, "files_removed": result.files_removed}


def _check(properties: Properties) -> None:
    commit = properties[0]
    if commit is not None and commit.max_commit_retries is not None:
        message = "max_commit_retries is for writes: this operation has its own rules for retries"
        raise OptionError(message, hint="omit it")


def _maintained(table: ChangesTable, done: CommitResult | None, *, maintain: Maintain) -> None:
    if done is not None:
        after_commit(snapshot_of(table).table, done.version, done.metadata, maintain=maintain)

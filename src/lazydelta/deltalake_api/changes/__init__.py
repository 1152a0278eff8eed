"""What changes a table by deltalake's methods, but for maintenance: rows deleted and updated, actions of the caller.

``ChangesTable`` is here, and not in a module of its own, because every import of lazydelta loads it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from lazydelta.deltalake_api.deprecated_parameters import deprecate_positional_commit_args
from lazydelta.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from lazydelta.deltalake_api.changes.file_actions import AddAction, RemoveAction
    from lazydelta.deltalake_api.commit_properties import CommitProperties, PostCommitHookProperties
    from lazydelta.deltalake_api.parquet_properties import WriterProperties
    from lazydelta.handle import TableHandle
    from lazydelta.pruning import Where
    from lazydelta.types.delta_types import Schema

__all__ = ["ChangesTable"]


class ChangesTable:
    """What a table needs to be changed: its handle, and a way to its newest version."""

    _handle: TableHandle

    if TYPE_CHECKING:

        @abstractmethod
        def update_incremental(self) -> None: ...  # noqa: D102 - see the table's own

        @abstractmethod
        def transaction_version(self, app_id: str) -> int | None: ...  # noqa: D102

    def delete(
        self,
        predicate: Where = None,
        writer_properties: WriterProperties | None = None,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> dict[str, Any]:
        """Delete the rows for which ``predicate`` is true, all without one, and return deltalake's metrics.

        It works on the newest version, and the table is at the one that it made then; where no row matches, nothing is
        committed. Rows for which the predicate is null stay. Files are removed whole without being read where the log
        tells that every row matches, and copied without the rows that match where it does not. ``num_deleted_rows`` is
        left out where whole files left of which the log does not count the rows. ``args`` are the commit's properties
        by position, which deltalake calls deprecated.
        """
        from lazydelta.deltalake_api.changes.row_calls import delete_call  # noqa: PLC0415 - who reads needs none of it

        properties = deprecate_positional_commit_args(
            "delete",
            args,
            commit_properties,
            post_commithook_properties,
            legacy_order=("post_commithook_properties", "commit_properties"),
        )
        metrics = delete_call(self._handle, predicate, writer_properties, properties, self.transaction_version)
        self.update_incremental()
        return metrics

    def update(
        self,
        updates: Mapping[str, str] | None = None,
        new_values: Mapping[str, Any] | None = None,
        predicate: Where = None,
        writer_properties: WriterProperties | None = None,
        error_on_type_mismatch: bool = True,  # noqa: FBT001, FBT002
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> dict[str, Any]:
        """Give the rows for which ``predicate`` is true, all without one, other values; return deltalake's metrics.

        ``updates`` are expressions of SQL over the columns of the row, by the column that they are for, computed by
        DataFusion (``pip install 'lazydelta[datafusion]'``); ``new_values`` are values of Python. It works on the
        newest version, and the table is at the one that it made then; where no row matches, nothing is committed.
        Values that a column cannot hold are an error; ``error_on_type_mismatch=False`` is refused. ``args`` are the
        commit's properties by position, which deltalake calls deprecated.
        """
        from lazydelta.deltalake_api.changes.row_calls import new_columns, update_call  # noqa: PLC0415 - as above

        if not error_on_type_mismatch:
            message = "error_on_type_mismatch=False would make nulls of values that a column cannot hold"
            raise OptionError(message, hint="leave it out, and cast in the expression: TRY_CAST(… AS …)")
        properties = deprecate_positional_commit_args(
            "update",
            args,
            commit_properties,
            post_commithook_properties,
            legacy_order=("post_commithook_properties", "commit_properties"),
        )
        columns = new_columns(updates, new_values)
        metrics = update_call(self._handle, columns, predicate, writer_properties, properties, self.transaction_version)
        self.update_incremental()
        return metrics

    def create_write_transaction(
        self,
        actions: Sequence[AddAction | RemoveAction],
        mode: str,
        schema: Schema | pa.Schema,
        partition_by: list[str] | str | None = None,
        partition_filters: Where = None,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> None:
        """Commit data files that the caller has written, and removes of others, as one version.

        The files are in place below the table's root and have its columns; that they hold what the actions say is the
        caller's promise. ``mode="overwrite"`` removes all files, or those that ``partition_filters`` select; single
        ones are removed with ``append``. A file that is not there, has another size, or is not active is refused, and
        so are other columns than the table's.
        """
        from lazydelta.deltalake_api.changes.file_actions import commit_actions  # noqa: PLC0415 - as above

        commit_actions(
            self._handle,
            actions,
            mode=mode,
            schema=schema,
            partition_by=[partition_by] if isinstance(partition_by, str) else partition_by or (),
            partition_filters=partition_filters,
            properties=deprecate_positional_commit_args(
                "create_write_transaction", args, commit_properties, post_commithook_properties
            ),
            transaction_version=self.transaction_version,
        )
        self.update_incremental()

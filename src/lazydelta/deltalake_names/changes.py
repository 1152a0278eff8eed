"""Methods of deltalake that change a table, except maintenance: delete, update, and caller-defined actions.

``ChangesTable`` is defined here and not in its own module, because every import of lazydelta loads it.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from lazydelta.deltalake_names.parameters import NOT_GIVEN, by_position, deprecate_positional_commit_args
from lazydelta.errors import OptionError
from lazydelta.missing_names import known_arguments
from lazydelta.sidecar.handle import PinnedVersion, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa

    from lazydelta.deltalake_names.actions import AddAction, RemoveAction
    from lazydelta.deltalake_names.altering import TableAlterer
    from lazydelta.deltalake_names.commit_properties import CommitProperties, PostCommitHookProperties, WriterProperties
    from lazydelta.deltalake_names.maintenance import TableOptimizer
    from lazydelta.deltalake_names.merging import TableMerger
    from lazydelta.deltalake_names.storage_handler import RawDeltaTable
    from lazydelta.ingest.arrow import ArrowData
    from lazydelta.predicates import Where
    from lazydelta.protocol.delta_types import Schema

__all__ = ["ChangesTable"]


def _one_of(predicate: Where, where: Where) -> Where:
    if predicate is not None and where is not None:
        raise OptionError("`predicate` and `where` are both given", hint="pass only `where`")
    return where if predicate is None else predicate


class ChangesTable(PinnedVersion):
    """The requirements for changing a table: its snapshot, and a way to move to its newest version."""

    if TYPE_CHECKING:

        @abstractmethod
        def update_incremental(self) -> None: ...  # noqa: D102 - see the table's own

        @abstractmethod
        def transaction_version(self, app_id: str) -> int | None: ...  # noqa: D102

    @property
    def _table(self) -> RawDeltaTable:
        from lazydelta.deltalake_names.storage_handler import RawDeltaTable  # noqa: PLC0415 - see the head of this module

        return RawDeltaTable(self)

    @_table.setter
    def _table(self, _: object) -> None:
        """Accept deltalake's private object, which programs replace in tests. Nothing here goes through it."""

    def compact_logs(self, starting_version: int, ending_version: int) -> None:
        """Write one file of the log that readers read instead of the commits of these versions, which stay."""
        from lazydelta.maintenance.after_commit import compact_log  # noqa: PLC0415 - as above

        compact_log(snapshot_of(self).table, starting_version, ending_version)

    @known_arguments
    def delete(
        self,
        predicate: Where = None,
        writer_properties: WriterProperties | None = None,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
        where: Where = None,
    ) -> dict[str, Any]:
        """Delete the rows for which ``predicate`` (or ``where``) is true, or all rows, and return deltalake's metrics.

        It works on the newest version, and the table then moves to the version it committed; if no row matches, nothing
        is committed. Rows for which the predicate is null stay. Files in which every row matches according to the log
        are removed without being read; other files are copied without the matching rows.

        Args:
            predicate: The rows to delete; all by default.
            writer_properties: How Parquet files are written.
            *args: The commit properties by position, which deltalake deprecates.
            commit_properties: What the commit records, and how often it is tried.
            post_commithook_properties: What maintenance follows the commit.
            where: Another name of ``predicate``.

        Returns:
            deltalake's metrics, without ``num_deleted_rows`` if the log does not have the rows of a removed file.

        Raises:
            CommitConflictError: If another writer changed the same rows first.

        Example:
            >>> DeltaTable("table").delete(where="value >= 238")["num_deleted_rows"]
            2

        """
        from lazydelta.deltalake_names.actions import delete_call  # noqa: PLC0415 - not needed for reading

        properties = deprecate_positional_commit_args(
            "delete",
            args,
            commit_properties,
            post_commithook_properties,
            legacy_order=("post_commithook_properties", "commit_properties"),
        )
        predicate = _one_of(predicate, where)
        metrics = delete_call(self._snapshot.table, predicate, writer_properties, properties, self.transaction_version)
        self.update_incremental()
        return metrics

    @known_arguments
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
        where: Where = None,
    ) -> dict[str, Any]:
        """Update the rows for which ``predicate`` (or ``where``) is true, or all rows, and return deltalake's metrics.

        It works on the newest version, and the table then moves to the version it committed; if no row matches, nothing
        is committed.

        Args:
            updates: SQL expressions over the columns of the row, by column; DataFusion evaluates them
                (``pip install 'lazydelta[datafusion]'``).
            new_values: Python values by column.
            predicate: The rows to update; all by default.
            writer_properties: How Parquet files are written.
            error_on_type_mismatch: If false, values that a column cannot hold are null instead of an error.
            *args: The commit properties by position, which deltalake deprecates.
            commit_properties: What the commit records, and how often it is tried.
            post_commithook_properties: What maintenance follows the commit.
            where: Another name of ``predicate``.

        Returns:
            deltalake's metrics.

        Raises:
            CommitConflictError: If another writer changed the same rows first.

        Example:
            >>> DeltaTable("table").update(new_values={"value": 0.0}, where="value >= 236")["num_updated_rows"]
            4

        """
        from lazydelta.deltalake_names.actions import lenient, new_columns, update_call  # noqa: PLC0415 - as above

        properties = deprecate_positional_commit_args(
            "update",
            args,
            commit_properties,
            post_commithook_properties,
            legacy_order=("post_commithook_properties", "commit_properties"),
        )
        columns = new_columns(updates, new_values)
        if not error_on_type_mismatch:
            columns = lenient(columns)
        predicate = _one_of(predicate, where)
        metrics = update_call(
            self._snapshot.table, columns, predicate, writer_properties, properties, self.transaction_version
        )
        self.update_incremental()
        return metrics

    @known_arguments
    def merge(  # noqa: PLR0913, PLR0917 - deltalake's parameters
        self,
        source: ArrowData,
        predicate: str,
        source_alias: str | None = None,
        target_alias: str | None = None,
        merge_schema: bool = False,  # noqa: FBT001, FBT002
        error_on_type_mismatch: bool = True,  # noqa: FBT001, FBT002
        writer_properties: WriterProperties | None = None,
        streamed_exec: bool = True,  # noqa: ARG002, FBT001, FBT002
        max_spill_size: int | None = None,
        max_temp_directory_size: int | None = None,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> TableMerger:
        """Return a builder that merges the rows of ``source`` into the table; ``execute()`` runs it.

        ``predicate`` says which rows of the source and of the table match. It and the conditions and values of the
        clauses are SQL, which DuckDB evaluates (``pip install 'lazydelta[duckdb]'``); names have the alias of their
        table in front where both tables have them. Files that can hold no match are left out by the log: by the
        partition values and the ranges of the source's keys. ``merge_schema`` adds columns that a clause sets and the
        table lacks. Values that a column cannot hold are an error, or null with ``error_on_type_mismatch=False``. The
        source is read once, as a stream (``streamed_exec`` has no effect), and rows beyond ``max_spill_size`` bytes of
        memory are spilled to at most ``max_temp_directory_size`` bytes on disk. ``args`` are the commit properties by
        position, which deltalake deprecates.
        """
        from lazydelta.deltalake_names.merging import TableMerger  # noqa: PLC0415 - as above

        properties = deprecate_positional_commit_args(
            "merge",
            args,
            commit_properties,
            post_commithook_properties,
            legacy_order=("post_commithook_properties", "commit_properties"),
        )
        return TableMerger(
            self,
            source,
            predicate,
            source_alias=source_alias,
            target_alias=target_alias,
            adds_columns=merge_schema,
            nulls_for_misfits=not error_on_type_mismatch,
            writer_properties=writer_properties,
            memory_budget=max_spill_size,
            most_spilled=max_temp_directory_size,
            properties=properties,
        )

    @property
    def alter(self) -> TableAlterer:
        """Changes of columns, constraints, properties and features: ``alter.add_columns(…)`` and others."""
        from lazydelta.deltalake_names.altering import TableAlterer  # noqa: PLC0415 - not needed for reading

        return TableAlterer(self)

    @property
    def optimize(self) -> TableOptimizer:
        """Compaction of small files: ``optimize.compact()`` moves the table to its newest version."""
        from lazydelta.deltalake_names.maintenance import TableOptimizer  # noqa: PLC0415 - as above

        return TableOptimizer(self._snapshot, self.update_incremental)

    def vacuum(
        self,
        retention_hours: float | None = None,
        dry_run: bool = True,  # noqa: FBT001, FBT002
        enforce_retention_duration: bool = True,  # noqa: FBT001, FBT002
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
        full: bool = NOT_GIVEN,
        keep_versions: list[int] | None = None,
    ) -> list[str]:
        """Delete files that no version within the retention references, and return their paths relative to the root.

        The table then moves to its newest version, which records the vacuum; a dry run changes nothing.

        Args:
            retention_hours: By default the property ``delta.deletedFileRetentionDuration``, 7 days if there is none.
            dry_run: Delete nothing, and return what would be deleted.
            enforce_retention_duration: Refuse a shorter retention than the table promises.
            *args: The last four parameters by position, which deltalake deprecates.
            commit_properties: What the commit records, and how often it is tried.
            post_commithook_properties: What maintenance follows the commit.
            full: If false, list nothing, and delete only files that the log names as removed.
            keep_versions: Versions whose files stay.

        Returns:
            The paths.

        Raises:
            OptionError: If the retention is shorter than the table promises.

        Example:
            >>> DeltaTable("table").vacuum()
            []

        """
        from lazydelta.deltalake_names.maintenance import vacuum_call  # noqa: PLC0415 - as above

        last = by_position(
            "vacuum",
            args,
            {
                "post_commithook_properties": post_commithook_properties,
                "commit_properties": commit_properties,
                "full": None if full is NOT_GIVEN else full,
                "keep_versions": keep_versions,
            },
        )
        noted = (last["commit_properties"], last["post_commithook_properties"])
        paths = vacuum_call(
            self._snapshot.table,
            retention_hours,
            dry_run,
            enforce_retention_duration,
            last["keep_versions"],
            properties=noted,
            lite=last["full"] is False,
        )
        if not dry_run:
            self.update_incremental()
        return paths

    @known_arguments
    def restore(
        self,
        target: int | datetime | str,
        *,
        ignore_missing_files: bool = False,
        protocol_downgrade_allowed: bool = False,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> dict[str, Any]:
        """Make the table what it was at a version or a timestamp, in a new version, and return deltalake's metrics.

        Args:
            target: A version, or a timestamp.
            ignore_missing_files: Leave files out that are gone, with their rows, instead of an error.
            protocol_downgrade_allowed: Take the protocol of that version, too.
            commit_properties: What the commit records, and how often it is tried.
            post_commithook_properties: What maintenance follows the commit.

        Returns:
            deltalake's metrics.

        Raises:
            VersionNotFoundError: If the version was cleaned up or never written.

        Example:
            >>> table = DeltaTable("table")
            >>> metrics = table.restore(0)
            >>> table.count()
            240

        """
        from lazydelta.deltalake_names.altering import restore_call  # noqa: PLC0415 - as above

        metrics = restore_call(
            self,
            target,
            (commit_properties, post_commithook_properties),
            ignore_missing_files=ignore_missing_files,
            protocol_downgrade_allowed=protocol_downgrade_allowed,
        )
        self.update_incremental()
        return metrics

    def repair(
        self,
        dry_run: bool = False,  # noqa: FBT001, FBT002
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
    ) -> dict[str, Any]:
        """Remove files from the log that do not exist, and return their paths as ``files_removed``.

        If all files are there, nothing is committed. ``args`` are the commit properties by position, which deltalake
        deprecates.
        """
        from lazydelta.deltalake_names.altering import repair_call  # noqa: PLC0415 - as above

        properties = deprecate_positional_commit_args(
            "repair",
            args,
            commit_properties,
            post_commithook_properties,
            legacy_order=("post_commithook_properties", "commit_properties"),
        )
        metrics = repair_call(self, properties, dry_run=dry_run)
        self.update_incremental()
        return metrics

    def generate(self) -> None:
        """Write the lists of files that Presto, Athena and others read, one below ``_symlink_format_manifest`` each.

        Tables with deletion vectors or mapped columns are refused, because these engines do not know them.
        """
        from lazydelta.maintenance.restore import write_manifests  # noqa: PLC0415 - as above

        write_manifests(self._snapshot.table)

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
        """Commit data files that the caller has written, and removes of other files, as one version.

        The files must exist below the table root and have its columns; the caller is responsible for their contents
        matching the actions. ``mode="overwrite"`` removes all files, or those that ``partition_filters`` selects;
        ``append`` can remove single files. A file that is missing, has another size, or is not active is refused, and
        so are columns that differ from the table's.
        """
        from lazydelta.deltalake_names.actions import commit_actions  # noqa: PLC0415 - as above

        commit_actions(
            self._snapshot.table,
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

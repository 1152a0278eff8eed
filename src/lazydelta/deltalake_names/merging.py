"""``TableMerger``: the builder of a MERGE, with the methods and metrics of deltalake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lazydelta.deltalake_names.actions import Properties, change_settings
from lazydelta.deltalake_names.changes import ChangesTable
from lazydelta.deltalake_names.commit_properties import WriterProperties, maintains
from lazydelta.errors import OptionError
from lazydelta.ingest.arrow import ArrowData, open_data
from lazydelta.maintenance.after_commit import after_commit
from lazydelta.missing_names import AnswersNames, known_arguments
from lazydelta.sidecar.handle import snapshot_of
from lazydelta.write.row_changes.merge import MergeRequest, MergeResult, merge_rows
from lazydelta.write.row_changes.merge_clauses import MergeClause

__all__ = ["TableMerger", "merge_metrics"]


class TableMerger(AnswersNames):
    """The clauses of a MERGE, in the order in which they apply; ``execute`` runs it."""

    def __init__(  # noqa: PLR0913 - the parameters of ``DeltaTable.merge``
        self,
        table: ChangesTable,
        source: ArrowData,
        predicate: str,
        *,
        source_alias: str | None,
        target_alias: str | None,
        adds_columns: bool,
        nulls_for_misfits: bool,
        writer_properties: WriterProperties | None,
        memory_budget: int | None,
        most_spilled: int | None,
        properties: Properties,
    ) -> None:
        given: Any = predicate
        if not isinstance(given, str):
            message = f"The predicate of a merge is a SQL string, not {given!r}"
            raise OptionError(message, hint="write a condition: 'target.id = source.id'")
        self._table = table
        self._schema, self._batches = open_data(source)
        self._request = MergeRequest(
            predicate=predicate,
            clauses=(),
            source_alias=source_alias,
            target_alias=target_alias,
            adds_columns=adds_columns,
            nulls_for_misfits=nulls_for_misfits,
            most_spilled=most_spilled,
        )
        self._maintain = maintains(properties[1])
        settings = change_settings(writer_properties, properties[0], table.transaction_version)
        if memory_budget is not None:
            settings = replace(settings, recipe=replace(settings.recipe, memory_budget=memory_budget))
        self._settings = settings
        self._is_over = False

    @known_arguments
    def when_matched_update(self, updates: Mapping[str, str], predicate: str | None = None) -> TableMerger:
        """Update matched rows of the table; ``updates`` maps columns to SQL over both tables."""
        return self._with(MergeClause("matched", "update", predicate, dict(updates)))

    def when_matched_update_all(
        self, predicate: str | None = None, except_cols: Sequence[str] | None = None
    ) -> TableMerger:
        """Update matched rows of the table with all columns of the source except ``except_cols``."""
        return self._with(MergeClause("matched", "update", predicate, left_out=tuple(except_cols or ())))

    def when_matched_delete(self, predicate: str | None = None) -> TableMerger:
        """Delete matched rows of the table."""
        return self._with(MergeClause("matched", "delete", predicate))

    @known_arguments
    def when_not_matched_insert(self, updates: Mapping[str, str], predicate: str | None = None) -> TableMerger:
        """Insert rows of the source that match none of the table; ``updates`` maps columns to SQL over the source."""
        return self._with(MergeClause("not matched", "insert", predicate, dict(updates)))

    def when_not_matched_insert_all(
        self, predicate: str | None = None, except_cols: Sequence[str] | None = None
    ) -> TableMerger:
        """Insert rows of the source that match none of the table, with all their columns except ``except_cols``."""
        return self._with(MergeClause("not matched", "insert", predicate, left_out=tuple(except_cols or ())))

    @known_arguments
    def when_not_matched_by_source_update(
        self, updates: Mapping[str, str], predicate: str | None = None
    ) -> TableMerger:
        """Update rows of the table that match none of the source; ``updates`` maps columns to SQL over the table."""
        return self._with(MergeClause("not matched by source", "update", predicate, dict(updates)))

    def when_not_matched_by_source_delete(self, predicate: str | None = None) -> TableMerger:
        """Delete rows of the table that match none of the source."""
        return self._with(MergeClause("not matched by source", "delete", predicate))

    def _with(self, clause: MergeClause) -> TableMerger:
        self._request = replace(self._request, clauses=(*self._request.clauses, clause))
        return self

    def execute(self) -> dict[str, Any]:
        """Merge the rows in one commit, and return deltalake's metrics. The table moves to its newest version."""
        if self._is_over:
            raise OptionError(
                "This merge has already run, and its source can be read only once", hint="create a new merge"
            )
        handle = snapshot_of(self._table).table
        self._is_over = True
        result = merge_rows(handle, self._schema, self._batches, self._request, self._settings)
        if result.version is not None:
            after_commit(handle, result.version, result.metadata, maintain=self._maintain)
        self._table.update_incremental()
        return merge_metrics(result)


def merge_metrics(result: MergeResult) -> dict[str, Any]:
    """Return deltalake's metrics of a merge."""
    found = result.counts
    metrics = {
        "num_source_rows": found.source_rows,
        "num_target_rows_inserted": found.inserted,
        "num_target_rows_updated": found.updated,
        "num_target_rows_deleted": found.deleted,
        "num_target_rows_copied": found.copied,
        "num_output_rows": found.output_rows,
        "num_target_files_scanned": found.files_scanned,
        "num_target_files_skipped_during_scan": found.files_skipped,
        "num_target_files_added": found.files_added,
        "num_target_files_removed": found.files_removed,
        "execution_time_ms": round(result.seconds * 1000),
        "scan_time_ms": round(found.scan_seconds * 1000),
        "rewrite_time_ms": round(found.rewrite_seconds * 1000),
    }
    return {key: value for key, value in metrics.items() if value is not None}

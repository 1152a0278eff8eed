"""DELETE with the parameters and the answer that deltalake's users know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lazydelta.deltalake_api.commit_properties import (
    CommitProperties,
    PostCommitHookProperties,
    attempts_of,
    maintains,
    note_of,
)
from lazydelta.deltalake_api.parquet_properties import WriterProperties, compression_of, encoding_of
from lazydelta.handle import TableHandle
from lazydelta.maintenance.once import after_commit
from lazydelta.pruning import Where
from lazydelta.write.row_changes.deleting import DeleteSettings, delete_rows
from lazydelta.write.row_changes.row_rewriter import FileRecipe

__all__ = ["delete_call"]


def delete_call(
    handle: TableHandle,
    predicate: Where,
    writer_properties: WriterProperties | None,
    properties: tuple[CommitProperties | None, PostCommitHookProperties | None],
    transaction_version: Callable[[str], int | None],
) -> dict[str, Any]:
    """Delete rows of a table, and return deltalake's metrics."""
    commit, hooks = properties
    maintain = maintains(hooks)
    settings = DeleteSettings(
        recipe=FileRecipe(
            compression=compression_of(writer_properties, "zstd"), encoding=encoding_of(writer_properties)
        ),
        note=note_of(commit, transaction_version),
        max_attempts=attempts_of(commit, DeleteSettings().max_attempts),
    )
    result = delete_rows(handle, predicate, settings)
    if maintain and result.version is not None:
        after_commit(handle, result.version, result.metadata)
    found = result.deleted
    metrics = {
        "num_added_files": found.added_files,
        "num_removed_files": found.removed_files,
        "num_deleted_rows": found.rows,
        "num_copied_rows": found.copied_rows,
        "execution_time_ms": round(result.seconds * 1000),
        "scan_time_ms": round(found.scan_seconds * 1000),
        "rewrite_time_ms": round(found.rewrite_seconds * 1000),
    }
    return {key: value for key, value in metrics.items() if value is not None}

"""``lazydelta delete``: rows that match a predicate leave a table."""

from __future__ import annotations

from typing import Any

import click

from lazydelta.cli import sentences
from lazydelta.cli.output import INTERRUPTED, note
from lazydelta.cli.parameters import CONTEXT, where_option
from lazydelta.cli.table_target import TableTarget, target_command

__all__ = ["delete"]


@click.command("delete", context_settings=CONTEXT)
@target_command()
@where_option("Delete the rows for which this is true; SQL or JSON over any columns.")
@click.option("--all", "every", is_flag=True, help="Delete all rows, instead of --where.")
@click.option("--dry-run", is_flag=True, help="Change nothing, and tell what would be deleted.")
def delete(target: TableTarget, *, where: str | None, every: bool, dry_run: bool) -> None:
    """Delete the rows of a table that match a predicate, in one commit.

    Files without other rows leave whole, the rest is copied without the rows that match. Rows for which the predicate
    is null stay.
    """
    if (where is None) is not every:
        raise click.UsageError("Say which rows: --where PREDICATE, or --all for every row.")
    from lazydelta.maintenance.once import after_commit  # noqa: PLC0415 - loaded when the command runs, not for its help
    from lazydelta.write.row_changes.deleting import delete_rows  # noqa: PLC0415

    handle, version = target.handle, None
    try:
        with target.out.watch(lambda: "reading the log and the files in question"):
            result = delete_rows(handle, where, dry_run=dry_run)
            version = result.version
            if version is not None:
                after_commit(handle, version, result.metadata)
    except KeyboardInterrupt:
        note(_interrupted(version, dry_run=dry_run))
        click.get_current_context().exit(INTERRUPTED)
    found = result.deleted
    told: dict[str, Any] = {
        "dry_run": result.dry_run,
        "read_version": result.read_version,
        "version": result.version,
        "rows": found.rows,
        "copied_rows": found.copied_rows,
        "removed_files": found.removed_files,
        "removed_bytes": found.removed_bytes,
        "rewritten_files": found.rewritten_files,
        "added_files": found.added_files,
        "added_bytes": found.added_bytes,
    }
    target.out.tell(told, sentences.deleted)


def _interrupted(version: int | None, *, dry_run: bool) -> str:
    if dry_run:
        return "interrupted: nothing was changed"
    if version is not None:
        return f"interrupted when the rows were deleted, as version {version}; the next commit does what else is due"
    # Where Ctrl-C came while the commit was on its way, only the log knows. A second run is right in either case.
    return (
        "interrupted: one commit deletes all of the rows or none; the same command deletes those that are still there"
    )

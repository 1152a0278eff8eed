"""Rows that are replaced by others: an overwrite by predicate, of whole partitions or of rows inside of files."""

from __future__ import annotations

from collections.abc import Sequence

from lazydelta.errors import WriteError
from lazydelta.log.actions import Add
from lazydelta.pruning import Where, parse_predicate, stats_columns
from lazydelta.pruning.tree import Opaque, leaves
from lazydelta.rows import RowReader
from lazydelta.types.schema import TableSchema
from lazydelta.write.row_changes.change_files import ChangeFiles
from lazydelta.write.row_changes.row_choice import RowChoice
from lazydelta.write.row_changes.staged_deletion import stage_deletion
from lazydelta.write.transaction import Transaction

__all__ = ["stage_inserted", "stage_replacement"]


def stage_replacement(transaction: Transaction, where: Where) -> None:
    """Stage the removal of the rows that are to be replaced.

    Partitions leave by their values alone, whatever their files hold. Other predicates choose rows: files that hold
    some are copied without them. Any file that others add meanwhile and that may hold such rows rules it out.
    """
    snapshot = transaction.snapshot
    if snapshot is None:
        message = "There is no table to overwrite rows of"
        raise WriteError(message, path=transaction.store.uri, hint="create it first")
    predicate = parse_predicate(where, snapshot.schema)
    by_rows = predicate is not None and (
        stats_columns(predicate) or any(isinstance(leaf, Opaque) for leaf in leaves(predicate))
    )
    if by_rows:
        stage_deletion(transaction, RowChoice.of(predicate, snapshot.schema), any_append=True)
    else:
        transaction.remove_partitions(where)


def stage_inserted(transaction: Transaction, adds: Sequence[Add], table: TableSchema) -> None:
    """Record the rows of new files as inserted, where the transaction has change data.

    Readers go by that alone then. The files are in place, so they are read rather than their rows kept.
    """
    if not transaction.notes_changes:
        return
    reader, logged = RowReader(transaction.store, table), table.physical_partition_columns
    with ChangeFiles(transaction.store, table) as changes:
        for add in adds:
            partition = tuple(add.partition_values.get(name) or None for name in logged)
            for rows in reader.read(add):
                changes.note(rows, "insert", partition)
        transaction.add_own((), changes.close())

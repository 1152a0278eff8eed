"""A deletion as part of a transaction: what leaves and what is copied, staged in one pass over the files."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from lazydelta.log.properties import is_true
from lazydelta.write.removals import removal_of
from lazydelta.write.row_changes.change_files import ChangeFiles
from lazydelta.write.row_changes.row_choice import RowChoice
from lazydelta.write.row_changes.row_rewriter import FileRecipe, NewRows, RowRewriter
from lazydelta.write.row_changes.touched_files import TouchedFile, touched_files
from lazydelta.write.transaction import Transaction

__all__ = ["RowsDeleted", "records_changes", "stage_deletion"]

_IN_MEMORY = 1 << 20


@dataclass(slots=True)
class RowsDeleted:
    """What a deletion does; ``rows`` is None where files leave whole of which nobody has counted the rows.

    ``rewritten_files`` are those of the files that leave which had to be read.
    """

    removed_files: int = 0
    removed_bytes: int = 0
    added_files: int = 0
    added_bytes: int = 0
    change_files: int = 0
    rewritten_files: int = 0
    rows: int | None = 0
    copied_rows: int = 0
    scan_seconds: float = 0.0
    rewrite_seconds: float = 0.0

    def count(self, file: TouchedFile, rows: int | None) -> None:
        """Count a file that leaves, and how many of its rows are deleted."""
        self.removed_files += 1
        self.rewritten_files += not file.is_whole
        self.removed_bytes += file.add.size
        self.rows = None if self.rows is None or rows is None else self.rows + rows


def records_changes(transaction: Transaction) -> bool:
    """Tell whether the table has change data."""
    metadata = transaction.metadata
    return metadata is not None and is_true(metadata, "delta.enableChangeDataFeed")


def stage_deletion(
    transaction: Transaction,
    choice: RowChoice,
    recipe: FileRecipe | None = None,
    *,
    new: NewRows | None = None,
    any_append: bool = False,
) -> RowsDeleted:
    """Stage the deletion of the rows that are chosen; files are in place then, and belong to the transaction.

    With ``new`` other rows take their place, and no file leaves unread. With ``any_append`` the transaction is ruled
    out by every file that others add and that may hold such rows, else only by what they did not add blindly: rows that
    rest on nothing may as well come after the deletion.
    """
    snapshot, handle, found = transaction.snapshot, transaction.handle, RowsDeleted()
    if snapshot is None:
        return found
    transaction.rest_on_rows(choice, any_append=any_append)
    begun = time.monotonic()
    changes = ChangeFiles(handle.store, choice.table) if records_changes(transaction) else None
    rewriter = RowRewriter(handle, choice, snapshot.metadata, recipe or FileRecipe(), changes, new)
    leaving, now = _Leaving(), time.time_ns() // 1_000_000
    with changes or nullcontext(), rewriter, leaving:
        for file in touched_files(handle, snapshot, choice):
            if file.is_whole and new is None:
                leaving.add(file)
                found.count(file, file.rows)
            else:
                since = time.monotonic()
                before = rewriter.gone
                rewriter.rewrite(file)
                found.count(file, rewriter.gone - before)
                found.rewrite_seconds += time.monotonic() - since
            transaction.remove_found(removal_of(file.add, now))
        if changes is not None and leaving.count < found.removed_files:
            # Where a commit has change data, nothing else in it tells what was changed.
            for file in leaving:
                rewriter.note_deleted(file)
            found.rows = rewriter.gone
        adds, noted = rewriter.close(), [] if changes is None else changes.close()
        transaction.add_own(adds, noted)
    found.added_files, found.added_bytes = len(adds), sum(each.size for each in adds)
    found.change_files, found.copied_rows = len(noted), rewriter.copied
    found.scan_seconds = time.monotonic() - begun - found.rewrite_seconds
    return found


class _Leaving:
    """The files that leave whole, in a temporary file: there may be very many of them."""

    def __init__(self) -> None:
        self._lines: Any = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="lazydelta-delete-")  # noqa: SIM115
        self.count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def add(self, file: TouchedFile) -> None:
        self._lines.write(msgspec.json.encode(file) + b"\n")
        self.count += 1

    def __iter__(self) -> Iterator[TouchedFile]:
        self._lines.seek(0)
        decoder = msgspec.json.Decoder(TouchedFile)
        for line in self._lines:
            yield decoder.decode(line)

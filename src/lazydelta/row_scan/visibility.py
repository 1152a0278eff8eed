"""Files that the log names and the store does not show yet: looked for again, briefly."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from lazydelta.errors import DataFileError, ObjectNotFoundError
from lazydelta.row_scan.row_metrics import RowMetrics
from lazydelta.rows.opened_file import OpenedFile

__all__ = ["open_when_visible"]

# A commit is written after its files. Where it is seen first, the store is a moment behind; a file that was deleted
# stays away, and nobody should wait long to be told.
_PAUSES = (0.05, 0.2, 0.5)


def open_when_visible(open_file: Callable[[], OpenedFile], stopped: Event, metrics: RowMetrics) -> OpenedFile:
    """Open a file; if it is not there, look again a few times before that is an error."""
    for pause in _PAUSES:
        try:
            return open_file()
        except DataFileError as error:
            if not isinstance(error.__cause__, ObjectNotFoundError) or stopped.wait(pause):
                raise
            metrics.add(files_looked_for_again=1)
    try:
        return open_file()
    except DataFileError as error:
        if not isinstance(error.__cause__, ObjectNotFoundError):
            raise
        message = f"Data file {error.path} does not exist, also after {len(_PAUSES) + 1} looks"
        hint = "it may have been vacuumed; read a newer version of the table"
        raise DataFileError(message, path=error.path, hint=hint) from error.__cause__

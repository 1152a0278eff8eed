"""Which tables there are: the configured ones, and those that are found in the folders below roots.

Folders are looked into one by one, in the order of their names, and only where a table for this client may be: below a
name that it may read and that begins as it asked for. A folder with a log in it is a table, and nothing below it is
looked at. Both tables and folders are bounded, because a root may hold anything; what is cut is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from lazydelta.errors import StorageError, StreamClosedError
from lazydelta.log.names import LOG
from lazydelta.serve.served_tables import LONGEST_NAME, Identity, ServedTables, is_folder_name

__all__ = ["TableListing"]

_log = logging.getLogger(__name__)
_FOLDERS_A_TABLE = 10


class TableListing:
    """The names of tables for one client, at most ``most``; ``is_cut`` tells whether there may be others."""

    def __init__(
        self, tables: ServedTables, identity: Identity, *, most: int, left: Callable[[], bool] = lambda: False
    ) -> None:
        self._tables = tables
        self._identity = identity
        self._most = most
        self._left = left
        self._folders = 0
        self.is_cut = False

    def names(self, prefix: str = "") -> list[str]:
        """Return the names that begin with ``prefix``, the configured ones first."""
        found = [name for name in self._tables.names_for(self._identity) if name.startswith(prefix)]
        for root in self._tables.roots():
            try:
                for name in self._below(root, "", prefix):
                    if len(found) >= self._most:
                        self.is_cut = True
                        return found
                    found.append(name)
            except StorageError as error:
                # A root that cannot be listed hides neither the others nor the tables that have names of their own.
                _log.warning("The tables below the root %r are not listed: %s", root, error)
                self.is_cut = True
        self.is_cut = self.is_cut or len(found) > self._most
        return found[: self._most]

    def _below(self, root: str, below: str, prefix: str) -> Iterator[str]:
        """Yield the tables in a folder below a root, itself or deeper."""
        folder = f"{root}/{below}" if below else root
        if len(folder) > LONGEST_NAME or not _meet(f"{folder}/", prefix) or not self._identity.may_read_below(folder):
            return
        if self._left():
            raise StreamClosedError("The client has left")
        self._folders += 1
        if self._folders > self._most * _FOLDERS_A_TABLE:
            self.is_cut = True
            return
        inside = self._tables.folders(root, below)
        if LOG in inside:
            if below and self._identity.may_read(folder) and folder.startswith(prefix):
                yield folder
            return
        for name in inside:
            if is_folder_name(name):
                yield from self._below(root, f"{below}/{name}" if below else name, prefix)


def _meet(folder: str, prefix: str) -> bool:
    return folder.startswith(prefix) or prefix.startswith(folder)

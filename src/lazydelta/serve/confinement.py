"""``Confinement``: which files of this machine the log of a served table may lead to.

In a table on a local disk a log can name any file by its absolute path, and a folder can be a link to another. For a
program that reads its own tables that is its own business. A server reads for others, so every file whose rows it is
going to read has to lie below the folders that it was configured with, links resolved.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from lazydelta.errors import ExternalLocationError
from lazydelta.log.file_batch import FileBatch
from lazydelta.storage import Store

__all__ = ["Confinement"]


class Confinement:
    """Checks the files of one table on a local disk before their rows are read."""

    def __init__(self, store: Store, folders: Iterable[str]) -> None:
        self._store = store
        self._folders = tuple(folders)

    def check(self, files: Iterable[tuple[str, Mapping[str, object] | None]]) -> None:
        """Refuse files, or deletion vectors, that lie anywhere else."""
        for path, vector in files:
            self._check_one(path)
            if vector is not None and vector["storageType"] == "p":
                self._check_one(str(vector["pathOrInlineDv"]))

    def check_batch(self, files: FileBatch) -> None:
        """Check the files of a batch."""
        vectors = [None] * len(files) if files.deletion_vector is None else files.deletion_vector.to_pylist()
        self.check(zip(files.path.to_pylist(), vectors, strict=True))

    def _check_one(self, path: str) -> None:
        found = os.path.realpath(self._store.uri_of(path))
        if any(found == each or found.startswith(each.rstrip("/") + "/") for each in self._folders):
            return
        message = "The log names a file outside the folders that this server may read"
        raise ExternalLocationError(message, path=path, hint="the owner of the table can tell why it is there")

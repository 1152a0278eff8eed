"""``KeptFiles``: where everything is that a version within the retention refers to.

A set of places below the root, as hashes of sixteen bytes that go to disk where there are many. A place that is in the
set by mistake costs some space; one that is missing costs data. So a path that leads elsewhere, or that cannot be
resolved at all, protects whatever below the root ends like it: another account's name, a mount or a link may be another
spelling of this very folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from urllib.parse import unquote

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.arrays import string_array
from lazydelta.errors import LazyDeltaError
from lazydelta.log.actions import DeletionVector
from lazydelta.log.keys import hash_bytes
from lazydelta.log.remove_set import RemoveSet
from lazydelta.rows.deletion_vectors import vector_path
from lazydelta.storage import Store, is_plain

__all__ = ["KeptFiles"]


class KeptFiles:
    """The places of data files and deletion vectors that must stay."""

    def __init__(self, store: Store, memory_limit: int) -> None:
        self._store = store
        self._places = RemoveSet(memory_limit)

    def __len__(self) -> int:
        return len(self._places)

    def keep(self, path: pa.Array, deletion_vector: pa.Array | None = None) -> None:
        """Keep files as the log names them, and the files of their deletion vectors."""
        logged: list[str] = path.to_pylist()
        self.keep_paths(logged)
        if deletion_vector is not None and deletion_vector.null_count < len(deletion_vector):
            vectors = zip(deletion_vector.to_pylist(), logged, strict=True)
            self.keep_vectors((msgspec.convert(each, DeletionVector), file) for each, file in vectors if each)

    def keep_paths(self, logged: Iterable[str]) -> None:
        """Keep files as the log names them."""
        places: list[str] = []
        for each in logged:
            if is_plain(each):
                places.append(each)
            else:
                places += self._places_of(each)
        self._add(places)

    def keep_vectors(self, vectors: Iterable[tuple[DeletionVector, str]]) -> None:
        """Keep the files of deletion vectors, each given with its data file."""
        named: list[str] = []
        logged: list[str] = []
        for vector, file in vectors:
            if vector.storage_type == "p":
                logged.append(vector.path_or_inline_dv)
            elif vector.storage_type != "i":
                named.append(vector_path(vector, file))
        self._add(named)
        self.keep_paths(logged)

    def has(self, places: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Tell which of these decoded paths below the root must stay."""
        return self._places.contains(hash_bytes(string_array(places)))

    def close(self) -> None:
        """Give back memory and temporary files."""
        self._places.close()

    def _add(self, places: Sequence[str]) -> None:
        if places:
            self._places.add_hashes(hash_bytes(string_array(places)))

    def _places_of(self, logged: str) -> set[str]:
        # As it stands, too: there are writers that encode nothing, and then a percent sign is one.
        found = {logged}
        try:
            store, path = self._store.locate(logged)
        except LazyDeltaError:
            return found | _endings(unquote(logged))
        return found | ({path} if store is self._store else _endings(path))


def _endings(path: str) -> set[str]:
    segments = [each for each in path.split("/") if each not in {"", ".", ".."}]
    return {"/".join(segments[start:]) for start in range(len(segments))}

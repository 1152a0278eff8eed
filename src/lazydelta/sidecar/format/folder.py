"""Files in ``_delta_log/_sidecars``: recognizes ours by name and ignores all others.

The folder also holds the sidecars of official V2 checkpoints, whose names are bare UUIDs. All deletions in the folder
go through this module, so that only our own files are touched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from lazydelta.errors import ObjectNotFoundError
from lazydelta.log.segment import list_from
from lazydelta.protocol.file_names import MAX_VERSION, FileKind
from lazydelta.sidecar.format.columns import FOLDER
from lazydelta.sidecar.format.manifest import file_identity
from lazydelta.storage import ObjectInfo, Store

__all__ = ["FolderFile", "are_in_place", "list_folder", "listed_checkpoints"]

_UUID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_NAME = re.compile(
    r"v(?P<version>0|[1-9]\d{0,18})"
    r"(?:(?P<manifest>\.manifest\.json)|(?P<single>\.parquet)|\.(?:index|stats)\.parquet|"
    rf"-{_UUID}(?:(?P<leaves>\.leaves)|-[1-9]\d*(?:\.(?:index|stats))?\.parquet))"
)
_PARTS_ASKED_ONE_BY_ONE = 4


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A lazydelta file in the folder; ``kind`` is manifest, leaves, single, part, or temporary (with version -1)."""

    info: ObjectInfo
    version: int
    kind: str

    @property
    def path(self) -> str:
        """Return the path relative to the table root."""
        return self.info.path


def list_folder(store: Store) -> list[FolderFile]:
    """Return the lazydelta files in the folder."""
    # Official sidecars, whose names are UUIDs, come before ours and may be many.
    return [file for info in store.list(FOLDER, after="v") if (file := _ours(info)) is not None]


def _ours(info: ObjectInfo) -> FolderFile | None:
    match = _NAME.fullmatch(info.path.rpartition("/")[2])
    if match is None or int(match["version"]) > MAX_VERSION:
        return None
    kind = next((name for name in ("manifest", "leaves", "single") if match[name]), "part")
    return FolderFile(info, int(match["version"]), kind)


def are_in_place(store: Store, wanted: Mapping[str, int]) -> bool:
    """Return whether all files exist with their sizes; many files are looked up with one listing."""
    if len(wanted) <= _PARTS_ASKED_ONE_BY_ONE:
        found = {path: size for path in wanted if (size := _size_of(store, path)) is not None}
    else:
        found = {info.path: info.size for info in store.list(FOLDER)}
    return all(found.get(path) == size for path, size in wanted.items())


def _size_of(store: Store, path: str) -> int | None:
    try:
        return store.head(path).size
    except ObjectNotFoundError:
        return None


def listed_checkpoints(store: Store, first: int, last: int) -> frozenset[tuple[str, int]]:
    """Return the checkpoint files of these versions that are in the log now, by name and size."""
    return frozenset(
        file_identity(file.info) for file in list_from(store, first, last) if file.kind is FileKind.CHECKPOINT
    )

"""Which delta sidecars nobody needs any more.

Those stay that the manifest names, as long as one of them reaches beyond the newest checkpoint; once none does, all go
with the manifest. What it does not name was merged into another one, or belongs to a run that is at work or was killed:
it goes by its age.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lazydelta.errors import ObjectNotFoundError
from lazydelta.log.names import MAX_VERSION
from lazydelta.sidecar.layout.delta_manifest import DeltaManifest
from lazydelta.sidecar.layout.folder import FolderFile
from lazydelta.sidecar.layout.manifest import SidecarError
from lazydelta.sidecar.layout.sidecar_columns import DELTA_MANIFEST, FOLDER
from lazydelta.storage import Store

__all__ = ["list_deltas", "parted_deltas"]

_UUID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_NAME = rf"v(?:0|[1-9]\d{{0,18}})_(?P<last>[1-9]\d{{0,18}})(?:-{_UUID})?\.delta\.parquet"


def list_deltas(store: Store) -> list[FolderFile]:
    """Return the delta sidecars in the folder and their manifest, and nothing else."""
    found: list[FolderFile] = []
    for info in store.list(FOLDER):
        match = re.fullmatch(_NAME, info.path.rpartition("/")[2])
        if info.path == DELTA_MANIFEST:
            found.append(FolderFile(info, -1, "manifest"))
        elif match is not None and int(match["last"]) <= MAX_VERSION:
            found.append(FolderFile(info, int(match["last"]), "delta"))
    return found


def parted_deltas(
    store: Store, files: Sequence[FolderFile], base_version: int, deadline: float
) -> tuple[list[FolderFile], list[FolderFile]]:
    """Return which files may go and which stay, given the newest checkpoint; what is younger than that stays."""
    named = _named(store, files, base_version)
    young = {file.path for file in files if file.info.last_modified > deadline}
    if DELTA_MANIFEST in young:
        named |= _named(store, files, -1)  # it is not judged, and what it refers to stays with it
    doomed = [file for file in files if file.path not in named | young]
    return doomed, [file for file in files if file.path in named | young]


def _named(store: Store, files: Sequence[FolderFile], base_version: int) -> set[str]:
    """Return the manifest and what it names, if it reaches beyond a version; nothing if not, or if it is damaged."""
    if not any(file.path == DELTA_MANIFEST for file in files):
        return set()
    try:
        spans = DeltaManifest.decode(store.get(DELTA_MANIFEST)).spans
    except (SidecarError, ObjectNotFoundError):
        return set()
    return (
        {DELTA_MANIFEST, *(each.file for each in spans)} if any(each.last > base_version for each in spans) else set()
    )

"""Which delta sidecars a table has, and of which use they are now; their list and the listing of the log tell."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lazydelta.errors import ObjectNotFoundError
from lazydelta.log.segment import LogSegment
from lazydelta.log.snapshot import Snapshot
from lazydelta.sidecar.layout.delta_manifest import DeltaEntry, DeltaManifest
from lazydelta.sidecar.layout.folder import FolderFile
from lazydelta.sidecar.layout.manifest import SidecarError
from lazydelta.sidecar.layout.sidecar_columns import DELTA_MANIFEST
from lazydelta.sidecar.upkeep.delta_upkeep import list_deltas
from lazydelta.storage import Store

__all__ = ["ShownDelta", "shown_deltas"]


class ShownDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A delta sidecar: the actions of commits ``first`` to ``last``.

    ``state`` is ``good`` as far as can be told without reading it (`verify` does); ``behind`` if the checkpoint has all
    that is in it; ``stale`` if the log has other commits of its versions, ``missing`` if it or a part of it is gone.
    """

    file: str
    first: int
    last: int
    adds: int
    removes: int
    size_bytes: int
    num_row_groups: int
    state: str


def shown_deltas(store: Store, snapshot: Snapshot) -> tuple[list[ShownDelta], list[FolderFile], str | None]:
    """Return the delta sidecars that are listed, the files that are not, and what is wrong with the list."""
    files = {file.path: file for file in list_deltas(store)}
    there = {path: file.info.size for path, file in files.items()}
    spans: tuple[DeltaEntry, ...] = ()
    wrong = None
    try:
        if DELTA_MANIFEST in files:
            spans = DeltaManifest.decode(store.get(DELTA_MANIFEST)).spans
    except (SidecarError, ObjectNotFoundError) as error:
        wrong = f"{DELTA_MANIFEST} is not valid: {error}"
    shown = [
        ShownDelta(
            file=entry.file,
            first=entry.first,
            last=entry.last,
            adds=entry.num_adds,
            removes=entry.num_removes,
            size_bytes=entry.size,
            num_row_groups=len(entry.row_groups),
            state=_state(entry, snapshot, there),
        )
        for entry in spans
    ]
    named = {DELTA_MANIFEST, *(entry.file for entry in spans)}
    return shown, [file for path, file in files.items() if path not in named], wrong


def _state(entry: DeltaEntry, snapshot: Snapshot, there: Mapping[str, int]) -> str:
    segment: LogSegment = snapshot.segment
    if entry.last <= segment.base_version:
        return "behind"
    if there.get(entry.file) != entry.size:
        return "missing"
    commits = [commit for commit in segment.commits if entry.first <= commit.version <= entry.last]
    is_this = entry.table_id == snapshot.metadata.id and entry.last <= segment.version
    return "good" if is_this and entry.stale_commit(commits) is None else "stale"

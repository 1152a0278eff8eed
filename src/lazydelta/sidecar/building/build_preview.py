"""What a build of a sidecar would do, and how much there is to do, before it is begun."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lazydelta.handle import TableHandle
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.sidecar.building.planning import at_checkpoint, plan_sidecar
from lazydelta.sidecar.building.publication import load_manifest

__all__ = ["BuildPreview", "preview"]


class BuildPreview(msgspec.Struct, frozen=True, kw_only=True):
    """``action`` is build, replace or keep; ``actions`` counts what the checkpoint holds, nearly all of it files."""

    version: int
    action: str
    actions: int
    size_bytes: int
    sort: list[str]
    engine: str = "local"
    dry_run: bool = True


def preview(
    handle: TableHandle, version: int | None = None, *, sort_by: Sequence[str] | None = None, force: bool = False
) -> BuildPreview:
    """Look at the newest checkpoint, or at that of ``version``; only its footers and a few files are read."""

    def work(snapshot: Snapshot, checkpoint: Checkpoint) -> BuildPreview:
        reader = CheckpointReader(handle.store, checkpoint)
        parts = list(reader.parts())
        there = load_manifest(handle.store, snapshot, checkpoint) is not None
        plan = plan_sidecar(snapshot, checkpoint, sort_by)
        return BuildPreview(
            version=checkpoint.version,
            action=("replace" if force else "keep") if there else "build",
            actions=sum(sum(reader.row_counts(part) or ()) for part in parts),
            size_bytes=sum(part.info.size for part in parts),
            sort=[".".join(each.path) for each in plan.layout.sort],
        )

    return at_checkpoint(handle.store, version, work)

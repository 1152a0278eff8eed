"""``show``: what a sidecar consists of, as data; drawing it is the command's business."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lazydelta.errors import OptionError, StorageError
from lazydelta.handle import TableHandle
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.snapshot_opening import open_snapshot
from lazydelta.sidecar.inspection.shown_deltas import ShownDelta, shown_deltas
from lazydelta.sidecar.layout.folder import FolderFile, list_folder
from lazydelta.sidecar.layout.leaves import every_part
from lazydelta.sidecar.layout.manifest import ManifestIndex, ManifestPart, ManifestRowGroup, RangeText, SidecarError
from lazydelta.sidecar.layout.part_file import part_footer
from lazydelta.sidecar.layout.part_reader import whole_layout
from lazydelta.sidecar.layout.sidecar_columns import FOLDER, SidecarLayout
from lazydelta.sidecar.reading.discovery import check_single, read_single
from lazydelta.storage import Store

__all__ = ["ShownDelta", "ShownPart", "ShownRowGroup", "SidecarInfo", "show"]


class ShownRowGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A row group: how many files, how many bytes, and between which values of the first sort column."""

    index: int
    num_rows: int
    size_bytes: int
    min: str | None
    max: str | None
    first: tuple[str | None, ...]
    last: tuple[str | None, ...]
    ranges: dict[str, RangeText]


class ShownPart(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of the sidecar with its row groups; ``size_bytes`` counts that of its second tier, too."""

    file: str
    size_bytes: int
    num_rows: int
    row_groups: list[ShownRowGroup]


class SidecarInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sidecar as its manifest (tier 1) or its single file (tier 2) describes it.

    ``checkpoint_version`` is the newest checkpoint that the log has: scans of it use the sidecar only if ``version`` is
    the same. ``manifests`` are the versions that have a manifest; ``other_files`` are files of ours in the folder
    that this sidecar does not need, some of which `clean` may remove. ``deltas`` are the delta sidecars, ascending, and
    ``delta_problem`` says why their list cannot be used. Where a table has those alone, ``version`` and ``tier`` are
    None.
    """

    uri: str
    version: int | None
    checkpoint_version: int | None
    tier: int | None
    num_files: int
    size_bytes: int
    num_row_groups: int
    sort: list[str]
    columns: list[str]
    parts: list[ShownPart]
    manifests: list[int]
    other_files: int
    other_bytes: int
    deltas: list[ShownDelta] = []
    delta_problem: str | None = None


def show(
    table_uri: str | os.PathLike[str],
    version: int | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> SidecarInfo:
    """Describe the sidecar of ``version``, or the newest one there is; only footers and manifests are read.

    The delta sidecars of the table are listed with it.
    """
    store = TableHandle.open(table_uri, storage_options, options).store
    snapshot = open_snapshot(store)
    files = list_folder(store)
    wanted = [each for each in files if each.kind in {"manifest", "single"} and version in (None, each.version)]
    reasons: list[str] = []
    # A manifest is preferred to the single file of its version.
    for file in sorted(wanted, key=lambda each: (-each.version, each.kind != "manifest")):
        try:
            return _with_deltas(_describe(store, snapshot, file, files), store, snapshot)
        except (SidecarError, StorageError) as error:
            reasons.append(f"{file.path} cannot be used: {error}")
    if version is None and not reasons:
        alone = _with_deltas(_without_sidecar(store, snapshot), store, snapshot)
        if alone.deltas:
            return alone
    which = "no sidecar" if version is None else f"no sidecar of version {version}"
    message = "; ".join([f"{store.uri} has {which}", *reasons])
    raise OptionError(message, path=FOLDER, version=version, hint="`lazydelta sidecar build` makes one")


def _with_deltas(info: SidecarInfo, store: Store, snapshot: Snapshot) -> SidecarInfo:
    deltas, others, wrong = shown_deltas(store, snapshot)
    return msgspec.structs.replace(
        info,
        deltas=deltas,
        delta_problem=wrong,
        other_files=info.other_files + len(others),
        other_bytes=info.other_bytes + sum(each.info.size for each in others),
    )


def _without_sidecar(store: Store, snapshot: Snapshot) -> SidecarInfo:
    checkpoint = snapshot.segment.checkpoint
    return SidecarInfo(
        uri=store.uri,
        version=None,
        checkpoint_version=None if checkpoint is None else checkpoint.version,
        tier=None,
        num_files=0,
        size_bytes=0,
        num_row_groups=0,
        sort=[],
        columns=[],
        parts=[],
        manifests=[],
        other_files=0,
        other_bytes=0,
    )


def _describe(store: Store, snapshot: Snapshot, file: FolderFile, files: list[FolderFile]) -> SidecarInfo:
    checkpoint = snapshot.segment.checkpoint
    if file.kind == "manifest":
        manifest = ManifestIndex.decode(store.get(file.path))
        every = every_part(store, manifest)
        layout, needed = whole_layout(store, every), {file.path, *every.files}
        # A long manifest leaves row groups to the footers.
        shown = [
            _part(part, part_footer(store, part).row_groups() if groups is None else groups)
            for part, groups in zip(every.parts, map(every.groups_of, range(len(every.parts))), strict=True)
        ]
    else:
        part, footer = read_single(store, file.path)
        if checkpoint is not None and checkpoint.version == file.version:
            check_single(footer, part, snapshot, checkpoint)
        layout, needed = footer.state.layout, {file.path}
        shown = [_part(part, footer.row_groups())]
    others = [each for each in files if each.path not in needed]
    return SidecarInfo(
        uri=store.uri,
        version=file.version,
        checkpoint_version=None if checkpoint is None else checkpoint.version,
        tier=1 if file.kind == "manifest" else 2,
        num_files=sum(part.num_rows for part in shown),
        size_bytes=sum(part.size_bytes for part in shown),
        num_row_groups=sum(len(part.row_groups) for part in shown),
        sort=_sort_names(layout, snapshot),
        columns=[column.name for column in layout.columns],
        parts=shown,
        manifests=sorted(each.version for each in files if each.kind == "manifest"),
        other_files=len(others),
        other_bytes=sum(each.info.size for each in others),
    )


def _part(part: ManifestPart, groups: Sequence[ManifestRowGroup]) -> ShownPart:
    return ShownPart(
        file=part.file,
        size_bytes=sum(part.files.values()),
        num_rows=part.num_rows,
        row_groups=[
            ShownRowGroup(
                index=group.index,
                num_rows=group.num_rows,
                size_bytes=group.byte_length,
                min=group.event_hour_min,
                max=group.event_hour_max,
                first=group.first,
                last=group.last,
                ranges=group.ranges,
            )
            for group in groups
        ],
    )


def _sort_names(layout: SidecarLayout, snapshot: Snapshot) -> list[str]:
    names = {column.physical_path: column.name for column in snapshot.schema.leaves()}
    return [names.get(each.path, ".".join(each.path)) for each in layout.sort]

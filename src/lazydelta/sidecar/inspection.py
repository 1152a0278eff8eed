"""``show``: describes the contents of a sidecar as data; the command renders it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lazydelta.errors import LazyDeltaError, ObjectNotFoundError, OptionError, StorageError
from lazydelta.log.segment import LogSegment
from lazydelta.log.snapshot import LogSnapshot, open_snapshot
from lazydelta.sidecar.format.columns import DELTA_MANIFEST, FOLDER, SidecarLayout, sidecar_path
from lazydelta.sidecar.format.delta_file import DeltaEntry, DeltaManifest
from lazydelta.sidecar.format.leaves import every_part
from lazydelta.sidecar.format.manifest import (
    FolderFile,
    ManifestIndex,
    ManifestPart,
    ManifestRowGroup,
    RangeText,
    SidecarError,
    list_folder,
)
from lazydelta.sidecar.format.part_file import part_footer, whole_layout, whole_layout_of
from lazydelta.sidecar.handle import TableHandle
from lazydelta.sidecar.lifecycle import list_deltas
from lazydelta.sidecar.reading.discovery import check_single, read_single
from lazydelta.storage import Store

__all__ = ["ShownRowGroup", "SidecarInfo", "show", "why_absent"]


# List the delta sidecars of a table and their current state, from their manifest and the log listing.


class ShownDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A delta sidecar with the actions of commits ``first`` to ``last``.

    ``state`` is ``good`` as far as can be determined without reading it (`verify` reads it), ``behind`` if the
    checkpoint covers all of its commits, ``stale`` if the log has different commits of its versions, and ``missing`` if
    it or a part of it was deleted.
    """

    file: str
    first: int
    last: int
    adds: int
    removes: int
    size_bytes: int
    num_row_groups: int
    state: str


def shown_deltas(store: Store, snapshot: LogSnapshot) -> tuple[list[ShownDelta], list[FolderFile], str | None]:
    """Return the listed delta sidecars, the unlisted files, and the problem with the manifest, if any."""
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


def _state(entry: DeltaEntry, snapshot: LogSnapshot, there: Mapping[str, int]) -> str:
    segment: LogSegment = snapshot.segment
    if entry.last <= segment.base_version:
        return "behind"
    if there.get(entry.file) != entry.size:
        return "missing"
    commits = [commit for commit in segment.commits if entry.first <= commit.version <= entry.last]
    is_this = entry.table_id == snapshot.metadata.id and entry.last <= segment.version
    return "good" if is_this and entry.stale_commit(commits) is None else "stale"


class ShownRowGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A row group: file count, size in bytes, and the value range of the first sort column."""

    index: int
    num_rows: int
    size_bytes: int
    min: str | None
    max: str | None
    first: tuple[str | None, ...]
    last: tuple[str | None, ...]
    ranges: dict[str, RangeText]


class ShownPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the sidecar with its row groups; ``size_bytes`` includes its second tier."""

    file: str
    size_bytes: int
    num_rows: int
    row_groups: list[ShownRowGroup]


class SidecarInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A sidecar as described by its manifest (tier 1) or its single file (tier 2).

    ``checkpoint_version`` is the newest checkpoint in the log: scans of it use the sidecar only if ``version`` is the
    same. ``manifests`` are the versions with a manifest. ``other_files`` are lazydelta files in the folder that this
    sidecar does not need; `clean` can remove some of them. ``deltas`` are the delta sidecars, ascending, and
    ``delta_problem`` says why their manifest cannot be used. If a table has only delta sidecars, ``version`` and
    ``tier`` are None.
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
    """Describe the sidecar of ``version``, or the newest one; only footers and manifests are read.

    The result includes the delta sidecars of the table.
    """
    store = TableHandle.open(table_uri, storage_options, options).store
    snapshot = open_snapshot(store)
    files = list_folder(store)
    wanted = [each for each in files if each.kind in {"manifest", "single"} and version in (None, each.version)]
    reasons: list[str] = []
    # Prefer a manifest to the single file of its version.
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


def _with_deltas(info: SidecarInfo, store: Store, snapshot: LogSnapshot) -> SidecarInfo:
    deltas, others, wrong = shown_deltas(store, snapshot)
    return msgspec.structs.replace(
        info,
        deltas=deltas,
        delta_problem=wrong,
        other_files=info.other_files + len(others),
        other_bytes=info.other_bytes + sum(each.info.size for each in others),
    )


def _without_sidecar(store: Store, snapshot: LogSnapshot) -> SidecarInfo:
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


def _describe(store: Store, snapshot: LogSnapshot, file: FolderFile, files: list[FolderFile]) -> SidecarInfo:
    checkpoint = snapshot.segment.checkpoint
    if file.kind == "manifest":
        manifest = ManifestIndex.decode(store.get(file.path))
        every = every_part(store, manifest)
        layout, needed = whole_layout(store, every), {file.path, sidecar_path(file.version), *every.files}
        # A long manifest leaves row groups to the footers.
        shown = [
            _part(part, part_footer(store, part).row_groups() if groups is None else groups)
            for part, groups in zip(every.parts, map(every.groups_of, range(len(every.parts))), strict=True)
        ]
    else:
        part, footer = read_single(store, file.path)
        if checkpoint is not None and checkpoint.version == file.version:
            check_single(footer, part, snapshot, checkpoint)
        parts = footer.state.parts
        layout = whole_layout_of(store, parts, footer.state.layout)
        needed = {file.path, *(path for each in parts for path in each.files)}
        shown = [_part(each, part_footer(store, each).row_groups()) for each in parts]
        shown = shown or [_part(part, footer.row_groups())]
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


def _sort_names(layout: SidecarLayout, snapshot: LogSnapshot) -> list[str]:
    names = {column.physical_path: column.name for column in snapshot.schema.leaves()}
    return [names.get(each.path, ".".join(each.path)) for each in layout.sort]


# Explain why a checkpoint has no sidecar: never built, or built for an older one and not refreshed since.


def why_absent(store: Store, version: int) -> str:
    """Return the explanation, at the cost of one listing; ``version`` is that of the checkpoint."""
    absent = f"none of version {version}"
    try:
        found = [file.version for file in list_folder(store) if file.kind in {"manifest", "single"}]
    except LazyDeltaError as error:
        return f"{absent}; whether there are others cannot be told: {error}"
    older = [each for each in found if each < version]
    if older:
        return (
            f"{absent}: stale, the newest is of version {max(older)}; `lazydelta sidecar refresh` brings it up to date"
        )
    return f"{absent}, nor of an older one; `lazydelta sidecar build` makes one"

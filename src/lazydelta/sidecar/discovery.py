"""Finding the sidecar of a checkpoint: by its manifest (tier 1), or by its single file alone (tier 2)."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from lazydelta.errors import ObjectNotFoundError, StorageError
from lazydelta.log.actions import Metadata, Protocol
from lazydelta.log.features import column_mapping_mode
from lazydelta.log.schema import TableSchema
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.sidecar.cache import SidecarCache
from lazydelta.sidecar.format import SidecarLayout, manifest_path, sidecar_path
from lazydelta.sidecar.manifest import (
    Manifest,
    ManifestPart,
    ManifestRowGroup,
    SidecarError,
    checkpoint_files,
)
from lazydelta.sidecar.part_file import PartFooter, checkpoint_of, state_of
from lazydelta.storage import Store

__all__ = ["Sidecar", "find_sidecar"]

logger = logging.getLogger(__name__)

_TRAILER = 8
_GUESSED_FOOTER = 64 << 10


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A sidecar that is valid as far as can be told without reading its rows.

    ``row_groups`` is empty where a long manifest leaves them to the footers of the parts.
    """

    tier: int
    layout: SidecarLayout
    parts: tuple[ManifestPart, ...]
    row_groups: tuple[ManifestRowGroup, ...]
    num_files: int
    metadata: Metadata
    protocol: Protocol
    from_cache: bool = False

    @property
    def schema(self) -> TableSchema:
        """The schema at the checkpoint, by which the rows are sorted; the one at V may have other types."""
        return TableSchema.parse(
            self.metadata.schema_string,
            partition_columns=self.metadata.partition_columns,
            column_mapping=column_mapping_mode(self.metadata, self.protocol),
        )


def find_sidecar(store: Store, snapshot: Snapshot, checkpoint: Checkpoint, cache: SidecarCache) -> Sidecar | None:
    """Return the best sidecar there is for a checkpoint; None sends the scan to the checkpoint itself."""
    manifest = cache.manifest(store.identity, checkpoint)
    if manifest is not None and manifest.table_id == snapshot.metadata.id:
        return _by_manifest(manifest, from_cache=True)
    path = manifest_path(checkpoint.version)
    try:
        data = snapshot.commits.get(path) or store.get(path)
        manifest = Manifest.decode(data)
        manifest.check(table_id=snapshot.metadata.id, checkpoint=checkpoint)
        manifest.check_numbers()
    except ObjectNotFoundError:
        return _alone(store, snapshot, checkpoint)
    except (SidecarError, StorageError) as error:
        logger.warning("%s is not used: %s", path, error)
        return _alone(store, snapshot, checkpoint)
    cache.keep_manifest(store.identity, checkpoint, manifest, len(data))
    return _by_manifest(manifest, from_cache=False)


def _by_manifest(manifest: Manifest, *, from_cache: bool) -> Sidecar:
    return Sidecar(
        1,
        manifest.layout,
        manifest.parts,
        manifest.row_groups,
        manifest.num_files,
        manifest.meta_data,
        manifest.protocol,
        from_cache,
    )


def _alone(store: Store, snapshot: Snapshot, checkpoint: Checkpoint) -> Sidecar | None:
    path = sidecar_path(checkpoint.version)
    try:
        part, footer = read_single(store, path)
        check_single(footer, part, snapshot, checkpoint)
    except ObjectNotFoundError:
        return None
    except (SidecarError, StorageError) as error:
        logger.warning("%s is not used: %s", path, error)
        return None
    return Sidecar(2, footer.state.layout, (part,), footer.row_groups(), part.num_rows, *state_of(footer.state))


def read_single(store: Store, path: str) -> tuple[ManifestPart, PartFooter]:
    """Read the footer of a sidecar that no manifest describes."""
    size = store.head(path).size
    length = min(size, _GUESSED_FOOTER)
    tail = store.get(path, start=size - length, length=length)
    needed = int.from_bytes(tail[-_TRAILER:-4], "little") + _TRAILER
    if tail[-4:] != b"PAR1" or needed > size:
        message = "it does not end like a Parquet file"
        raise SidecarError(message)
    if needed > length:
        tail = store.get(path, start=size - needed, length=needed)
    data = tail[-needed:]
    footer = PartFooter(data)
    groups = footer.row_groups()
    empty = (None,) * (len(footer.state.sort) + 1)
    part = ManifestPart(
        file=path,
        size=size,
        footer_offset=size - needed,
        footer_length=needed,
        footer_sha256=footer.digest,
        num_rows=sum(group.num_rows for group in groups),
        num_row_groups=len(groups),
        first=groups[0].first if groups else empty,
        last=groups[-1].last if groups else empty,
    )
    return part, footer


def check_single(footer: PartFooter, part: ManifestPart, snapshot: Snapshot, checkpoint: Checkpoint) -> None:
    """Raise unless a single-file sidecar is whole and mirrors this very checkpoint."""
    state = footer.state
    try:
        mirrored, _ = checkpoint_of(state), state_of(state)
    except msgspec.MsgspecError as error:
        message = "it does not say which checkpoint it mirrors"
        raise SidecarError(message) from error
    if state.table_id != snapshot.metadata.id:
        message = f"it belongs to table {state.table_id}"
    elif state.version != checkpoint.version or mirrored != checkpoint_files(checkpoint):
        message = f"it mirrors another checkpoint, of version {state.version}"
    elif state.num_files != part.num_rows:
        message = f"it has {part.num_rows} of {state.num_files} rows"
    else:
        return
    raise SidecarError(message)

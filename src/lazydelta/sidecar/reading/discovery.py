"""Finding the sidecar of a checkpoint: by its manifest (tier 1), or by its single file alone (tier 2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from lazydelta.errors import LogError, ObjectNotFoundError, StorageError
from lazydelta.log.actions import Metadata, Protocol
from lazydelta.log.features import column_mapping_mode
from lazydelta.log.replaced import current_checkpoint
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.sidecar.layout.manifest import (
    CheckpointFile,
    ManifestIndex,
    ManifestLeaves,
    ManifestPart,
    ManifestRowGroup,
    OtherCheckpointError,
    SidecarError,
    mirrors,
)
from lazydelta.sidecar.layout.mirrored import Proof, start_proof
from lazydelta.sidecar.layout.part_file import PartFooter, checkpoint_of, state_of
from lazydelta.sidecar.layout.sidecar_columns import SidecarLayout, manifest_path, sidecar_path
from lazydelta.sidecar.reading.opened_manifest import open_manifest
from lazydelta.sidecar.reading.sidecar_cache import SidecarCache
from lazydelta.storage import Store
from lazydelta.types.schema import TableSchema

__all__ = ["Sidecar", "find_sidecar"]

logger = logging.getLogger(__name__)

Failed = Callable[[str, object], None]
"""Called with the reason in a word and in full."""

_TRAILER = 8
_GUESSED_FOOTER = 64 << 10


def _unnoticed(_reason: str, _words: object) -> None:
    """Nobody counts."""


class Sidecar(msgspec.Struct, frozen=True):
    """A sidecar that is valid as far as can be told without reading its rows.

    ``groups_of`` returns the row groups of some parts, None where a long manifest leaves them to the parts' footers.
    Where there are ``leaves``, they have the parts and their row groups.
    ``proof`` is to be checked before anything that the sidecar says is believed.
    """

    tier: int
    layout: SidecarLayout
    parts: tuple[ManifestPart, ...]
    groups_of: Callable[[Sequence[int]], list[ManifestRowGroup] | None]
    num_files: int
    metadata: Metadata
    protocol: Protocol
    proof: Proof | None = None
    from_cache: bool = False
    leaves: ManifestLeaves | None = None

    @property
    def schema(self) -> TableSchema:
        """The schema at the checkpoint, by which the rows are sorted; the one at V may have other types."""
        return TableSchema.parse(
            self.metadata.schema_string,
            partition_columns=self.metadata.partition_columns,
            column_mapping=column_mapping_mode(self.metadata, self.protocol),
        )


def find_sidecar(
    store: Store,
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    cache: SidecarCache,
    *,
    look_again: bool = True,
    failed: Failed = _unnoticed,
    use_manifest: bool = True,
) -> Sidecar | None:
    """Return the best sidecar there is for a checkpoint; None sends the scan to the checkpoint itself.

    A manifest that mirrors another checkpoint of the version may be ahead of us: a table that was pinned before the
    checkpoint was replaced still knows the old one. ``look_again`` lists the log once more to see. ``failed`` is told
    why something that is there is not used. Without ``use_manifest`` the footers of the sidecar's files are believed.
    """
    if not use_manifest:
        single = _alone(store, snapshot, checkpoint, failed)
        if single is not None:
            return single
        # Nothing but a manifest tells which files a sidecar of several has: those of a killed build look the same.
        several = find_sidecar(store, snapshot, checkpoint, cache, look_again=look_again, failed=failed)
        return None if several is None else _by_footers(several)
    manifest = cache.manifest(store.identity, checkpoint)
    path = manifest_path(checkpoint.version)
    if manifest is not None and manifest.table_id == snapshot.metadata.id:
        # One that was read to open this very snapshot was no find.
        return _by_manifest(manifest, None, from_cache=not snapshot.commits.ahead.drop(path))
    try:
        data = snapshot.commits.ahead.read(path) or store.get(path)
        manifest, proof = open_manifest(store, data, checkpoint, cache, table_id=snapshot.metadata.id)
    except ObjectNotFoundError:
        return _alone(store, snapshot, checkpoint, failed)
    except OtherCheckpointError as error:
        current = _replaced(store, snapshot, checkpoint) if look_again else None
        if current is not None:
            return find_sidecar(store, snapshot, current, cache, look_again=False, failed=failed)
        logger.warning("%s is not used: %s", path, error)
        failed("stale", error)
        return _alone(store, snapshot, checkpoint, failed)
    except (SidecarError, StorageError) as error:
        logger.warning("%s is not used: %s", path, error)
        failed(_reason(error), error)
        return _alone(store, snapshot, checkpoint, failed)
    return _by_manifest(manifest, proof, from_cache=False)


def _replaced(store: Store, snapshot: Snapshot, known: Checkpoint) -> Checkpoint | None:
    """Return the checkpoint that has taken the place of the known one, if there is such."""
    try:
        found = current_checkpoint(store, snapshot.segment, known, ObjectNotFoundError(""))
    except (LogError, StorageError):
        return None
    return found if found.version == known.version else None


def _by_manifest(manifest: ManifestIndex, proof: Proof | None, *, from_cache: bool) -> Sidecar:
    return Sidecar(
        1,
        manifest.layout,
        manifest.parts,
        manifest.groups_of,
        manifest.num_files,
        manifest.meta_data,
        manifest.protocol,
        proof,
        from_cache,
        manifest.leaves,
    )


def _by_footers(sidecar: Sidecar) -> Sidecar:
    """Return the same sidecar, of whose parts nothing is known but where they are."""
    parts = tuple(msgspec.structs.replace(part, ranges={}) for part in sidecar.parts)
    return msgspec.structs.replace(sidecar, tier=2, parts=parts, groups_of=lambda _: None)


def _reason(error: Exception) -> str:
    return "storage" if isinstance(error, StorageError) else "damaged"


def _alone(store: Store, snapshot: Snapshot, checkpoint: Checkpoint, failed: Failed) -> Sidecar | None:
    path = sidecar_path(checkpoint.version)
    try:
        part, footer = read_single(store, path)
        mirrored = check_single(footer, part, snapshot, checkpoint)
        proof = start_proof(store, mirrored, [each.info for each in checkpoint.files])
    except ObjectNotFoundError:
        return None
    except (SidecarError, StorageError) as error:
        logger.warning("%s is not used: %s", path, error)
        failed(_reason(error), error)
        return None
    metadata, protocol = state_of(footer.state)
    groups = list(footer.row_groups())
    return Sidecar(2, footer.state.layout, (part,), lambda _: groups, part.num_rows, metadata, protocol, proof)


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
    footer = PartFooter(tail[-needed:])
    return footer.part(path, size), footer


def check_single(
    footer: PartFooter, part: ManifestPart, snapshot: Snapshot, checkpoint: Checkpoint
) -> tuple[CheckpointFile, ...]:
    """Raise unless a single-file sidecar is whole and mirrors a checkpoint of these names and sizes; return which."""
    state = footer.state
    try:
        mirrored, _ = checkpoint_of(state), state_of(state)
    except msgspec.MsgspecError as error:
        message = "it does not say which checkpoint it mirrors"
        raise SidecarError(message) from error
    if state.table_id != snapshot.metadata.id:
        message = f"it belongs to table {state.table_id}"
    elif state.version != checkpoint.version or not mirrors(mirrored, checkpoint):
        message = f"it mirrors another checkpoint, of version {state.version}"
    elif state.num_files != part.num_rows:
        message = f"it has {part.num_rows} of {state.num_files} rows"
    else:
        return mirrored
    raise SidecarError(message)

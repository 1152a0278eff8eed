"""Finding the sidecar of a checkpoint: by its manifest (tier 1), or by its file or overview alone (tier 2)."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from lazydelta.errors import LogError, ObjectNotFoundError, StorageError
from lazydelta.log.checkpoint.reader import current_checkpoint
from lazydelta.log.commits import Prefetch
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.log.tail_spans import BaseState, PendingState
from lazydelta.protocol.actions import Metadata, Protocol
from lazydelta.protocol.features import column_mapping_mode
from lazydelta.protocol.schema import TableSchema
from lazydelta.runtime.cache import ByteLru, shared
from lazydelta.scan.base import BaseScan
from lazydelta.sidecar.format.columns import FOLDER, SidecarLayout, manifest_path, sidecar_path
from lazydelta.sidecar.format.manifest import (
    CheckpointFile,
    ManifestIndex,
    ManifestLeaves,
    ManifestPart,
    ManifestRowGroup,
    OtherCheckpointError,
    Proof,
    SidecarError,
    StatsFile,
    UnsealedError,
    is_in_folder,
    mirrors,
    start_proof,
)
from lazydelta.sidecar.format.part_file import PartFooter, checkpoint_of, state_of
from lazydelta.storage import Pending, Store

if TYPE_CHECKING:
    from lazydelta.sidecar.format.delta_file import DeltaManifest
    from lazydelta.sidecar.format.leaves import Leaf

__all__ = ["PartFooters", "Sidecar", "SidecarCache", "begin_state", "find_sidecar", "shared_cache"]


# ``SidecarCache``: parsed manifests and footers, shared by all tables and queries of the process. Footers and leaves
# are keyed by digest, so an entry is always right. A manifest is keyed by its name and the listed checkpoint files
# (name, size, time, etag), so a replaced table or a rewound log misses the cache.


_DEFAULT_LIMIT = 64 << 20
_MARK = 100
_PARSED = 2  # a manifest counts as its bytes plus the parsed form, without row groups


class SidecarCache:
    """A typed view of one LRU cache."""

    def __init__(self, entries: ByteLru | None = None) -> None:
        self._entries = ByteLru(_DEFAULT_LIMIT) if entries is None else entries

    @property
    def size(self) -> int:
        """Return the number of bytes held."""
        return self._entries.size

    def resize(self, limit: int) -> None:
        """Change the limit in bytes; 0 disables the cache."""
        self._entries.resize(limit)

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()

    def knows(self, uri: str, version: int) -> bool:
        """Return whether a manifest of this version is cached, so that prefetching it would be wasted."""
        return self._entries.get((uri, version)) is not None

    def manifest(self, uri: str, checkpoint: Checkpoint) -> ManifestIndex | None:
        """Return the manifest of a checkpoint as currently listed."""
        return cast("ManifestIndex | None", self._entries.get(_identity(uri, checkpoint)))

    def keep_manifest(self, uri: str, checkpoint: Checkpoint, manifest: ManifestIndex, size: int) -> None:
        """Cache a valid manifest."""
        self._entries.put(_identity(uri, checkpoint), manifest, size * _PARSED)
        self._entries.put((uri, checkpoint.version), manifest.sha256, _MARK)

    def forget_manifest(self, uri: str, checkpoint: Checkpoint) -> None:
        """Remove a manifest whose sidecar is damaged."""
        self._entries.remove(_identity(uri, checkpoint))

    def leaf(self, digest: str) -> Leaf | None:
        """Return the leaf with this digest."""
        return cast("Leaf | None", self._entries.get(digest))

    def keep_leaf(self, digest: str, leaf: Leaf) -> None:
        """Cache a verified leaf."""
        self._entries.put(digest, leaf, leaf.nbytes * _PARSED)

    def deltas(self, uri: str) -> DeltaManifest | None:
        """Return the cached list of delta sidecars; the caller checks each of them against the listing."""
        return cast("DeltaManifest | None", self._entries.get(("deltas", uri)))

    def keep_deltas(self, uri: str, manifest: DeltaManifest, size: int) -> None:
        """Cache a list of delta sidecars."""
        self._entries.put(("deltas", uri), manifest, size * _PARSED)

    def forget_deltas(self, uri: str) -> None:
        """Remove a list of delta sidecars with an unreadable entry."""
        self._entries.remove(("deltas", uri))

    def footer(self, digest: str) -> PartFooter | None:
        """Return the footer with this digest."""
        return cast("PartFooter | None", self._entries.get(digest))

    def keep_footer(self, digest: str, footer: PartFooter) -> None:
        """Cache a verified footer."""
        self._entries.put(digest, footer, footer.nbytes)


def _identity(uri: str, checkpoint: Checkpoint) -> tuple[object, ...]:
    files = tuple((each.path, each.info.size, each.info.last_modified, each.info.etag) for each in checkpoint.files)
    return (uri, checkpoint.version, files)


shared_cache = SidecarCache(shared)


# Turn the bytes of a manifest into a usable one: decoded, matched with the checkpoint, its proof started.


def open_manifest(
    store: Store, data: bytes, checkpoint: Checkpoint, cache: SidecarCache, *, table_id: str | None = None
) -> tuple[ManifestIndex, Proof | None]:
    """Return a manifest with its pending proof; the cache keeps it once the proof succeeds.

    Callers that do not know the table id yet omit it: the proof ties the manifest to this checkpoint.
    """
    manifest = ManifestIndex.decode(data)
    metadata = manifest.meta_data
    manifest.check(table_id=metadata.id if table_id is None else table_id, checkpoint=checkpoint)
    manifest.check_numbers()
    # Cached manifests also serve callers that open the table, so they must be consistent.
    if metadata.id != manifest.table_id:
        message = f"its metadata belongs to table {metadata.id}"
        raise SidecarError(message)
    if hashlib.sha256(metadata.schema_string.encode()).hexdigest() != manifest.schema_hash:
        message = "its metadata and the sidecar have different schemas"
        raise SidecarError(message)
    proof = start_proof(store, manifest.checkpoint, [each.info for each in checkpoint.files])

    def keep() -> None:
        cache.keep_manifest(store.identity, checkpoint, manifest, len(data))

    if proof is None:
        keep()
    else:
        proof.when_proven = keep
    return manifest, proof


logger = logging.getLogger(__name__)

Failed = Callable[[str, object], None]
"""Called with a short reason and the full explanation."""

_TRAILER = 8
_GUESSED_FOOTER = 64 << 10


def _unnoticed(_reason: str, _words: object) -> None:
    """Ignore the failure."""


class Sidecar(msgspec.Struct, frozen=True):
    """A sidecar that is valid as far as can be determined without reading its rows.

    ``groups_of`` returns the row groups of the given parts, or None if only the part footers have them. ``leaves``, if
    present, hold the parts and their row groups. Check ``proof`` before relying on anything in the sidecar. A sidecar
    of the minimal profile is ``foreign``, and has no parts here.
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
    foreign: Any = None  # a ``ForeignSidecar``, whose module is imported only where there is one

    @property
    def schema(self) -> TableSchema:
        """The schema at the checkpoint, which defines the sort order; the snapshot's schema can have other types."""
        return TableSchema.parse(
            self.metadata.schema_string,
            partition_columns=self.metadata.partition_columns,
            column_mapping=column_mapping_mode(self.metadata, self.protocol),
        )


def find_sidecar(
    store: Store,
    snapshot: LogSnapshot,
    checkpoint: Checkpoint,
    cache: SidecarCache,
    *,
    look_again: bool = True,
    failed: Failed = _unnoticed,
    use_manifest: bool = True,
) -> Sidecar | None:
    """Return the best sidecar for a checkpoint; None if the scan has to read the checkpoint itself.

    A manifest that mirrors another checkpoint of the version can be newer than ours: a table that was pinned before the
    checkpoint was replaced still has the old one. ``look_again`` lists the log again to find out. ``failed`` receives
    the reason why an existing sidecar is not used. Without ``use_manifest``, the footers of the sidecar's files are
    used.
    """
    if not use_manifest:
        alone = _alone(store, snapshot, checkpoint, failed)
        if alone is not None:
            return alone if alone.groups_of(()) is not None else _by_footers(alone)
        # Parts of earlier releases have no overview. Only a manifest lists them: those of a killed build look the same.
        several = find_sidecar(store, snapshot, checkpoint, cache, look_again=look_again, failed=failed)
        return None if several is None else _by_footers(several)
    manifest = cache.manifest(store.identity, checkpoint)
    path = manifest_path(checkpoint.version)
    if manifest is not None and manifest.table_id == snapshot.metadata.id:
        # A manifest that was read to open this snapshot does not count as a cache hit.
        return _by_manifest(manifest, None, from_cache=not snapshot.commits.prefetch.drop(path))
    data = b""
    try:
        data = snapshot.commits.prefetch.read(path) or store.get(path)
        manifest, proof = open_manifest(store, data, checkpoint, cache, table_id=snapshot.metadata.id)
    except ObjectNotFoundError:
        return _alone(store, snapshot, checkpoint, failed)
    except UnsealedError:
        return _foreign(store, data, snapshot, checkpoint, failed)
    except OtherCheckpointError as error:
        current = _replacing_checkpoint(store, snapshot, checkpoint) if look_again else None
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


def _foreign(
    store: Store, data: bytes, snapshot: LogSnapshot, checkpoint: Checkpoint, failed: Failed
) -> Sidecar | None:
    from lazydelta.sidecar.reading.foreign import open_foreign  # noqa: PLC0415 - few tables have one

    try:
        found = open_foreign(store, data, snapshot, checkpoint)
    except (SidecarError, StorageError) as error:
        logger.warning("%s is not used: %s", manifest_path(checkpoint.version), error)
        failed(_reason(error), error)
        return _alone(store, snapshot, checkpoint, _unnoticed)  # the manifest's reason is the one to tell
    count = found.manifest.num_files
    return Sidecar(1, found.layout, (), lambda _: None, count, snapshot.metadata, snapshot.protocol, foreign=found)


def _replacing_checkpoint(store: Store, snapshot: LogSnapshot, known: Checkpoint) -> Checkpoint | None:
    """Return the checkpoint that replaced the known one, if any."""
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
    """Return the same sidecar with only the locations of its parts."""
    parts = tuple(msgspec.structs.replace(part, ranges={}) for part in sidecar.parts)
    return msgspec.structs.replace(sidecar, tier=2, parts=parts, groups_of=lambda _: None)


def _reason(error: Exception) -> str:
    return "storage" if isinstance(error, StorageError) else "damaged"


def _alone(store: Store, snapshot: LogSnapshot, checkpoint: Checkpoint, failed: Failed) -> Sidecar | None:
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
    state, parts = footer.state, footer.state.parts or (part,)
    metadata, protocol = state_of(state)
    groups = None if state.parts else list(footer.row_groups())
    return Sidecar(2, state.layout, parts, lambda _: groups, state.num_files, metadata, protocol, proof)


def read_single(store: Store, path: str) -> tuple[ManifestPart, PartFooter]:
    """Read the footer of a sidecar without a manifest: the whole of it, or the overview of its parts."""
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
    footer: PartFooter, part: ManifestPart, snapshot: LogSnapshot, checkpoint: Checkpoint
) -> tuple[CheckpointFile, ...]:
    """Raise unless a sidecar without a manifest is complete and mirrors this checkpoint; return the recorded files.

    One in parts is the parts that its overview lists: each is bound to the digest of its footer there.
    """
    state = footer.state
    num_rows = part.num_rows + sum(each.num_rows for each in state.parts)
    try:
        mirrored, _ = checkpoint_of(state), state_of(state)
    except msgspec.MsgspecError as error:
        message = "it does not say which checkpoint it mirrors"
        raise SidecarError(message) from error
    if state.table_id != snapshot.metadata.id:
        message = f"it belongs to table {state.table_id}"
    elif state.version != checkpoint.version or not mirrors(mirrored, checkpoint):
        message = f"it mirrors another checkpoint, of version {state.version}"
    elif state.num_files != num_rows:
        message = f"it has {num_rows} of {state.num_files} rows"
    elif not all(is_in_folder(file) for each in state.parts for file in each.files):
        message = f"it lists a part that is not in {FOLDER}"
    else:
        return mirrored
    raise SidecarError(message)


# Read protocol and metadata from the manifest: one small object instead of the checkpoint's Parquet footer. As in a
# scan (see ``sidecar.format.manifest``), the store's etag and time, or the checkpoint's last bytes, prove that it
# mirrors this checkpoint. The last bytes are read in parallel with the tail. Without proof, the checkpoint is read.


def begin_state(store: Store, checkpoint: Checkpoint, prefetch: Prefetch, cache: SidecarCache) -> PendingState:
    """Start reading the manifest in place of the checkpoint's state, or start its proof if it is cached."""
    path = manifest_path(checkpoint.version)
    known = cache.manifest(store.identity, checkpoint)
    if known is not None:
        return lambda: _state(known, None, path)
    if path in prefetch:
        opened = _opened_for_state(store, checkpoint, prefetch, cache)
        return lambda: None if opened is None else _state(*opened, path)
    prefetch.request(store, [path])

    def later() -> BaseState | None:
        opened = _opened_for_state(store, checkpoint, prefetch, cache)
        return None if opened is None else _state(*opened, path)

    return later


def _opened_for_state(
    store: Store, checkpoint: Checkpoint, prefetch: Prefetch, cache: SidecarCache
) -> tuple[ManifestIndex, Proof | None] | None:
    path = manifest_path(checkpoint.version)
    data = prefetch.read(path)
    try:
        return None if data is None else open_manifest(store, data, checkpoint, cache)
    except (SidecarError, StorageError) as error:
        logger.debug("%s does not stand for the checkpoint: %s", path, error)  # a scan that needs it warns
        return None


def _state(manifest: ManifestIndex, proof: Proof | None, path: str) -> BaseState | None:
    try:
        if proof is not None:
            proof.check()
    except (SidecarError, StorageError) as error:
        logger.debug("%s does not stand for the checkpoint: %s", path, error)
        return None
    return BaseState(manifest.protocol, manifest.meta_data, path)


# ``PartFooters``: prefetched footers of a sidecar's parts, cached for the next scan.


class PartFooters:
    """Footers by file; ``keeps`` says whether they are cached after the scan.

    ``layout`` is the layout of first tiers. Footers of second tiers describe their own layout.
    """

    def __init__(self, scan: BaseScan, layout: SidecarLayout, cache: SidecarCache) -> None:
        self._scan = scan
        self._layout = layout
        self._cache = cache
        self._found: dict[str, PartFooter | Pending[bytes]] = {}
        self.keeps = True

    def fetch(self, part: ManifestPart | StatsFile) -> None:
        """Start fetching a footer, unless it is already requested."""
        if part.file in self._found:
            return
        known = self._cache.footer(part.footer_sha256)
        if known is not None:
            self._scan.metrics.cache_hits += 1
            self._found[part.file] = known
        else:
            self._found[part.file] = self._scan.store.fetch(
                part.file, start=part.footer_offset, length=part.footer_length
            )

    def of(self, part: ManifestPart | StatsFile) -> PartFooter:
        """Wait for a requested footer and return it."""
        found = self._found[part.file]
        if isinstance(found, Pending):
            found = PartFooter(found.result(), expected=part.footer_sha256)
            if isinstance(part, ManifestPart) and found.state.layout != self._layout:
                message = f"{part.file} has different columns than the manifest says"
                raise SidecarError(message)
            self._found[part.file] = found
            if self.keeps:
                self._cache.keep_footer(part.footer_sha256, found)
        return found

    def at_hand(self, part: ManifestPart | StatsFile) -> PartFooter | None:
        """Return the footer of a part if it is available without waiting."""
        found = self._found.get(part.file)
        return found if isinstance(found, PartFooter) else None

    def forget(self, file: str) -> None:
        """Release a footer that is no longer needed."""
        self._found.pop(file, None)

    def cancel(self) -> None:
        """Cancel the reads."""
        for footer in list(self._found.values()):
            if isinstance(footer, Pending):
                footer.cancel()

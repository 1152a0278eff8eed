"""From the bytes of a manifest to one that may be used: decoded, for this checkpoint, and its proof under way."""

from __future__ import annotations

import hashlib

from lazydelta.log.segment import Checkpoint
from lazydelta.sidecar.layout.manifest import ManifestIndex, SidecarError
from lazydelta.sidecar.layout.mirrored import Proof, start_proof
from lazydelta.sidecar.reading.sidecar_cache import SidecarCache
from lazydelta.storage import Store

__all__ = ["open_manifest"]


def open_manifest(
    store: Store, data: bytes, checkpoint: Checkpoint, cache: SidecarCache, *, table_id: str | None = None
) -> tuple[ManifestIndex, Proof | None]:
    """Return a manifest with what is still to be proven of it; the cache keeps it as soon as that is done.

    Who does not know the table's id yet leaves it out: the proof tells whether the manifest speaks of this checkpoint.
    """
    manifest = ManifestIndex.decode(data)
    metadata = manifest.meta_data
    manifest.check(table_id=metadata.id if table_id is None else table_id, checkpoint=checkpoint)
    manifest.check_numbers()
    # What is in the cache serves those who open the table, too: it must not contradict itself.
    if metadata.id != manifest.table_id:
        message = f"its metadata belongs to table {metadata.id}"
        raise SidecarError(message)
    if hashlib.sha256(metadata.schema_string.encode()).hexdigest() != manifest.schema_hash:
        message = "its metadata has another schema than the sidecar"
        raise SidecarError(message)
    proof = start_proof(store, manifest.checkpoint, [each.info for each in checkpoint.files])

    def keep() -> None:
        cache.keep_manifest(store.identity, checkpoint, manifest, len(data))

    if proof is None:
        keep()
    else:
        proof.when_proven = keep
    return manifest, proof

"""The manifest in place of the checkpoint, for protocol and metadata: one small object instead of a Parquet footer.

It carries both as they were at the checkpoint. That it speaks of this very checkpoint is proven as it is for a scan
(see ``sidecar.layout.mirrored``): by the store's word, or by the checkpoint's last bytes, read beside the tail. What
cannot be proven is not believed, and the checkpoint is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from lazydelta.errors import StorageError
from lazydelta.log.asked_ahead import AskedAhead
from lazydelta.log.checkpoint_mirror import MirroredState, PendingState
from lazydelta.log.segment import Checkpoint
from lazydelta.sidecar.layout.manifest import ManifestIndex, SidecarError
from lazydelta.sidecar.layout.mirrored import Proof
from lazydelta.sidecar.layout.sidecar_columns import manifest_path
from lazydelta.sidecar.reading.opened_manifest import open_manifest
from lazydelta.sidecar.reading.sidecar_cache import SidecarCache
from lazydelta.storage import Store

__all__ = ["ManifestMirror"]

logger = logging.getLogger(__name__)


class ManifestMirror(msgspec.Struct, frozen=True):
    """A ``CheckpointMirror`` over the manifests of sidecars."""

    cache: SidecarCache

    def paths(self, store: Store, version: int) -> Sequence[str]:
        """Name the manifest, unless it is known: then asking for it early would be in vain."""
        return [] if self.cache.knows(store.identity, version) else [manifest_path(version)]

    def begin(self, store: Store, checkpoint: Checkpoint, ahead: AskedAhead) -> PendingState:
        """Begin to read the manifest, or to prove it where it is here already."""
        path = manifest_path(checkpoint.version)
        known = self.cache.manifest(store.identity, checkpoint)
        if known is not None:
            return lambda: _state(known, None, path)
        if path in ahead:
            opened = self._open(store, checkpoint, ahead)
            return lambda: None if opened is None else _state(*opened, path)
        ahead.ask(store, [path])

        def later() -> MirroredState | None:
            opened = self._open(store, checkpoint, ahead)
            return None if opened is None else _state(*opened, path)

        return later

    def _open(
        self, store: Store, checkpoint: Checkpoint, ahead: AskedAhead
    ) -> tuple[ManifestIndex, Proof | None] | None:
        path = manifest_path(checkpoint.version)
        data = ahead.read(path)
        try:
            return None if data is None else open_manifest(store, data, checkpoint, self.cache)
        except (SidecarError, StorageError) as error:
            logger.debug("%s does not stand for the checkpoint: %s", path, error)  # a scan that needs it warns
            return None


def _state(manifest: ManifestIndex, proof: Proof | None, path: str) -> MirroredState | None:
    try:
        if proof is not None:
            proof.check()
    except (SidecarError, StorageError) as error:
        logger.debug("%s does not stand for the checkpoint: %s", path, error)
        return None
    return MirroredState(manifest.protocol, manifest.meta_data, path)

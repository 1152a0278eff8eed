"""``SidecarCache``: parsed manifests and footers, shared by all tables and queries of the process.

A footer or a leaf is found by its digest, so an entry is right by construction. A manifest is found by its name
together with the very checkpoint files that the listing shows (name, size, time, etag): where a table was replaced or
its log rewound, the listing differs and the entry is not found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from lazydelta.log.segment import Checkpoint
from lazydelta.lru import ByteLru, shared
from lazydelta.sidecar.layout.manifest import ManifestIndex
from lazydelta.sidecar.layout.part_file import PartFooter

if TYPE_CHECKING:
    from lazydelta.sidecar.layout.delta_manifest import DeltaManifest
    from lazydelta.sidecar.layout.leaves import Leaf

__all__ = ["SidecarCache", "shared_cache"]

_DEFAULT_LIMIT = 64 << 20
_MARK = 100
_PARSED = 2  # a manifest is its bytes, and what is parsed of it: all but the row groups


class SidecarCache:
    """A typed view of one LRU."""

    def __init__(self, entries: ByteLru | None = None) -> None:
        self._entries = ByteLru(_DEFAULT_LIMIT) if entries is None else entries

    @property
    def size(self) -> int:
        """Return the bytes held."""
        return self._entries.size

    def resize(self, limit: int) -> None:
        """Change the bound in bytes; 0 keeps nothing."""
        self._entries.resize(limit)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def knows(self, uri: str, version: int) -> bool:
        """Tell whether a manifest of this version was seen, so that asking for it early would be in vain."""
        return self._entries.get((uri, version)) is not None

    def manifest(self, uri: str, checkpoint: Checkpoint) -> ManifestIndex | None:
        """Return the manifest of a checkpoint as it is listed now."""
        return cast("ManifestIndex | None", self._entries.get(_identity(uri, checkpoint)))

    def keep_manifest(self, uri: str, checkpoint: Checkpoint, manifest: ManifestIndex, size: int) -> None:
        """Keep a manifest that was found valid."""
        self._entries.put(_identity(uri, checkpoint), manifest, size * _PARSED)
        self._entries.put((uri, checkpoint.version), manifest.sha256, _MARK)

    def forget_manifest(self, uri: str, checkpoint: Checkpoint) -> None:
        """Drop a manifest whose sidecar turned out to be damaged."""
        self._entries.remove(_identity(uri, checkpoint))

    def leaf(self, digest: str) -> Leaf | None:
        """Return the leaf with this digest."""
        return cast("Leaf | None", self._entries.get(digest))

    def keep_leaf(self, digest: str, leaf: Leaf) -> None:
        """Keep a verified leaf."""
        self._entries.put(digest, leaf, leaf.nbytes * _PARSED)

    def deltas(self, uri: str) -> DeltaManifest | None:
        """Return the list of delta sidecars as it was when it was last read; each of them is proven by the listing."""
        return cast("DeltaManifest | None", self._entries.get(("deltas", uri)))

    def keep_deltas(self, uri: str, manifest: DeltaManifest, size: int) -> None:
        """Keep a list of delta sidecars."""
        self._entries.put(("deltas", uri), manifest, size * _PARSED)

    def forget_deltas(self, uri: str) -> None:
        """Drop a list of delta sidecars that names one which cannot be read."""
        self._entries.remove(("deltas", uri))

    def footer(self, digest: str) -> PartFooter | None:
        """Return the footer with this digest."""
        return cast("PartFooter | None", self._entries.get(digest))

    def keep_footer(self, digest: str, footer: PartFooter) -> None:
        """Keep a verified footer."""
        self._entries.put(digest, footer, footer.nbytes)


def _identity(uri: str, checkpoint: Checkpoint) -> tuple[object, ...]:
    files = tuple((each.path, each.info.size, each.info.last_modified, each.info.etag) for each in checkpoint.files)
    return (uri, checkpoint.version, files)


shared_cache = SidecarCache(shared)

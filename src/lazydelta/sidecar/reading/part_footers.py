"""``PartFooters``: the footers of a sidecar's parts, asked for ahead and remembered for the next scan."""

from __future__ import annotations

from lazydelta.scan.base import BaseScan
from lazydelta.sidecar.layout.manifest import ManifestPart, SidecarError, StatsFile
from lazydelta.sidecar.layout.part_file import PartFooter
from lazydelta.sidecar.layout.sidecar_columns import SidecarLayout
from lazydelta.sidecar.reading.sidecar_cache import SidecarCache
from lazydelta.storage import Pending

__all__ = ["PartFooters"]


class PartFooters:
    """Footers by the file that they are of; ``keeps`` tells whether they are remembered when the scan is over.

    ``layout`` is that of first tiers. Those of second tiers speak for themselves.
    """

    def __init__(self, scan: BaseScan, layout: SidecarLayout, cache: SidecarCache) -> None:
        self._scan = scan
        self._layout = layout
        self._cache = cache
        self._found: dict[str, PartFooter | Pending[bytes]] = {}
        self.keeps = True

    def fetch(self, part: ManifestPart | StatsFile) -> None:
        """Ask for a footer, unless that was done."""
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
        """Return the footer of a part that was asked for, waiting for it."""
        found = self._found[part.file]
        if isinstance(found, Pending):
            found = PartFooter(found.result(), expected=part.footer_sha256)
            if isinstance(part, ManifestPart) and found.state.layout != self._layout:
                message = f"{part.file} has other columns than the manifest says"
                raise SidecarError(message)
            self._found[part.file] = found
            if self.keeps:
                self._cache.keep_footer(part.footer_sha256, found)
        return found

    def at_hand(self, part: ManifestPart | StatsFile) -> PartFooter | None:
        """Return the footer of a part if nothing has to be waited for."""
        found = self._found.get(part.file)
        return found if isinstance(found, PartFooter) else None

    def forget(self, file: str) -> None:
        """Let go of a footer that is done with."""
        self._found.pop(file, None)

    def cancel(self) -> None:
        """Stop the reads."""
        for footer in list(self._found.values()):
            if isinstance(footer, Pending):
                footer.cancel()

"""``DeltaSpans``: delta sidecars in place of the JSON of a long tail.

Their manifest is asked for only where the tail is long: a table with regular checkpoints never pays for it, and what
reads them is loaded only then. What it says is compared with the listing, commit by commit; a delta sidecar of which
one commit is another by now is not used.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from lazydelta.errors import ObjectNotFoundError, StorageError
from lazydelta.log.asked_ahead import AskedAhead
from lazydelta.log.names import FileKind, LogFile
from lazydelta.log.segment import LogSegment
from lazydelta.log.tail_spans import FoundSpans
from lazydelta.sidecar.layout.manifest import SidecarError
from lazydelta.sidecar.layout.sidecar_columns import DELTA_MANIFEST
from lazydelta.sidecar.reading.sidecar_cache import SidecarCache
from lazydelta.storage import ObjectInfo, Store

if TYPE_CHECKING:
    from lazydelta.sidecar.layout.delta_manifest import DeltaManifest
    from lazydelta.sidecar.reading.delta_rows import DeltaSpan

__all__ = ["LONG_TAIL", "DeltaSpans"]

logger = logging.getLogger(__name__)

LONG_TAIL = 100
"""From so many commits on that nothing known stands for, the manifest is asked for."""
_LEAST_COMMITS = 2  # for one, its JSON is as good


class DeltaSpans(msgspec.Struct, frozen=True):
    """A ``SpanSource`` over the delta sidecars of a table; ``store`` outlives all scans."""

    cache: SidecarCache
    store: Store

    def ask(self, store: Store, segment: LogSegment, ahead: AskedAhead) -> None:
        """Ask for the manifest beside whatever else is read, where it will be wanted."""
        if _is_long(segment) and self._known(segment) is None:
            ahead.ask(store, [DELTA_MANIFEST])

    def find(self, store: Store, segment: LogSegment, ahead: AskedAhead) -> FoundSpans:
        """Return the delta sidecars of the tail whose commits are the listed ones."""
        if not _is_long(segment):
            return FoundSpans()
        try:
            manifest = self._known(segment) or self._read(store, ahead)
        except ObjectNotFoundError:
            return FoundSpans()
        except (SidecarError, StorageError) as error:
            logger.warning("%s is not used: %s", DELTA_MANIFEST, error)
            return FoundSpans(rejected={DELTA_MANIFEST: str(error)})
        return self._of(manifest, segment)

    def _known(self, segment: LogSegment) -> DeltaManifest | None:
        """Return the manifest that is remembered, as long as it leaves no long run of new commits."""
        known = self.cache.deltas(self.store.identity)
        last = max((each.last for each in known.spans), default=0) if known is not None else 0
        return known if known is not None and segment.version - last < LONG_TAIL else None

    def _read(self, store: Store, ahead: AskedAhead) -> DeltaManifest:
        from lazydelta.sidecar.layout.delta_manifest import DeltaManifest  # noqa: PLC0415 - see the head of this module

        if DELTA_MANIFEST in ahead:
            data = ahead.read(DELTA_MANIFEST)
            ahead.drop(DELTA_MANIFEST)
            if data is None:  # most tables have none, and to ask again would be a round trip for nothing
                raise ObjectNotFoundError(DELTA_MANIFEST)
        else:
            data = store.get(DELTA_MANIFEST)
        manifest = DeltaManifest.decode(data)
        self.cache.keep_deltas(self.store.identity, manifest, len(data))
        return manifest

    def _of(self, manifest: DeltaManifest, segment: LogSegment) -> FoundSpans:
        from lazydelta.sidecar.reading.delta_rows import DeltaSpan  # noqa: PLC0415 - see the head of this module

        listed = {commit.version: commit for commit in segment.commits}
        spans: list[DeltaSpan] = []
        rejected: dict[str, str] = {}
        for entry in manifest.spans:
            first, last = max(entry.first, segment.base_version + 1), min(entry.last, segment.version)
            if last - first + 1 < _LEAST_COMMITS:
                continue
            commits = {version: listed[version] for version in range(first, last + 1)}
            stale = entry.stale_commit(list(commits.values()))
            if stale is not None:
                rejected[entry.file] = f"commit {stale} is not the one that it was made of"
                logger.warning("%s is not used: %s", entry.file, rejected[entry.file])
                continue
            file = LogFile(FileKind.SPAN, first, ObjectInfo(entry.file, entry.size, 0, None), last)
            spans.append(DeltaSpan(entry, file, commits, self.cache, self.store))
        return FoundSpans(tuple(spans), rejected)


def _is_long(segment: LogSegment) -> bool:
    return segment.version - segment.base_version >= LONG_TAIL

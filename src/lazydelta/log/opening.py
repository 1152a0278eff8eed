"""From a store to a snapshot, in as few round trips as the log allows.

``_last_checkpoint`` names the checkpoint C. On a remote store the commits and checksums just behind C are then asked
for together with the listing: with a tail of up to ten commits and a checksum, the first file of the tail is known
after two round trips. What turns out not to exist is a cheap miss; what is not wanted is cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence

from lazydelta.log.commit_cache import CommitCache
from lazydelta.log.hint import CheckpointHint, read_hint
from lazydelta.log.names import LOG, LogFile, checksum_name, commit_name
from lazydelta.log.segment import LogSegment, load_segment
from lazydelta.log.snapshot import Snapshot, load_snapshot
from lazydelta.storage import Store

__all__ = ["open_snapshot"]

_GUESSED_VERSIONS = 10


def open_snapshot(
    store: Store, *, version: int | None = None, log_tail: Sequence[LogFile] = (), parallelism: int = 10
) -> Snapshot:
    """Pin ``version`` (or the newest) and settle its protocol and metadata."""
    hint = read_hint(store)
    cache = CommitCache()
    if store.is_remote and hint is not None and version is None and not log_tail:
        cache.expect(store, _likely_paths(hint))
    try:
        segment = load_segment(store, version=version, hint=hint, log_tail=log_tail)
        cache.forget_all_but(_wanted_paths(segment))
        return load_snapshot(store, segment, has_log_tail=bool(log_tail), parallelism=parallelism, cache=cache)
    except BaseException:
        cache.forget_all_but(())
        raise


def _likely_paths(hint: CheckpointHint) -> list[str]:
    versions = range(hint.version + 1, hint.version + 1 + _GUESSED_VERSIONS)
    return [f"{LOG}/{name(version)}" for name in (commit_name, checksum_name) for version in versions]


def _wanted_paths(segment: LogSegment) -> set[str]:
    files = [*segment.tail(), *segment.commits, *([segment.checksum] if segment.checksum else [])]
    return {file.path for file in files}

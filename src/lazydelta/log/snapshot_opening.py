"""From a store to a snapshot, in as few round trips as the log allows.

``_last_checkpoint`` names the checkpoint C. On a remote store the commits and checksums just behind C are then asked
for together with the listing: with a tail of up to ten commits and a checksum, the first file of the tail is known
after two round trips. What turns out not to exist is a cheap miss; what is not wanted is cancelled.

A process that has opened the table before knows a checkpoint already and lists from there without asking for the hint:
the listing shows every newer one. Opening then takes one LIST, and none at all within ``max_staleness`` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from lazydelta.log.commit_cache import CommitCache
from lazydelta.log.hint import CheckpointHint, read_hint
from lazydelta.log.names import LOG, LogFile, checksum_name, commit_name
from lazydelta.log.segment import WINDOW, LogSegment, load_segment
from lazydelta.log.snapshot import Snapshot, load_snapshot
from lazydelta.lru import ByteLru
from lazydelta.storage import Store

__all__ = ["open_snapshot"]

_GUESSED_VERSIONS = 10
_HINT_BYTES = 200
_SNAPSHOT_BYTES = 50_000


def open_snapshot(
    store: Store,
    *,
    version: int | None = None,
    log_tail: Sequence[LogFile] | None = None,
    parallelism: int = 10,
    window: int = WINDOW,
    remembered: ByteLru | None = None,
    max_staleness: float = 0.0,
    companions: Callable[[int], Sequence[str]] | None = None,
) -> Snapshot:
    """Pin ``version`` (or the newest) and settle its protocol and metadata.

    ``log_tail`` is what a catalog has ratified, which may be nothing that is not published; None means no catalog.
    ``companions`` names objects beside a checkpoint that the caller will want, so that they are asked for early too.
    """
    newest = version is None and log_tail is None
    if newest and remembered is not None and max_staleness > 0:
        known: tuple[float, Snapshot] | None = remembered.get(("snapshot", store.identity))
        if known is not None and time.monotonic() - known[0] <= max_staleness:
            return replace(known[1], store=store)
    hint, is_known = _hint(store, remembered)
    cache = CommitCache(store.identity, remembered)
    beside = list(companions(hint.version)) if companions is not None and hint is not None else []
    if store.is_remote and hint is not None and newest:
        cache.expect(store, beside if is_known else [*_likely_paths(hint), *beside])
    try:
        segment = load_segment(store, version=version, hint=hint, log_tail=log_tail or (), window=window)
        cache.forget_all_but({*_wanted_paths(segment), *(beside if _is_at(segment, hint) else ())})
        snapshot = load_snapshot(
            store, segment, has_log_tail=log_tail is not None, parallelism=parallelism, cache=cache
        )
    except BaseException:
        cache.forget_all_but(())
        raise
    if newest and remembered is not None:
        _remember(remembered, store, snapshot, hint)
    return snapshot


def _hint(store: Store, remembered: ByteLru | None) -> tuple[CheckpointHint | None, bool]:
    known: CheckpointHint | None = None if remembered is None else remembered.get(("hint", store.identity))
    return (read_hint(store), False) if known is None else (known, True)


def _remember(remembered: ByteLru, store: Store, snapshot: Snapshot, hint: CheckpointHint | None) -> None:
    remembered.put(("snapshot", store.identity), (time.monotonic(), snapshot), _SNAPSHOT_BYTES)
    checkpoint = snapshot.segment.checkpoint
    if checkpoint is None:
        remembered.remove(("hint", store.identity))
    elif hint is None or hint.version != checkpoint.version:
        remembered.put(("hint", store.identity), CheckpointHint(version=checkpoint.version), _HINT_BYTES)
    else:
        remembered.put(("hint", store.identity), hint, _HINT_BYTES)


def _is_at(segment: LogSegment, hint: CheckpointHint | None) -> bool:
    return hint is not None and segment.base_version == hint.version


def _likely_paths(hint: CheckpointHint) -> list[str]:
    versions = range(hint.version + 1, hint.version + 1 + _GUESSED_VERSIONS)
    return [f"{LOG}/{name(version)}" for name in (commit_name, checksum_name) for version in versions]


def _wanted_paths(segment: LogSegment) -> set[str]:
    files = [*segment.tail(), *segment.commits, *([segment.checksum] if segment.checksum else [])]
    return {file.path for file in files}

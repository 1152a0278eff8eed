"""Open a snapshot in as few round trips as the log allows.

``_last_checkpoint`` names the checkpoint C. On a remote store, the commits and checksums just after C are prefetched
together with the listing. With a tail of up to ten commits and a checksum, the first file of the tail is known after
two round trips. Without a checksum, all commits of the tail must be checked for protocol and metadata before a file is
emitted. They are fetched together, once for opening and scan, in parallel with the objects that verify the checkpoint's
mirror. With a checksum, the newest commits are fetched in parallel with it, for the scan that starts with them.

A process that has opened the table before already knows a checkpoint. It lists from there without reading the hint,
because the listing shows every newer checkpoint. Opening then takes one LIST, and none within ``max_staleness``
seconds.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import msgspec

from lazydelta.log.commits import CommitCache
from lazydelta.log.hint.reader import HINT_PATH, CheckpointHint, read_hint
from lazydelta.log.replay import LEAST_PARALLELISM, is_small
from lazydelta.log.segment import WINDOW, LogSegment, load_segment
from lazydelta.log.snapshot import LogSnapshot, OpeningCost, load_snapshot
from lazydelta.log.tail_spans import CheckpointMirror, SpanSource, TailSpans
from lazydelta.protocol.file_names import LOG, LogFile, checksum_name, commit_name
from lazydelta.runtime.cache import ByteLru
from lazydelta.runtime.telemetry import span
from lazydelta.storage import Store

__all__ = ["open_snapshot"]

logger = logging.getLogger(__name__)

PREFETCHED_VERSIONS = 10
_HINT_BYTES = 200
_SNAPSHOT_BYTES = 50_000


def open_snapshot(  # noqa: PLR0913 - keyword-only but for the store
    store: Store,
    *,
    version: int | None = None,
    log_tail: Sequence[LogFile] | None = None,
    parallelism: int | None = None,
    window: int = WINDOW,
    remembered: ByteLru | None = None,
    max_staleness: float = 0.0,
    mirror: CheckpointMirror | None = None,
    spans: SpanSource | None = None,
    scan_follows: bool = False,
    prefetched: int = PREFETCHED_VERSIONS,
) -> LogSnapshot:
    """Pin ``version`` (or the newest) and resolve its protocol and metadata.

    ``log_tail`` holds the commits that a catalog has ratified; it is empty if all of them are published, and None means
    no catalog. ``mirror`` locates a copy of the checkpoint's state, which is prefetched. So are the newest commits if
    ``scan_follows``. ``spans`` locates spans that replace commits of a long tail. ``prefetched`` is how many versions
    after the hint are requested before it is known whether they exist: a commit each, and a checksum if the hint has
    one.
    """
    newest = version is None and log_tail is None
    if newest and remembered is not None and max_staleness > 0:
        known: tuple[float, LogSnapshot] | None = remembered.get(("snapshot", store.identity))
        if known is not None and time.monotonic() - known[0] <= max_staleness:
            return msgspec.structs.replace(known[1], store=store)
    with span("open", store.uri):
        snapshot, hint = _opened(
            store,
            version,
            log_tail,
            parallelism=parallelism,
            window=window,
            remembered=remembered,
            mirror=mirror,
            spans=spans,
            scan_follows=scan_follows,
            prefetched=prefetched,
        )
    if newest and remembered is not None:
        _remember(remembered, store, snapshot, hint)
    return snapshot


def _opened(  # noqa: PLR0913 - the arguments of open_snapshot
    store: Store,
    version: int | None,
    log_tail: Sequence[LogFile] | None,
    *,
    parallelism: int | None,
    window: int,
    remembered: ByteLru | None,
    mirror: CheckpointMirror | None,
    spans: SpanSource | None,
    scan_follows: bool,
    prefetched: int,
) -> tuple[LogSnapshot, CheckpointHint | None]:
    newest = version is None and log_tail is None
    opening = OpeningCost()
    counted = store.with_counters(opening.io)
    hint, is_known = _hint(counted, remembered)
    cache = CommitCache(store.identity, remembered)
    beside = list(mirror.paths(store, hint.version)) if mirror is not None and hint is not None else []
    if store.is_remote and hint is not None and newest:
        cache.ahead.ask(counted, beside if is_known else [*_likely_paths(hint, prefetched), *beside])
    try:
        with span("list", store.uri):
            segment = load_segment(counted, version=version, hint=hint, log_tail=log_tail or (), window=window)
        if newest and not is_known:
            _compare_hint(segment, hint)
        cache.ahead.keep_only({*_wanted_paths(segment), *(beside if _is_at(segment, hint) else ())})
        if store.is_remote and spans is not None:
            spans.ask(counted, segment, cache.ahead)
        if store.is_remote and scan_follows:
            _ask_for_newest(counted, segment, cache, parallelism)
        snapshot = load_snapshot(
            counted,
            segment,
            has_log_tail=log_tail is not None,
            parallelism=parallelism,
            cache=cache,
            mirror=mirror,
            opening=opening,
            spans=TailSpans(spans),
        )
    except BaseException:
        cache.ahead.keep_only(())
        raise
    opening.opened()
    return msgspec.structs.replace(snapshot, store=store), hint


def _hint(store: Store, remembered: ByteLru | None) -> tuple[CheckpointHint | None, bool]:
    known: CheckpointHint | None = None if remembered is None else remembered.get(("hint", store.identity))
    return (read_hint(store), False) if known is None else (known, True)


def _remember(remembered: ByteLru, store: Store, snapshot: LogSnapshot, hint: CheckpointHint | None) -> None:
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


def _compare_hint(segment: LogSegment, hint: CheckpointHint | None) -> None:
    """Log a hint that is out of date: the listing starts there, so an older hint costs more."""
    if segment.checkpoint is None:
        return
    found = segment.base_version
    if hint is None:
        logger.info(
            "%s is missing, and the log was listed from its beginning: the newest checkpoint is %d", HINT_PATH, found
        )
    elif hint.version != found:
        logger.info("%s is out of date: it names checkpoint %d, and the newest is %d", HINT_PATH, hint.version, found)


def _likely_paths(hint: CheckpointHint, prefetched: int) -> list[str]:
    versions = range(hint.version + 1, hint.version + 1 + prefetched)
    # Writers of version checksums put a checksum into the hint as well; others would only be asked for nothing.
    names = (commit_name,) if hint.checksum is None else (commit_name, checksum_name)
    return [f"{LOG}/{name(version)}" for name in names for version in versions]


def _wanted_paths(segment: LogSegment) -> set[str]:
    files = [*segment.tail(), *segment.commits, *([segment.checksum] if segment.checksum else [])]
    # Larger files are streamed in turn.
    return {file.path for file in files if is_small(file)}


def _ask_for_newest(store: Store, segment: LogSegment, cache: CommitCache, parallelism: int | None) -> None:
    """Prefetch the commits that a scan starts with, in parallel with the checksum that holds the rest."""
    if segment.checksum is None or segment.checksum.version != segment.version:
        return  # they are read next anyway
    newest = segment.tail()[-(parallelism or LEAST_PARALLELISM) :]
    wanted = [file for file in reversed(newest) if is_small(file) and cache.known(file.path, file.info.etag) is None]
    cache.ahead.ask(store, [file.path for file in wanted])

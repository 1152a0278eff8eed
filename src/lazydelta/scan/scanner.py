"""``LazyDeltaScanner``: finds the files of a version as the consumer requests them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol, Self, TypeVar

import msgspec
import numpy as np

from lazydelta.errors import FallbackDisabledError, RetentionGuardError
from lazydelta.log.checksum.check import ChecksumCheck
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.keys import RemoveSet
from lazydelta.log.replay import TailReader, active_tail_files, unmasked_stretches
from lazydelta.log.segment import LogSegment
from lazydelta.log.snapshot import Charge, LogSnapshot
from lazydelta.options import Options
from lazydelta.predicates import conjuncts
from lazydelta.runtime.arrays import numpy_of
from lazydelta.runtime.metrics import MEANINGS, ScanMetrics, ScanSpan, export
from lazydelta.runtime.threads import ReadAhead, release_memory
from lazydelta.scan.base import BaseScan, CheckpointBase, ScanBase, ScanRange
from lazydelta.scan.pruner import Pruner
from lazydelta.scan.request import ScanRequest, ScanStrategy, check_time_travel
from lazydelta.storage import IoCounters, Store
from lazydelta.warned import ChecksumWarning

__all__ = [
    "SMALL_SHARE",
    "Explanation",
    "LazyDeltaScanner",
    "ScanPlan",
    "choose_plan",
    "describe_metric",
]


# Choose the strategy of a scan from the listing, the hint and the manifest, with the reason.


_LONG_TAIL = 100
SMALL_SHARE = 0.05

Share = Callable[[], float | None]
"""Returns the share of the base left by a lower bound on its sort column; None if there is no such bound."""


class ScanPlan(msgspec.Struct, frozen=True):
    """The plan of a scan. ``strategy`` is never AUTO; ``whole`` means the consumer is expected to read every file."""

    strategy: ScanStrategy
    reason: str
    whole: bool = False


def choose_plan(request: ScanRequest, segment: LogSegment, share: Share | None = None) -> ScanPlan:
    """Choose between newest files first and highest throughput. ``share`` is called only if the result matters."""
    if request.strategy is not ScanStrategy.AUTO:
        whole = request.strategy is ScanStrategy.FORWARD
        return ScanPlan(request.strategy, "asked for", whole=whole)
    if request.limit is not None:
        return ScanPlan(ScanStrategy.REVERSE, f"a limit of {request.limit} files ends the scan early")
    if request.row_limit is not None:
        return ScanPlan(ScanStrategy.REVERSE, f"a limit of {request.row_limit} rows ends the scan early")
    strategy, reason = _without_limit(request, segment, share)
    return ScanPlan(strategy, reason, whole=True)


def _without_limit(request: ScanRequest, segment: LogSegment, share: Share | None) -> tuple[ScanStrategy, str]:
    tail = segment.version - segment.base_version
    if tail > _LONG_TAIL:
        return ScanStrategy.FORWARD, f"{tail} commits since the checkpoint and no limit"
    left = share() if share is not None and request.predicate is not None else None
    if left is not None and left < SMALL_SHARE:
        return ScanStrategy.REVERSE, f"a lower bound on what the base is sorted by leaves at most {left:.1%} of it"
    tail_bytes = sum(max(0, file.info.size) for file in segment.tail())
    if tail_bytes * 2 > segment.base_bytes:
        share_of_tail = f"{tail_bytes} bytes against {segment.base_bytes}"
        return ScanStrategy.REVERSE, f"the tail is large beside the base ({share_of_tail})"
    return ScanStrategy.FORWARD, "the base holds most files and nothing ends the scan early"


# Limits: how many files may still be emitted, and which part of a batch.


class Limits:
    """Counts files and proven rows. A scan ends when either limit is reached."""

    def __init__(self, request: ScanRequest, pruner: Pruner) -> None:
        self._files = request.limit
        self._rows = request.row_limit
        self._pruner = pruner

    @property
    def reached(self) -> bool:
        """Return whether a limit is reached."""
        return self._files == 0 or (self._rows is not None and self._rows <= 0)

    def cut(self, batch: FileBatch) -> FileBatch:
        """Return the part of a batch to emit: up to and including the file that reaches a limit."""
        if self._rows is not None:
            rows = np.cumsum(self._pruner.proven_rows(batch))
            enough = int(np.searchsorted(rows, self._rows)) + 1
            if enough <= len(batch):
                batch, rows = batch.slice(0, enough), rows[:enough]
            self._rows -= int(rows[-1]) if len(rows) else 0
        if self._files is not None:
            batch = batch.slice(0, self._files) if len(batch) > self._files else batch
            self._files -= len(batch)
        return batch


logger = logging.getLogger(__name__)

_READ_AHEAD_BATCHES = 1
_RELEASE_EVERY = 32
_NAMED_SPANS = 3


class _Cut(Protocol):
    """Rows that can be sliced without copying."""

    def __len__(self) -> int: ...

    def slice(self, offset: int, length: int, /) -> Self: ...


Rows = TypeVar("Rows", bound=_Cut)


class LazyDeltaScanner:
    """One scan of a snapshot: the tail newest first, then the base without files that the tail removed or replaced.

    ``io`` counts the requests of the scan and ends them: once stopped, the scan makes no further request. ``base``
    reads the files at the checkpoint. ``within`` is the part of a divided scan to read. The tail is read for every
    part, because it determines which files of the base were removed.
    """

    def __init__(
        self,
        snapshot: LogSnapshot,
        request: ScanRequest | None = None,
        options: Options | None = None,
        *,
        base: ScanBase | None = None,
        within: ScanRange | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.request = ScanRequest() if request is None else request
        self.options = Options() if options is None else options
        self.metrics = ScanMetrics()
        self.io = IoCounters()
        self.base = CheckpointBase() if base is None else base
        self.within = within
        # Returns the row groups of the base for a picture, see ``scan.picture``.
        self.shown_groups: Callable[[], Sequence[Any]] = list
        # The plan and its reason, as far as known without a request. The first file requested may refine it.
        self.plan = choose_plan(self.request, snapshot.segment)
        self._charge = Charge()

    def batches(self) -> Generator[FileBatch]:
        """Yield the files that may match. Reads nothing before the consumer asks, and nothing after it stops."""
        return self.converted(_as_found)

    def converted(self, convert: Callable[[FileBatch], Rows]) -> Generator[Rows]:
        """Yield the files that may match, converted. Files found together are converted together, then cut."""
        self.metrics.resume()
        self.metrics.look_at_memory()
        span = ScanSpan(self.snapshot.store.uri)
        try:
            self._begin()
            with closing(self._limited()) as found:
                for batch in found:
                    rows = convert(batch)
                    for start in range(0, len(batch), self.request.batch_size):
                        piece = rows.slice(start, self.request.batch_size)
                        self.metrics.first_file()
                        self.metrics.files_emitted += len(piece)
                        self._count_io()
                        self.metrics.pause()
                        yield piece
                        self.metrics.resume()
        finally:
            self._count_io()
            self.metrics.look_at_memory()
            self.metrics.pause()
            export(self.metrics, self.snapshot.store.uri)
            span.end(self.metrics)

    def _begin(self) -> None:
        self._check_floor()
        self._check_tripwire()
        self._charge = charge = self.snapshot.opening.charge()
        self.metrics.open_ms, self.metrics.open_requests = charge.ms, charge.requests
        self.metrics.commits_scanned = charge.commits
        store = self.snapshot.store.with_counters(self.io)
        share = self.base.share
        self.plan = choose_plan(
            self.request, self.snapshot.segment, lambda: share(store, self.snapshot, self.request.predicate)
        )
        self.metrics.strategy, self.metrics.reason = self.plan.strategy.value, self.plan.reason

    def _limited(self) -> Generator[FileBatch]:
        seen = RemoveSet(self.options.keys_in_memory)
        pruner = Pruner(self.request, self.metrics, project_columns=self.options.project_columns)
        limits = Limits(self.request, pruner)
        totals = _Totals()
        check = self._checksum_check()
        active = self._active(seen, pruner, check)
        try:
            for batch in () if limits.reached else active:
                totals.count(batch)
                self.metrics.buffered(batch.nbytes + seen.memory)
                self._release(totals.batches)
                yield limits.cut(batch)
                if limits.reached:
                    return
            if check is not None and not limits.reached:
                self._verify(check, totals)
        finally:
            active.close()
            seen.close()

    def _active(self, seen: RemoveSet, pruner: Pruner, check: ChecksumCheck | None) -> Generator[FileBatch]:
        store = self.snapshot.store.with_counters(self.io)
        base = self._base(store, pruner)
        if self.plan.whole:
            # The base is decoded while the tail is read, but none of its rows is emitted before all keys are known.
            base = ReadAhead(base, depth=_READ_AHEAD_BATCHES, stop=self.io.stop)
        try:
            yield from self._tail(self.snapshot, store, seen, pruner, check)
            if (older := self._settled(store)) is not self.snapshot:
                yield from self._tail(older, store, seen, pruner, None)
            for batch in base:
                # All keys are known by now, so rows of the base can be pruned first, which leaves few to look up.
                kept = pruner.prune(batch if self.within is None else self.within.only(batch))
                found = unmasked_stretches(kept, seen)
                self.metrics.files_masked += len(kept) - sum(map(len, found))
                yield from found
        finally:
            close = getattr(base, "close", None)
            if close is not None:
                close()

    def _tail(
        self, snapshot: LogSnapshot, store: Store, seen: RemoveSet, pruner: Pruner, check: ChecksumCheck | None
    ) -> Iterator[FileBatch]:
        def commits() -> TailReader:
            return snapshot.tail(
                store,
                self.options.keys_in_memory,
                whole=self.plan.whole,
                spans=not self.request.extra,  # copying actions needs everything that the commits contain
                wanted=pruner.wanted,
            )

        tails = None if check is not None or self.request.extra else snapshot.replayed_tails
        known = None if tails is None else tails.of(snapshot.segment, snapshot.commits, commits)
        if known is not None:
            tail = known.replay(seen, self.metrics)
        else:
            read = commits() if check is None else check.watch(commits())
            tail = active_tail_files(read, seen, self.metrics, extra=self.request.extra)
        for batch in tail:
            if self.within is None:
                yield pruner.prune(batch)
            elif self.within.place is None:
                yield pruner.prune(self.within.only(batch))

    def _settled(self, store: Store) -> LogSnapshot:
        """Return what the base is read from: this snapshot, or its checkpoint's version on an older checkpoint."""
        if self.within is not None or self.request.retention_guard is not None:
            return self.snapshot  # both are about the checkpoint that was listed
        found = self.base.settled(store, self.snapshot)
        return self.snapshot if found.segment is self.snapshot.segment else found

    def _base(self, store: Store, pruner: Pruner) -> Iterator[FileBatch]:
        if self.within is not None and self.within.place is None:
            return
        settled = self._settled(store)
        yield from self.base.files(
            BaseScan(
                snapshot=settled,
                without_sidecar=None if settled is self.snapshot else settled.version,
                store=store,
                predicate=self.request.predicate,
                wanted=pruner.wanted,
                newest_first=self.plan.strategy is ScanStrategy.REVERSE,
                batch_size=self.request.batch_size,
                metrics=self.metrics,
                limited=self.request.limit is not None or self.request.row_limit is not None,
                memory_budget=self.options.memory_budget,
                place=None if self.within is None else self.within.place,
                named=self.request.named,
            )
        )

    @staticmethod
    def _release(batches: int) -> None:
        """Release memory now and then: the allocator keeps what each thread has freed, which adds up."""
        if batches % _RELEASE_EVERY == 0:
            release_memory()

    def _check_floor(self) -> None:
        guard, segment = self.request.retention_guard, self.snapshot.segment
        if guard is None:
            if self.request.time_travel:
                check_time_travel(self.snapshot, strict=self.request.strict)
            return
        floor = segment.checkpoint_commit
        if floor is None:
            floor = segment.checkpoint.files[0] if segment.checkpoint is not None else segment.commits[0]
        if not guard(floor.version, floor.info.last_modified):
            message = f"The retention guard rejects version {floor.version} as the start of a scan of version"
            hint = "its files may have been deleted; scan a version with a newer checkpoint"
            raise RetentionGuardError(
                f"{message} {self.snapshot.version}", version=floor.version, path=floor.path, hint=hint
            )

    def _check_tripwire(self) -> None:
        if not self.snapshot.changes:
            return
        change = self.snapshot.changes[0]
        if not self.options.enable_fallback:
            message = f"Version {change.version} has a {change.action} action and no checksum records the current state"
            hint = "set the option enable_fallback=True to replay it"
            raise FallbackDisabledError(message, version=change.version, hint=hint)
        self.metrics.fallback_triggered = 1

    def _count_io(self) -> None:
        self.metrics.requests = self._charge.requests + self.io.requests
        self.metrics.bytes_read = self._charge.bytes_read + self.io.bytes_read
        self.metrics.compactions_rejected = len(self.snapshot.commits.rejected)
        self._count_spans()

    def _count_spans(self) -> None:
        metrics, rejected = self.metrics, self.snapshot.spans.rejected
        metrics.delta_sidecars_rejected = len(rejected)
        words = [f"{metrics.delta_commits} commits"] if metrics.delta_commits else []
        words += [f"{path} not used: {reason}" for path, reason in list(rejected.items())[:_NAMED_SPANS]]
        metrics.delta_sidecars = "; ".join(words)

    def _checksum_check(self) -> ChecksumCheck | None:
        """Return the check against the checksum, if the scan may see the whole version."""
        unselected = self.request.predicate is None and self.request.named is None and self.within is None
        whole = unselected and self.options.checksum != "off"
        return ChecksumCheck.of(self.snapshot) if whole else None

    def _verify(self, check: ChecksumCheck, totals: _Totals) -> None:
        store = self.snapshot.store.with_counters(self.io)
        error = check.mismatch(store, num_files=totals.files, size=totals.size)
        if error is None:
            return
        self.metrics.checksum_mismatches += 1
        if self.options.checksum == "error":
            raise error
        logger.warning("%s", error)
        # A logger without a handler is silent, and this must not be silent.
        warnings.warn(str(error), ChecksumWarning, stacklevel=2)


def _as_found(batch: FileBatch) -> FileBatch:
    return batch


class _Totals(msgspec.Struct):
    files: int = 0
    size: int = 0
    batches: int = 0

    def count(self, batch: FileBatch) -> None:
        self.batches += 1
        self.files += len(batch)
        self.size += int(numpy_of(batch.size).sum())


# ``Explanation``: the decisions of a scan, their reasons, and the cost so far.


_PREFIX = "delta.lazy."
_PLAN_MEANINGS = {
    "table": "what is scanned",
    "version": "the version that is pinned",
    "base_version": "the checkpoint that the base is read from",
    "tail_commits": "commits since the checkpoint",
    "strategy": MEANINGS["strategy"],
    "reason": MEANINGS["reason"],
    "order": "in which order the files come",
    "base_order": MEANINGS["base_order"],
    "sidecar": MEANINGS["sidecar"],
    "delta_sidecars": MEANINGS["delta_sidecars"],
    "stats_passed_by": MEANINGS["stats_passed_by"],
    "predicate": "what rows must satisfy, as understood",
    "conditions": "whether files can be left out by it, and how",
    "limit": "files that are enough",
    "row_limit": "rows that are enough",
    "settled_by": "what says which protocol and metadata are in force",
    "changes": "protocol and metadata actions in the tail",
}
_ORDERS = {
    ScanStrategy.REVERSE: "the tail by commit, newest first; then the base",
    ScanStrategy.FORWARD: "the tail; then the base, whose order is not looked at",
}


class Explanation(msgspec.Struct, frozen=True):
    """The plan of a scan and its metrics at a point in time."""

    plan: dict[str, Any]
    metrics: dict[str, Any]

    @classmethod
    def of(cls, scanner: LazyDeltaScanner) -> Explanation:
        """Explain a scan, whether it has started or not."""
        segment, request, plan = scanner.snapshot.segment, scanner.request, scanner.plan
        return cls(
            plan={
                "table": scanner.snapshot.store.uri,
                "version": scanner.snapshot.version,
                "base_version": None if segment.checkpoint is None else segment.base_version,
                "tail_commits": segment.version - segment.base_version,
                "strategy": plan.strategy.value,
                "reason": plan.reason,
                "order": _ORDERS[plan.strategy],
                "base_order": scanner.metrics.base_order or None,
                "sidecar": scanner.metrics.sidecar or None,
                "delta_sidecars": scanner.metrics.delta_sidecars or None,
                "stats_passed_by": scanner.metrics.stats_passed_by or None,
                "predicate": None if request.predicate is None else str(request.predicate),
                "conditions": [str(each) for each in conjuncts(request.predicate)],
                "limit": request.limit,
                "row_limit": request.row_limit,
                "settled_by": _settled_by(scanner.snapshot),
                "changes": [f"{each.action} in version {each.version}" for each in scanner.snapshot.changes],
            },
            metrics=scanner.metrics.as_dict(),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plan and metrics in one mapping."""
        return {"plan": self.plan, "metrics": self.metrics}

    def __str__(self) -> str:
        rows = {key: value for key, value in self.plan.items() if value not in (None, [])}
        for key, value in self.metrics.items():
            if value not in (None, ""):
                rows.setdefault(key.removeprefix(_PREFIX), value)
        width = max(map(len, rows))
        lines = []
        for key, value in rows.items():
            # Conditions are sentences: one line each.
            for each in value if key == "conditions" else [value]:
                label = "condition" if key == "conditions" else key.replace("_", " ")
                lines.append(f"{label:>{width}}  {each}  ({describe_metric(key)})")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from lazydelta.runtime.results import preformatted  # noqa: PLC0415 - for notebooks only

        return preformatted(str(self))


def _settled_by(snapshot: LogSnapshot) -> str:
    if snapshot.checksum is not None:
        return "checksum"
    return "manifest" if snapshot.mirrored else "log"


def describe_metric(name: str) -> str:
    """Return a short description of a row of an explanation."""
    return _PLAN_MEANINGS.get(name) or MEANINGS.get(name.removeprefix(_PREFIX), "")

"""``LazyDeltaScanner``: the files of a version, found while they are asked for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Protocol, Self, TypeVar

import msgspec

from lazydelta.arrays import numpy_of
from lazydelta.errors import FallbackDisabledError, RetentionGuardError
from lazydelta.execution import ReadAhead, release_memory
from lazydelta.log.checksum.checksum_check import ChecksumCheck
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.opening_cost import Charge
from lazydelta.log.reconcile import active_tail_files, unmasked_stretches
from lazydelta.log.remove_set import RemoveSet
from lazydelta.log.snapshot import Snapshot
from lazydelta.metrics import ScanMetrics
from lazydelta.options import Options
from lazydelta.scan.base import BaseScan, OpenBase, ShareOfBase, checkpoint_files
from lazydelta.scan.limits import Limits
from lazydelta.scan.pruner import Pruner
from lazydelta.scan.request import ScanRequest, ScanStrategy
from lazydelta.scan.scan_range import ScanRange
from lazydelta.scan.strategy_choice import choose_plan
from lazydelta.storage import IoCounters, Store
from lazydelta.telemetry import ScanSpan, export
from lazydelta.warned import ChecksumWarning

__all__ = ["LazyDeltaScanner"]

logger = logging.getLogger(__name__)

_READ_AHEAD_BATCHES = 2
_RELEASE_EVERY = 32
_NAMED_SPANS = 3


class _Cut(Protocol):
    """Rows that can be cut without a copy."""

    def __len__(self) -> int: ...

    def slice(self, offset: int, length: int, /) -> Self: ...


Rows = TypeVar("Rows", bound=_Cut)


class LazyDeltaScanner:
    """One scan of one snapshot: the tail newest first, then the base without what the tail removed or replaced.

    ``io`` counts the scan's requests and ends them: once it is stopped, no request of this scan leaves any more.
    ``open_base`` says where the files at the checkpoint are read from, and ``share_of_base`` how many of them a
    predicate leaves, where that can be told before they are read. ``within`` is the part of the scan that is meant,
    where it is divided; the tail is read for each part, as it says which files of the base are gone.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        request: ScanRequest | None = None,
        options: Options | None = None,
        *,
        open_base: OpenBase = checkpoint_files,
        share_of_base: ShareOfBase | None = None,
        within: ScanRange | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.request = ScanRequest() if request is None else request
        self.options = Options() if options is None else options
        self.metrics = ScanMetrics()
        self.io = IoCounters()
        self.open_base = open_base
        self.share_of_base = share_of_base
        self.within = within
        # How the scan goes, and why, as far as it is known without a request; the first pull may know more.
        self.plan = choose_plan(self.request, snapshot.segment)
        self._charge = Charge()

    def batches(self) -> Generator[FileBatch]:
        """Yield the files that may match; nothing is read before the consumer asks, and nothing after it stops."""
        return self.converted(_as_found)

    def converted(self, convert: Callable[[FileBatch], Rows]) -> Generator[Rows]:
        """Yield the files that may match in another form: what is found together is converted together, then cut."""
        self.metrics.resume()
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
            self.metrics.pause()
            export(self.metrics, self.snapshot.store.uri)
            span.end(self.metrics)

    def _begin(self) -> None:
        self._check_floor()
        self._check_tripwire()
        self._charge = charge = self.snapshot.opening.charge()
        self.metrics.open_ms, self.metrics.open_requests = charge.ms, charge.requests
        self.metrics.commits_scanned = charge.commits
        store, share = self.snapshot.store.with_counters(self.io), self.share_of_base
        known = None if share is None else lambda: share(store, self.snapshot, self.request.predicate)
        self.plan = choose_plan(self.request, self.snapshot.segment, known)
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
            # The base is decoded while the tail is read, but no row of it leaves before all keys are known.
            base = ReadAhead(base, depth=_READ_AHEAD_BATCHES, stop=self.io.stop)
        try:
            commits = self.snapshot.tail(
                store,
                self.options.keys_in_memory,
                whole=self.plan.whole,
                spans=not self.request.extra,  # who copies actions needs all that the commits have
                wanted=pruner.wanted,
            )
            tail = active_tail_files(
                commits if check is None else check.watch(commits), seen, self.metrics, extra=self.request.extra
            )
            for batch in tail:
                if self.within is None:
                    yield pruner.prune(batch)
                elif self.within.place is None:
                    yield pruner.prune(self.within.only(batch))
            for batch in base:
                # All keys are known by now, so base rows may be pruned first: few are left to look up.
                kept = pruner.prune(batch if self.within is None else self.within.only(batch))
                found = unmasked_stretches(kept, seen)
                self.metrics.files_masked += len(kept) - sum(map(len, found))
                yield from found
        finally:
            close = getattr(base, "close", None)
            if close is not None:
                close()

    def _base(self, store: Store, pruner: Pruner) -> Iterator[FileBatch]:
        if self.within is not None and self.within.place is None:
            return iter(())
        return self.open_base(
            BaseScan(
                snapshot=self.snapshot,
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
        """Give memory back now and then: the allocator keeps what each thread has freed, which adds up."""
        if batches % _RELEASE_EVERY == 0:
            release_memory()

    def _check_floor(self) -> None:
        guard, segment = self.request.retention_guard, self.snapshot.segment
        if guard is None:
            return
        floor = segment.checkpoint_commit
        if floor is None:
            floor = segment.checkpoint.files[0] if segment.checkpoint is not None else segment.commits[0]
        if not guard(floor.version, floor.info.last_modified):
            message = f"The retention guard refuses version {floor.version} as the floor of a scan of version"
            hint = "files below it may be gone; scan a version whose checkpoint is younger"
            raise RetentionGuardError(
                f"{message} {self.snapshot.version}", version=floor.version, path=floor.path, hint=hint
            )

    def _check_tripwire(self) -> None:
        if not self.snapshot.changes:
            return
        change = self.snapshot.changes[0]
        if not self.options.enable_fallback:
            message = f"Version {change.version} has a {change.action} action and no checksum settles what is in force"
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
        """Return the comparison with the checksum, where the scan may see the whole version."""
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
        # A logger without a handler is silent, and this is nothing to be silent about.
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

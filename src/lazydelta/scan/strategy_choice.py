"""Which strategy a scan takes, decided from the listing, the hint and the manifest, with the reason in words."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from lazydelta.log.segment import LogSegment
from lazydelta.scan.request import ScanRequest, ScanStrategy

__all__ = ["SMALL_SHARE", "ScanPlan", "choose_plan"]

_LONG_TAIL = 100
SMALL_SHARE = 0.05

Share = Callable[[], float | None]
"""Returns which share of the base is left by a lower bound on what it is sorted by; None where there is no such."""


class ScanPlan(msgspec.Struct, frozen=True):
    """``strategy`` is never AUTO here; ``whole`` says that the consumer is expected to take every file."""

    strategy: ScanStrategy
    reason: str
    whole: bool = False


def choose_plan(request: ScanRequest, segment: LogSegment, share: Share | None = None) -> ScanPlan:
    """Choose between newest files first and most files a second; ``share`` is asked only if the answer matters."""
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

"""Which strategy a scan takes, decided from the listing and the hint alone, with the reason in words."""

from __future__ import annotations

from dataclasses import dataclass

from lazydelta.log.segment import LogSegment
from lazydelta.scan.request import ScanRequest, ScanStrategy

__all__ = ["ScanPlan", "choose_plan"]

_LONG_TAIL = 100


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """``strategy`` is never AUTO here."""

    strategy: ScanStrategy
    reason: str


def choose_plan(request: ScanRequest, segment: LogSegment) -> ScanPlan:
    """Choose between newest files first and most files a second."""
    if request.strategy is not ScanStrategy.AUTO:
        return ScanPlan(request.strategy, "asked for")
    if request.limit is not None:
        return ScanPlan(ScanStrategy.REVERSE, f"a limit of {request.limit} files ends the scan early")
    if request.row_limit is not None:
        return ScanPlan(ScanStrategy.REVERSE, f"a limit of {request.row_limit} rows ends the scan early")
    tail = segment.version - segment.base_version
    if tail > _LONG_TAIL:
        return ScanPlan(ScanStrategy.FORWARD, f"{tail} commits since the checkpoint and no limit")
    tail_bytes = sum(max(0, file.info.size) for file in segment.tail())
    if tail_bytes * 2 > segment.base_bytes:
        share = f"{tail_bytes} bytes against {segment.base_bytes}"
        return ScanPlan(ScanStrategy.REVERSE, f"the tail is large beside the base ({share})")
    return ScanPlan(ScanStrategy.FORWARD, "the base holds most files and nothing ends the scan early")

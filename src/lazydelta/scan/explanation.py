"""``Explanation``: what a scan decided, why, and what it has cost so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lazydelta.pruning import conjuncts
from lazydelta.scan.scanner import LazyDeltaScanner

__all__ = ["Explanation"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The plan of a scan and its metrics at one moment."""

    plan: dict[str, Any]
    metrics: dict[str, Any]

    @classmethod
    def of(cls, scanner: LazyDeltaScanner) -> Explanation:
        """Explain a scan, whether it has begun or not."""
        segment, request, plan = scanner.snapshot.segment, scanner.request, scanner.plan
        return cls(
            plan={
                "table": scanner.snapshot.store.uri,
                "version": scanner.snapshot.version,
                "base_version": None if segment.checkpoint is None else segment.base_version,
                "tail_commits": segment.version - segment.base_version,
                "strategy": plan.strategy.value,
                "reason": plan.reason,
                "base_order": scanner.metrics.base_order or None,
                "predicate": None if request.predicate is None else str(request.predicate),
                "conditions": [str(each) for each in conjuncts(request.predicate)],
                "limit": request.limit,
                "row_limit": request.row_limit,
                "settled_by": "checksum" if scanner.snapshot.checksum is not None else "log",
                "changes": [f"{each.action} in version {each.version}" for each in scanner.snapshot.changes],
            },
            metrics=scanner.metrics.as_dict(),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plan and metrics in one mapping."""
        return {"plan": self.plan, "metrics": self.metrics}

    def __str__(self) -> str:
        plan = {key: value for key, value in self.plan.items() if value not in (None, [], "")}
        conditions = plan.pop("conditions", [])
        lines = [f"{key.replace('_', ' '):>24}  {value}" for key, value in plan.items()]
        lines += [f"{'condition':>24}  {each}" for each in conditions]
        lines += [f"{key:>24}  {value}" for key, value in self.metrics.items() if value is not None]
        return "\n".join(lines)

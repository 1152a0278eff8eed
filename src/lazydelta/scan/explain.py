"""``Explanation``: the decisions of a scan, their reasons, and the cost so far."""

from __future__ import annotations

from typing import Any

import msgspec

from lazydelta.log.snapshot import LogSnapshot
from lazydelta.predicates import conjuncts
from lazydelta.runtime.metrics import MEANINGS
from lazydelta.scan.request import ScanStrategy
from lazydelta.scan.scanner import LazyDeltaScanner

__all__ = ["Explanation", "meaning"]

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
                lines.append(f"{label:>{width}}  {each}  ({meaning(key)})")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from lazydelta.runtime.display import preformatted  # noqa: PLC0415 - for notebooks only

        return preformatted(str(self))


def _settled_by(snapshot: LogSnapshot) -> str:
    if snapshot.checksum is not None:
        return "checksum"
    return "manifest" if snapshot.mirrored else "log"


def meaning(name: str) -> str:
    """Return a short description of a row of an explanation."""
    return _PLAN_MEANINGS.get(name) or MEANINGS.get(name.removeprefix(_PREFIX), "")

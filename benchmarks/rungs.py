"""The ladder: each rung is the one before it with one thing more switched on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["LADDER", "Rung"]


@dataclass(frozen=True, slots=True)
class Rung:
    """``options`` are those of ``DeltaTable``; ``limits`` gives the limit to the scan, where others cut its answer.

    ``remembers`` asks twice in one process and measures the second time.
    """

    name: str
    adds: str
    options: dict[str, Any] = field(default_factory=dict)
    limits: bool = False
    remembers: bool = False


_ALL_OFF: dict[str, Any] = {
    "delta.sidecar.enabled": False,
    "use_manifest": False,
    "project_columns": False,
    "prune_row_groups": False,
    "delta.commit.parallelism": 1,
    "cache_size": 0,
}


def _ladder() -> list[Rung]:
    """Build the rungs by taking away one switch after the other, so that no rung can change two."""
    left = dict(_ALL_OFF)
    found = [Rung("L1", "a lazy stream over the checkpoint", dict(left))]
    for name, adds, switch in (
        ("L2", "commits fetched in parallel", "delta.commit.parallelism"),
        ("L3", "the sidecar", "delta.sidecar.enabled"),
        ("L4", "its manifest", "use_manifest"),
        ("L5", "projection", "project_columns"),
        ("L6", "row groups pruned", "prune_row_groups"),
    ):
        del left[switch]
        found.append(Rung(name, adds, dict(left)))
    found.append(Rung("L7", "a limit ends the scan", dict(left), limits=True))
    del left["cache_size"]
    found.append(Rung("L8", "manifests and footers remembered", dict(left), limits=True, remembers=True))
    return found


LADDER = _ladder()

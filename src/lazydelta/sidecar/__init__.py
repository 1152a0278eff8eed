"""Sidecars: native statistics sorted by time, stored next to the checkpoint that they mirror.

``build`` and ``refresh`` write a sidecar, and ``build_deltas`` covers the commits of a long gap after it. ``verify``
proves that it equals the log, ``show`` describes it, ``clean`` and ``drop`` delete files. Tables use sidecars
automatically.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lazydelta.sidecar.building.build import build
    from lazydelta.sidecar.building.deltas import DeltaFile, DeltaResult, build_deltas
    from lazydelta.sidecar.building.publish import BuildResult
    from lazydelta.sidecar.building.refresh import refresh
    from lazydelta.sidecar.inspection import SidecarInfo, show
    from lazydelta.sidecar.lifecycle import CleanResult, clean, drop
    from lazydelta.sidecar.verification import VerifyReport, verify

__all__ = [
    "BuildResult",
    "CleanResult",
    "DeltaFile",
    "DeltaResult",
    "SidecarInfo",
    "VerifyReport",
    "build",
    "build_deltas",
    "clean",
    "drop",
    "refresh",
    "show",
    "verify",
]
# What other packages of lazydelta import besides; programs use the names above.
SHARED = (
    "building",
    "delta_verification",
    "format",
    "handle",
    "inspection",
    "lifecycle",
    "reading",
    "timeline",
)

# Opening a table imports this package for the reader only; everything else is imported on first use.
_HOMES = {
    "BuildResult": "building.publish",
    "CleanResult": "lifecycle",
    "DeltaFile": "building.deltas",
    "DeltaResult": "building.deltas",
    "SidecarInfo": "inspection",
    "VerifyReport": "verification",
    "build": "building.build",
    "build_deltas": "building.deltas",
    "clean": "lifecycle",
    "drop": "lifecycle",
    "refresh": "building.refresh",
    "show": "inspection",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

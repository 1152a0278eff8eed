"""The sidecar: native statistics sorted by time, beside the checkpoint that they mirror.

``build`` and ``refresh`` make it, and ``build_deltas`` what stands for the commits of a long gap behind it. ``verify``
proves that it equals the log, ``show`` describes it, ``clean`` and ``drop`` delete. Tables use all of it by themselves.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lazydelta.sidecar.building.builder import build
    from lazydelta.sidecar.building.delta_builder import DeltaFile, DeltaResult, build_deltas
    from lazydelta.sidecar.building.publication import BuildResult
    from lazydelta.sidecar.building.refresher import refresh
    from lazydelta.sidecar.inspection.show import SidecarInfo, show
    from lazydelta.sidecar.inspection.verification import VerifyReport, verify
    from lazydelta.sidecar.upkeep.lifecycle import CleanResult, clean, drop

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

# Whoever opens a table comes through this package for the reader alone: the rest is loaded by those who ask for it.
_HOMES = {
    "BuildResult": "building.publication",
    "CleanResult": "upkeep.lifecycle",
    "DeltaFile": "building.delta_builder",
    "DeltaResult": "building.delta_builder",
    "SidecarInfo": "inspection.show",
    "VerifyReport": "inspection.verification",
    "build": "building.builder",
    "build_deltas": "building.delta_builder",
    "clean": "upkeep.lifecycle",
    "drop": "upkeep.lifecycle",
    "refresh": "building.refresher",
    "show": "inspection.show",
    "verify": "inspection.verification",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)

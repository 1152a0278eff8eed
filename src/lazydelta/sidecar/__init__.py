"""The sidecar: native statistics sorted by time, beside the checkpoint that they mirror.

``build`` and ``refresh`` make it, ``verify`` proves that it equals the log, ``show`` describes it, ``clean`` and
``drop`` delete. Tables use it by themselves.
"""

from __future__ import annotations

from lazydelta.sidecar.building.builder import build
from lazydelta.sidecar.building.publication import BuildResult
from lazydelta.sidecar.building.refresher import refresh
from lazydelta.sidecar.inspection.show import SidecarInfo, show
from lazydelta.sidecar.inspection.verification import VerifyReport, verify
from lazydelta.sidecar.upkeep.lifecycle import CleanResult, clean, drop

__all__ = [
    "BuildResult",
    "CleanResult",
    "SidecarInfo",
    "VerifyReport",
    "build",
    "clean",
    "drop",
    "refresh",
    "show",
    "verify",
]

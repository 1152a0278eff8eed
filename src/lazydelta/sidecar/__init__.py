"""The sidecar: native statistics sorted by time, beside the checkpoint that they mirror.

``build`` and ``refresh`` make it, ``verify`` proves that it equals the log, ``show`` describes it, ``clean`` and
``drop`` delete. Tables use it by themselves.
"""

from __future__ import annotations

from lazydelta.sidecar.build import build
from lazydelta.sidecar.lifecycle import CleanResult, clean, drop
from lazydelta.sidecar.publish import BuildResult
from lazydelta.sidecar.refresh import refresh
from lazydelta.sidecar.show import SidecarInfo, show
from lazydelta.sidecar.verify import VerifyReport, verify

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

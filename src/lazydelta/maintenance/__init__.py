"""Table maintenance after commits: inline, in a background thread, or in a separate process.

Each job works on a snapshot and commits like any other writer; ``policy`` says when it is due.
"""

from __future__ import annotations

from lazydelta.maintenance.background import BackgroundMaintenance
from lazydelta.maintenance.watch import BackgroundWatch

__all__ = ["BackgroundMaintenance", "BackgroundWatch"]
# What other packages of lazydelta import besides; programs use the names above.
SHARED = (
    "after_commit",
    "background",
    "doctor",
    "optimize",
    "restore",
    "rewrite",
    "vacuum",
    "vacuum_files",
    "watch",
)

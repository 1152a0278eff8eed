"""Table maintenance after commits: inline, in a background thread, or in a separate process."""

from __future__ import annotations

from lazydelta.maintenance.background import BackgroundMaintenance
from lazydelta.maintenance.watch import BackgroundWatch

__all__ = ["BackgroundMaintenance", "BackgroundWatch"]

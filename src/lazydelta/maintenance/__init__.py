"""What a table needs after commits, done once, in a thread, or in a process of its own."""

from __future__ import annotations

from lazydelta.maintenance.own_thread import BackgroundMaintenance
from lazydelta.maintenance.watch_thread import BackgroundWatch

__all__ = ["BackgroundMaintenance", "BackgroundWatch"]

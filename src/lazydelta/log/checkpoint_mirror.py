"""``CheckpointMirror``: what lies beside a checkpoint and says the same as it, in fewer round trips.

The log does not know what that is (a manifest of ours, see ``sidecar.reading.manifest_mirror``); it knows when to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from lazydelta.log.actions import Metadata
from lazydelta.log.actions import Protocol as TableProtocol
from lazydelta.log.asked_ahead import AskedAhead
from lazydelta.log.segment import Checkpoint
from lazydelta.storage import Store

__all__ = ["CheckpointMirror", "MirroredState", "PendingState"]


class MirroredState(NamedTuple):
    """Protocol and metadata at a checkpoint, and the object that says so."""

    protocol: TableProtocol
    metadata: Metadata
    path: str


PendingState: TypeAlias = Callable[[], MirroredState | None]
"""Waits for what is under way; None where nothing proves that the mirror is that of this checkpoint."""


class CheckpointMirror(Protocol):
    """Knows what to ask for beside a checkpoint."""

    def paths(self, store: Store, version: int) -> Sequence[str]:
        """Name the objects to ask for as soon as it is known that there may be a checkpoint of this version."""

    def begin(self, store: Store, checkpoint: Checkpoint, ahead: AskedAhead) -> PendingState:
        """Begin to read protocol and metadata at a checkpoint, beside whatever else is read."""

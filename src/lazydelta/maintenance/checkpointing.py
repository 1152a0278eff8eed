"""A checkpoint that somebody asks for, with the hint that leads readers to it."""

from __future__ import annotations

from lazydelta.log.checkpoint.writing.checkpoint_writer import write_checkpoint
from lazydelta.log.hint.hint_writer import write_last_checkpoint
from lazydelta.storage import Store

__all__ = ["checkpoint_at"]


def checkpoint_at(store: Store, version: int) -> None:
    """Write the checkpoint of a version, unless there is one, and point the hint at it."""
    write_last_checkpoint(store, write_checkpoint(store, version))

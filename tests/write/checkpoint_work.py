"""Work that the memory tests measure in a process of its own."""

from __future__ import annotations

from lazydelta.storage import open_store
from lazydelta.write.checkpoint.writer import write_checkpoint

__all__ = ["checkpoint"]


def checkpoint(table: str, memory_budget: int, now: int) -> list[int | None]:
    """Write the checkpoint of the newest version; return the counts of files and actions."""
    result = write_checkpoint(open_store(table), memory_budget=memory_budget, now=now)
    return [result.num_of_add_files, result.size]

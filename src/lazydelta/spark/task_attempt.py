"""Which task this is, and whether it was run before."""

from __future__ import annotations

from pyspark import TaskContext

__all__ = ["is_run_again", "task_number"]


def task_number() -> int:
    """Return the number of the present task among all of its job; 0 outside of one."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def is_run_again() -> bool:
    """Tell whether an attempt of the present task came before this one, and may have left files."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0

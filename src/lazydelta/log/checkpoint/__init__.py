"""Reading of checkpoints, classic and V2, within a bound on memory.

``write.checkpoint`` writes them.
"""

__all__ = ["columns", "pages", "reader"]

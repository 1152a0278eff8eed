"""Writing of checkpoints, in one process or distributed.

``log.checkpoint`` reads them.
"""

__all__ = ["distributed", "rows", "writer"]

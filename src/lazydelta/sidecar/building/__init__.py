"""Building, refreshing and publishing sidecars.

The manifest is the only commit point: files that no manifest names do not exist for readers.
"""

__all__ = ["build", "deltas", "distributed", "plan", "publish", "refresh"]

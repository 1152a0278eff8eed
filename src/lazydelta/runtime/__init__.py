"""What everything runs on: threads, caches, metrics, spilled rows and Arrow arrays.

Nothing here knows Delta.
"""

__all__ = ["arrays", "cache", "compute", "database", "metrics", "results", "threads"]

"""Lazy scans: stream the files of a version in memory that does not grow with the table.

A scan reads its base through ``base.ScanBase``; the sidecar implements that protocol, and is not known here.
"""

__all__ = ["base", "file", "listings", "picture", "pruner", "request", "scanner", "stream", "timestamp_check"]

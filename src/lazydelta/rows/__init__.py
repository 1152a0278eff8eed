"""Rows of a table: files found, fetched and decoded in parallel, as one stream of record batches.

Files come from a scan; rows do not know whether a checkpoint or a sidecar lists them.
"""

__all__ = [
    "change_feed",
    "dataset",
    "file_rows",
    "flow",
    "request",
    "scanner",
    "stream",
    "stream_options",
    "stream_source",
]

"""The Delta log: parses its files, and resolves which of them make up a version.

Predicates, sidecars and data files are unknown here; ``tail_spans.LogBase`` is all that the log asks of
what replaces it.
"""

__all__ = [
    "checkpoint",
    "checksum",
    "commits",
    "file_batch",
    "hint",
    "keys",
    "replay",
    "segment",
    "snapshot",
    "tail_spans",
    "time_travel",
]

"""Data files read as the table presents them.

Column mapping, type widening and deletion vectors are applied here. It knows one file at a time, and nothing of scans,
sidecars or predicates over many files.
"""

__all__ = ["columns", "reader"]

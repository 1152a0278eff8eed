"""The file format of sidecars: columns, row order, parts and manifest.

It knows bytes and rows, not where they are stored or when they are valid.
"""

__all__ = ["columns", "delta_file", "leaves", "manifest", "part_file", "rows"]

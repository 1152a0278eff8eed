"""Binding: resolve names, types and functions of a query into a plan over tables.

It reads no rows. What a plan costs and which conditions are pushed down is decided in ``execution``.
"""

__all__ = ["computed", "plan", "tabular", "types"]

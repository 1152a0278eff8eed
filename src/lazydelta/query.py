"""SQL over tables, under deltalake's names."""

from __future__ import annotations

from lazydelta.engines.query_builder import QueryBuilder

__all__ = ["QueryBuilder"]

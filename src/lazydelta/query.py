"""SQL over tables, under deltalake's names."""

from __future__ import annotations

from lazydelta.engines.datafusion import QueryBuilder

__all__ = ["QueryBuilder"]

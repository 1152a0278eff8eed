"""Execution of a plan: pushdown to the tables, SQL for DuckDB, and the result.

It knows plans, not syntax.
"""

__all__ = ["cluster_rewrite", "query", "tables"]

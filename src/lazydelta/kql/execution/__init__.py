"""Execution of a plan: pushdown to the tables, SQL for DuckDB, and the result."""

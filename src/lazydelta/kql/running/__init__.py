"""From a plan to rows: what reaches the tables, the SQL for DuckDB, and the result."""

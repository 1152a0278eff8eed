"""Query engines over the rows of tables.

Each module imports its engine when it is used, and reads through ``rows``; none knows how files are found.
"""

__all__ = [
    "datafusion",
    "duckdb",
    "polars",
    "sql",
]

"""The HTTP server: the page, the Kusto endpoint, metrics and health, over the tables and limits of ``serve``.

It executes no statement itself and knows no DuckDB.
"""

__all__ = ["listening"]

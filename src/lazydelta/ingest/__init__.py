"""Ingestion of Arrow, CSV, JSON lines and Parquet data into a table.

It turns sources into record batches for a ``WriteJob``; it knows neither Spark nor how a commit is made.
"""

__all__ = ["arrow", "conversion", "csv", "files", "json", "lines", "reading", "schema"]

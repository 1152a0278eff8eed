"""Rows of a table: files found, fetched and decoded in parallel, as one stream of record batches."""

"""Functions of KQL that Python computes over Arrow, for what DuckDB has no function for."""

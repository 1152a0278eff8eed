"""Functions of KQL that Python computes over Arrow, where DuckDB has no function.

They see arrays, never tables or syntax. Each imports its library when a query needs it.
"""

__all__ = [
    "arrow_functions",
    "graph_paths",
    "plugins",
    "sequences",
    "steps",
]

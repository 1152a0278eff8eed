"""The Delta protocol without I/O: types, values, actions, features, properties and names of log files.

Everything here is pure. What a log contains at a version is the business of ``log``.
"""

__all__ = [
    "actions",
    "arrow_types",
    "deletion_vectors",
    "delta_types",
    "features",
    "file_names",
    "properties",
    "schema",
    "time",
    "values",
]

"""Names that exist only for compatibility with deltalake.

Each adapts arguments and results of another package and holds no behaviour of its own. Only ``table`` and the public
modules at the top import it.
"""

__all__ = [
    "actions",
    "changes",
    "commit_properties",
    "parameters",
    "storage_handler",
    "writing",
]

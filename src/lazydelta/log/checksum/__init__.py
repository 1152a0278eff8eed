"""The version checksum: read, write and verify it.

It knows what a checksum says, not which versions of a table have one.
"""

__all__ = ["check", "reader", "writer"]

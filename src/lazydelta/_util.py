"""A name that programs import from the inside of deltalake."""

from __future__ import annotations

from lazydelta.types.partition_text import encode_partition_value

__all__ = ["encode_partition_value"]

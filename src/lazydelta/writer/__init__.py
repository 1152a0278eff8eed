"""Writing, under deltalake's names."""

from __future__ import annotations

from lazydelta.deltalake_names.commit_properties import BloomFilterProperties, ColumnProperties, WriterProperties
from lazydelta.deltalake_names.writing import convert_to_deltalake, write_deltalake

__all__ = [
    "BloomFilterProperties",
    "ColumnProperties",
    "WriterProperties",
    "convert_to_deltalake",
    "write_deltalake",
]

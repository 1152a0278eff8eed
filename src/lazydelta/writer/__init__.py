"""Writing, under deltalake's names."""

from __future__ import annotations

from lazydelta.deltalake_api.deltalake_writing import convert_to_deltalake, write_deltalake
from lazydelta.deltalake_api.parquet_properties import BloomFilterProperties, ColumnProperties, WriterProperties

__all__ = [
    "BloomFilterProperties",
    "ColumnProperties",
    "WriterProperties",
    "convert_to_deltalake",
    "write_deltalake",
]

"""The schema of a table and its types, under deltalake's names."""

from __future__ import annotations

from lazydelta.protocol.delta_types import (
    ArrayType,
    DataType,
    Field,
    MapType,
    PrimitiveType,
    Schema,
    StructType,
    VariantType,
)

__all__ = [
    "ArrayType",
    "DataType",
    "Field",
    "MapType",
    "PrimitiveType",
    "Schema",
    "StructType",
    "VariantType",
]

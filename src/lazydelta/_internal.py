"""Names that programs import from the inside of deltalake, as far as lazydelta has what they stand for."""

from __future__ import annotations

from lazydelta.deltalake_names.commit_properties import TableFeatures
from lazydelta.exceptions import (
    CommitFailedError,
    DeltaError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)
from lazydelta.schema import ArrayType, Field, MapType, PrimitiveType, Schema, StructType, VariantType
from lazydelta.transaction import Transaction

__all__ = [
    "ArrayType",
    "CommitFailedError",
    "DeltaError",
    "DeltaProtocolError",
    "Field",
    "MapType",
    "PrimitiveType",
    "Schema",
    "SchemaMismatchError",
    "StructType",
    "TableFeatures",
    "TableNotFoundError",
    "Transaction",
    "VariantType",
]

# Nanosecond timestamps are an experiment of delta-rs that no other reader knows: refused here.
_NANOSECOND_TIMESTAMPS = False

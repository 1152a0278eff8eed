"""lazydelta: lazy, bounded-memory file discovery for huge Delta Lake tables."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from lazydelta.delta_table import DeltaTable
from lazydelta.errors import LazyDeltaError
from lazydelta.scan.data_file import DataFile
from lazydelta.scan.file_stream import FileStream
from lazydelta.warned import PredicateWarning

if TYPE_CHECKING:
    from lazydelta.client import connect
    from lazydelta.deltalake_api.commit_properties import CommitProperties, PostCommitHookProperties, Transaction
    from lazydelta.deltalake_api.deltalake_writing import convert_to_deltalake, write_deltalake
    from lazydelta.deltalake_api.left_to_deltalake import enable_nanosecond_timestamps, init_tracing, rust_core_version
    from lazydelta.deltalake_api.parquet_properties import BloomFilterProperties, ColumnProperties, WriterProperties
    from lazydelta.deltalake_api.table_features import TableFeatures
    from lazydelta.log.table_description import TableMetadata as Metadata
    from lazydelta.query import QueryBuilder
    from lazydelta.types.delta_types import DataType, Field, Schema, VariantType
    from lazydelta.write.create import create_table
    from lazydelta.writing import write_arrow

__all__ = [
    "BloomFilterProperties",
    "ColumnProperties",
    "CommitProperties",
    "DataFile",
    "DataType",
    "DeltaTable",
    "Field",
    "FileStream",
    "LazyDeltaError",
    "Metadata",
    "PostCommitHookProperties",
    "PredicateWarning",
    "QueryBuilder",
    "Schema",
    "TableFeatures",
    "Transaction",
    "VariantType",
    "WriterProperties",
    "__version__",
    "connect",
    "convert_to_deltalake",
    "create_table",
    "enable_nanosecond_timestamps",
    "init_tracing",
    "rust_core_version",
    "write_arrow",
    "write_deltalake",
]

__version__ = "0.1.0"

# What finds files is loaded above, so that no query pays for it. The other public names are loaded when somebody asks
# for one: most programs read only, and the writer takes as long to load as the reader.
_HOMES = {
    "BloomFilterProperties": "lazydelta.deltalake_api.parquet_properties",
    "ColumnProperties": "lazydelta.deltalake_api.parquet_properties",
    "CommitProperties": "lazydelta.deltalake_api.commit_properties",
    "DataType": "lazydelta.types.delta_types",
    "Field": "lazydelta.types.delta_types",
    "Metadata": "lazydelta.log.table_description",
    "PostCommitHookProperties": "lazydelta.deltalake_api.commit_properties",
    "QueryBuilder": "lazydelta.query",
    "Schema": "lazydelta.types.delta_types",
    "TableFeatures": "lazydelta.deltalake_api.table_features",
    "Transaction": "lazydelta.deltalake_api.commit_properties",
    "VariantType": "lazydelta.types.delta_types",
    "WriterProperties": "lazydelta.deltalake_api.parquet_properties",
    "_disable_nanosecond_timestamps": "lazydelta.deltalake_api.left_to_deltalake",
    "_nanosecond_timestamps_enabled": "lazydelta.deltalake_api.left_to_deltalake",
    "connect": "lazydelta.client",
    "convert_to_deltalake": "lazydelta.deltalake_api.deltalake_writing",
    "create_table": "lazydelta.write.create",
    "enable_nanosecond_timestamps": "lazydelta.deltalake_api.left_to_deltalake",
    "init_tracing": "lazydelta.deltalake_api.left_to_deltalake",
    "rust_core_version": "lazydelta.deltalake_api.left_to_deltalake",
    "write_arrow": "lazydelta.writing",
    "write_deltalake": "lazydelta.deltalake_api.deltalake_writing",
}

# Quiet unless the application says otherwise, as libraries should be.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # deltalake calls it as we call the action of the log.
    there = "TableMetadata" if name == "Metadata" else name
    found = globals()[name] = getattr(importlib.import_module(home), there)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

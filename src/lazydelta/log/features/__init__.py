"""Table features: one table of what we do about each, and what follows for reading and writing."""

from __future__ import annotations

from lazydelta.log.features.feature_table import CATALOG_FEATURES, FEATURES, READER_FEATURES, WRITER_FEATURES
from lazydelta.log.features.readable import ColumnMappingMode, check_readable, column_mapping_mode

__all__ = [
    "CATALOG_FEATURES",
    "FEATURES",
    "READER_FEATURES",
    "WRITER_FEATURES",
    "ColumnMappingMode",
    "check_readable",
    "column_mapping_mode",
]

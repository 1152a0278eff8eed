"""lazydelta: lazy, bounded-memory file discovery for huge Delta Lake tables."""

from __future__ import annotations

import logging

from lazydelta.errors import LazyDeltaError
from lazydelta.scan.data_file import DataFile
from lazydelta.scan.stream import FileStream
from lazydelta.table import DeltaTable

__all__ = ["DataFile", "DeltaTable", "FileStream", "LazyDeltaError", "__version__"]

__version__ = "0.1.0"

# Quiet unless the application says otherwise, as libraries should be.
logging.getLogger(__name__).addHandler(logging.NullHandler())

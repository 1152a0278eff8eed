"""lazydelta: lazy, bounded-memory file discovery for huge Delta Lake tables."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lazydelta.errors import LazyDeltaError
from lazydelta.scan.data_file import DataFile
from lazydelta.scan.file_stream import FileStream
from lazydelta.table import DeltaTable

if TYPE_CHECKING:
    from lazydelta.write.create import create_table
    from lazydelta.writing import write_arrow

__all__ = ["DataFile", "DeltaTable", "FileStream", "LazyDeltaError", "__version__", "create_table", "write_arrow"]

__version__ = "0.1.0"

# Quiet unless the application says otherwise, as libraries should be.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    # Most programs read only, and the writer takes another fifth of a second to load.
    if name == "write_arrow":
        from lazydelta.writing import write_arrow  # noqa: PLC0415

        return write_arrow
    if name == "create_table":
        from lazydelta.write.create import create_table  # noqa: PLC0415

        return create_table
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

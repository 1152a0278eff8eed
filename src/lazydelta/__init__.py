"""lazydelta: lazy, bounded-memory file discovery for huge Delta Lake tables."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

from lazydelta.errors import LazyDeltaError, PredicateWarning

if TYPE_CHECKING:
    from lazydelta.scan.data_file import DataFile
    from lazydelta.scan.file_stream import FileStream
    from lazydelta.table import DeltaTable
    from lazydelta.write.create import create_table
    from lazydelta.writing import write_arrow

__all__ = [
    "DataFile",
    "DeltaTable",
    "FileStream",
    "LazyDeltaError",
    "PredicateWarning",
    "__version__",
    "create_table",
    "write_arrow",
]

__version__ = "0.1.0"

# Where each public name lives: it is loaded when somebody asks for it. Most programs read only, and the writer takes
# as long to load as the reader; the command's help needs neither.
_HOMES = {
    "DataFile": "lazydelta.scan.data_file",
    "DeltaTable": "lazydelta.table",
    "FileStream": "lazydelta.scan.file_stream",
    "create_table": "lazydelta.write.create",
    "write_arrow": "lazydelta.writing",
}

# Quiet unless the application says otherwise, as libraries should be.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

"""lazydelta: lazy, bounded-memory file discovery for huge Delta Lake tables."""

from __future__ import annotations

import os
import signal
import sys

# The command answers Ctrl-C from its first line on: importing the packages below takes longer than many commands.
# Processes that it starts are not the command, and its arguments are not among theirs.
_COMMAND = os.path.basename(sys.argv[0]) == "lazydelta" and sys.argv[0] in sys.orig_argv  # noqa: PTH119 - not loaded yet
if (_COMMAND or sys.orig_argv[1:3] in (["-m", "lazydelta"], ["-m", "lazydelta.cli"])) and (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import importlib
import logging
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lazydelta.errors import LazyDeltaError
from lazydelta.missing_names import CALLED, OF_THE_PACKAGE, CallablePackage, no_attribute
from lazydelta.scan.file import DataFile
from lazydelta.scan.stream import FileStream
from lazydelta.table.delta_table import DeltaTable, read
from lazydelta.table.delta_table import scan as _scan
from lazydelta.warned import PredicateWarning, RetentionWarning

if TYPE_CHECKING:
    from lazydelta.client import connect
    from lazydelta.deltalake_names.commit_properties import (
        BloomFilterProperties,
        ColumnProperties,
        CommitProperties,
        PostCommitHookProperties,
        TableFeatures,
        Transaction,
        WriterProperties,
    )
    from lazydelta.deltalake_names.parameters import enable_nanosecond_timestamps, init_tracing, rust_core_version
    from lazydelta.deltalake_names.writing import convert_to_deltalake, write_deltalake
    from lazydelta.engines.sql import sql
    from lazydelta.ingest.arrow import write_arrow
    from lazydelta.kql import package as kql
    from lazydelta.protocol.delta_types import DataType, Field, Schema, VariantType
    from lazydelta.query import QueryBuilder
    from lazydelta.table.delta_table import scan
    from lazydelta.table.pinned_table import TableMetadata as Metadata
    from lazydelta.write.create import create_table

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
    "RetentionWarning",
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
    "kql",
    "read",
    "rust_core_version",
    "scan",
    "sql",
    "write_arrow",
    "write_deltalake",
]

__version__ = "0.1.0"

# What finds files is loaded above, so that no query pays for it. The other public names are loaded on first use: most
# programs read only, and the writer takes as long to load as the reader.
_HOMES = {
    "BloomFilterProperties": "lazydelta.deltalake_names.commit_properties",
    "ColumnProperties": "lazydelta.deltalake_names.commit_properties",
    "CommitProperties": "lazydelta.deltalake_names.commit_properties",
    "DataType": "lazydelta.protocol.delta_types",
    "Field": "lazydelta.protocol.delta_types",
    "Metadata": "lazydelta.table.pinned_table",
    "PostCommitHookProperties": "lazydelta.deltalake_names.commit_properties",
    "QueryBuilder": "lazydelta.query",
    "Schema": "lazydelta.protocol.delta_types",
    "TableFeatures": "lazydelta.deltalake_names.commit_properties",
    "Transaction": "lazydelta.deltalake_names.commit_properties",
    "VariantType": "lazydelta.protocol.delta_types",
    "WriterProperties": "lazydelta.deltalake_names.commit_properties",
    "_disable_nanosecond_timestamps": "lazydelta.deltalake_names.parameters",
    "_nanosecond_timestamps_enabled": "lazydelta.deltalake_names.parameters",
    "connect": "lazydelta.client",
    "convert_to_deltalake": "lazydelta.deltalake_names.writing",
    "create_table": "lazydelta.write.create",
    "enable_nanosecond_timestamps": "lazydelta.deltalake_names.parameters",
    "init_tracing": "lazydelta.deltalake_names.parameters",
    "rust_core_version": "lazydelta.deltalake_names.parameters",
    "sql": "lazydelta.engines.sql",
    "write_arrow": "lazydelta.ingest.arrow",
    "write_deltalake": "lazydelta.deltalake_names.writing",
}

# A package that can be called, and the modules that `import deltalake` loads.
_MODULES = frozenset({"exceptions", "kql", "schema", "transaction", "writer"})

# Quiet unless the application says otherwise, as libraries should be.
logging.getLogger(__name__).addHandler(logging.NullHandler())


class _ScanPackage(ModuleType):
    """The package ``lazydelta.scan``, which can be called: ``lazydelta.scan(uri)``."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the rows of a table as a stream; see `lazydelta.table.delta_table.scan`."""
        return _scan(*arguments, **keywords)


class _ThisPackage(ModuleType):
    """The package itself: modules whose names users call say what to call, whenever they are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in CALLED and isinstance(value, ModuleType):
            value.__class__ = CallablePackage
        super().__setattr__(name, value)


sys.modules["lazydelta.scan"].__class__ = _ScanPackage
sys.modules[__name__].__class__ = _ThisPackage
for _name in CALLED.keys() & globals().keys():
    setattr(sys.modules[__name__], _name, globals()[_name])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"lazydelta.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise no_attribute(f"module {__name__!r}", name, OF_THE_PACKAGE, __all__)
    # deltalake calls it as we call the action of the log.
    there = "TableMetadata" if name == "Metadata" else name
    found = globals()[name] = getattr(importlib.import_module(home), there)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

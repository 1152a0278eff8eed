"""Tables as a file system of PyArrow, under deltalake's names."""

from __future__ import annotations

from lazydelta.deltalake_names.storage_handler import DeltaStorageHandler

__all__ = ["DeltaStorageHandler"]

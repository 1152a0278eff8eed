"""Tables as a file system of PyArrow, under deltalake's names."""

from __future__ import annotations

from typing import Any

from lazydelta.deltalake_api.left_to_deltalake import refuse

__all__ = ["DeltaStorageHandler"]


class DeltaStorageHandler:
    """A handler for ``pyarrow.fs.PyFileSystem``: deltalake does this."""

    def __init__(self, *_: Any, **__: Any) -> None:
        refuse("DeltaStorageHandler", "show a table's folder as a file system")

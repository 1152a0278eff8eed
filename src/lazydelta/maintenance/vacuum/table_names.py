"""``TableNames``: which names below a table's root may be the table's own, and which are hidden from VACUUM.

Delta's rule: what begins with ``.`` or ``_`` is somebody else's, but for partition folders (``_event_hour=…``), change
data and indexes. Where the table is described to Iceberg's readers as well, the folder ``metadata`` is theirs.
Temporary files of killed writers are ours although they begin with a dot.
"""

from __future__ import annotations

from lazydelta.log.actions import Metadata
from lazydelta.log.names import LOG
from lazydelta.storage import TEMPORARY
from lazydelta.types.partition_text import folder_prefix
from lazydelta.types.schema import TableSchema

__all__ = ["TableNames"]

_OURS = ("_delta_index", "_change_data", TEMPORARY)
_ICEBERG = "metadata"
_FORMATS = "delta.universalFormat.enabledFormats"


class TableNames:
    """Tells a walk what to pass by; ``nested`` are the folders in which it met the log of another table."""

    def __init__(self, metadata: Metadata) -> None:
        schema = TableSchema.parse(metadata.schema_string, partition_columns=metadata.partition_columns)
        columns = {*metadata.partition_columns, *schema.physical_partition_columns}
        self._visible = (*_OURS, *(f"{name}=" for name in columns), *(folder_prefix(name) for name in columns))
        self._serves_iceberg = _serves_iceberg(metadata)
        self.nested: set[str] = set()

    def hides(self, path: str) -> bool:
        """Tell whether a file or folder, and all below it, is none of the table's."""
        folder, _, name = path.rpartition("/")
        if name == LOG:
            if folder:
                self.nested.add(folder)
            return True
        if name == _ICEBERG and self._serves_iceberg:
            return True
        return name.startswith((".", "_")) and not name.startswith(self._visible)


def _serves_iceberg(metadata: Metadata) -> bool:
    properties = {key.lower(): value or "" for key, value in (metadata.configuration or {}).items()}
    compatible = any(key.startswith("delta.enableicebergcompat") for key in properties)
    return compatible or "iceberg" in properties.get(_FORMATS.lower(), "").lower()

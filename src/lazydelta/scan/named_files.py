"""``NamedFiles``: files that are asked for by path, and the partition values that their paths show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from lazydelta.types.partition_text import folder_values
from lazydelta.types.schema import TableSchema

__all__ = ["NamedFiles"]


class NamedFiles(msgspec.Struct, frozen=True):
    """Paths, each with partition values by physical column.

    Folder names are a habit of writers and not part of the format, so they say where to look first and no more: a file
    that is not found there is looked for everywhere.
    """

    shown: Mapping[str, Mapping[tuple[str, ...], str | None]]

    @classmethod
    def of(cls, paths: Iterable[str], schema: TableSchema) -> NamedFiles:
        """Read the folder names of paths; columns are called by the table's or by their physical names there."""
        columns = [column for column in schema.leaves() if column.is_partition]
        physical = {name: each.physical_path for each in columns for name in (each.name, *each.physical_path)}
        shown = {}
        for path in dict.fromkeys(paths):
            values = folder_values(path)
            shown[path] = {physical[name]: value for name, value in values.items() if name in physical}
        return cls(shown)

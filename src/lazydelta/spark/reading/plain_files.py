"""``PlainFiles``: which data files Spark's own Parquet reader reads as the table means them.

It knows nothing of the log: a file's rows are all live, its columns have the table's names and types, its partition
values are what its folders say. Where any of that does not hold, the file is left to the data source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from lazydelta.log.snapshot import Snapshot
from lazydelta.scan.data_file import StoredFile
from lazydelta.types.schema import Array, DataType, Map, Primitive, Struct

__all__ = ["PlainFiles"]

# What Spark's partition discovery reads from a folder's name exactly as Delta means it, in any time zone.
_AS_FOLDERS = frozenset({"string", "long", "integer", "short", "byte", "date", "boolean"})
_NULL = "__HIVE_DEFAULT_PARTITION__"
# Spark takes a path for a pattern where it has one of these.
_PATTERN = frozenset("{}[]*?\\")


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """The test for the files of one version."""

    partition_columns: tuple[str, ...]
    is_plain_table: bool

    @classmethod
    def of(cls, snapshot: Snapshot) -> PlainFiles:
        """Look at the table: with column mapping, widened types or odd partitions none of its files is plain.

        Nor is one below a folder whose name Spark would take for a pattern.
        """
        schema = snapshot.schema
        partitions = [schema.field(name).type for name in schema.partition_columns]
        plain = (
            schema.column_mapping == "none"
            and not any("typeWidening" in each for each in snapshot.protocol.reader_features or ())
            and all(isinstance(kind, Primitive) and kind.name in _AS_FOLDERS for kind in partitions)
            and not any(kind == Primitive("void") for field in schema.fields for kind in _all_types(field.type))
            and not _PATTERN & set(snapshot.store.place(""))
        )
        return cls(schema.partition_columns, plain)

    def holds(self, file: StoredFile) -> bool:
        """Tell whether Spark would read this file right."""
        if not self.is_plain_table or file.deletion_vector is not None or file.size <= 0:
            return False
        if ":" in file.path.partition("/")[0] or file.path.startswith("/"):
            return False  # elsewhere, or at home by a full name: its folders are not below the table's
        *folders, name = unquote(file.path).split("/")
        if any(each in _PATTERN for each in unquote(file.path)) or "" in folders:
            return False
        # Spark passes over what looks hidden, but for folders of partitions.
        if name[:1] in {"_", "."} or any(each[:1] == "." or (each[:1] == "_" and "=" not in each) for each in folders):
            return False
        return self._named_as_logged(folders, file.partition_values)

    def _named_as_logged(self, folders: list[str], values: Mapping[str, str | None]) -> bool:
        named = [each for each in folders if "=" in each]
        expected = [(name, values.get(name) or None) for name in self.partition_columns]
        # Folders above those of partitions would be another root to Spark, and it takes one for all files.
        if len(named) != len(expected) or (named and len(folders) > len(named)):
            return False
        pairs = (each.partition("=") for each in named)
        found = [(unquote(key), None if text == _NULL else unquote(text)) for key, _, text in pairs]
        return found == expected


def _all_types(kind: DataType) -> Iterator[DataType]:
    yield kind
    match kind:
        case Struct(fields):
            for field in fields:
                yield from _all_types(field.type)
        case Array(element, _):
            yield from _all_types(element)
        case Map(key, value, _):
            yield from _all_types(key)
            yield from _all_types(value)

"""Finding the table's columns in a data file.

A file keeps its columns under physical names, or marks them with ids; a renamed, added or dropped column never
rewrites a file. So a field is looked up anew in every file, at every level of nesting, and may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lazydelta.errors import CorruptLogError, DataFileError
from lazydelta.types.conversion_steps import decoded_type
from lazydelta.types.schema import Array, DataType, Field, Map, Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["ColumnFinder", "check_field_ids"]

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class ColumnFinder:
    """Finds fields in file ``path``: by Parquet field id, or by physical name."""

    path: str
    by_id: bool

    def find(self, field: Field, among: Sequence[pa.Field], name: str) -> int | None:
        """Return the position of ``field`` in ``among``, None if the file does not have it; ``name`` is for errors."""
        if self.by_id:
            found = [index for index, each in enumerate(among) if _field_id(each) == field.field_id]
        else:
            found = [index for index, each in enumerate(among) if each.name == field.physical_name]
            if not found:
                # Delta's names do not differ by case alone, and engines have written files in another case.
                folded = field.physical_name.lower()
                found = [index for index, each in enumerate(among) if each.name.lower() == folded]
        if len(found) > 1:
            message = f"Data file {self.path} has column {name!r} {len(found)} times"
            raise DataFileError(message, path=self.path, hint="rewrite the file with unique column names")
        return found[0] if found else None

    def leaves(self, fields: Iterable[Field], file_schema: pa.Schema) -> list[int]:
        """Return the Parquet leaf columns that hold ``fields``, in file order."""
        among = list(file_schema)
        if self.by_id and among and not any(_has_id(each) for each in among):
            message = f"Data file {self.path} has no field ids, and the table finds its columns by id"
            raise DataFileError(message, path=self.path, hint="rewrite the file with the ids of the table's schema")
        return sorted(self._fields(fields, among, 0, ""))

    def _fields(self, fields: Iterable[Field], among: Sequence[pa.Field], first: int, above: str) -> Iterator[int]:
        starts = [first]
        for each in among:
            starts.append(starts[-1] + _leaf_count(each.type))
        for field in fields:
            name = f"{above}{field.name}"
            index = self.find(field, among, name)
            if index is not None:
                yield from self._type(field.type, among[index].type, starts[index], name)

    def _type(self, wanted: DataType, stored: pa.DataType, first: int, name: str) -> Iterator[int]:
        stored = decoded_type(stored)
        if isinstance(wanted, Struct) and pa.types.is_struct(stored) and stored.num_fields:
            inner = list(self._fields(wanted.fields, _children(stored), first, f"{name}."))
            # Where the file has none of the fields, any leaf still tells which of the structs are null.
            yield from inner or [first]
        elif isinstance(wanted, Array) and _is_list(stored):
            yield from self._type(wanted.element, stored.value_type, first, f"{name}.element")
        elif isinstance(wanted, Map) and pa.types.is_map(stored):
            yield from self._type(wanted.key, stored.key_type, first, f"{name}.key")
            value = first + _leaf_count(stored.key_type)
            yield from self._type(wanted.value, stored.item_type, value, f"{name}.value")
        else:
            # A leaf, or a mismatch that the conversion will report.
            yield from range(first, first + _leaf_count(stored))


def check_field_ids(fields: Iterable[Field], above: str = "") -> None:
    """Raise unless every field has the id by which files are to be searched for it."""
    for field in fields:
        name = f"{above}{field.name}"
        if field.field_id is None:
            message = f"The schema gives column {name!r} no id, and the table finds its columns by id"
            raise CorruptLogError(message, hint="the table's metadata lacks delta.columnMapping.id for it")
        _check_nested_ids(field.type, f"{name}.")


def _check_nested_ids(data_type: DataType, above: str) -> None:
    if isinstance(data_type, Struct):
        check_field_ids(data_type.fields, above)
    elif isinstance(data_type, Array):
        _check_nested_ids(data_type.element, above)
    elif isinstance(data_type, Map):
        _check_nested_ids(data_type.key, above)
        _check_nested_ids(data_type.value, above)


def _field_id(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(_FIELD_ID)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _has_id(field: pa.Field) -> bool:
    return _field_id(field) is not None or any(_has_id(each) for each in _children(decoded_type(field.type)))


def _children(data_type: pa.DataType) -> list[pa.Field]:
    return [data_type.field(index) for index in range(data_type.num_fields)]


def _is_list(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type))


def _leaf_count(data_type: pa.DataType) -> int:
    data_type = decoded_type(data_type)
    return sum(_leaf_count(each.type) for each in _children(data_type)) if pa.types.is_nested(data_type) else 1

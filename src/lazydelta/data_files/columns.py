"""Find the table's columns in a data file.

A file stores its columns under physical names, or marks them with ids. Renaming, adding or dropping a column never
rewrites a file. So a field is looked up in every file, at every level of nesting, and may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lazydelta.errors import CorruptLogError, DataFileError, PredicateError
from lazydelta.protocol.arrow_types import decoded_type
from lazydelta.protocol.schema import Array, DataType, Field, Map, NameIndex, Struct, TableSchema
from lazydelta.runtime import compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["ColumnFinder", "bad_filter", "check_field_ids", "named_fields"]


_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class ColumnFinder:
    """Finds fields in the file ``path``, by Parquet field id or by physical name."""

    path: str
    by_id: bool

    def places(
        self, fields: Iterable[Field], among: Sequence[pa.Field], above: str
    ) -> Iterator[tuple[Field, str, int | None]]:
        """Yield each field with its name for errors and its position in ``among``, None if it is not in the file."""
        ids: dict[int | None, list[int]] = {}
        if self.by_id:
            for index, each in enumerate(among):
                ids.setdefault(_field_id(each), []).append(index)
        else:
            # Delta's names never differ by case alone, and some engines have written files in a different case.
            names = NameIndex(each.name for each in among)
        for field in fields:
            name = f"{above}{field.name}"
            found = ids.get(field.field_id, ()) if self.by_id else names.positions(field.physical_name)
            if len(found) > 1:
                message = f"Data file {self.path} has column {name!r} {len(found)} times"
                raise DataFileError(message, path=self.path, hint="rewrite the file with unique column names")
            yield field, name, found[0] if found else None

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
        for field, name, index in self.places(fields, among, above):
            if index is not None:
                yield from self._type(field.type, among[index].type, starts[index], name)

    def _type(self, wanted: DataType, stored: pa.DataType, first: int, name: str) -> Iterator[int]:
        stored = decoded_type(stored)
        if isinstance(wanted, Struct) and pa.types.is_struct(stored) and stored.num_fields:
            inner = list(self._fields(wanted.fields, _children(stored), first, f"{name}."))
            # If the file has none of the fields, any leaf still shows which of the structs are null.
            yield from inner or [first]
        elif isinstance(wanted, Array) and _is_list(stored):
            yield from self._type(wanted.element, stored.value_type, first, f"{name}.element")
        elif isinstance(wanted, Map) and pa.types.is_map(stored):
            yield from self._type(wanted.key, stored.key_type, first, f"{name}.key")
            value = first + _leaf_count(stored.key_type)
            yield from self._type(wanted.value, stored.item_type, value, f"{name}.value")
        else:
            # A leaf, or a mismatch that the conversion reports.
            yield from range(first, first + _leaf_count(stored))


def check_field_ids(fields: Iterable[Field], above: str = "") -> None:
    """Raise unless every field has the id that is used to find it in files."""
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


# Find the fields of a table that a PyArrow expression uses, and report expressions that do not fit the table.


def named_fields(expression: pc.Expression, schema: TableSchema) -> list[Field]:
    """Return the top-level fields that ``expression`` uses.

    An expression does not list them. It cannot be bound without a column that it uses, so each column is left out in
    turn.
    """
    known = schema.to_arrow()
    error = _binds(expression, known)
    if error is not None:
        raise bad_filter(expression, error) from error
    return [each for index, each in enumerate(schema.fields) if _binds(expression, known.remove(index)) is not None]


def bad_filter(expression: pc.Expression, error: Exception) -> PredicateError:
    """Return the error for a filter that cannot be evaluated over the table's columns."""
    message = f"The filter {pc.expression_text(expression)[:200]} cannot be applied to the table's columns: {error}"
    return PredicateError(message, hint="compare each column with values of its type")


def _binds(expression: pc.Expression, schema: pa.Schema) -> Exception | None:
    """Return why ``expression`` cannot be evaluated over ``schema``, or None if it can."""
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in schema], schema=schema)
    try:
        empty.filter(expression)
    except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
        return error
    return None

"""From what JSON and CSV can say to the types that a table has.

The fast readers of Arrow know numbers, booleans and text. Moments, dates and bytes come as text and become what they
stand for here, whole columns at a time; a map comes as a list of its entries. What cannot be converted is an
`ArrowInvalid`, and whoever called finds out which rows are to blame.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import one_array
from lazydelta.errors import SchemaMismatchError
from lazydelta.write.evolution import Conformer

__all__ = ["DATE", "MOMENT", "Rows", "has_map", "read_type"]

# What a text must look like; whether a year has a 29th of February is seen when it is converted.
_DAY = r"\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|[12]\d))"
_TIME = r"(?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.\d+)?)?)?"
DATE = rf"^{_DAY}$"
MOMENT = rf"^{_DAY}(?:[T ]{_TIME}(?:Z|[+-]\d{{2}}(?::?\d{{2}})?)?)?$"
_ZONE = r"[T ]\d{2}.*(Z|[+-]\d{2}(:?\d{2})?)$"
_FINER = r"(\.\d{6})\d+"


def read_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that Arrow's readers are to read a column as."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_binary(kind):
        return pa.string()
    if types.is_struct(kind):
        return pa.struct([pa.field(each.name, read_type(each.type)) for each in kind])
    if types.is_map(kind):
        return pa.list_(pa.struct([("key", read_type(kind.key_type)), ("value", read_type(kind.item_type))]))
    if types.is_list(kind):
        return pa.list_(read_type(kind.value_type))
    return kind


def has_map(kind: pa.DataType) -> bool:
    """Tell whether there is a map in it, at any depth."""
    if pa.types.is_map(kind):
        return True
    return any(has_map(kind.field(index).type) for index in range(kind.num_fields))


class Rows:
    """Makes rows of a schema from what a reader of Arrow has read of one block."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        # Below the columns there may be fields without nulls as well, and those only the values can tell.
        self._check = Conformer(schema, schema)

    def __call__(self, read: pa.Table) -> pa.RecordBatch:
        """Return the rows; columns that were not read are null."""
        count = read.num_rows
        columns = []
        for field in self._schema:
            index = read.schema.get_field_index(field.name)
            whole = pa.nulls(count, field.type) if index < 0 else converted(one_array(read.column(index)), field.type)
            columns.append(whole)
        try:
            return self._check(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        except SchemaMismatchError as error:
            raise pa.ArrowInvalid(str(error.args[0])) from error

    def none(self) -> pa.RecordBatch:
        """Return no rows."""
        return self(self._schema.empty_table())


def converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values of the type that ``read_type`` gives as the type itself."""
    types = pa.types
    if values.type.equals(kind):
        return values
    if types.is_timestamp(kind):
        return _instants(values) if kind.tz is not None else _truncated(values).cast(kind)
    if types.is_date(kind):
        return values.cast(kind)
    if types.is_binary(kind):
        return pa.array([None if each is None else _bytes(each) for each in values.to_pylist()], kind)
    if types.is_struct(kind):
        return _struct(values, kind)
    if types.is_map(kind):
        keys, items = values.values.field(0), values.values.field(1)
        if keys.null_count:
            raise pa.ArrowInvalid("a key of a map is null")
        found = converted(keys, kind.key_type), converted(items, kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, *found, type=kind, mask=_nulls(values))
    if types.is_list(kind):
        items = converted(values.values, kind.value_type)
        return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=_nulls(values))
    return values.cast(kind)


def _struct(values: pa.Array, kind: pa.DataType) -> pa.Array:
    fields: Sequence[Any] = list(kind)
    parts = [converted(values.field(index), field.type) for index, field in enumerate(fields)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=_nulls(values))


def _nulls(values: pa.Array) -> pa.Array | None:
    return pc.is_null(values) if values.null_count else None


def _instants(texts: pa.Array) -> pa.Array:
    """Return moments as UTC; those without a zone are taken as UTC."""
    kind = pa.timestamp("us", "UTC")
    try:  # as most programs write them
        return texts.cast(kind)
    except pa.ArrowInvalid:
        texts = _truncated(texts)
    zoned = pc.match_substring_regex(texts, _ZONE)
    none = pa.scalar(None, pa.string())
    clocks = pc.if_else(zoned, none, texts).cast(pa.timestamp("us")).view(kind)
    return pc.coalesce(pc.if_else(zoned, texts, none).cast(kind), clocks)


def _truncated(texts: pa.Array) -> pa.Array:
    # Delta keeps microseconds. .NET writes seven digits and Go nine, and Spark cuts them as well.
    return pc.replace_substring_regex(texts, _FINER, r"\1")


def _bytes(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode(), strict_mode=True)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{text[:40]!r} is not base64: {error}") from error

"""Bringing data to a table's schema: what is refused, what is cast, and what may be added.

Columns are found by name. A cast is made only where every value of the one type is a value of the other, so whether
data fits is known from its types before a single row is read; two things alone depend on values, and both are errors
when they go wrong: nulls in a column that has none, and moments finer than a microsecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.errors import SchemaMismatchError
from lazydelta.types.conversion_steps import (
    Conversion,
    decoded_type,
    is_list,
    null_mask,
    nulls_of,
    outer_encoding,
    with_child,
)
from lazydelta.types.from_arrow import to_field

__all__ = ["Conformer", "grown_schema"]

_INTEGERS = {
    pa.int8(): (8, True),
    pa.int16(): (16, True),
    pa.int32(): (32, True),
    pa.int64(): (64, True),
    pa.uint8(): (8, False),
    pa.uint16(): (16, False),
    pa.uint32(): (32, False),
    pa.uint64(): (64, False),
}
_TEXT = {pa.string(), pa.large_string(), pa.string_view()}
_BYTES = {pa.binary(), pa.large_binary(), pa.binary_view()}
# The digits of the largest value of an integer of so many bits.
_DIGITS = {(8, True): 3, (16, True): 5, (32, True): 10, (64, True): 19}
_DIGITS |= {(8, False): 3, (16, False): 5, (32, False): 10, (64, False): 20}
# Bits of an integer that a float holds exactly.
_EXACT_BITS = {pa.float32(): 24, pa.float64(): 53}


def grown_schema(schema_string: str, data: pa.Schema) -> str | None:
    """Return the table's schema with what only the data has, nullable, at the end; structs grow alike.

    Columns that both have stay as they are, with all that the table notes about them. None if there is nothing to add.
    """
    schema = msgspec.json.decode(schema_string)
    return msgspec.json.encode(schema).decode() if _grow_fields(schema["fields"], data, "") else None


def _grow_fields(known: list[dict[str, Any]], given: Iterable[pa.Field], above: str) -> bool:
    grown = False
    for field in given:
        place = f"{above}.{field.name}" if above else field.name
        found = _named(known, field.name)
        if found is None:
            # Rows that are there already have no value for it.
            known.append(to_field(field.with_nullable(True), above))  # noqa: FBT003 - pyarrow's signature
            grown = True
        else:
            grown |= _grow_type(found["type"], field.type, place)
    return grown


def _grow_type(known: Any, given: pa.DataType, place: str) -> bool:
    kind = known.get("type") if isinstance(known, dict) else None
    given = decoded_type(given)
    if kind == "struct" and pa.types.is_struct(given):
        return _grow_fields(known["fields"], given, place)
    if kind == "array" and is_list(given):
        return _grow_type(known["elementType"], given.value_type, f"{place}.element")
    if kind == "map" and pa.types.is_map(given):
        return _grow_type(known["valueType"], given.item_type, f"{place}.value")
    return False


def _named(fields: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    exact = next((each for each in fields if each["name"] == name), None)
    return exact or next((each for each in fields if each["name"].lower() == name.lower()), None)


class Conformer:
    """Brings batches of one schema to the table's: columns in its order, of its types, nulls where it allows them.

    Raises `SchemaMismatchError` at once if the schemas do not fit.
    """

    def __init__(self, table: pa.Schema, data: pa.Schema) -> None:
        self._schema = table
        self._source = data
        self._plans = _plan_fields(list(table), list(data), "")

    @property
    def source(self) -> pa.Schema:
        """Return the schema of the batches that it takes."""
        return self._source

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch as the table has it."""
        columns = []
        for field, (index, convert) in zip(self._schema, self._plans, strict=True):
            try:
                column = pa.nulls(batch.num_rows, field.type) if index is None else convert(batch.column(index))
            except pa.ArrowException as error:
                kind = batch.schema.field(index).type if index is not None else "null"
                raise _unfit(field.name, kind, field.type, f": {error}") from error
            _check_nulls(field, column, field.name)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


_Plan: TypeAlias = tuple[int | None, Conversion]


def _plan_fields(wanted: Sequence[pa.Field], given: Sequence[pa.Field], above: str) -> list[_Plan]:
    used: set[int] = set()
    plans: list[_Plan] = []
    for field in wanted:
        name = above + field.name
        index = _find(given, field.name)
        if index is None:
            if not field.nullable:
                message = f"The data lacks the column {name!r}, which the table has as {field.type} without nulls"
                raise SchemaMismatchError(message, hint="add the column to the data")
            plans.append((None, _same))
            continue
        used.add(index)
        plans.append((index, _plan(field.type, given[index].type, name)))
    unknown = [each for position, each in enumerate(given) if position not in used]
    if unknown:
        first = unknown[0]
        rest = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        twice = _find(wanted, first.name) is not None
        if twice:
            message = f"The data has the column {above + first.name!r} twice; Delta does not tell names apart by case"
            raise SchemaMismatchError(message, hint="drop or rename one of them")
        message = f"The data has the column {above + first.name!r} of type {first.type}{rest}, which the table does not"
        if not above and len(given) != len(wanted):  # in the words that users of deltalake look for
            message += f". Cannot cast schema, number of fields does not match: {len(given)} vs {len(wanted)}"
        raise SchemaMismatchError(message, hint="drop it from the data, or say schema_mode='merge' to add it")
    return plans


def _find(fields: Iterable[pa.Field], name: str) -> int | None:
    """Return the position of a name; an exact match goes first, then one that differs by case."""
    folded = None
    for index, field in enumerate(fields):
        if field.name == name:
            return index
        if folded is None and field.name.lower() == name.lower():
            folded = index
    return folded


def _plan(wanted: pa.DataType, given: pa.DataType, name: str) -> Conversion:
    if wanted == given and not _has_required(wanted):
        return _same
    outer = outer_encoding(given)
    if outer is not None:
        inner, decode = _plan(wanted, outer[0], name), outer[1]
        return lambda array: inner(decode(array))
    if pa.types.is_null(given):
        return nulls_of(wanted)
    plan = _nested(wanted, given, name) if pa.types.is_nested(wanted) else _leaf(wanted, given)
    if plan is None:
        raise _unfit(name, given, wanted)
    return plan


def _has_required(kind: pa.DataType) -> bool:
    """Tell whether something inside may not be null, which has to be looked at row by row."""
    if pa.types.is_map(kind):
        return not kind.item_field.nullable or _has_required(kind.key_type) or _has_required(kind.item_type)
    fields = [kind.field(index) for index in range(kind.num_fields)]
    return any(not field.nullable or _has_required(field.type) for field in fields)


def _nested(wanted: pa.DataType, given: pa.DataType, name: str) -> Conversion | None:
    types = pa.types
    if types.is_struct(wanted) and types.is_struct(given):
        return _struct(wanted, given, name)
    if types.is_map(wanted) and types.is_map(given):
        return _map(wanted, given, name)
    if types.is_list(wanted) and is_list(given):
        return _list(wanted, given, name)
    return None


def _struct(wanted: pa.DataType, given: pa.DataType, name: str) -> Conversion:
    fields = list(wanted)
    plans = _plan_fields(fields, list(given), f"{name}.")

    def convert(array: pa.Array) -> pa.Array:
        length = len(array)
        parts = [
            pa.nulls(length, field.type) if index is None else inner(array.field(index))
            for field, (index, inner) in zip(fields, plans, strict=True)
        ]
        mask = null_mask(array)
        # Below a null struct a field may be null, whatever it says of itself.
        present = None if mask is None else pc.invert(mask)
        for field, part in zip(fields, parts, strict=True):
            _check_nulls(field, part if present is None else part.filter(present), f"{name}.{field.name}")
        if not fields:
            return pa.Array.from_buffers(wanted, length, array.buffers()[:1], offset=array.offset)
        return pa.StructArray.from_arrays(parts, fields=fields, mask=mask)

    return convert


def _list(wanted: pa.DataType, given: pa.DataType, name: str) -> Conversion:
    element = wanted.value_field
    inner = _plan(element.type, given.value_type, f"{name}.element")

    def convert(array: pa.Array) -> pa.Array:
        values = inner(array.flatten())
        _check_nulls(element, values, f"{name}.element")
        return pa.ListArray.from_arrays(_offsets(array), values, type=wanted, mask=null_mask(array))

    return convert


def _map(wanted: pa.DataType, given: pa.DataType, name: str) -> Conversion:
    keys = _plan(wanted.key_type, given.key_type, f"{name}.key")
    items = _plan(wanted.item_type, given.item_type, f"{name}.value")
    pairs = pa.list_(pa.struct([given.key_field, given.item_field]))

    def convert(array: pa.Array) -> pa.Array:
        entries = pa.StructArray.from_arrays([array.keys, array.items], fields=list(pairs.value_type))
        lists = with_child(array, pairs, entries)
        flat = lists.flatten()
        values = items(flat.field(1))
        _check_nulls(wanted.item_field, values, f"{name}.value")
        return pa.MapArray.from_arrays(_offsets(lists), keys(flat.field(0)), values, type=wanted, mask=null_mask(array))

    return convert


def _offsets(lists: pa.Array) -> pa.Array:
    """Return where the lists would begin and end if their values stood without gaps, as ``flatten`` gives them."""
    zero = pa.nulls(1, pa.int32()).fill_null(0)
    lengths = pc.if_else(pc.is_valid(lists), pc.list_value_length(lists).cast(pa.int32()), zero[0])
    return pa.concat_arrays([zero, pc.cumulative_sum(lengths)])


def _leaf(wanted: pa.DataType, given: pa.DataType) -> Conversion | None:
    if pa.types.is_timestamp(wanted):
        return _timestamp(wanted, given)
    if not _is_lossless(wanted, given):
        return None
    return lambda array: array.cast(wanted)


def _is_lossless(wanted: pa.DataType, given: pa.DataType) -> bool:
    """Tell whether every value of ``given`` is a value of ``wanted``."""
    types = pa.types
    if wanted == given:
        return True
    if given in _TEXT:
        return wanted in _TEXT
    if given in _BYTES or types.is_fixed_size_binary(given):
        return wanted in _BYTES
    if given in _INTEGERS:
        return _holds_integer(wanted, given)
    if types.is_floating(given):
        return types.is_floating(wanted) and bool(wanted.bit_width >= given.bit_width)
    if types.is_decimal(given) and types.is_decimal(wanted):
        return bool(wanted.scale >= given.scale and wanted.precision - wanted.scale >= given.precision - given.scale)
    return bool(types.is_date(given) and types.is_date(wanted))


def _holds_integer(wanted: pa.DataType, given: pa.DataType) -> bool:
    bits, signed = _INTEGERS[given]
    if wanted in _INTEGERS:
        wide, wide_signed = _INTEGERS[wanted]
        return (wide_signed or not signed) and wide - wide_signed >= bits - signed
    if wanted in _EXACT_BITS:
        return bits - signed <= _EXACT_BITS[wanted]
    return bool(pa.types.is_decimal(wanted) and wanted.precision - wanted.scale >= _DIGITS[bits, signed])


def _timestamp(wanted: pa.DataType, given: pa.DataType) -> Conversion | None:
    # An instant is no wall clock; only whoever made the data knows which zone its clocks showed.
    if not pa.types.is_timestamp(given) or (given.tz is None) != (wanted.tz is None):
        return None
    # The zone is a label on the same instant, so units alone are converted; the cast fails where digits would be lost.
    return lambda array: array.view(pa.timestamp(given.unit)).cast(pa.timestamp(wanted.unit)).view(wanted)


def _same(array: pa.Array) -> pa.Array:
    return array


def _check_nulls(field: pa.Field, values: pa.Array, name: str) -> None:
    if not field.nullable and values.null_count:
        message = f"{values.null_count} rows have no value in column {name!r}, which the table has without nulls"
        raise SchemaMismatchError(message, hint="drop these rows, or give them a value")


def _unfit(name: str, given: pa.DataType | str, wanted: pa.DataType, why: str = "") -> SchemaMismatchError:
    message = f"Column {name!r} is {given} in the data and {wanted} in the table, which cannot hold all its values{why}"
    return SchemaMismatchError(message, hint=f"cast the column to {wanted} yourself, or drop it")

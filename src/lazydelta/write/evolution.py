"""Conversion of data to a table's schema: what is refused, cast or added.

Columns are matched by name. A cast is allowed only if every value of the source type is a value of the target type, so
the types alone decide whether data fits, before any row is read. Only two errors depend on values: nulls in a
non-nullable column, and timestamps finer than a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from lazydelta.errors import SchemaMismatchError
from lazydelta.protocol.arrow_types import (
    Conversion,
    decoded_type,
    is_list,
    null_mask,
    nulls_of,
    outer_encoding,
    to_field,
    with_child,
)
from lazydelta.protocol.properties import Key
from lazydelta.protocol.schema import NameIndex
from lazydelta.runtime import compute as pc

__all__ = ["Conformer", "cast_failure", "grown_schema"]

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
# Decimal digits of the largest integer with that many bits.
_DIGITS = {(8, True): 3, (16, True): 5, (32, True): 10, (64, True): 19}
_DIGITS |= {(8, False): 3, (16, False): 5, (32, False): 10, (64, False): 20}
# Bits of an integer that a float represents exactly.
_EXACT_BITS = {pa.float32(): 24, pa.float64(): 53}


def grown_schema(schema_string: str, data: pa.Schema) -> str | None:
    """Return the table's schema with columns and struct fields that only the data has appended as nullable.

    Existing columns keep their definition and metadata. Return None if there is nothing to add.
    """
    schema = msgspec.json.decode(schema_string)
    return msgspec.json.encode(schema).decode() if _grow_fields(schema["fields"], data, "") else None


def _grow_fields(known: list[dict[str, Any]], given: Iterable[pa.Field], above: str) -> bool:
    grown = False
    names = NameIndex(each["name"] for each in known)
    for field in given:
        place = f"{above}.{field.name}" if above else field.name
        found = names.positions(field.name)
        if found:
            grown |= _grow_type(known[found[0]]["type"], field.type, place)
        else:
            if Key.GENERATION.encode() in (field.metadata or {}):
                message = "Schema evolved fields cannot have generated expressions. Recreate the table to achieve this."
                raise SchemaMismatchError(message, hint=f"or write {place!r} without its metadata")
            # Existing rows have no value for it.
            known.append(to_field(field.with_nullable(True), above))  # noqa: FBT003 - pyarrow signature
            names.append(field.name)
            grown = True
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


class Conformer:
    """Converts batches of one schema to the table's schema: column order, types and nullability.

    The constructor raises `SchemaMismatchError` if the schemas do not fit. With ``casts``, a column may also have
    another type whose values Arrow checks when it casts them.
    """

    def __init__(self, table: pa.Schema, data: pa.Schema, *, casts: bool = False) -> None:
        self._schema = table
        self._source = data
        # Most data already has the table's columns, possibly thousands. Such batches are passed through.
        self._is_same = table.equals(data) and all(each.nullable and not each.type.num_fields for each in table)
        self._plans = [] if self._is_same else _plan_fields(list(table), list(data), "", casts=casts)

    @property
    def source(self) -> pa.Schema:
        """Return the schema of the input batches."""
        return self._source

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch in the table's schema."""
        if self._is_same:
            return batch.replace_schema_metadata(self._schema.metadata)
        columns = []
        for field, (index, convert) in zip(self._schema, self._plans, strict=True):
            try:
                column = pa.nulls(batch.num_rows, field.type) if index is None else convert(batch.column(index))
            except pa.ArrowException as error:
                kind = batch.schema.field(index).type if index is not None else "null"
                raise _unfit(field.name, kind, field.type, f": {cast_failure(error, field.type)}") from error
            _check_nulls(field, column, field.name)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


_Plan: TypeAlias = tuple[int | None, Conversion]


def _plan_fields(
    wanted: Sequence[pa.Field], given: Sequence[pa.Field], above: str, *, casts: bool = False
) -> list[_Plan]:
    used: set[int] = set()
    plans: list[_Plan] = []
    names = NameIndex(each.name for each in given)
    for field in wanted:
        name = above + field.name
        index = next(iter(names.positions(field.name)), None)
        if index is None:
            if not field.nullable:
                message = f"The data lacks the column {name!r}, which the table has as {field.type} without nulls"
                raise SchemaMismatchError(message, hint="add the column to the data")
            plans.append((None, _same))
            continue
        used.add(index)
        plans.append((index, _plan(field.type, given[index].type, name, casts=casts)))
    unknown = [each for position, each in enumerate(given) if position not in used]
    if unknown:
        first = unknown[0]
        rest = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        if NameIndex(each.name for each in wanted).positions(first.name):
            message = (
                f"The data has the column {above + first.name!r} twice; column names are case-insensitive in Delta"
            )
            raise SchemaMismatchError(message, hint="drop or rename one of them")
        message = f"The data has the column {above + first.name!r} of type {first.type}{rest}, which the table does not"
        if not above and len(given) != len(wanted):  # the wording that users of deltalake search for
            message += f". Cannot cast schema, number of fields does not match: {len(given)} vs {len(wanted)}"
        raise SchemaMismatchError(message, hint="drop it from the data, or pass schema_mode='merge' to add it")
    return plans


def _plan(wanted: pa.DataType, given: pa.DataType, name: str, *, casts: bool = False) -> Conversion:
    if wanted == given and not _has_required(wanted):
        return _same
    outer = outer_encoding(given)
    if outer is not None:
        inner, decode = _plan(wanted, outer[0], name, casts=casts), outer[1]
        return lambda array: inner(decode(array))
    if pa.types.is_null(given):
        return nulls_of(wanted)
    plan = _nested(wanted, given, name) if pa.types.is_nested(wanted) else _leaf(wanted, given, casts=casts)
    if plan is None:
        raise _unfit(name, given, wanted)
    return plan


def _has_required(kind: pa.DataType) -> bool:
    """Return whether a nested field is non-nullable, which has to be checked row by row."""
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
        # Fields of a null struct may be null, even if they are non-nullable.
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
    """Return the list offsets for values without gaps, as ``flatten`` returns them."""
    zero = pa.nulls(1, pa.int32()).fill_null(0)
    lengths = pc.if_else(pc.is_valid(lists), pc.list_value_length(lists).cast(pa.int32()), zero[0])
    return pa.concat_arrays([zero, pc.cumulative_sum(lengths)])


def _leaf(wanted: pa.DataType, given: pa.DataType, *, casts: bool) -> Conversion | None:
    if pa.types.is_timestamp(wanted):
        return _timestamp(wanted, given)
    if not _is_lossless(wanted, given) and not (casts and _is_checked(wanted, given)):
        return None
    return lambda array: array.cast(wanted)


def _is_lossless(wanted: pa.DataType, given: pa.DataType) -> bool:
    """Return whether every value of ``given`` is a value of ``wanted``."""
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


def _is_checked(wanted: pa.DataType, given: pa.DataType) -> bool:
    """Return whether Arrow's cast fails for every value that it would change."""
    is_float = pa.types.is_floating
    if wanted in _INTEGERS:
        return given in _INTEGERS or given in _TEXT or is_float(given)
    return is_float(wanted) and given in _INTEGERS


def _holds_integer(wanted: pa.DataType, given: pa.DataType) -> bool:
    bits, signed = _INTEGERS[given]
    if wanted in _INTEGERS:
        wide, wide_signed = _INTEGERS[wanted]
        return (wide_signed or not signed) and wide - wide_signed >= bits - signed
    if wanted in _EXACT_BITS:
        return bits - signed <= _EXACT_BITS[wanted]
    return bool(pa.types.is_decimal(wanted) and wanted.precision - wanted.scale >= _DIGITS[bits, signed])


def _timestamp(wanted: pa.DataType, given: pa.DataType) -> Conversion | None:
    # An instant is not a wall-clock time. Only the producer of the data knows its time zone.
    if not pa.types.is_timestamp(given) or (given.tz is None) != (wanted.tz is None):
        return None
    # The time zone is only a label, so only the unit is converted. The cast fails if digits would be lost.
    return lambda array: array.view(pa.timestamp(given.unit)).cast(pa.timestamp(wanted.unit)).view(wanted)


def _same(array: pa.Array) -> pa.Array:
    return array


def _check_nulls(field: pa.Field, values: pa.Array, name: str) -> None:
    if not field.nullable and values.null_count:
        message = f"Invalid data found: {values.null_count} rows have no value in column {name!r}, which the table has"
        message += " without nulls"
        raise SchemaMismatchError(message, hint="drop these rows, or fill in a value")


def _unfit(name: str, given: pa.DataType | str, wanted: pa.DataType, why: str = "") -> SchemaMismatchError:
    message = (
        f"Column {name!r} is {given} in the data and {wanted} in the table, which cannot represent all its values{why}"
    )
    # deltalake's sentence: programs look for it.
    message += f": Cannot cast field {name} from {_titled(given)} to {_titled(wanted)}"
    return SchemaMismatchError(message, hint=f"cast the column to {wanted} yourself, or drop it")


def cast_failure(error: pa.ArrowException, wanted: pa.DataType) -> str:
    """Return why a cast failed: the value, in deltalake's words where Arrow names one, as programs look for them."""
    text = str(error)
    if found := re.search(r"Failed to parse string: ('.*') as a scalar of type", text, re.DOTALL):
        return f"Cast error: Cannot cast string {found[1]} to value of {_titled(wanted)} type"
    if found := re.search(r"value (\S+) not in range", text):
        return f"Cast error: Can't cast value {found[1]} to type {_titled(wanted)}"
    return text


def _titled(kind: pa.DataType | str) -> str:
    return str(kind)[:1].upper() + str(kind)[1:]

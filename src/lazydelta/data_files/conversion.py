"""Convert the arrays of a file to the types of the table.

A conversion is planned once per file from the types alone, so that a file with wrong types fails before any of its
values are used, and is then applied to every batch. It never changes a value: a value that does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from lazydelta.errors import DataFileError, UnsupportedFeatureError
from lazydelta.protocol.arrow_types import (
    Conversion,
    decoded_type,
    is_widening,
    null_mask,
    nulls_of,
    outer_encoding,
    unchanged,
    with_child,
)
from lazydelta.protocol.schema import Array, DataType, Decimal, Field, Map, Primitive, Struct, Variant
from lazydelta.runtime import compute as pc

if TYPE_CHECKING:
    from lazydelta.data_files.columns import ColumnFinder

__all__ = ["Converter"]

# Unsigned integers that a signed type of the table can hold in full.
_UNSIGNED = {
    pa.uint8(): {"short", "integer", "long"},
    pa.uint16(): {"integer", "long"},
    pa.uint32(): {"long"},
}
_DELTA_NAMES = {
    pa.null(): "void",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float16(): "float",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.date32(): "date",
    pa.date64(): "date",
}
_INT64_DIGITS = 19
_TEXT = {pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()}


@dataclass(frozen=True, slots=True)
class Converter:
    """Plans the conversions of the columns of one file."""

    finder: ColumnFinder

    def plan(self, wanted: DataType, stored: pa.DataType, name: str) -> Conversion:
        """Return the conversion of arrays of type ``stored`` to the table's type ``wanted`` for column ``name``."""
        outer = outer_encoding(stored)
        if outer is not None:
            inner, decode = self.plan(wanted, outer[0], name), outer[1]
            return decode if inner is unchanged else lambda array: inner(decode(array))
        if pa.types.is_null(stored):
            return nulls_of(wanted.to_arrow())
        conversion = self._nested(wanted, stored, name) or _leaf(wanted, stored)
        if conversion is None:
            raise self._mismatch(name, wanted, stored)
        return conversion

    def _nested(self, wanted: DataType, stored: pa.DataType, name: str) -> Conversion | None:
        if isinstance(wanted, Struct) and pa.types.is_struct(stored):
            return self._struct(wanted, stored, name)
        if isinstance(wanted, Array):
            return self._list(wanted, stored, name)
        if isinstance(wanted, Map) and pa.types.is_map(stored):
            return self._map(wanted, stored, name)
        if isinstance(wanted, Variant) and pa.types.is_struct(stored):
            return self._variant(wanted, stored, name)
        return None

    def fields(self, wanted: Sequence[Field], among: Sequence[pa.Field], above: str) -> list[tuple[int, Conversion]]:
        """Return the position in ``among`` and the conversion of each wanted field; -1 for missing fields."""
        plans: list[tuple[int, Conversion]] = []
        for field, name, index in self.finder.places(wanted, among, above):
            if index is None:
                plans.append((-1, nulls_of(field.type.to_arrow())))
            else:
                plans.append((index, self.plan(field.type, among[index].type, name)))
        return plans

    def _struct(self, wanted: Struct, stored: pa.DataType, name: str) -> Conversion:
        among = [stored.field(index) for index in range(stored.num_fields)]
        plans = self.fields(wanted.fields, among, f"{name}.")
        arrow = wanted.to_arrow()
        fields = [each.to_arrow() for each in wanted.fields]

        def convert(array: pa.Array) -> pa.Array:
            if not plans:
                return pa.Array.from_buffers(arrow, len(array), array.buffers()[:1], offset=array.offset)
            children = [inner(array if index < 0 else array.field(index)) for index, inner in plans]
            mask = null_mask(array)
            return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

        return convert

    def _list(self, wanted: Array, stored: pa.DataType, name: str) -> Conversion | None:
        types = pa.types
        if types.is_list(stored):
            inner = self.plan(wanted.element, stored.value_type, f"{name}.element")
            arrow = wanted.to_arrow()
            return lambda array: with_child(array, arrow, inner(array.values))
        # List views are not supported: PyArrow's cast of them to lists creates invalid arrays.
        if types.is_large_list(stored) or types.is_fixed_size_list(stored):
            plain = pa.list_(stored.value_field)
            rest = self._list(wanted, plain, name)
            return rest and (lambda array: rest(array.cast(plain)))
        return None

    def _map(self, wanted: Map, stored: pa.DataType, name: str) -> Conversion:
        keys = self.plan(wanted.key, stored.key_type, f"{name}.key")
        items = self.plan(wanted.value, stored.item_type, f"{name}.value")
        arrow = wanted.to_arrow()
        fields = [arrow.key_field, arrow.item_field]

        def convert(array: pa.Array) -> pa.Array:
            entries = pa.StructArray.from_arrays([keys(array.keys), items(array.items)], fields=fields)
            return with_child(array, arrow, entries)

        return convert

    def _variant(self, wanted: Variant, stored: pa.DataType, name: str) -> Conversion | None:
        if stored.get_field_index("typed_value") >= 0:
            # Shredded values are in typed columns and missing from the value: without those columns they would be lost.
            path = self.finder.path
            message = f"Column {name!r} of data file {path} is a shredded variant, which lazydelta does not reassemble"
            hint = "omit the column, or rewrite the file with delta.enableVariantShredding set to false"
            raise UnsupportedFeatureError(message, features=("variantShredding",), path=path, hint=hint)
        arrow = wanted.to_arrow()
        places = [stored.get_field_index(field.name) for field in arrow]
        if min(places) < 0 or not all(decoded_type(stored.field(place).type) in _TEXT for place in places):
            return None
        path = self.finder.path

        def convert(array: pa.Array) -> pa.Array:
            children = [_plain(array.field(place)).cast(pa.binary()) for place in places]
            mask = null_mask(array)
            for child in children:
                if child.null_count > array.null_count or (child.null_count and pc.any(_lacks(child, array)).as_py()):
                    message = f"Column {name!r} of data file {path} has a variant without value or metadata"
                    raise DataFileError(message, path=path, hint="the file is damaged; restore or rewrite it")
            return pa.StructArray.from_arrays(children, fields=list(arrow), mask=mask)

        return convert

    def _mismatch(self, name: str, wanted: DataType, stored: pa.DataType) -> DataFileError:
        path = self.finder.path
        message = f"Column {name!r} of data file {path} has type {stored}, which cannot be read as {wanted}"
        return DataFileError(message, path=path, hint="the table's schema does not fit the file; rewrite the file")


def _plain(array: pa.Array) -> pa.Array:
    outer = outer_encoding(array.type)
    return array if outer is None else _plain(outer[1](array))


def _lacks(child: pa.Array, parent: pa.Array) -> pa.Array:
    return pc.and_(child.is_null(), parent.is_valid())


def _leaf(wanted: DataType, stored: pa.DataType) -> Conversion | None:
    if not isinstance(wanted, Primitive | Decimal):
        return None
    arrow = wanted.to_arrow()
    if isinstance(wanted, Primitive):
        if wanted.name == "void":
            return nulls_of(arrow)
        if wanted.name == "timestamp" or (wanted.name == "timestamp_ntz" and pa.types.is_timestamp(stored)):
            return _timestamp(wanted.name, stored)
        if wanted.name in {"string", "binary"}:
            # Old writers store strings as bytes. The cast to a string checks that they are UTF-8.
            fits = stored in _TEXT or (wanted.name == "binary" and pa.types.is_fixed_size_binary(stored))
            return _cast(stored, arrow) if fits else None
    return _cast(stored, arrow) if _is_readable(wanted, stored) else None


def _is_readable(wanted: DataType, stored: pa.DataType) -> bool:
    known: DataType
    if pa.types.is_decimal(stored):
        if stored.scale < 0:
            return False
        known = Decimal(stored.precision, stored.scale)
    elif stored in _DELTA_NAMES:
        known = Primitive(_DELTA_NAMES[stored])
    else:
        return isinstance(wanted, Primitive) and wanted.name in _UNSIGNED.get(stored, ())
    if known == wanted or is_widening(known, wanted):
        return True
    if known != Primitive("integer"):
        return False
    # Parquet has no integers below 32 bits, and not every writer annotates the narrower type. The cast checks each
    # value.
    return wanted in (Primitive("byte"), Primitive("short")) or is_widening(Primitive("byte"), wanted)


def _cast(stored: pa.DataType, arrow: pa.DataType) -> Conversion:
    if stored == arrow:
        return unchanged
    if pa.types.is_decimal(arrow) and pa.types.is_integer(stored):
        # A direct cast requires room for every value of the integer type; a cast through this decimal checks the
        # values.
        roomy = pa.decimal256(_INT64_DIGITS + arrow.scale, arrow.scale)
        return lambda array: array.cast(roomy).cast(arrow)
    return lambda array: array.cast(arrow)


def _timestamp(name: str, stored: pa.DataType) -> Conversion | None:
    if not pa.types.is_timestamp(stored):
        return None
    if name == "timestamp_ntz" and stored.tz is not None:
        return None  # an instant is not a wall-clock time
    arrow = Primitive(name).to_arrow()
    if stored == arrow:
        return unchanged
    micros = pa.timestamp("us")

    def convert(array: pa.Array) -> pa.Array:
        if stored.unit == "ns":
            # Rounded down, as all writers of microseconds do. A plain cast would round towards 1970.
            array = pc.floor_temporal(array.view(pa.timestamp("ns")), unit="microsecond")
        elif stored.tz is not None:
            array = array.view(pa.timestamp(stored.unit))
        # Values without a zone are UTC here, so the zone is only a label and shifts nothing.
        return array.cast(micros).view(arrow)

    return convert

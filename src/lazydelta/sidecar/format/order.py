"""Sort order of a sidecar as bytes: rows compare by (sort values, path), with missing values last.

One binary column serves every step that has to agree on the order: assigning rows to buckets of an external sort,
sorting a bucket, and finding the place of a new file in a sorted part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lazydelta.protocol.schema import TableSchema
from lazydelta.protocol.values import from_text
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import one_array, string_array
from lazydelta.sidecar.format.columns import ColumnRole, SidecarColumn, SidecarLayout
from lazydelta.sidecar.format.manifest import SidecarError

if TYPE_CHECKING:
    import numpy.typing as npt  # its docstrings are built at import

__all__ = ["keys_from_text", "places_among", "sortable"]

_SIGN = {1: 0x80, 4: 0x80000000, 8: 0x8000000000000000, 2: 0x8000}


def sortable(rows: pa.RecordBatch | pa.Table, layout: SidecarLayout) -> pa.BinaryArray:
    """Return bytes that compare in the sort order of the rows."""
    pieces = [_encoded(one_array(rows.column(name))) for name in layout.sort_names()]
    path = pc.cast(one_array(rows.column(layout.name_of(ColumnRole.PATH))), pa.binary())
    if not pieces:
        return path
    return pc.binary_join_element_wise(*pieces, path, _EMPTY)


def keys_from_text(
    keys: Sequence[tuple[str | None, ...]], layout: SidecarLayout, schema: TableSchema
) -> pa.BinaryArray:
    """Return the bytes of manifest keys: the values of the sort columns as strings, and the path."""
    types = {(column.is_partition, column.physical_path): column.type for column in schema.leaves()}
    names = [*layout.sort_names(), layout.name_of(ColumnRole.PATH)]
    arrays = []
    for number, each in enumerate(layout.sort):
        texts = string_array([key[number] for key in keys])
        kind = types[each.role == ColumnRole.PARTITION, each.path]
        values = from_text(texts, kind)
        arrow = kind.to_arrow()
        # NaN and binary values have no string form, so a null does not determine where the key lies.
        if values.null_count != texts.null_count or (
            texts.null_count and (pa.types.is_floating(arrow) or pa.types.is_binary(arrow))
        ):
            message = f"its keys by {'.'.join(each.path)} cannot be read back from text"
            raise SidecarError(message)
        arrays.append(values)
    arrays.append(string_array([key[-1] for key in keys]))
    columns = (*(_column(layout, name) for name in names),)
    return sortable(pa.RecordBatch.from_arrays(arrays, names=names), SidecarLayout(columns, layout.sort))


def _column(layout: SidecarLayout, name: str | None) -> SidecarColumn:
    return next(each for each in layout.columns if each.name == name)


def places_among(ends: pa.BinaryArray, keys: pa.BinaryArray, *, side: str) -> npt.NDArray[np.int64]:
    """Return the position of each key among sorted ends; ``side`` right is after equal ends, left before them."""
    found = pc.search_sorted(ends, keys, side=side)
    # Use the Arrow buffer directly: Arrow's conversion to NumPy would load pandas.
    return np.frombuffer(found.buffers()[1], np.uint64, len(found), found.offset * 8).astype(np.int64)


def _constant(data: bytes) -> pa.BinaryScalar:
    """Return a scalar from its bytes: converting a Python object would load pandas before the first file."""
    ends = pa.py_buffer(np.array([0, len(data)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(data)])[0]


_EMPTY = _constant(b"")
_PRESENT, _MISSING = _constant(b"\x00"), _constant(b"\x01")
_TERMINATOR = _constant(b"\x00\x00")


def _encoded(values: pa.Array) -> pa.BinaryArray:
    body = _text(values) if pa.types.is_string(values.type) or pa.types.is_binary(values.type) else _fixed(values)
    if not values.null_count:
        return pc.binary_join_element_wise(_PRESENT, body, _EMPTY)
    joined = pc.binary_join_element_wise(_PRESENT, pc.fill_null(body, _EMPTY), _EMPTY)
    return pc.if_else(pc.is_valid(values), joined, _MISSING)


def _text(values: pa.Array) -> pa.BinaryArray:
    # Use a terminator that sorts before every byte, so that "a" < "ab". A zero byte in the value is escaped.
    plain = pc.cast(values, pa.binary())
    escaped = pc.replace_substring(plain, pattern=b"\x00", replacement=b"\x00\xff")
    return pc.binary_join_element_wise(escaped, _TERMINATOR, _EMPTY)


def _fixed(values: pa.Array) -> pa.BinaryArray:
    if pa.types.is_boolean(values.type):
        values = pc.cast(values, pa.uint8())
    elif pa.types.is_date32(values.type):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.view(pa.int64())
    kind = values.type
    raw = pc.fill_null(values, _zero(kind)) if values.null_count else values
    if pa.types.is_decimal(kind):
        words = np.frombuffer(raw.buffers()[1], "<u8", len(raw) * 2, raw.offset * 16).reshape(-1, 2)
        high = (words[:, 1] ^ np.uint64(_SIGN[8])).astype(">u8")
        ordered = np.stack([high, words[:, 0].astype(">u8")], axis=1)
        return _binary(ordered.view(np.uint8).reshape(len(raw), 16))
    width = kind.bit_width // 8
    unsigned = np.frombuffer(raw.buffers()[1], f"<u{width}", len(raw), raw.offset * width)
    sign = unsigned.dtype.type(_SIGN[width])
    if pa.types.is_floating(kind):
        negative = (unsigned & sign) != 0
        ordered = np.where(negative, ~unsigned, unsigned | sign)
    elif pa.types.is_unsigned_integer(kind):
        ordered = unsigned
    else:
        ordered = unsigned ^ sign
    return _binary(ordered.astype(f">u{width}").view(np.uint8).reshape(len(raw), width))


def _zero(kind: pa.DataType) -> pa.Scalar:
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(kind.bit_width // 8))])[0]


def _binary(rows: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    count, width = rows.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    data = pa.py_buffer(np.ascontiguousarray(rows).tobytes())
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])

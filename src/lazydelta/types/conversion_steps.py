"""What every conversion of Arrow arrays is made of: encodings taken off, lists and structs put together again.

There are two planners of conversions, and their rules are not the same. ``rows.conversion`` reads files that the table
has already: it finds columns by their mapping, follows type widening, and takes what old writers left, because the
values are in the table and each is checked as it is cast. ``write.evolution`` decides whether new data may come in: by
the types alone, so that nothing is refused halfway, and with nulls checked where the table has none. What they share is
here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from lazydelta import compute as pc

__all__ = [
    "Conversion",
    "decoded_type",
    "is_list",
    "null_mask",
    "nulls_of",
    "outer_encoding",
    "unchanged",
    "with_child",
]

Conversion: TypeAlias = Callable[[pa.Array], pa.Array]


def unchanged(array: pa.Array) -> pa.Array:
    """Return the array: a conversion that its callers need not call."""
    return array


def outer_encoding(kind: pa.DataType) -> tuple[pa.DataType, Conversion] | None:
    """Return what the outermost encoding of a type stands for, and what takes it off; None for a plain type."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.storage_type, lambda array: array.storage
    if pa.types.is_dictionary(kind):
        return kind.value_type, lambda array: array.dictionary_decode()
    if pa.types.is_run_end_encoded(kind):
        return kind.value_type, pc.run_end_decode
    return None


def decoded_type(kind: pa.DataType) -> pa.DataType:
    """Return what a type stands for without its encodings."""
    while (outer := outer_encoding(kind)) is not None:
        kind, _ = outer
    return kind


def is_list(kind: pa.DataType) -> bool:
    """Tell whether a type is one of Arrow's lists, which are all arrays to Delta."""
    return isinstance(
        kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType | pa.ListViewType | pa.LargeListViewType
    )


def nulls_of(kind: pa.DataType) -> Conversion:
    """Return what turns any array into nulls of a type."""
    return lambda array: pa.nulls(len(array), kind)


def null_mask(array: pa.Array) -> pa.Array | None:
    """Tell where an array is null; None if it is nowhere, which is cheaper to know."""
    return pc.is_null(array) if array.null_count else None


def with_child(array: pa.Array, kind: pa.DataType, child: pa.Array) -> pa.Array:
    """Return a list or map with other values below the same offsets and nulls: lists are never taken apart."""
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], null_count=array.null_count, offset=array.offset, children=[child]
    )

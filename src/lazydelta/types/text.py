"""Typed arrays from the text forms of Delta: partition values, and dates and timestamps in statistics.

The common forms go through one Arrow cast; if a single value is odd, distinct values are looked at one by one, and
what cannot be read becomes null: unknown, never an error and never a guess.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from lazydelta.arrays import Stored, typed_array
from lazydelta.errors import PredicateError
from lazydelta.types.literals import parse_instant, place
from lazydelta.types.schema import Column, DataType, Decimal, Primitive

__all__ = ["from_text"]

_INTEGER = re.compile(r"[+-]?\d{1,40}", re.ASCII)


def from_text(strings: pa.Array, kind: DataType) -> pa.Array:
    """Read each string as a value of ``kind``; null where it is null or is no such value."""
    target = kind.to_arrow()
    if pa.types.is_string(target):
        return strings
    if pa.types.is_binary(target):
        # Writers put bytes that are not text as replacement characters: those values are lost.
        return pc.cast(_null_where(strings, pc.match_substring(strings, "�")), target)
    for cast in _casts(target):
        try:
            return cast(strings)
        except pa.ArrowException:
            continue
    return _one_by_one(strings, kind)


def _casts(target: pa.DataType) -> list[Callable[[pa.Array], pa.Array]]:
    def plain(strings: pa.Array) -> pa.Array:
        return pc.cast(strings, target)

    def naive(strings: pa.Array) -> pa.Array:
        return pc.cast(strings, pa.timestamp("us")).view(target)

    def zoned(strings: pa.Array) -> pa.Array:
        return pc.cast(strings, pa.timestamp("us", "UTC")).view(target)

    if pa.types.is_timestamp(target):
        return [zoned, naive] if target.tz else [naive, zoned]
    # Arrow reads "0x1F" as an integer, "1" as true and "1e999" as infinity, which Delta does not.
    return [plain] if pa.types.is_date(target) or pa.types.is_decimal(target) else [_checked(target)]


def _checked(target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    if pa.types.is_boolean(target):
        pattern = "^(?i:true|false)$"
    elif pa.types.is_integer(target):
        pattern = "^-?[0-9]+$"
    else:
        pattern = r"^-?[0-9]{1,30}(\.[0-9]*)?([eE][+-]?[0-9]{1,2})?$"

    def cast(strings: pa.Array) -> pa.Array:
        if pc.all(pc.match_substring_regex(strings, pattern)).as_py() is False:
            message = "a value of another form"
            raise pa.ArrowInvalid(message)
        return pc.cast(strings, target)

    return cast


def _null_where(strings: pa.Array, condition: pa.Array) -> pa.Array:
    return pc.if_else(condition, pa.nulls(1, strings.type)[0], strings)


def _one_by_one(strings: pa.Array, kind: DataType) -> pa.Array:
    encoded = pc.dictionary_encode(strings)
    stored = [_read(each.as_py(), kind) for each in encoded.dictionary]
    return typed_array(stored, kind.to_arrow()).take(encoded.indices)


def _read(text: str | None, kind: DataType) -> Stored | None:
    if text is None:
        return None
    name = kind.name if isinstance(kind, Primitive) else ""
    if name in {"long", "integer", "short", "byte"} and not _INTEGER.fullmatch(text):
        return None
    if name in {"date", "timestamp", "timestamp_ntz"} and parse_instant(text) is None:
        return None
    if name in {"float", "double"} and text.lower() == "nan":
        return math.nan  # a value like others; what it says as a bound is for bounds to decide
    if not isinstance(kind, Primitive | Decimal):
        return None
    try:
        placed = place(text, Column((), (), kind))
    except PredicateError:
        return None
    return placed.low if placed.exact else None

"""From Arrow to plain values that JSON can hold: numbers, text, booleans, null, lists and objects.

Decimals and moments become text, because a float would change them; NaN and the infinities become the words that
Delta uses for them, because JSON has none; binary is base64.
"""

from __future__ import annotations

import base64
import math
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Record", "plain", "records"]

Record: TypeAlias = dict[str, Any]


def records(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the rows of a batch as dictionaries of plain values."""
    names = batch.schema.names
    if not names:
        return iter([{} for _ in range(batch.num_rows)])
    columns = [_column(column) for column in batch.columns]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def plain(value: object) -> Any:  # noqa: ANN401, PLR0911 - whatever JSON has; one line a type
    """Return a Python value as one that JSON can hold."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_key(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)


def _column(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        values: list[Any] = column.to_pylist()
        return values
    convert = _mapping if pa.types.is_map(kind) else plain
    return [convert(each) for each in _python_values(column)]


def _python_values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):
        # Python's calendar ends with the year 9999, Delta's does not.
        values = column.cast(pa.string()).to_pylist()
    return values


def _mapping(pairs: list[tuple[object, object]] | None) -> dict[str, Any] | None:
    return None if pairs is None else {_key(key): plain(each) for key, each in pairs}


def _key(key: object) -> str:
    converted = plain(key)
    return converted if isinstance(converted, str) else str(converted)

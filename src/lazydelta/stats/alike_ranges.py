"""Ranges from texts of statistics that are alike, and from the decoder for all others.

Both say the same of every text: a value that could be read in two ways is not read here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import from_numpy, typed_array, typed_scalar
from lazydelta.execution import give_way
from lazydelta.stats.alike_texts import AlikeTexts, Scratch
from lazydelta.stats.chosen_columns import has_range
from lazydelta.stats.ranges import ColumnRange, Ranges, narrowed_floats
from lazydelta.stats.text_shape import Shape, shape_of
from lazydelta.types.schema import Column, Decimal, Struct
from lazydelta.types.text import cast_decimals, from_text

__all__ = ["alike_or_decoded"]

_Path = tuple[str, ...]
_TEXTS_AT_ONCE, _BYTES_AT_ONCE = 4096, 8 << 20
_LEAST_TEXTS = 256  # below, the calls take longer than the decoder does
_SHAPES, _LOOKED_AT = 3, 4


class _UnlikeError(Exception):
    """A column has values that only the decoder may read."""


def alike_or_decoded(
    stats: pa.Array,
    columns: Sequence[Column],
    decoded: Callable[[pa.Array], Ranges],
    *,
    only_bounds: bool,
    most_slots: int,
) -> Ranges:
    """Return the ranges of ``columns`` from texts, and what ``decoded`` makes of those that are not alike.

    Texts of more than ``most_slots`` values are not worth the trouble.
    """
    if stats.null_count or len(stats) < _LEAST_TEXTS or stats.type != pa.string():
        return decoded(stats)
    at_once = min(_TEXTS_AT_ONCE, max(1, len(stats) * _BYTES_AT_ONCE // max(1, stats.nbytes)))
    if at_once < _LEAST_TEXTS:
        return decoded(stats)
    found: list[Ranges] = []
    places: list[npt.NDArray[np.int64]] = []
    unlike: list[npt.NDArray[np.int64]] = []
    scratch, shapes = Scratch(), list[Shape]()
    for start in range(0, len(stats), at_once):
        left = np.arange(start, min(start + at_once, len(stats)))
        for number in range(_SHAPES):
            # What is not like the others may be like one another: a column of nulls has no bounds.
            shape = shapes[number] if number < len(shapes) else _shape(stats, left)
            if shape is None or len(shape.slots) > most_slots:
                break
            if number == len(shapes):
                shapes.append(shape)
            texts = AlikeTexts.of(_taken(stats, left), scratch, shape)
            ranges = _ranges_or_none(texts, columns, only_bounds=only_bounds)
            if ranges is not None:
                found.append(ranges)
                places.append(left[texts.proven])
                left = left[~texts.proven]
            if len(left) < _LEAST_TEXTS:
                break
        unlike.append(left)
        give_way()
    rest = np.concatenate(unlike)
    if len(rest):
        if not found:
            return decoded(stats)
        found.append(decoded(_taken(stats, rest)))
        places.append(rest)
    return _joined(found, np.concatenate(places))


def _taken(stats: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return stats.slice(int(rows[0]), len(rows))
    return pc.take(stats, from_numpy(rows))


def _shape(stats: pa.Array, rows: npt.NDArray[np.int64]) -> Shape | None:
    """Return the shape of the first of these texts, or of another one: an escape in one says nothing of the rest."""
    for row in rows[:: -(-len(rows) // _LOOKED_AT)]:
        shape = shape_of(stats[int(row)].as_buffer().to_pybytes())
        if shape is not None:
            return shape
    return None


def _ranges_or_none(texts: AlikeTexts, columns: Sequence[Column], *, only_bounds: bool) -> Ranges | None:
    """Return what texts say that are alike; None if there are none, or the decoder has to tell."""
    count = int(texts.proven.sum())
    if not count:
        return None
    try:
        return _ranges(texts, count, columns, only_bounds=only_bounds)
    except (_UnlikeError, pa.ArrowException):
        return None


def _ranges(texts: AlikeTexts, count: int, columns: Sequence[Column], *, only_bounds: bool) -> Ranges:
    found: dict[_Path, ColumnRange] = {}
    for column in columns:
        path = column.physical_path
        if isinstance(column.type, Struct):
            continue
        low = high = nulls = None
        if has_range(column):
            low = _bounds(texts, count, ("minValues", *path), column)
            high = _bounds(texts, count, ("maxValues", *path), column)
        if not only_bounds:
            nulls = _integers(texts, count, ("nullCount", *path))
        if low is not None or nulls is not None:
            found[path] = ColumnRange(low, high, nulls)
    if only_bounds:
        return Ranges(count, columns=found)
    return Ranges(count, _integers(texts, count, ("numRecords",)), _flag(texts, count, ("tightBounds",)), found)


def _bounds(texts: AlikeTexts, count: int, path: _Path, column: Column) -> pa.Array:
    target = column.type.to_arrow()
    if pa.types.is_boolean(target):
        return _flag(texts, count, path)
    if pa.types.is_integer(target):
        return _narrowed(_integers(texts, count, path), target)
    if isinstance(column.type, Decimal):
        digits = _digits(texts, path, whole=False)
        if digits is None:
            return pa.nulls(count, target)
        return pc.cast(digits, target) if pa.types.is_integer(digits.type) else cast_decimals(digits, target)
    if pa.types.is_floating(target):
        digits = _digits(texts, path, whole=False)
        return pa.nulls(count, target) if digits is None else narrowed_floats(_doubles(digits), target)
    if not _has(texts, path, text=True):
        return pa.nulls(count, target)
    return from_text(texts.texts(path), column.type)


def _doubles(digits: pa.Array) -> pa.Array:
    doubles = pc.cast(digits, pa.float64())
    if not pc.all(pc.is_finite(doubles)).as_py():
        raise _UnlikeError
    return doubles


def _integers(texts: AlikeTexts, count: int, path: _Path) -> pa.Array:
    digits = _digits(texts, path, whole=True)
    return pa.nulls(count, pa.int64()) if digits is None else pc.cast(digits, pa.int64())


def _narrowed(values: pa.Array, target: pa.DataType) -> pa.Array:
    if target == pa.int64():
        return values
    limit = 2 ** (target.bit_width - 1)
    low, high = typed_array([-limit, limit - 1], pa.int64())
    fits = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    if fits.null_count == 0 and fits.true_count == len(fits):
        return pc.cast(values, target)
    return pc.cast(pc.if_else(fits, values, typed_scalar(None, pa.int64())), target)


def _digits(texts: AlikeTexts, path: _Path, *, whole: bool) -> pa.Array | None:
    """Return numbers as far as they are read, None where the texts have none; whatever else is the decoder's."""
    if not _has(texts, path, text=False):
        return None
    digits = texts.numbers(path, whole=whole)
    if digits is None:
        raise _UnlikeError
    return digits


def _flag(texts: AlikeTexts, count: int, path: _Path) -> pa.BooleanArray:
    value = texts.constant(path)
    if value is None:
        if texts.has(path, text=False) is not False:
            raise _UnlikeError
        return pa.nulls(count, pa.bool_())
    return typed_array([value] * count, pa.bool_())


def _has(texts: AlikeTexts, path: _Path, *, text: bool) -> bool:
    has = texts.has(path, text=text)
    if has is None:
        raise _UnlikeError
    return has


def _joined(found: Sequence[Ranges], places: npt.NDArray[np.int64]) -> Ranges:
    """Put ranges together whose rows belong to these places."""
    in_order = bool((np.diff(places) > 0).all())
    order = None if in_order else from_numpy(np.argsort(places, kind="stable"))

    def join(arrays: Sequence[pa.Array | None]) -> pa.Array | None:
        known = [array for array in arrays if array is not None]
        if len(known) != len(arrays):
            return None
        whole = pa.concat_arrays(known) if len(known) > 1 else known[0]
        return whole if order is None else pc.take(whole, order)

    columns = {
        path: ColumnRange(
            join([each.columns[path].min for each in found]),
            join([each.columns[path].max for each in found]),
            join([each.columns[path].null_count for each in found]),
        )
        for path in found[0].columns
    }
    return Ranges(
        len(places),
        join([each.num_records for each in found]),
        join([each.tight_bounds for each in found]),
        columns,
    )

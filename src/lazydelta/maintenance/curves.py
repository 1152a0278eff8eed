"""Space-filling curves: one order of rows in which rows with similar values of several columns are close together.

Each column is cut into ranges that hold about the same number of rows, by a sample. The numbers of a row's ranges are
its coordinates, and its position on the curve sorts it. Nulls are in the last range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import from_numpy

__all__ = ["CURVES", "Curve", "CurveOrder"]

Curve: TypeAlias = Literal["z", "hilbert"]
CURVES = ("z", "hilbert")
_POSITION = "\0position"
_MOST_BITS = 12
_SAMPLE_ROWS = 100_000
_Coordinates: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class CurveOrder:
    """The order of rows along a curve, made from a sample of them."""

    curve: str
    columns: tuple[str, ...]
    ends: tuple[Any, ...]  # the ends of the ranges of each column
    bits: int

    @classmethod
    def of(cls, curve: str, columns: Sequence[str], batches: Iterable[pa.RecordBatch]) -> CurveOrder:
        """Sample rows and cut the columns into ranges. Only the columns are read from the batches."""
        sample = _sample(batches, columns)
        bits = min(_MOST_BITS, 63 // len(columns))
        ends = tuple(_ends(sample.column(name), 1 << bits) for name in columns)
        return cls(curve, tuple(columns), ends, bits)

    def positions(self, rows: pa.RecordBatch) -> _Coordinates:
        """Return the position of each row on the curve."""
        last = (1 << self.bits) - 1
        axes = [_ranges(rows.column(name), ends, last) for name, ends in zip(self.columns, self.ends, strict=True)]
        if self.curve == "hilbert" and len(axes) > 1:
            axes = _transposed(axes, self.bits)
        return _interleaved(axes, self.bits)

    def keyed(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with their positions in a further column."""
        for batch in batches:
            yield batch.append_column(_POSITION, from_numpy(self.positions(batch).astype(np.int64)))

    @property
    def key(self) -> str:
        """The column that `keyed` adds."""
        return _POSITION


def _sample(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> pa.Table:
    """Return evenly spaced rows. When there are too many, every second one is dropped and later ones are thinned."""
    held: list[pa.RecordBatch] = []
    step, rows = 1, 0
    for batch in batches:
        piece = batch.select(columns)
        if step > 1:
            piece = piece.take(from_numpy(np.arange(0, batch.num_rows, step, dtype=np.int64)))
        held.append(piece)
        rows += piece.num_rows
        while rows > _SAMPLE_ROWS:
            step *= 2
            held = [each.take(from_numpy(np.arange(0, each.num_rows, 2, dtype=np.int64))) for each in held]
            rows = sum(each.num_rows for each in held)
    return pa.Table.from_batches(held)


def _ends(column: pa.ChunkedArray, number: int) -> Any:
    """Return the ends of ranges with about the same number of values, without repetitions."""
    values = _comparable(column.drop_null())
    if not len(values):
        return values
    values = np.sort(values)
    places = (np.arange(1, number) * len(values)) // number
    return np.unique(values[places])


def _ranges(column: pa.Array, ends: Any, last: int) -> _Coordinates:
    """Return the number of the range of each value."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    found = np.full(len(column), last, np.uint64)
    if not len(ends):
        return found
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        # Texts are compared by Python, so each is compared once.
        coded = column.drop_null().dictionary_encode()
        known = np.searchsorted(ends, _comparable(coded.dictionary), side="right")
        found[valid] = known[coded.indices.to_numpy()]
    else:
        found[valid] = np.searchsorted(ends, _comparable(column.drop_null()), side="right")
    return np.minimum(found, np.uint64(last))


def _comparable(values: pa.Array | pa.ChunkedArray) -> Any:
    """Return values without nulls as an array of NumPy that sorts as they do."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.array(values.cast(pa.binary()).to_pylist(), object)
    if pa.types.is_decimal(kind):
        return pc.cast(values, pa.float64()).to_numpy()
    if pa.types.is_boolean(kind):
        return pc.cast(values, pa.int8()).to_numpy()
    if pa.types.is_timestamp(kind):
        return pc.cast(pc.cast(values, pa.timestamp(kind.unit)), pa.int64()).to_numpy()
    return pc.cast(values, pa.int32()).to_numpy() if pa.types.is_date32(kind) else values.to_numpy()


def _interleaved(axes: Sequence[_Coordinates], bits: int) -> _Coordinates:
    """Return numbers whose bits are taken from the coordinates in turn, the highest first."""
    found = np.zeros(len(axes[0]), np.uint64)
    for bit in reversed(range(bits)):
        for axis in axes:
            found = (found << np.uint64(1)) | ((axis >> np.uint64(bit)) & np.uint64(1))
    return found


def _transposed(axes: Sequence[_Coordinates], bits: int) -> list[_Coordinates]:
    """Return coordinates whose interleaved bits are positions on the Hilbert curve (J. Skilling, 2004)."""
    found = [each.copy() for each in axes]
    number = len(found)
    for bit in reversed(range(1, bits)):
        high, low = np.uint64(1 << bit), np.uint64((1 << bit) - 1)
        for axis in range(number):
            is_set = (found[axis] & high) != 0
            swapped = np.where(is_set, np.uint64(0), (found[0] ^ found[axis]) & low)
            found[0] = np.where(is_set, found[0] ^ low, found[0] ^ swapped)
            if axis:  # for the first axis there is nothing to exchange
                found[axis] = found[axis] ^ swapped
    for axis in range(1, number):
        found[axis] ^= found[axis - 1]
    turned = np.zeros(len(found[0]), np.uint64)
    for bit in reversed(range(1, bits)):
        high = np.uint64(1 << bit)
        turned = np.where((found[number - 1] & high) != 0, turned ^ np.uint64((1 << bit) - 1), turned)
    return [each ^ turned for each in found]

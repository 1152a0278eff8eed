"""Time boundaries: which partition a moment belongs to.

Always UTC, so that no hour is missing or double when clocks change. Values are plain text that sorts like the time it
stands for, which is what lets a reader prune by comparing strings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.arrays import bitmap, flags, typed_array
from lazydelta.errors import OptionError, WriteError

__all__ = ["BOUNDARIES", "NULL_TIMESTAMPS", "Boundary", "boundary_of", "in_range"]

NULL_TIMESTAMPS = ("null-partition", "reject")
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# The years that four digits can write: a fifth would break the order of the texts.
_FIRST_MOMENT = np.datetime64("0000-01-01T00:00:00", "s")
_LAST_MOMENT = np.datetime64("9999-12-31T23:59:59", "s")


@dataclass(frozen=True, slots=True)
class Boundary:
    """A unit of time that data files do not cross; ``unit`` is NumPy's letter for it."""

    name: str
    unit: str
    pattern: str

    @property
    def column(self) -> str:
        """Return the default name of the partition column."""
        return f"_event_{self.name}"

    def check(self, kind: pa.DataType, column: str) -> None:
        """Refuse a column that has no moments in time."""
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            message = f"Column {column!r} has type {kind}, which is no moment in time"
            raise OptionError(message, hint="name a timestamp or date column, or cast it: `pc.strptime`, `pc.cast`")

    def values(self, timestamps: pa.Array, *, nulls: str = "null-partition", column: str = "timestamp") -> pa.Array:
        """Return the partition value of each moment, as text encoded by a dictionary.

        Moments without a zone are taken as UTC. Null moments give null, or an error with ``nulls="reject"``.
        """
        if nulls not in NULL_TIMESTAMPS:
            raise OptionError(f"null_timestamps={nulls!r} makes no sense", hint=f"say one of {NULL_TIMESTAMPS}")
        missing = timestamps.null_count
        if missing and nulls == "reject":
            message = f"{missing} rows have no value in the timestamp column {column!r}"
            raise WriteError(message, hint="drop them, or say null_timestamps='null-partition'")
        self.check(timestamps.type, column)
        seconds = _seconds(timestamps)
        valid = None
        if missing:
            valid = flags(timestamps.is_valid())
            seconds = np.where(valid, seconds, np.int64(0))
        moments = seconds.view("datetime64[s]")
        if not _in_range(moments).all():
            message = f"The timestamp column {column!r} has moments outside the years 0 to 9999"
            raise WriteError(message, hint="correct or drop these rows; no partition value can be made for them")
        # NumPy rounds to coarser units downwards, also before 1970.
        found, codes = _distinct(moments.astype(f"datetime64[{self.unit}]").view(np.int64))
        texts = [_digits(text) for text in np.datetime_as_string(found.view(f"datetime64[{self.unit}]")).tolist()]
        indices = pa.Array.from_buffers(
            pa.int32(),
            len(codes),
            [None if valid is None else bitmap(valid.tolist()), pa.py_buffer(codes.astype(np.int32))],
        )
        return pa.DictionaryArray.from_arrays(indices, typed_array(texts, pa.string()))


BOUNDARIES = {
    each.name: each
    for each in (
        Boundary("month", "M", "yyyyMM"),
        Boundary("day", "D", "yyyyMMdd"),
        Boundary("hour", "h", "yyyyMMddHH"),
        Boundary("minute", "m", "yyyyMMddHHmm"),
        Boundary("second", "s", "yyyyMMddHHmmss"),
    )
}


def boundary_of(name: str) -> Boundary:
    """Return the boundary of this name."""
    found = BOUNDARIES.get(name)
    if found is None:
        raise OptionError(f"boundary={name!r} makes no sense", hint=f"say one of {', '.join(BOUNDARIES)}")
    return found


def in_range(timestamps: pa.Array) -> pa.Array:
    """Tell for each moment whether a boundary can be given to it; for a null it is arbitrary."""
    return pa.array(_in_range(_seconds(timestamps).view("datetime64[s]")))


def _distinct(numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct numbers in order, and for each number which of them it is."""
    low, high = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    if high - low >= max(len(numbers), 1024):  # few rows, far apart
        found, codes = np.unique(numbers, return_inverse=True)
        return found, codes.astype(np.int64)
    # Data that is near in time is told apart by counting, which is much faster than sorting.
    shifted = numbers - low
    is_there = np.bincount(shifted, minlength=1) > 0 if len(numbers) else np.zeros(1, bool)
    return np.flatnonzero(is_there) + low, (np.cumsum(is_there) - 1)[shifted]


def _in_range(moments: npt.NDArray[np.datetime64]) -> npt.NDArray[np.bool_]:
    return (moments >= _FIRST_MOMENT) & (moments <= _LAST_MOMENT)


def _seconds(timestamps: pa.Array) -> npt.NDArray[np.int64]:
    """Return whole seconds since 1970, rounded down; what stands for nulls is arbitrary."""
    kind = timestamps.type
    if pa.types.is_dictionary(kind):
        return _seconds(timestamps.dictionary_decode())
    if pa.types.is_date(kind):
        days = _stored(timestamps.cast(pa.date32()), np.int32).astype(np.int64)
        return days * np.int64(86_400)
    return np.floor_divide(_stored(timestamps, np.int64), np.int64(_PER_SECOND[kind.unit]))


def _stored(values: pa.Array, kind: type[np.int32 | np.int64]) -> npt.NDArray[np.int64]:
    width = np.dtype(kind).itemsize
    if len(values) == 0:
        return np.empty(0, kind)
    return np.frombuffer(values.buffers()[1], kind, len(values), values.offset * width)


def _digits(text: str) -> str:
    return text.translate(_ONLY_DIGITS)


_ONLY_DIGITS = str.maketrans("", "", "-:T")

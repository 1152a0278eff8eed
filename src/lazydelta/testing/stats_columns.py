"""The statistics of generated files: realistic ranges, as native Arrow columns and as the JSON that writers log.

Statistics are generated for a whole slice of files at once. Otherwise ten million files would take hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import from_numpy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["HOUR_MS", "FileStats", "Slice", "StatsColumn", "choose_columns", "fixed_width", "make_stats"]

HOUR_MS = 3_600_000
_MS_IN_DAY = 24 * HOUR_MS
_SPREAD = 1_000_000
_SEQUENCE_SPAN = 100_000
_ISO_T = 10  # the position of the space in "2026-02-10 14:00:00.000"

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Slice:
    """The input for the values of a slice: the hour of each file, in hours since the epoch."""

    hour: Longs
    num_records: Longs
    random: np.random.Generator

    def __len__(self) -> int:
        return len(self.hour)

    def integers(self, low: int, high: int) -> Longs:
        """Draw one number for each file."""
        return self.random.integers(low, high, len(self), np.int64)


Ranges = tuple[pa.Array, pa.Array]


@dataclass(frozen=True, slots=True)
class StatsColumn:
    """A column of the table, and how its value range in one file is generated."""

    name: str
    delta_type: str
    arrow_type: pa.DataType
    ranges: Callable[[Slice], Ranges] | None  # None: writers log no bounds for this type
    quoted: bool = False
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class FileStats:
    """The statistics of a slice of files. A form that was not requested is None."""

    json: pa.Array | None
    parsed: pa.StructArray | None


def fixed_width(text: npt.NDArray[np.uint8]) -> pa.StringArray:
    """Return a matrix of characters as strings, one per row."""
    count, width = text.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(text)))


def _timestamps(files: Slice) -> Ranges:
    low = files.hour * HOUR_MS + files.integers(0, HOUR_MS // 2)
    high = low + files.integers(1, HOUR_MS // 2)
    type_ = pa.timestamp("us", tz="UTC")
    return from_numpy(low * 1000, type_), from_numpy(high * 1000, type_)


def _devices(files: Slice) -> Ranges:
    # A file holds a narrow range of device ids, as in a table clustered by device within the hour.
    low = files.integers(0, 9_000)
    return _device_names(low), _device_names(low + files.integers(1, 1_000))


def _device_names(number: Longs) -> pa.Array:
    digits = np.empty((len(number), 12), np.uint8)
    digits[:, :8] = np.frombuffer(b"sensor-0", np.uint8)
    for place in range(4):
        digits[:, 8 + place] = number // 10 ** (3 - place) % 10 + ord("0")
    return fixed_width(digits)


def _doubles(files: Slice) -> Ranges:
    low = files.integers(-50_000, 50_000)
    high = low + files.integers(1, 50_000)
    return from_numpy(low / 1000, pa.float64()), from_numpy(high / 1000, pa.float64())


def _sequence(files: Slice) -> Ranges:
    low = files.hour * _SPREAD + files.integers(0, _SPREAD)
    return from_numpy(low, pa.int64()), from_numpy(low + files.integers(1, _SEQUENCE_SPAN), pa.int64())


def _decimals(files: Slice) -> Ranges:
    cents = files.integers(0, 1_000_000)
    return _decimal(cents), _decimal(cents + files.integers(1, 10_000_000))


def _decimal(cents: Longs) -> pa.Array:
    wide = np.zeros((len(cents), 2), np.int64)  # little-endian 128 bits; never negative here
    wide[:, 0] = cents
    return pa.Array.from_buffers(pa.decimal128(12, 2), len(cents), [None, pa.py_buffer(wide)])


def _dates(files: Slice) -> Ranges:
    days = from_numpy((files.hour * HOUR_MS // _MS_IN_DAY).astype(np.int32), pa.date32())
    return days, days


_MIX = (
    StatsColumn("timestamp", "timestamp", pa.timestamp("us", tz="UTC"), _timestamps, quoted=True),
    StatsColumn("device_id", "string", pa.string(), _devices, quoted=True),
    StatsColumn("value", "double", pa.float64(), _doubles, nullable=True),
    StatsColumn("sequence", "long", pa.int64(), _sequence),
    StatsColumn("amount", "decimal(12,2)", pa.decimal128(12, 2), _decimals),
    StatsColumn("event_date", "date", pa.date32(), _dates, quoted=True),
    StatsColumn("is_valid", "boolean", pa.bool_(), None),
    StatsColumn("temperature", "double", pa.float64(), _doubles, nullable=True),
)


def choose_columns(count: int) -> tuple[StatsColumn, ...]:
    """Return ``count`` columns. If the mix above is too small, it repeats with a number after each name."""
    chosen = []
    for index in range(count):
        base, again = _MIX[index % len(_MIX)], index // len(_MIX)
        name = f"{base.name}_{again + 1}" if again else base.name
        chosen.append(StatsColumn(name, base.delta_type, base.arrow_type, base.ranges, base.quoted, base.nullable))
    return tuple(chosen)


def make_stats(
    files: Slice, columns: Sequence[StatsColumn], *, loose: npt.NDArray[np.bool_] | None, json: bool, parsed: bool
) -> FileStats:
    """Generate the statistics of a slice. ``loose`` marks files whose bounds are wider than their live rows."""
    bounds = {column.name: column.ranges(files) for column in columns if column.ranges is not None}
    nulls = {column.name: from_numpy(_null_counts(files)) if column.nullable else None for column in columns}
    rows = from_numpy(files.num_records)
    return FileStats(
        _as_json(rows, columns, bounds, nulls, loose) if json else None,
        _as_struct(rows, columns, bounds, nulls, loose) if parsed else None,
    )


def _null_counts(files: Slice) -> Longs:
    # Most files have no nulls. The others have a few.
    return np.where(files.integers(0, 10) == 0, files.integers(1, 50), 0)


def _as_json(
    rows: pa.Array,
    columns: Sequence[StatsColumn],
    bounds: dict[str, Ranges],
    nulls: dict[str, pa.Array | None],
    loose: npt.NDArray[np.bool_] | None,
) -> pa.Array:
    pieces: list[pa.Array | str] = ['{"numRecords":', rows.cast(pa.string())]
    for side, name in enumerate(("minValues", "maxValues")):
        bounded = ((column, bounds[column.name][side]) for column in columns if column.name in bounds)
        pieces += [f',"{name}":{{', *_members((column.name, _text(column, values)) for column, values in bounded), "}"]
    counts = ((name, ["0"] if count is None else [count.cast(pa.string())]) for name, count in nulls.items())
    pieces += [',"nullCount":{', *_members(counts), "}"]
    if loose is not None:
        pieces.append(pa.StringArray.from_buffers(*_endings(loose)))
    return pc.binary_join_element_wise(*_merged([*pieces, "}"]), "")


def _members(named: Iterator[tuple[str, list[pa.Array | str]]]) -> Iterator[pa.Array | str]:
    for index, (name, value) in enumerate(named):
        yield f'{"," if index else ""}"{name}":'
        yield from value


def _text(column: StatsColumn, values: pa.Array) -> list[pa.Array | str]:
    if pa.types.is_timestamp(column.arrow_type):
        return ['"', _iso_text(values), 'Z"']
    text = values if pa.types.is_string(values.type) else values.cast(pa.string())
    return ['"', text, '"'] if column.quoted else [text]


def _iso_text(values: pa.Array) -> pa.Array:
    # A cast and one changed character: `strftime` takes ten times as long.
    text = values.cast(pa.timestamp("ms")).cast(pa.string())
    characters = np.frombuffer(text.buffers()[2], np.uint8, len(text) * 23).reshape(len(text), 23).copy()
    characters[:, _ISO_T] = ord("T")
    return fixed_width(characters)


def _endings(loose: npt.NDArray[np.bool_]) -> tuple[int, pa.Buffer, pa.Buffer]:
    ending = b',"tightBounds":false'
    offsets = np.zeros(len(loose) + 1, np.int32)
    np.cumsum(loose * np.int32(len(ending)), out=offsets[1:])
    return len(loose), pa.py_buffer(offsets), pa.py_buffer(ending * int(loose.sum()))


def _merged(pieces: Sequence[pa.Array | str]) -> list[pa.Array | str]:
    # Merge adjacent constants: the join pays for each piece of each row.
    merged: list[pa.Array | str] = []
    for piece in pieces:
        if merged and isinstance(piece, str) and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def _as_struct(
    rows: pa.Array,
    columns: Sequence[StatsColumn],
    bounds: dict[str, Ranges],
    nulls: dict[str, pa.Array | None],
    loose: npt.NDArray[np.bool_] | None,
) -> pa.StructArray:
    count = len(rows)
    zero = from_numpy(np.zeros(count, np.int64), pa.int64())
    names = [column.name for column in columns if column.name in bounds]
    children = {
        "numRecords": rows,
        "minValues": pa.StructArray.from_arrays([bounds[name][0] for name in names], names),
        "maxValues": pa.StructArray.from_arrays([bounds[name][1] for name in names], names),
        "nullCount": pa.StructArray.from_arrays(
            [zero if each is None else each for each in nulls.values()], list(nulls)
        ),
    }
    if loose is not None:
        bits = pa.py_buffer(np.packbits(~loose, bitorder="little"))
        children["tightBounds"] = pa.Array.from_buffers(pa.bool_(), count, [None, bits])
    return pa.StructArray.from_arrays(list(children.values()), list(children))

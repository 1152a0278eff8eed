"""Generated files as rows of the log's ``add`` action, slice by slice, the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.arrays import from_numpy
from lazydelta.showcase.bench.stats_columns import (
    HOUR_MS,
    FileStats,
    Slice,
    StatsColumn,
    fixed_width,
    make_stats,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["CHOICE", "PARTITION_COLUMN", "SLICE", "VECTORS", "FileMaker", "hour_text", "new_vectors", "uuid_texts"]

PARTITION_COLUMN = "_event_hour"
SLICE = 1 << 16
"""Files made at once: about 60 MB with eight statistics columns."""

_LAST_HOUR = 491_879  # 2026-02-10T23 in hours since the epoch: the newest hour of every table
_MAP = pa.map_(pa.string(), pa.string())
_Z85 = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#", np.uint8)
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
_UUID_DASHES = (8, 13, 18, 23)
_UUID_DIGITS = [place for place in range(36) if place not in _UUID_DASHES]

# Streams of random numbers that must not depend on each other.
BASE, TAIL, CHOICE, VECTORS = range(4)


@dataclass(frozen=True, slots=True)
class FileMaker:
    """Makes the files of one table."""

    seed: int
    files: int
    hours: int
    ordered: bool
    columns: tuple[StatsColumn, ...]
    stats: str
    deletion_vectors: float

    def base(self) -> Iterator[pa.StructArray]:
        """Yield the files of the table's base."""
        for number, start in enumerate(range(0, self.files, SLICE)):
            index = np.arange(start, min(start + SLICE, self.files), dtype=np.int64)
            random = np.random.default_rng([self.seed, BASE, number])
            if self.ordered:
                hour = index * self.hours // self.files
            else:
                hour = random.integers(0, self.hours, len(index), np.int64)
            yield self._make(index, hour + (_LAST_HOUR + 1 - self.hours), random, self.deletion_vectors)

    def tail(self, count: int) -> Iterator[pa.StructArray]:
        """Yield ``count`` files that were added after the base, in the newest hour."""
        for number, start in enumerate(range(0, count, SLICE)):
            index = np.arange(start, min(start + SLICE, count), dtype=np.int64)
            random = np.random.default_rng([self.seed, TAIL, number])
            yield self._make(index, np.full(len(index), _LAST_HOUR, np.int64), random, 0)

    def _make(
        self, index: npt.NDArray[np.int64], hour: npt.NDArray[np.int64], random: np.random.Generator, vectors: float
    ) -> pa.StructArray:
        count = len(index)
        hours = _hour_digits(hour)
        sizes = random.integers(8 << 20, 128 << 20, count, np.int64)
        files = Slice(hour, sizes // 256, random)
        loose = random.random(count) < vectors if vectors else None
        stats = make_stats(
            files,
            self.columns,
            loose=loose,
            json=self.stats in {"json", "both"},
            parsed=self.stats in {"struct", "both"},
        )
        hour_column = fixed_width(hours)
        columns: dict[str, pa.Array] = {
            "path": _paths(hours, index, random),
            "partitionValues": _partition_values(hour_column),
            "size": from_numpy(sizes, pa.int64()),
            "modificationTime": from_numpy(hour * HOUR_MS + random.integers(HOUR_MS, 2 * HOUR_MS, count), pa.int64()),
            "dataChange": pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bytes((count + 7) // 8))]),
            "tags": pa.nulls(count, _MAP),
            "deletionVector": new_vectors(np.zeros(count, np.bool_) if loose is None else loose, random),
        }
        columns |= _stats_columns(stats, hour_column)
        return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def hour_text(hours_ago: int = 0) -> str:
    """Return the partition value of the newest hour, or of an hour that many hours before it."""
    digits = _hour_digits(np.array([_LAST_HOUR - hours_ago], np.int64))
    return digits.tobytes().decode()


def _stats_columns(stats: FileStats, hour: pa.Array) -> dict[str, pa.Array]:
    columns: dict[str, pa.Array] = {}
    if stats.json is not None:
        columns["stats"] = stats.json
    if stats.parsed is not None:
        columns["stats_parsed"] = stats.parsed
        columns["partitionValues_parsed"] = pa.StructArray.from_arrays([hour], [PARTITION_COLUMN])
    return columns


def _partition_values(hour: pa.Array) -> pa.Array:
    name = PARTITION_COLUMN.encode()
    keys = fixed_width(np.tile(np.frombuffer(name, np.uint8), (len(hour), 1)))
    entries = pa.StructArray.from_arrays([keys, hour], fields=[_MAP.key_field, _MAP.item_field])
    offsets = pa.py_buffer(np.arange(len(hour) + 1, dtype=np.int32))
    return pa.Array.from_buffers(_MAP, len(hour), [None, offsets], children=[entries])


def _hour_digits(hour: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return ``yyyyMMddHH``, a row of characters for each hour."""
    moment = hour.astype("datetime64[h]")
    month = moment.astype("datetime64[M]")
    year = moment.astype("datetime64[Y]")
    parts = (
        (year.astype(np.int64) + 1970, 4),
        ((month - year).astype(np.int64) + 1, 2),
        ((moment.astype("datetime64[D]") - month).astype(np.int64) + 1, 2),
        (hour % 24, 2),
    )
    return np.hstack([_digits(value, width) for value, width in parts])


def _digits(value: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    places = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return (value[:, None] // places % 10 + ord("0")).astype(np.uint8)


def _uuids(random: np.random.Generator, count: int) -> npt.NDArray[np.uint8]:
    raw = np.frombuffer(random.bytes(count * 16), np.uint8).reshape(count, 16).copy()
    raw[:, 6] = raw[:, 6] & 0x0F | 0x40
    raw[:, 8] = raw[:, 8] & 0x3F | 0x80
    text = np.full((count, 36), ord("-"), np.uint8)
    text[:, _UUID_DIGITS] = _HEX[raw].reshape(count, 32)
    return text


def uuid_texts(random: np.random.Generator, count: int) -> tuple[str, ...]:
    """Return UUIDs for the objects of the log."""
    return tuple(fixed_width(_uuids(random, count)).to_pylist())


def _paths(hours: npt.NDArray[np.uint8], index: npt.NDArray[np.int64], random: np.random.Generator) -> pa.StringArray:
    """Return paths as writers make them; every part has a fixed width, so a matrix of characters will do."""
    count = len(index)

    def constant(text: str) -> npt.NDArray[np.uint8]:
        return np.tile(np.frombuffer(text.encode(), np.uint8), (count, 1))

    return fixed_width(
        np.hstack(
            [
                constant(f"{PARTITION_COLUMN}="),
                hours,
                constant("/part-"),
                _digits(index % 100_000, 5),
                constant("-"),
                _uuids(random, count),
                constant(".c000.zstd.parquet"),
            ]
        )
    )


def new_vectors(marked: npt.NDArray[np.bool_], random: np.random.Generator) -> pa.StructArray:
    """Return deletion vectors for the marked files: references to vector files that do not exist either."""
    count = len(marked)
    words = random.integers(0, 1 << 32, (count, 4), np.int64)
    powers = 85 ** np.arange(4, -1, -1, dtype=np.int64)
    names = _Z85[words[:, :, None] // powers % 85].reshape(count, 20)
    kind = np.full((count, 1), ord("u"), np.uint8)
    cardinality = random.integers(1, 1000, count, np.int64)
    children: Sequence[pa.Array] = (
        fixed_width(kind),
        fixed_width(names),
        from_numpy(np.ones(count, np.int32), pa.int32()),
        from_numpy((34 + 2 * cardinality).astype(np.int32), pa.int32()),
        from_numpy(cardinality, pa.int64()),
    )
    fields = ["storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality"]
    absent = pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(np.packbits(~marked, bitorder="little"))])
    return pa.StructArray.from_arrays(children, fields, mask=absent)

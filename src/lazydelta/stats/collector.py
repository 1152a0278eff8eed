"""Statistics of a data file, collected while its rows are written.

The rules follow from what readers may conclude. A missing bound costs a reader time; a bound that is too tight costs it
rows. So every bound is valid for all known readers:

strings
    Truncated to 32 characters. A truncated minimum is a valid lower bound. A truncated maximum gets a tie-breaker
    that sorts after the part cut off, as in Delta-Spark.
timestamps
    In milliseconds: the minimum rounded down, the maximum rounded up. A fraction of zero is left out.
floats
    NaN is in no bound, and a column with NaN has no maximum: NaN is the largest number in Spark and no number for
    other readers. Other writers log a maximum anyway, and the log does not say which writer wrote a file. The names of
    lazydelta's files do (``ranges.WRITTEN_HERE``), so their maxima can be trusted. Zero is logged as -0.0 for the
    minimum and 0.0 for the maximum, because some readers distinguish them. JSON has no infinities, so such a bound is
    missing.
binary, lists, maps
    Nothing is collected, as in deltalake.

Null counts are those of leaf columns; a field of a null struct is null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from lazydelta.protocol.properties import TableProperties
from lazydelta.protocol.schema import Column, TableSchema, split_name
from lazydelta.protocol.time import has_plain_year, timestamp_text
from lazydelta.protocol.values import plain_text
from lazydelta.runtime import compute as pc

__all__ = ["StatsCollector", "has_range", "indexed_columns", "stats_columns"]


# The columns that have statistics, and those that also have a minimum and a maximum.
#
# This is the only definition, for code that collects statistics, copies them into checkpoints and sidecars, or reads
# them.


_Path = tuple[str, ...]


def has_range(column: Column) -> bool:
    """Return whether Delta keeps a minimum and maximum for columns of this type."""
    return has_bounds(column.type.to_arrow())


def has_bounds(kind: pa.DataType) -> bool:
    """Return the same for an Arrow type; columns of all other types have no statistics."""
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
    )


def stats_columns(schema: TableSchema, properties: TableProperties) -> list[Column]:
    """Return the columns of a table that get statistics according to its properties, in schema order."""
    leaves = {column.path: column for column in schema.leaves() if not column.is_partition}
    return [leaves[path] for path in chosen_paths(list(leaves), properties)]


def chosen_paths(leaves: Sequence[_Path], properties: TableProperties) -> list[_Path]:
    """Return the leaf columns that the properties select: the named ones, else the first ones up to the limit."""
    if properties.stats_columns is not None:
        return _named(leaves, [split_name(name.lower()) for name in properties.stats_columns])
    number = properties.indexed_columns
    return list(leaves if number < 0 else leaves[:number])


def _named(leaves: Sequence[_Path], names: Sequence[_Path]) -> list[_Path]:
    """Return the named leaves; a struct's name includes all its leaves. Unknown names are ignored."""
    known = set(names)

    def is_named(path: _Path) -> bool:
        lower = tuple(part.lower() for part in path)
        return any(lower[:length] in known for length in range(len(lower) + 1))

    return [path for path in leaves if is_named(path)]


_BOUND_CHARACTERS = 32
# How far a maximum may grow beyond its prefix to find a character that the tie-breaker exceeds.
_LONGEST_SEARCH = 32
_LAST_ASCII, _LAST_CHARACTER = "\x7f", "\U0010ffff"

Path: TypeAlias = tuple[str, ...]


def indexed_columns(
    schema: pa.Schema, properties: TableProperties | None = None, *, partition_columns: Sequence[str] = ()
) -> list[Path]:
    """Return the leaf columns that get statistics according to the table's properties, in schema order."""
    settled = properties or TableProperties()
    number = settled.indexed_columns
    leaves: list[Path] = []
    for field in schema:
        if settled.stats_columns is None and 0 <= number <= len(leaves):
            break  # the others of a wide table have none
        if field.name not in partition_columns:
            leaves += _leaves(field, ())
    return chosen_paths(leaves, settled)


def _leaves(field: pa.Field, above: Path) -> list[Path]:
    path = (*above, field.name)
    if not pa.types.is_struct(field.type):
        return [path]
    return [leaf for index in range(field.type.num_fields) for leaf in _leaves(field.type.field(index), path)]


class StatsCollector:
    """Statistics of one data file; memory does not grow with its rows.

    ``schema`` is the schema of the batches, and ``properties`` are the table's. ``partition_columns`` get no
    statistics.
    """

    def __init__(
        self,
        schema: pa.Schema,
        properties: TableProperties | None = None,
        *,
        partition_columns: Sequence[str] = (),
    ) -> None:
        self._columns: dict[str, list[_Leaf]] = {}
        for path in indexed_columns(schema, properties, partition_columns=partition_columns):
            kind = schema.field(path[0]).type
            positions = []
            for name in path[1:]:
                positions.append(kind.get_field_index(name))
                kind = kind.field(positions[-1]).type
            if not has_bounds(kind):
                continue
            self._columns.setdefault(path[0], []).append(_Leaf(path, tuple(positions), kind))

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        if batch.num_rows == 0:
            return
        for name, leaves in self._columns.items():
            column = batch.column(batch.schema.get_field_index(name))
            flattened: dict[tuple[int, ...], pa.Array] = {(): column}
            for leaf in leaves:
                leaf.update(_child(flattened, leaf.positions))

    def to_json(self, num_records: int) -> str:
        """Return the JSON string for ``add.stats``."""
        stats: dict[str, Any] = {"numRecords": num_records, "minValues": {}, "maxValues": {}, "nullCount": {}}
        for leaves in self._columns.values():
            for leaf in leaves:
                _put(stats["minValues"], leaf.path, leaf.low)
                _put(stats["maxValues"], leaf.path, leaf.high)
                _put(stats["nullCount"], leaf.path, leaf.nulls)
        return _ENCODER.encode(stats).decode()


_ENCODER = msgspec.json.Encoder(decimal_format="number")


def _put(section: dict[str, Any], path: Path, value: Any) -> None:
    if value is None or (isinstance(value, float) and math.isinf(value)):
        return
    for name in path[:-1]:
        section = section.setdefault(name, {})
    section[path[-1]] = msgspec.Raw(plain_text(value).encode()) if isinstance(value, Decimal) else value


def _child(known: dict[tuple[int, ...], pa.Array], positions: tuple[int, ...]) -> pa.Array:
    """Return a field below a struct, null where one of its parents is."""
    if positions not in known:
        parent = _child(known, positions[:-1])
        for index, part in enumerate(parent.flatten()):
            known[*positions[:-1], index] = part
    return known[positions]


class _Leaf:
    """The statistics of one column so far; ``low`` and ``high`` are in their JSON form."""

    def __init__(self, path: Path, positions: tuple[int, ...], kind: pa.DataType) -> None:
        self.path = path
        self.positions = positions
        self.low: Any = None
        self.high: Any = None
        self.nulls = 0
        self._bounds = _bounds_for(kind)
        self._is_float = pa.types.is_floating(kind)
        self._no_low = self._no_high = False

    def update(self, values: pa.Array) -> None:
        self.nulls += values.null_count
        if self._bounds is None or values.null_count == len(values):
            return
        if self._is_float and pc.any(pc.is_nan(values)).as_py():
            self._lose_high()
            if pc.all(pc.is_nan(values)).as_py():
                return
        low, high = self._bounds(values)
        # A bound that cannot be written for one batch is unknown for the file.
        if low is None:
            self._no_low, self.low = True, None
        elif not self._no_low and (self.low is None or low < self.low):
            self.low = low
        if high is None:
            self._lose_high()
        elif not self._no_high and (self.high is None or high > self.high):
            self.high = high

    def _lose_high(self) -> None:
        self._no_high, self.high = True, None


_Bounds: TypeAlias = Callable[[pa.Array], tuple[Any, Any]]


def _bounds_for(kind: pa.DataType) -> _Bounds | None:
    """Return the function that computes the bounds of a non-empty array; None for types without bounds."""
    types = pa.types
    if not has_bounds(kind):
        return None
    if types.is_floating(kind):
        return _floats
    if types.is_string(kind):
        return _strings
    if types.is_date32(kind):
        return _dates
    if types.is_timestamp(kind):
        return _instants if kind.tz is not None else _wall_clocks
    return _extremes


def _extremes(values: pa.Array) -> tuple[Any, Any]:
    found = pc.min_max(values)
    return found["min"].as_py(), found["max"].as_py()


def _floats(values: pa.Array) -> tuple[float, float]:
    # Single precision is logged with all digits of the equal double, because readers may compare doubles.
    low, high = _extremes(values)
    return low or -0.0, high or 0.0


def _strings(values: pa.Array) -> tuple[str, str | None]:
    low, high = _extremes(values)
    return low[:_BOUND_CHARACTERS], _above(high)


def _above(text: str) -> str | None:
    """Return a string of little more than 32 characters that does not sort before ``text``."""
    if len(text) <= _BOUND_CHARACTERS:
        return text
    for length in range(_BOUND_CHARACTERS, min(len(text), _BOUND_CHARACTERS + _LONGEST_SEARCH)):
        if text[length] < _LAST_ASCII:
            return text[:length] + _LAST_ASCII
        if text[length] < _LAST_CHARACTER:
            return text[:length] + _LAST_CHARACTER
    return None


def _dates(values: pa.Array) -> tuple[str | None, str | None]:
    low, high = _stored(values, pa.int32())
    return _timestamp(low, "D"), _timestamp(high, "D")


def _instants(values: pa.Array) -> tuple[str | None, str | None]:
    return _timestamps(values, "T", "Z")


def _wall_clocks(values: pa.Array) -> tuple[str | None, str | None]:
    return _timestamps(values, " ")


def _timestamps(values: pa.Array, between: str, zone: str = "") -> tuple[str | None, str | None]:
    low, high = _stored(values, pa.int64())
    per_ms = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}[values.type.unit]
    bounds = (low * 1000, high * 1000) if per_ms == 0 else (low // per_ms, -(-high // per_ms))
    texts = (_timestamp(each, "ms") for each in bounds)
    least, most = (text and text.removesuffix(".000").replace("T", between) + zone for text in texts)
    return least, most


def _timestamp(value: int, unit: str) -> str | None:
    return timestamp_text(value, unit) if has_plain_year(value, unit) else None


def _stored(values: pa.Array, kind: pa.DataType) -> tuple[int, int]:
    # As integers: Python's calendar is smaller than Arrow's.
    return _extremes(values.view(kind))

"""Statistics of a data file, collected while its rows go by.

What readers may conclude from them decides the rules. A bound that is missing costs a reader time; a bound that is
too tight costs it rows. So every bound is one that holds for every reader we know:

strings
    Cut to 32 characters. A cut minimum is a lower bound as it is. A cut maximum gets a tie-breaker that is above what
    was cut off, as Delta-Spark writes it.
timestamps
    In milliseconds: the minimum down, the maximum up.
floats
    NaN is in no bound, and where there is one there is no maximum: to Spark NaN is the largest number, to others it
    is none. Zero is logged as -0.0 below and 0.0 above, because some readers tell them apart. Infinities have no
    place in JSON, so such a bound is missing.
binary, lists, maps
    Only their nulls are counted.

Counts of nulls are those of leaf columns; a field of a null struct is null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.log.properties import TableProperties
from lazydelta.stats.chosen_columns import chosen_paths, has_bounds
from lazydelta.types.calendar import has_plain_year, moment_text
from lazydelta.types.value_text import plain_text

__all__ = ["StatsCollector", "indexed_columns"]

_BOUND_CHARACTERS = 32
# How far a maximum may grow beyond its prefix in search of a character that the tie-breaker exceeds.
_LONGEST_SEARCH = 32
_LAST_ASCII, _LAST_CHARACTER = "\x7f", "\U0010ffff"

Path: TypeAlias = tuple[str, ...]


def indexed_columns(
    schema: pa.Schema, properties: TableProperties | None = None, *, partition_columns: Sequence[str] = ()
) -> list[Path]:
    """Return the leaf columns that get statistics, in the schema's order, as the table's properties choose them."""
    leaves = [path for field in schema if field.name not in partition_columns for path in _leaves(field, ())]
    return chosen_paths(leaves, properties or TableProperties())


def _leaves(field: pa.Field, above: Path) -> list[Path]:
    path = (*above, field.name)
    if not pa.types.is_struct(field.type):
        return [path]
    return [leaf for index in range(field.type.num_fields) for leaf in _leaves(field.type.field(index), path)]


class StatsCollector:
    """Statistics of one data file; memory does not grow with its rows.

    ``schema`` is that of the batches. ``properties`` are the table's, ``partition_columns`` need no statistics.
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
            self._columns.setdefault(path[0], []).append(_Leaf(path, tuple(positions), kind))

    def update(self, batch: pa.RecordBatch) -> None:
        """Take the rows of a batch into account."""
        if batch.num_rows == 0:
            return
        for name, leaves in self._columns.items():
            column = batch.column(batch.schema.get_field_index(name))
            flattened: dict[tuple[int, ...], pa.Array] = {(): column}
            for leaf in leaves:
                leaf.update(_child(flattened, leaf.positions))

    def to_json(self, num_records: int) -> str:
        """Return the text for ``add.stats``."""
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
    """Return a field below a struct, null where a struct above it is."""
    if positions not in known:
        parent = _child(known, positions[:-1])
        for index, part in enumerate(parent.flatten()):
            known[*positions[:-1], index] = part
    return known[positions]


class _Leaf:
    """What is known of one column so far; ``low`` and ``high`` are in the form that JSON gets."""

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
    """Return what gives the bounds of an array that has at least one value; None for types that have none."""
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
    # Single precision is logged with all digits of the double that it equals: readers may compare doubles.
    low, high = _extremes(values)
    return low or -0.0, high or 0.0


def _strings(values: pa.Array) -> tuple[str, str | None]:
    low, high = _extremes(values)
    return low[:_BOUND_CHARACTERS], _above(high)


def _above(text: str) -> str | None:
    """Return a text of little more than 32 characters that is not below ``text``."""
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
    return _moment(low, "D"), _moment(high, "D")


def _instants(values: pa.Array) -> tuple[str | None, str | None]:
    return _moments(values, "Z")


def _wall_clocks(values: pa.Array) -> tuple[str | None, str | None]:
    return _moments(values, "")


def _moments(values: pa.Array, zone: str) -> tuple[str | None, str | None]:
    low, high = _stored(values, pa.int64())
    per_ms = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}[values.type.unit]
    if per_ms == 0:
        return _moment(low * 1000, "ms", zone), _moment(high * 1000, "ms", zone)
    return _moment(low // per_ms, "ms", zone), _moment(-(-high // per_ms), "ms", zone)


def _moment(value: int, unit: str, zone: str = "") -> str | None:
    return moment_text(value, unit) + zone if has_plain_year(value, unit) else None


def _stored(values: pa.Array, kind: pa.DataType) -> tuple[int, int]:
    # As integers: Python's calendar is smaller than Arrow's.
    return _extremes(values.view(kind))

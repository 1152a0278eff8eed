"""Which columns have statistics, and which of these a minimum and a maximum.

The one place that says so: to whoever collects statistics, copies them into checkpoints and sidecars, or reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lazydelta.log.properties import TableProperties
from lazydelta.types.schema import Column, TableSchema, split_name

__all__ = ["chosen_paths", "has_bounds", "has_range", "stats_columns"]

_Path = tuple[str, ...]


def has_range(column: Column) -> bool:
    """Tell whether Delta keeps a minimum and maximum for columns of this type."""
    return has_bounds(column.type.to_arrow())


def has_bounds(kind: pa.DataType) -> bool:
    """Tell the same of values by the Arrow type that holds them; of all others only the nulls are counted."""
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
    """Return the columns of a table that get statistics, in the schema's order, as its properties choose them."""
    leaves = {column.path: column for column in schema.leaves() if not column.is_partition}
    return [leaves[path] for path in chosen_paths(list(leaves), properties)]


def chosen_paths(leaves: Sequence[_Path], properties: TableProperties) -> list[_Path]:
    """Return those of all leaf columns that the properties choose: the ones they name, else the first so many."""
    if properties.stats_columns is not None:
        return _named(leaves, [split_name(name.lower()) for name in properties.stats_columns])
    number = properties.indexed_columns
    return list(leaves if number < 0 else leaves[:number])


def _named(leaves: Sequence[_Path], names: Sequence[_Path]) -> list[_Path]:
    """Return the leaves named; a struct's name stands for all its leaves. Names of no column mean nothing."""

    def is_named(path: _Path) -> bool:
        lower = tuple(part.lower() for part in path)
        return any(lower[: len(name)] == name for name in names)

    return [path for path in leaves if is_named(path)]

"""Which partitions files were written to, as a predicate that selects them and no others."""

from __future__ import annotations

from collections.abc import Sequence

from lazydelta.log.actions import Add
from lazydelta.pruning import Where
from lazydelta.types.schema import TableSchema

__all__ = ["partitions_of"]


def partitions_of(adds: Sequence[Add], table: TableSchema) -> Where:
    """Return the partitions of files; those of one column are one list of values, which is quick for thousands."""
    names = dict(zip(table.physical_partition_columns, table.partition_columns, strict=True))
    found = {tuple(each.partition_values.get(physical) or None for physical in names) for each in adds}
    columns = tuple(names.values())
    if len(columns) > 1:
        return [[_is(*each) for each in zip(columns, values, strict=True)] for values in sorted(found, key=repr)]
    values = sorted(value for (value,) in found if value is not None)
    alternatives: list[list[tuple[object, ...]]] = [[(columns[0], "in", values)]] if values else []
    if (None,) in found:
        alternatives.append([_is(columns[0], None)])
    return alternatives


def _is(name: str, value: str | None) -> tuple[object, ...]:
    return (name, "is null") if value is None else (name, "=", value)

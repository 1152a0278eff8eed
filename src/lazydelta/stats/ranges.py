"""What is known of each file (or row group, or part): the one form in which every source hands it to evaluation."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import typed_scalar
from lazydelta.errors import PredicateError
from lazydelta.types.schema import Column

__all__ = ["ColumnRange", "Ranges", "combine", "narrowed_floats"]


class ColumnRange(msgspec.Struct, frozen=True):
    """One column's range, a row per file; values are as logged and widened only when they are evaluated.

    ``min`` and ``max`` have the column's Arrow type, null where unknown, or are None where nothing is known.
    ``null_count`` is int64. ``all_null`` says outright that a file holds nothing but nulls, for sources that know it
    without counting (a null partition value); false and null there say nothing. ``exact`` marks a partition value:
    ``min`` and ``max`` are then the one value of all rows, to which no widening applies.
    """

    min: pa.Array | None
    max: pa.Array | None
    null_count: pa.Array | None = None
    exact: bool = False
    all_null: pa.BooleanArray | None = None


class Ranges(msgspec.Struct, frozen=True):
    """Ranges of ``num_rows`` files, by the physical path of the column.

    ``num_records`` (int64) and ``tight_bounds`` (bool) are null or None where unknown. Evaluation takes all bounds
    for outer ones, and a null count only at its two ends, so that files with loose bounds need no case of their own;
    ``tight_bounds`` is carried for those who report statistics.
    """

    num_rows: int
    num_records: pa.Array | None = None
    tight_bounds: pa.BooleanArray | None = None
    columns: Mapping[tuple[str, ...], ColumnRange] = msgspec.field(default_factory=dict)

    def column(self, column: Column) -> ColumnRange | None:
        """Return what is known of ``column``."""
        return self.columns.get(column.physical_path)


def combine(ranges: Sequence[Ranges]) -> Ranges:
    """Join what several sources know of the same files; where two know the same thing, the first one counts.

    Sources fill each other's gaps row by row: a checkpoint may have typed statistics for some files and JSON for
    others. A partition value is the last word on its column.
    """
    if len({each.num_rows for each in ranges}) != 1:
        message = f"Ranges of different files cannot be combined: {[each.num_rows for each in ranges]} rows"
        raise PredicateError(message, hint="filter both to the same files first")
    columns: dict[tuple[str, ...], ColumnRange] = {}
    for each in ranges:
        for path, known in each.columns.items():
            columns[path] = _fill(columns[path], known) if path in columns else known
    return Ranges(
        ranges[0].num_rows,
        functools.reduce(_coalesce, (each.num_records for each in ranges)),
        functools.reduce(_coalesce, (each.tight_bounds for each in ranges)),
        columns,
    )


def narrowed_floats(doubles: pa.Array, target: pa.DataType) -> pa.Array:
    """Return doubles as a type of floats, null where they are too large for it."""
    if target == pa.float64():
        return doubles
    singles = pc.cast(doubles, target, safe=False)
    overflowed = pc.and_(pc.is_inf(singles), pc.is_finite(doubles))
    return pc.if_else(overflowed, typed_scalar(None, target), singles)


def _fill(first: ColumnRange, second: ColumnRange) -> ColumnRange:
    if first.exact or second.exact:
        return first if first.exact else second
    return ColumnRange(
        _coalesce(first.min, second.min),
        _coalesce(first.max, second.max),
        _coalesce(first.null_count, second.null_count),
        all_null=_coalesce(first.all_null, second.all_null),
    )


def _coalesce(first: pa.Array | None, second: pa.Array | None) -> pa.Array | None:
    if first is None or second is None:
        return second if first is None else first
    if first.null_count == 0 or first.type != second.type:
        return first
    return pc.coalesce(first, second)

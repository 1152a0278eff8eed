"""What a data file's own footer says of the values in its row groups, in the form in which predicates are evaluated.

Footers know more than the log where a file has several row groups, or where the log has no statistics. Only what is
certain is taken: a minimum or maximum whose stored form is the table's own, or an integer of another width. Pages have
bounds of their own in newer files, but PyArrow neither shows them nor skips pages: row groups are as fine as it gets.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.arrays import Stored, int64_array, typed_array
from lazydelta.pruning import NanOrder, Predicate, all_match, may_match, referenced_columns
from lazydelta.pruning.tree import Compare, leaves
from lazydelta.row_scan.projection import pruned_fields
from lazydelta.rows.opened_file import OpenedFile
from lazydelta.stats import ColumnRange, Ranges
from lazydelta.types.schema import Column, Struct, TableSchema

__all__ = ["judge_row_groups"]


class _Reading(Protocol):
    """Turns a bound as Parquet stores it into the stored form of the table's type; ``up`` rounds it upwards."""

    def __call__(self, raw: Any, *, up: bool) -> Stored | None: ...


def judge_row_groups(opened: OpenedFile, predicate: Predicate, schema: TableSchema) -> list[bool | None]:
    """Return for each row group whether its rows match: True for all, False for none, None where rows have to tell."""
    count = len(opened.groups)
    if not count:
        return []
    columns = {}
    # The log of such a table has no maximum where there is a NaN; Parquet leaves NaN out and has one all the same.
    trusts = any(
        isinstance(leaf, Compare) and leaf.nan is NanOrder.LARGEST_AND_IN_NO_MAXIMUM for leaf in leaves(predicate)
    )
    for column in referenced_columns(predicate):
        known = _partition(opened, column, schema) if column.is_partition else _stored(opened, column, schema)
        if known is not None:
            if trusts and not column.is_partition and pa.types.is_floating(column.type.to_arrow()):
                known = msgspec.structs.replace(known, max=None)
            columns[column.physical_path] = known
    ranges = Ranges(count, int64_array([group.num_rows for group in opened.groups]), None, columns)
    may, must = may_match(predicate, ranges).to_pylist(), all_match(predicate, ranges).to_pylist()
    return [False if not one else True if every else None for one, every in zip(may, must, strict=True)]


def _partition(opened: OpenedFile, column: Column, schema: TableSchema) -> ColumnRange:
    field = schema.field(column.path[0])
    value = opened.constants([field])[field.name]
    count = len(opened.groups)
    values = pa.repeat(value, count)
    return ColumnRange(
        values,
        values,
        int64_array([0 if value.is_valid else group.num_rows for group in opened.groups]),
        exact=True,
        all_null=typed_array([not value.is_valid] * count, pa.bool_()),
    )


def _stored(opened: OpenedFile, column: Column, schema: TableSchema) -> ColumnRange | None:
    if isinstance(column.type, Struct):
        return None
    selection = opened.select(pruned_fields(schema, [column]))
    if not selection.leaves:
        # The file was written before the column was there: all of its values are null.
        return ColumnRange(None, None, int64_array([group.num_rows for group in opened.groups]))
    if len(selection.leaves) != 1 or not _is_itself(opened, selection.leaves[0], column):
        return None
    leaf = selection.leaves[0]
    kind = column.type.to_arrow()
    known = [group.column(leaf).statistics for group in opened.groups]
    # What Parquet calls the type is with the statistics too; the footer's schema and the footer hold each other, and
    # would wait for the collector of garbage.
    first = next((each for each in known if each is not None), None)
    read = None if first is None else _reading(first, _type_at(opened.arrow_schema, column.physical_path), kind)
    lows: list[Stored | None] = []
    highs: list[Stored | None] = []
    nulls: list[int | None] = []
    for stats in known:
        has_bounds = stats is not None and read is not None and stats.has_min_max
        lows.append(read(stats.min_raw, up=False) if has_bounds and read else None)
        highs.append(read(stats.max_raw, up=True) if has_bounds and read else None)
        nulls.append(stats.null_count if stats is not None and stats.has_null_count else None)
    try:
        return ColumnRange(typed_array(lows, kind), typed_array(highs, kind), int64_array(nulls))
    except (OverflowError, TypeError, ValueError):
        return ColumnRange(None, None, int64_array(nulls))


def _is_itself(opened: OpenedFile, leaf: int, column: Column) -> bool:
    """Tell whether the leaf is the column: not the inside of a list, nor a stand-in for a struct that lacks it."""
    path = tuple(opened.groups[0].column(leaf).path_in_schema.split("."))
    if path != column.physical_path:
        return False
    stored = _type_at(opened.arrow_schema, path)
    return stored is not None and not pa.types.is_nested(stored)


def _type_at(schema: pa.Schema, path: tuple[str, ...]) -> pa.DataType | None:
    """Return the type of a leaf that lies in structs alone; None for one inside of a list or map."""
    fields = list(schema)
    for depth, name in enumerate(path):
        found = [each for each in fields if each.name == name]
        if len(found) != 1:
            return None
        kind = found[0].type
        if depth + 1 == len(path):
            return kind
        if not pa.types.is_struct(kind):
            return None
        fields = [kind.field(index) for index in range(kind.num_fields)]
    return None


def _reading(stats: pq.Statistics, stored: pa.DataType | None, kind: pa.DataType) -> _Reading | None:
    """Return what turns a bound as Parquet stores it into the stored form of ``kind``; None where it may change."""
    physical, logical = stats.physical_type, stats.logical_type.type
    types = pa.types
    if types.is_boolean(kind):
        return _flag if physical == "BOOLEAN" else None
    if types.is_integer(kind):
        signed = logical == "NONE" or (logical == "INT" and '"isSigned":true' in stats.logical_type.to_json())
        return _number if physical in {"INT32", "INT64"} and signed else None
    if types.is_date(kind):
        return _number if physical == "INT32" and logical == "DATE" else None
    if types.is_floating(kind):
        return _float if physical in {"FLOAT", "DOUBLE"} else None
    if types.is_string(kind):
        return _text if physical == "BYTE_ARRAY" and logical == "STRING" else None
    if types.is_timestamp(kind) and physical == "INT64" and logical == "TIMESTAMP":
        return _moment(stats.logical_type.to_json())
    if types.is_decimal(kind) and logical == "DECIMAL" and _same_scale(stored, kind):
        return _unscaled
    return None


def _flag(raw: Any, *, up: bool) -> bool:  # noqa: ARG001 - one signature for all readings
    return bool(raw)


def _number(raw: Any, *, up: bool) -> int:  # noqa: ARG001
    return int(raw)


def _float(raw: Any, *, up: bool) -> float:  # noqa: ARG001
    return float(raw)


def _text(raw: Any, *, up: bool) -> str | None:  # noqa: ARG001
    try:
        return raw.decode() if isinstance(raw, bytes) else str(raw)
    except UnicodeDecodeError:
        return None  # cut in the middle of a character


def _moment(logical: str) -> _Reading | None:
    if "nanoseconds" in logical:
        return _nanoseconds
    if "microseconds" in logical:
        return _number
    return _milliseconds if "milliseconds" in logical else None


def _nanoseconds(raw: Any, *, up: bool) -> int:
    return -(-int(raw) // 1000) if up else int(raw) // 1000


def _milliseconds(raw: Any, *, up: bool) -> int:  # noqa: ARG001
    return int(raw) * 1000


def _same_scale(stored: Any, kind: Any) -> bool:
    return bool(pa.types.is_decimal(stored)) and stored.scale == kind.scale


def _unscaled(raw: Any, *, up: bool) -> int:  # noqa: ARG001
    return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)

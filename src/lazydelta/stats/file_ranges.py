"""What the log says of a batch of files, from whichever of its sources: the last word on which source counts."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.log.file_batch import FileBatch
from lazydelta.stats.chosen_columns import has_range
from lazydelta.stats.json_stats import ranges_from_json
from lazydelta.stats.partition_ranges import partition_ranges, partition_ranges_from_parsed
from lazydelta.stats.ranges import Ranges, combine
from lazydelta.stats.typed_stats import ranges_from_parsed
from lazydelta.types.schema import Column, Primitive

__all__ = ["file_partition_ranges", "is_timestamp", "stats_ranges"]


def stats_ranges(batch: FileBatch, columns: Sequence[Column]) -> Ranges:
    """Return what the statistics of a batch say of ``columns``: the typed ones, and the text for what they lack.

    Of timestamps the text counts wherever there is one: typed statistics are a copy of it, and copies have been seen
    that went through nanoseconds on their way, which have no room for the year 9999.
    """
    if batch.parsed_stats is None:
        return Ranges(len(batch)) if batch.json_stats is None else ranges_from_json(batch.json_stats, columns)
    typed = ranges_from_parsed(batch.parsed_stats, columns)
    if batch.json_stats is None:
        return typed
    only_text = pc.and_(pc.is_null(batch.parsed_stats), pc.is_valid(batch.json_stats))
    if only_text.true_count == 0:
        columns = [column for column in columns if is_timestamp(column) or _is_untyped(typed, column)]
    if not columns:
        return typed
    text = ranges_from_json(batch.json_stats, columns)
    moments = {column.physical_path for column in columns if is_timestamp(column)}
    first = Ranges(len(batch), columns={path: known for path, known in text.columns.items() if path in moments})
    return combine([first, typed, text])


def file_partition_ranges(batch: FileBatch, columns: Sequence[Column]) -> Ranges:
    """Return what the partition values of a batch say of ``columns``.

    Typed values are quicker to come by, but a null among them may be a text that somebody could not read: unknown, not
    null. Only text columns have no such texts.
    """
    parsed = batch.parsed_partitions
    if parsed is None or any(_has_nulls(parsed, column) for column in columns if column.is_partition):
        return partition_ranges(batch.partition_values, columns)
    return partition_ranges_from_parsed(parsed, columns)


def is_timestamp(column: Column) -> bool:
    """Tell whether a column holds moments."""
    return column.type in (Primitive("timestamp"), Primitive("timestamp_ntz"))


def _has_nulls(structs: pa.StructArray, column: Column) -> bool:
    position = structs.type.get_field_index(column.physical_path[0])
    return position < 0 or (column.type != Primitive("string") and pc.struct_field(structs, [position]).null_count > 0)


def _is_untyped(typed: Ranges, column: Column) -> bool:
    known = typed.column(column)
    return known is None or known.null_count is None or (has_range(column) and (known.min is None or known.max is None))

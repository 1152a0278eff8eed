"""Cutting the description of many parts into leaves, and the ranges over all parts of a leaf."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lazydelta import compute as pc
from lazydelta.arrays import string_array
from lazydelta.sidecar.layout.leaves import encode_leaf
from lazydelta.sidecar.layout.manifest import (
    ManifestLeaf,
    ManifestPart,
    ManifestRowGroup,
    RangeText,
    range_key,
)
from lazydelta.sidecar.layout.range_texts import text_of
from lazydelta.types.schema import DataType, TableSchema
from lazydelta.types.text import from_text

__all__ = ["RangeTypes", "leaves_over", "range_types", "ranges_over"]

LEAST_PARTS, MOST_LEAVES = 4, 256
"""A leaf is small as long as there are few: then it says exactly which share of the files a predicate leaves."""

RangeTypes = Mapping[str, DataType]


def leaves_over(
    parts: Sequence[ManifestPart], groups_of: Callable[[int], Sequence[ManifestRowGroup]], types: RangeTypes
) -> Iterator[tuple[ManifestLeaf, bytes]]:
    """Yield the leaves over some parts with their bytes, one after the other; row groups are asked for leaf by leaf."""
    size = max(LEAST_PARTS, -(-len(parts) // MOST_LEAVES))
    offset = 0
    for start in range(0, len(parts), size):
        some = parts[start : start + size]
        data, raw_length = encode_leaf([(part, groups_of(start + place)) for place, part in enumerate(some)], start)
        yield (
            ManifestLeaf(
                offset=offset,
                length=len(data),
                raw_length=raw_length,
                sha256=hashlib.sha256(data).hexdigest(),
                first_part=start,
                num_parts=len(some),
                num_rows=sum(part.num_rows for part in some),
                num_row_groups=sum(part.num_row_groups for part in some),
                first=some[0].first,
                last=some[-1].last,
                ranges=ranges_over([part.ranges for part in some if part.num_rows], types),
            ),
            data,
        )
        offset += len(data)


def range_types(schema: TableSchema) -> RangeTypes:
    """Return the types of the columns that ranges are of, by their name there."""
    return {range_key(column.physical_path): column.type for column in schema.leaves()}


def ranges_over(ranges: Sequence[Mapping[str, RangeText]], types: RangeTypes) -> dict[str, RangeText]:
    """Return the ranges of some parts together; a column that one of them has no range of is left out."""
    if not ranges:
        return {}
    return {
        key: _joined([each[key] for each in ranges], types[key])
        for key in ranges[0]
        if key in types and all(key in each for each in ranges)
    }


def _joined(some: Sequence[RangeText], kind: DataType) -> RangeText:
    has_null = any(each.has_null for each in some)
    if any(each.has_missing for each in some):
        return RangeText(has_missing=True, has_null=has_null)
    low, known_low = _outermost((each.min for each in some), kind, least=True)
    high, known_high = _outermost((each.max for each in some), kind, least=False)
    return RangeText(low, high, has_missing=not (known_low and known_high), has_null=has_null)


def _outermost(texts: Iterable[str | None], kind: DataType, *, least: bool) -> tuple[str | None, bool]:
    """Return the least or the greatest of some values, and whether all of them could be read."""
    known = [text for text in texts if text is not None]
    if not known:
        return None, True
    values = from_text(string_array(known), kind)
    found = text_of(pc.min(values) if least else pc.max(values))
    return found, found is not None and not values.null_count

"""``GroupChoice``: selects the row groups of a sidecar that can hold a matching file, by manifest ranges.

A manifest with many parts has their ranges in leaves. The leaves that the ranges do not exclude are read with a small
read-ahead, and their parts and row groups are then selected in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.predicates import Predicate, may_match, referenced_columns
from lazydelta.protocol.schema import Column
from lazydelta.protocol.values import from_text
from lazydelta.runtime.arrays import flags, int64_array, string_array
from lazydelta.scan.base import BasePlace, BaseScan
from lazydelta.scan.request import NamedFiles
from lazydelta.sidecar.format.columns import SidecarLayout
from lazydelta.sidecar.format.leaves import Leaf, decode_leaf
from lazydelta.sidecar.format.manifest import (
    ManifestLeaf,
    ManifestLeaves,
    ManifestPart,
    ManifestRowGroup,
    RangeText,
    SidecarError,
    range_key,
)
from lazydelta.sidecar.format.rows import keys_from_text, places_among
from lazydelta.sidecar.reading.discovery import PartFooters, Sidecar, SidecarCache
from lazydelta.stats import ColumnRange, Ranges, has_range
from lazydelta.storage import Pending

__all__ = ["ChosenGroup", "GroupChoice", "dated_rows", "is_undated", "matching_groups"]


# Newest first: reverse the sidecar order, with files without a sort key last. A sidecar is sorted in ascending order
# with those files at the end. A file of unknown time is not the newest, so these rows stay last: whole row groups are
# deferred, and a row group with both kinds is emitted in two pieces.


Stretch = TypeVar("Stretch", bound=ManifestLeaf | ManifestPart | ManifestRowGroup)


def is_undated(stretch: ManifestLeaf | ManifestPart | ManifestRowGroup) -> bool:
    """Return whether a leaf, part or row group begins and ends with files without a sort key."""
    # A manifest can be wrong: the rows decide whether a file has a key when they are read.
    return stretch.first[:1] == stretch.last[:1] == (None,)


def newest_first(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Return stored leaves, parts or row groups from newest to oldest, followed by the undated ones."""
    backwards = list(stretches)[::-1]
    # The sort is stable: dated (False) before undated.
    return sorted(backwards, key=is_undated)


def dated_rows(rows: pa.RecordBatch, layout: SidecarLayout) -> int:
    """Return the number of leading rows of a row group that have a sort key."""
    names = layout.sort_names()
    missing: int = rows.column(names[0]).null_count if names else 0
    return int(rows.num_rows) - missing


# ``PathIndex``: locates files with known paths in the order of a sidecar.


class PathIndex:
    """The keys of files whose folders are named after their partition values.

    A key consists of the values of the sort columns and the path. A file whose path does not show all of them can be
    anywhere.
    """

    def __init__(self, named: NamedFiles | None, sidecar: Sidecar) -> None:
        self._sidecar = sidecar
        self._keys = None if named is None else self._keys_of(named)

    def _keys_of(self, named: NamedFiles) -> list[tuple[str | None, ...]] | None:
        sort = [each.path for each in self._sidecar.layout.sort]
        if any(path not in shown for shown in named.shown.values() for path in sort):
            return None
        return [(*(shown[path] for path in sort), name) for name, shown in named.shown.items()]

    def among(self, stretches: Sequence[ManifestLeaf | ManifestPart | ManifestRowGroup]) -> list[int]:
        """Return which leaves, parts or row groups, in sidecar order, have a key range with one of the keys."""
        if self._keys is None or not stretches:
            return list(range(len(stretches)))
        layout, schema = self._sidecar.layout, self._sidecar.schema
        try:
            keys = keys_from_text(self._keys, layout, schema)
            firsts = keys_from_text([each.first for each in stretches], layout, schema)
            lasts = keys_from_text([each.last for each in stretches], layout, schema)
        except SidecarError:
            return list(range(len(stretches)))  # these keys have no string form to compare
        # From the first stretch that ends at or after the key to the last one that begins at or before it. These are
        # two if a path ends one stretch and, with another deletion vector, begins the next.
        begin = places_among(lasts, keys, side="left")
        end = places_among(firsts, keys, side="right")
        found = {place for each in zip(begin.tolist(), end.tolist(), strict=True) for place in range(*each)}
        return sorted(found)


# Convert the ranges of a manifest's parts and row groups to the form that predicates are evaluated on.


def matching_groups(predicate: Predicate | None, ranges: Sequence[Mapping[str, RangeText]]) -> list[int]:
    """Return the indices of the groups that can hold a matching file."""
    if predicate is None or not ranges:
        return list(range(len(ranges)))
    known = {column.physical_path: _column(column, ranges) for column in referenced_columns(predicate)}
    keep = may_match(predicate, Ranges(len(ranges), columns=known))
    found: list[int] = np.flatnonzero(flags(keep)).tolist()
    return found


def _column(column: Column, ranges: Sequence[Mapping[str, RangeText]]) -> ColumnRange:
    key = range_key(column.physical_path)
    found = [each.get(key, _UNKNOWN) for each in ranges]
    # A bound is valid only if no file of the group lacks it. Group bounds are never exact: they span many files.
    low = string_array([None if each.has_missing else each.min for each in found])
    high = string_array([None if each.has_missing else each.max for each in found])
    nulls = int64_array([None if each.has_null else 0 for each in found])
    # No bound although none is missing: the column is all null in every file of the group.
    empty = [not each.has_missing and each.min is None and each.max is None and each.has_null for each in found]
    bits = pa.py_buffer(np.packbits(empty, bitorder="little"))
    # A list, a struct or a variant has no bounds, but can be tested for null.
    ranged = has_range(column)
    return ColumnRange(
        from_text(low, column.type) if ranged else None,
        from_text(high, column.type) if ranged else None,
        nulls,
        all_null=pa.Array.from_buffers(pa.bool_(), len(found), [None, bits]),
    )


_UNKNOWN = RangeText(has_missing=True, has_null=True)


_FEW_PARTS = 16  # up to this many parts, footers are cached for the next scan
_FEW_LEAVES = 2  # up to this many leaves are cached as well

_Stretches = Sequence[ManifestLeaf] | Sequence[ManifestPart] | Sequence[ManifestRowGroup]


class ChosenGroup(msgspec.Struct, frozen=True):
    """A row group, its part, and the number of the leaf that describes both."""

    part: ManifestPart
    group: ManifestRowGroup
    leaf: int = 0


class GroupChoice:
    """Iterator over the leaves, parts and row groups of a sidecar in scan order."""

    def __init__(
        self, scan: BaseScan, sidecar: Sidecar, cache: SidecarCache, footers: PartFooters, *, ahead: int
    ) -> None:
        self._scan = scan
        self._sidecar = sidecar
        self._cache = cache
        self._footers = footers
        self._ahead = ahead
        self._likely = PathIndex(scan.named, sidecar)
        self._leaves: dict[int, Leaf | Pending[bytes]] = {}

    def __iter__(self) -> Iterator[ChosenGroup]:
        place, leaves = self._scan.place, self._sidecar.leaves
        if leaves is None:
            parts = dict(enumerate(self._sidecar.parts))
            yield from self._of_parts(parts if place is None else _only(parts, place), place)
        elif place is None:
            yield from self._of_leaves(leaves)
        else:
            if place.leaf >= len(leaves.leaves):
                _only({}, place)
            self._footers.keeps = True
            self._fetch_leaf(leaves, place.leaf)
            leaf = self._leaf(leaves, place.leaf)
            yield from self._of_leaf(leaf, _only(leaf.parts, place), place.leaf, place)

    def cancel(self) -> None:
        """Cancel the reads."""
        for leaf in list(self._leaves.values()):
            if isinstance(leaf, Pending):
                leaf.cancel()

    # --- leaves

    def _of_leaves(self, leaves: ManifestLeaves) -> Iterator[ChosenGroup]:
        kept = self._left(leaves.leaves)
        self._footers.keeps = len(kept) <= _FEW_LEAVES
        gone = set(range(len(leaves.leaves))).difference(kept)
        self._count_pruned([leaf for number, leaf in enumerate(leaves.leaves) if number in gone])
        if self._scan.newest_first:
            numbers = {id(leaves.leaves[number]): number for number in kept}
            kept = [numbers[id(leaf)] for leaf in newest_first(leaves.leaves[number] for number in kept)]
        # A limit is often reached within one row group.
        ahead = 1 if self._scan.limited else self._ahead
        undated: list[ChosenGroup] = []
        for place, number in enumerate(kept):
            for near in kept[place : place + ahead]:
                self._fetch_leaf(leaves, near)
            leaf = self._leaf(leaves, number)
            for chosen in self._of_leaf(leaf, leaf.parts, number, None):
                if self._scan.newest_first and is_undated(chosen.group) and not is_undated(leaves.leaves[number]):
                    undated.append(chosen)  # one leaf can hold both the newest files and the first undated ones
                else:
                    yield chosen
            del self._leaves[number]
        yield from undated

    def _of_leaf(
        self, leaf: Leaf, parts: Mapping[int, ManifestPart], number: int, place: BasePlace | None
    ) -> Iterator[ChosenGroup]:
        left = self._left_parts(parts)
        self._footers.keeps &= len(left) <= _FEW_PARTS
        for group in self._kept(leaf.groups_of(left), place):
            yield ChosenGroup(parts[group.part], group, number)

    def _fetch_leaf(self, leaves: ManifestLeaves, number: int) -> None:
        if number in self._leaves:
            return
        described = leaves.leaves[number]
        known = self._cache.leaf(described.sha256)
        if known is not None:
            self._scan.metrics.cache_hits += 1
            self._leaves[number] = known
        else:
            self._leaves[number] = self._scan.store.fetch(leaves.file, start=described.offset, length=described.length)

    def _leaf(self, leaves: ManifestLeaves, number: int) -> Leaf:
        found = self._leaves[number]
        if isinstance(found, Pending):
            described = leaves.leaves[number]
            found = decode_leaf(found.result(), described)
            if self._footers.keeps:
                self._cache.keep_leaf(described.sha256, found)
            self._leaves[number] = found
        return found

    # --- parts and their row groups

    def _of_parts(self, parts: Mapping[int, ManifestPart], place: BasePlace | None) -> Iterator[ChosenGroup]:
        numbers = self._left_parts(parts)
        # Footers that a long scan reads once would only evict those that short scans reuse.
        self._footers.keeps = len(numbers) <= _FEW_PARTS
        groups = self._sidecar.groups_of(numbers)
        if groups is not None:
            for group in self._kept(groups, place):
                yield ChosenGroup(parts[group.part], group)
            return
        ordered = numbers
        if self._scan.newest_first:
            places = {id(parts[number]): number for number in numbers}
            ordered = [places[id(part)] for part in newest_first(parts[number] for number in numbers)]
        undated: list[ChosenGroup] = []
        for start, number in enumerate(ordered):
            for near in ordered[start : start + self._ahead]:
                self._footers.fetch(parts[near])
            found = [
                msgspec.structs.replace(group, part=number) for group in self._footers.of(parts[number]).row_groups()
            ]
            for group in self._kept(found, place):
                chosen = ChosenGroup(parts[number], group)
                if self._scan.newest_first and is_undated(group) and not is_undated(parts[number]):
                    undated.append(chosen)  # one part can hold both the newest files and the first undated ones
                else:
                    yield chosen
        yield from undated

    def _left_parts(self, parts: Mapping[int, ManifestPart]) -> list[int]:
        numbers = list(parts)
        if len(numbers) == 1:
            return numbers  # its row groups are at least as precise
        left = [numbers[index] for index in self._left(list(parts.values()))]
        gone = set(numbers).difference(left)
        self._count_pruned([parts[number] for number in numbers if number in gone])
        return left

    def _kept(self, groups: Sequence[ManifestRowGroup], place: BasePlace | None) -> list[ManifestRowGroup]:
        left = [groups[index] for index in self._left(groups)]
        kept = set(map(id, left))
        self._count_pruned([group for group in groups if id(group) not in kept])
        if place is not None:
            left = [group for group in left if place.start <= group.index < place.stop]
        return newest_first(left) if self._scan.newest_first else left

    def _left(self, stretches: _Stretches) -> list[int]:
        """Return the indices of leaves, parts or row groups that can hold a match or a file requested by path."""
        kept = matching_groups(self._scan.predicate, [each.ranges for each in stretches])
        return [kept[place] for place in self._likely.among([stretches[index] for index in kept])]

    def _count_pruned(self, stretches: _Stretches) -> None:
        metrics = self._scan.metrics
        metrics.row_groups_pruned += sum(
            1 if isinstance(each, ManifestRowGroup) else each.num_row_groups for each in stretches
        )
        metrics.files_pruned_by_groups += sum(each.num_rows for each in stretches)


def _only(parts: Mapping[int, ManifestPart], place: BasePlace) -> dict[int, ManifestPart]:
    """Return the part that contains a place."""
    found = {number: part for number, part in parts.items() if part.file == place.file}
    if not found:
        message = f"{place.file} is no longer part of it, and the scan was divided by its row groups"
        raise SidecarError(message)
    return found

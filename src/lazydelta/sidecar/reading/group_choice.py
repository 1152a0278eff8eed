"""``GroupChoice``: which row groups of a sidecar may hold a matching file, told by the ranges in its manifest.

A manifest of many parts has them in leaves: those that no range rules out are read, a few ahead of the consumer, and
their parts and row groups are chosen among as if they were all there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from lazydelta.scan.base import BaseScan
from lazydelta.scan.scan_range import BasePlace
from lazydelta.sidecar.layout.leaves import Leaf, decode_leaf
from lazydelta.sidecar.layout.manifest import (
    ManifestLeaf,
    ManifestLeaves,
    ManifestPart,
    ManifestRowGroup,
    SidecarError,
)
from lazydelta.sidecar.reading.discovery import Sidecar
from lazydelta.sidecar.reading.likely_places import LikelyPlaces
from lazydelta.sidecar.reading.newest_first import is_undated, newest_first
from lazydelta.sidecar.reading.part_footers import PartFooters
from lazydelta.sidecar.reading.sidecar_cache import SidecarCache
from lazydelta.sidecar.reading.surviving import surviving
from lazydelta.storage import Pending

__all__ = ["ChosenGroup", "GroupChoice"]

_FEW_PARTS = 16  # of so few, the footers are kept for the next scan
_FEW_LEAVES = 2  # and so are so few leaves

_Stretches = Sequence[ManifestLeaf] | Sequence[ManifestPart] | Sequence[ManifestRowGroup]


class ChosenGroup(msgspec.Struct, frozen=True):
    """A row group, the part that has it, and the number of the leaf that describes both."""

    part: ManifestPart
    group: ManifestRowGroup
    leaf: int = 0


class GroupChoice:
    """Goes through the leaves, parts and row groups of a sidecar in the order of the scan."""

    def __init__(
        self, scan: BaseScan, sidecar: Sidecar, cache: SidecarCache, footers: PartFooters, *, ahead: int
    ) -> None:
        self._scan = scan
        self._sidecar = sidecar
        self._cache = cache
        self._footers = footers
        self._ahead = ahead
        self._likely = LikelyPlaces(scan.named, sidecar)
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
        """Stop the reads."""
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
                    undated.append(chosen)  # one leaf may hold the newest files and the first ones without a time
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
        # Footers that a long scan meets once would only push out those that short ones ask for again and again.
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
                    undated.append(chosen)  # one part may hold the newest files and the first ones without a time
                else:
                    yield chosen
        yield from undated

    def _left_parts(self, parts: Mapping[int, ManifestPart]) -> list[int]:
        numbers = list(parts)
        if len(numbers) == 1:
            return numbers  # its row groups tell as much
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
        """Return which leaves, parts or row groups may hold a file that matches, or that was asked for by its path."""
        kept = surviving(self._scan.predicate, [each.ranges for each in stretches])
        return [kept[place] for place in self._likely.among([stretches[index] for index in kept])]

    def _count_pruned(self, stretches: _Stretches) -> None:
        metrics = self._scan.metrics
        metrics.row_groups_pruned += sum(
            1 if isinstance(each, ManifestRowGroup) else each.num_row_groups for each in stretches
        )
        metrics.files_pruned_by_groups += sum(each.num_rows for each in stretches)


def _only(parts: Mapping[int, ManifestPart], place: BasePlace) -> dict[int, ManifestPart]:
    """Return the part that a place is in."""
    found = {number: part for number, part in parts.items() if part.file == place.file}
    if not found:
        message = f"{place.file} is no part of it any more, and the scan was divided by its row groups"
        raise SidecarError(message)
    return found

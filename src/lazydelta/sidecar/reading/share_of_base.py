"""Which share of the base a lower bound on its sort column leaves, told by the manifest's ranges before it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lazydelta.pruning import Predicate
from lazydelta.sidecar.layout.manifest import ManifestIndex, ManifestLeaf, ManifestPart, RangeText, range_key
from lazydelta.sidecar.reading.newest_first import is_undated
from lazydelta.sidecar.reading.surviving import surviving

__all__ = ["share_left"]


def share_left(manifest: ManifestIndex, predicate: Predicate, enough: float) -> float | None:
    """Return the share of files in parts and row groups that the sort column's ranges leave, exact from ``enough`` on.

    None if the oldest files with a sort key are among them: then nothing bounds it from below, and the newest files
    are not what is asked for.
    """
    if not manifest.sort or not manifest.num_files:
        return None
    key = range_key(manifest.sort[0].path)
    parts: Sequence[ManifestLeaf | ManifestPart] = manifest.stretches
    numbers = surviving(predicate, _only(key, [part.ranges for part in parts]))
    left = sum(parts[number].num_rows for number in numbers)
    oldest = next((number for number, part in enumerate(parts) if not is_undated(part)), None)
    if oldest is None:
        return None
    by_parts = None if oldest in numbers else left / manifest.num_files
    # Row groups tell more exactly, and take time to decode: only for those whom the parts leave undecided.
    # Those in leaves are not at hand; leaves are small shares of what has so many files.
    known = manifest.leaves is None and (by_parts is None or by_parts >= enough)
    groups = manifest.groups_of(numbers) if known else None
    if groups is None:
        return by_parts
    kept = surviving(predicate, _only(key, [group.ranges for group in groups]))
    if any((groups[index].part, groups[index].index) == (oldest, 0) for index in kept):
        return None
    return sum(groups[index].num_rows for index in kept) / manifest.num_files


def _only(key: str, ranges: Sequence[Mapping[str, RangeText]]) -> list[dict[str, RangeText]]:
    return [{key: each[key]} if key in each else {} for each in ranges]

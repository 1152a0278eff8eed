"""``LikelyPlaces``: where in the order of a sidecar files lie whose paths are known."""

from __future__ import annotations

from collections.abc import Sequence

from lazydelta.scan.named_files import NamedFiles
from lazydelta.sidecar.layout.manifest import ManifestLeaf, ManifestPart, ManifestRowGroup, SidecarError
from lazydelta.sidecar.layout.order import keys_from_text, places_among
from lazydelta.sidecar.reading.discovery import Sidecar

__all__ = ["LikelyPlaces"]


class LikelyPlaces:
    """The keys that files have if their folders are named after their partition values.

    A key is the sort columns' values and the path. A file whose path does not show all of them may be anywhere.
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
        """Return which leaves, parts or row groups, in the sidecar's order, have one of the keys between their ends."""
        if self._keys is None or not stretches:
            return list(range(len(stretches)))
        layout, schema = self._sidecar.layout, self._sidecar.schema
        try:
            keys = keys_from_text(self._keys, layout, schema)
            firsts = keys_from_text([each.first for each in stretches], layout, schema)
            lasts = keys_from_text([each.last for each in stretches], layout, schema)
        except SidecarError:
            return list(range(len(stretches)))  # such keys have no text to go by
        # From the first stretch that ends at the key or behind it to the last one that begins there or before: two,
        # where one path is at the end of one and, under another deletion vector, at the beginning of the next.
        begin = places_among(lasts, keys, side="left")
        end = places_among(firsts, keys, side="right")
        found = {place for each in zip(begin.tolist(), end.tolist(), strict=True) for place in range(*each)}
        return sorted(found)

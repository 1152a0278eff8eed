"""``KeySpan``: a stretch of the sidecar's order, by which a worker finds its files when the sidecar itself is lost.

Whoever divides a scan by the row groups of a sidecar says with each piece which keys it begins and ends with. The
checkpoint has the same files: those whose keys lie within are the ones of the row groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from lazydelta.arrays import boolean_array
from lazydelta.log.file_batch import FileBatch
from lazydelta.scan.scan_range import BasePlace
from lazydelta.sidecar.layout.manifest import ManifestRowGroup, SidecarError
from lazydelta.sidecar.layout.order import keys_from_text, sortable
from lazydelta.sidecar.layout.sidecar_columns import SidecarLayout
from lazydelta.sidecar.reading.discovery import Sidecar
from lazydelta.sidecar.reading.group_choice import ChosenGroup
from lazydelta.sidecar.reading.used import sort_layout, sort_rows
from lazydelta.types.schema import TableSchema

__all__ = ["KeySpan", "places_of_groups"]


class KeySpan(msgspec.Struct, frozen=True):
    """The keys from ``lower`` to just before ``upper``; None is open. Only what the order needs of the rest is kept."""

    layout: SidecarLayout
    schema: TableSchema
    lower: bytes | None = None
    upper: bytes | None = None

    @classmethod
    def everything(cls, sidecar: Sidecar) -> KeySpan:
        """Return the span of all keys of a sidecar."""
        layout, schema = sort_layout(sidecar.layout), sidecar.schema
        roots = {each.path[0] for each in layout.sort}
        fields = tuple(each for each in schema.fields if each.physical_name in roots)
        partitions = tuple(each.name for each in fields if each.name in schema.partition_columns)
        return cls(layout, TableSchema(fields, partitions, schema.column_mapping))

    def __call__(self, files: FileBatch) -> FileBatch:
        """Leave the files whose keys are within."""
        if (self.lower is None and self.upper is None) or not len(files):
            return files
        keys = sortable(sort_rows(files, self.layout, self.schema), self.layout).to_pylist()
        keep = np.fromiter((self._holds(key) for key in keys), np.bool_, len(keys))
        return files.filter(boolean_array(keep))

    def _holds(self, key: bytes) -> bool:
        return (self.lower is None or key >= self.lower) and (self.upper is None or key < self.upper)

    def key_of(self, texts: Sequence[str | None]) -> bytes | None:
        """Return a key as the manifest has it in the form in which keys compare.

        None where a value is missing: it may be null, or one that the manifest has no text for.
        """
        if any(text is None for text in texts):
            return None
        try:
            key: bytes = keys_from_text([tuple(texts)], self.layout, self.schema)[0].as_py()
        except SidecarError:
            return None
        return key


def places_of_groups(sidecar: Sidecar, groups: Iterable[ChosenGroup], files: int) -> list[BasePlace] | None:
    """Join row groups, in their order, to places of about so many files; None where their keys do not tell them apart.

    Two places are cut apart only where the last key before is smaller than the first one behind.
    """
    span = KeySpan.everything(sidecar)
    places: list[BasePlace] = []
    spans: list[KeySpan] = []
    before: ManifestRowGroup | None = None
    for chosen in groups:
        file, group = chosen.part.file, chosen.group
        other_file = before is not None and group.part != before.part
        if before is None or other_file or places[-1].files >= files:
            lower = None if before is None else _cut(span, before, group)
            if before is None or lower is not None:
                if spans:
                    spans[-1] = msgspec.structs.replace(spans[-1], upper=lower)
                spans.append(msgspec.structs.replace(span, lower=lower))
                places.append(BasePlace(file, group.index, group.index + 1, group.num_rows, leaf=chosen.leaf))
                before = group
                continue
            if other_file:
                return None
        place = places[-1]
        places[-1] = msgspec.structs.replace(place, stop=group.index + 1, files=place.files + group.num_rows)
        before = group
    return [msgspec.structs.replace(place, files_of_it=span) for place, span in zip(places, spans, strict=True)]


def _cut(span: KeySpan, before: ManifestRowGroup, group: ManifestRowGroup) -> bytes | None:
    """Return the key that parts two row groups, None where there is no such key."""
    last, first = span.key_of(before.last), span.key_of(group.first)
    return first if last is not None and first is not None and last < first else None

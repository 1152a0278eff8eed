"""Leaves: compressed descriptions of runs of parts, in a file next to a manifest with many parts.

The manifest is the root and has the range of each leaf. A lookup by hour reads the root and the one or two leaves that
can match, regardless of the number of parts.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa

from lazydelta.protocol.schema import DataType, TableSchema
from lazydelta.protocol.values import from_text
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import string_array
from lazydelta.sidecar.format.columns import FOLDER
from lazydelta.sidecar.format.manifest import (
    ManifestIndex,
    ManifestLeaf,
    ManifestLeaves,
    ManifestPart,
    ManifestRowGroup,
    RangeText,
    SidecarError,
    check_groups,
    is_in_folder,
    range_key,
)
from lazydelta.sidecar.format.rows import text_of
from lazydelta.storage import Store

__all__ = [
    "EveryPart",
    "Leaf",
    "decode_leaf",
    "every_part",
    "files_of",
    "inflated",
    "leaves_over",
    "pack_groups",
    "range_types",
    "ranges_over",
    "unpack_groups",
]


# Our JSON compresses to a twentieth. A much higher claimed ratio is an attempt to exhaust memory.
_MOST_RATIO, _ALWAYS_FITS = 250, 1 << 20

_CODEC = "zstd"
_LENGTH = 4


class LeafPart(ManifestPart, frozen=True, kw_only=True):
    """A part in a leaf, with its row groups; these are parsed on demand."""

    row_groups: msgspec.Raw


class Leaf(msgspec.Struct, frozen=True):
    """A run of consecutive parts, by their numbers in the sidecar."""

    parts: dict[int, LeafPart]
    nbytes: int

    def groups_of(self, numbers: Iterable[int]) -> list[ManifestRowGroup]:
        """Return the row groups of the given parts, in order."""
        chosen = {number: self.parts[number] for number in numbers}
        try:
            found = [
                group
                for part in chosen.values()
                for group in msgspec.json.decode(part.row_groups, type=list[ManifestRowGroup])
            ]
        except msgspec.MsgspecError as error:
            message = f"row groups of a leaf cannot be decoded: {error}"
            raise SidecarError(message) from error
        check_groups(found, chosen)
        return found


def encode_leaf(parts: Sequence[tuple[ManifestPart, Sequence[ManifestRowGroup]]], first_part: int) -> tuple[bytes, int]:
    """Return the bytes of a leaf, and their uncompressed size."""
    described = []
    for number, (part, groups) in enumerate(parts, first_part):
        numbered = [msgspec.structs.replace(group, part=number) for group in groups]
        own = {name: getattr(part, name) for name in ManifestPart.__struct_fields__}
        described.append(LeafPart(**own, row_groups=msgspec.Raw(msgspec.json.encode(numbered))))
    raw = msgspec.json.encode(described)
    return pa.compress(raw, codec=_CODEC, asbytes=True), len(raw)


def decode_leaf(data: bytes, described: ManifestLeaf) -> Leaf:
    """Verify and parse the bytes of a leaf."""
    parts = _decoded(data, described)
    leaf = Leaf(dict(enumerate(parts, described.first_part)), described.raw_length)
    if (
        len(parts) != described.num_parts
        or sum(part.num_rows for part in parts) != described.num_rows
        or sum(part.num_row_groups for part in parts) != described.num_row_groups
        or (parts[0].first, parts[-1].last) != (described.first, described.last)
    ):
        message = "a leaf has other parts than the manifest says"
        raise SidecarError(message)
    if not all(is_in_folder(file) for part in parts for file in part.files):
        message = f"a leaf names a part that is not in {FOLDER}"
        raise SidecarError(message)
    return leaf


def inflated(data: bytes, length: int) -> bytes:
    """Decompress bytes with the given claimed length; raise if the claim is implausible."""
    if length > max(_ALWAYS_FITS, _MOST_RATIO * len(data)):
        message = f"{len(data)} bytes claim to be {length} when they are not compressed"
        raise SidecarError(message)
    text: bytes = pa.decompress(data, decompressed_size=length, codec=_CODEC, asbytes=True)
    return text


def _decoded(data: bytes, described: ManifestLeaf) -> list[LeafPart]:
    if len(data) != described.length or hashlib.sha256(data).hexdigest() != described.sha256:
        message = "a leaf is not the one that the manifest names"
        raise SidecarError(message)
    try:
        raw = inflated(data, described.raw_length)
        return msgspec.json.decode(raw, type=list[LeafPart])
    except (pa.ArrowException, OSError, ValueError, MemoryError, msgspec.MsgspecError) as error:
        message = f"a leaf cannot be decoded: {error}"
        raise SidecarError(message) from error


class EveryPart(msgspec.Struct):
    """All parts of a manifest, for full passes; row groups are parsed one part at a time.

    For each leaf, only its parts and its compressed bytes are held.
    """

    parts: tuple[ManifestPart, ...]
    index: ManifestIndex
    data: bytes = b""
    _open: tuple[int, Leaf] | None = None
    _all: dict[int, list[ManifestRowGroup]] | None = None

    def groups_of(self, number: int) -> list[ManifestRowGroup] | None:
        """Return the row groups of a part; None if the manifest has no leaves and only the footers have them."""
        if self.index.leaves is None:
            return self._all_groups().get(number)
        leaves = self.index.leaves.leaves
        place = bisect_right(leaves, number, key=lambda leaf: leaf.first_part) - 1
        if self._open is None or self._open[0] != place:
            self._open = place, decode_leaf(_cut(self.data, leaves[place]), leaves[place])
        return self._open[1].groups_of([number])

    def _all_groups(self) -> dict[int, list[ManifestRowGroup]]:
        """Return the row groups of a manifest without leaves by part; there are few of them."""
        if self._all is None:
            found: dict[int, list[ManifestRowGroup]] = {}
            for group in self.index.groups_of(range(len(self.parts))) or ():
                found.setdefault(group.part, []).append(group)
            self._all = found
        return self._all

    def check(self) -> None:
        """Raise if row groups contradict their parts."""
        for number in range(len(self.parts)):
            self.groups_of(number)

    @property
    def files(self) -> dict[str, int]:
        """Return all files that the manifest references, with their sizes."""
        return files_of(self.parts, self.index.leaves)


def files_of(parts: Iterable[ManifestPart], leaves: ManifestLeaves | None) -> dict[str, int]:
    """Return the files that a manifest of these parts and leaves references, with their sizes."""
    found = {file: size for part in parts for file, size in part.files.items()}
    return found if leaves is None else found | {leaves.file: leaves.size}


def every_part(store: Store, index: ManifestIndex) -> EveryPart:
    """Read all leaves of a manifest, if it has any."""
    if index.leaves is None:
        return EveryPart(index.parts, index)
    if not index.leaves.are_in_order():
        message = "its leaves are not in order"
        raise SidecarError(message)
    data = store.get(index.leaves.file)
    if len(data) != index.leaves.size:
        message = f"{index.leaves.file} has {len(data)} bytes, and the manifest says {index.leaves.size}"
        raise SidecarError(message)
    parts: list[ManifestPart] = []
    for leaf in index.leaves.leaves:
        found = decode_leaf(_cut(data, leaf), leaf).parts.values()
        parts += [
            ManifestPart(**{name: getattr(part, name) for name in ManifestPart.__struct_fields__}) for part in found
        ]
    return EveryPart(tuple(parts), index, data)


def _cut(data: bytes, leaf: ManifestLeaf) -> bytes:
    return data[leaf.offset : leaf.offset + leaf.length]


def pack_groups(groups: Sequence[ManifestRowGroup]) -> bytes:
    """Return row groups packed into a tenth of their memory, for builds with very many of them."""
    raw = msgspec.json.encode(groups)
    packed: bytes = pa.compress(raw, codec=_CODEC, asbytes=True)
    return len(raw).to_bytes(_LENGTH, "little") + packed


def unpack_groups(packed: bytes) -> list[ManifestRowGroup]:
    """Return the packed row groups."""
    size = int.from_bytes(packed[:_LENGTH], "little")
    raw = pa.decompress(packed[_LENGTH:], decompressed_size=size, codec=_CODEC, asbytes=True)
    return msgspec.json.decode(raw, type=list[ManifestRowGroup])


# Split the description of many parts into leaves, and compute the ranges of each leaf.


LEAST_PARTS, MOST_LEAVES = 4, 256
"""Few leaves are small leaves: their ranges then give the exact share of files that a predicate keeps."""

RangeTypes = Mapping[str, DataType]


def leaves_over(
    parts: Sequence[ManifestPart], groups_of: Callable[[int], Sequence[ManifestRowGroup]], types: RangeTypes
) -> Iterator[tuple[ManifestLeaf, bytes]]:
    """Yield the leaves over the parts with their bytes, one at a time; row groups are requested leaf by leaf."""
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
    """Return the types of the columns that can have ranges, by range key."""
    return {range_key(column.physical_path): column.type for column in schema.leaves()}


def ranges_over(ranges: Sequence[Mapping[str, RangeText]], types: RangeTypes) -> dict[str, RangeText]:
    """Return the combined ranges of several parts; columns without a range in any one of them are omitted."""
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
    """Return the minimum or maximum of the values, and whether all of them could be parsed."""
    known = [text for text in texts if text is not None]
    if not known:
        return None, True
    values = from_text(string_array(known), kind)
    found = text_of(pc.min(values) if least else pc.max(values))
    return found, found is not None and not values.null_count

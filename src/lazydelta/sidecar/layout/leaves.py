"""Leaves: what a manifest of many parts says of some of them, in a file beside it and compressed.

The manifest itself, its root, has the range of each leaf. Whoever looks for an hour reads the root and the one or two
leaves that can hold it, however many parts there are.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa

from lazydelta.sidecar.layout.manifest import (
    ManifestIndex,
    ManifestLeaf,
    ManifestLeaves,
    ManifestPart,
    ManifestRowGroup,
    SidecarError,
    check_groups,
    is_in_folder,
)
from lazydelta.sidecar.layout.sidecar_columns import FOLDER
from lazydelta.storage import Store

__all__ = [
    "EveryPart",
    "Leaf",
    "LeafPart",
    "decode_leaf",
    "encode_leaf",
    "every_part",
    "files_of",
    "inflated",
    "pack_groups",
    "unpack_groups",
]

# JSON of ours takes a twentieth when compressed. What claims to have been so much larger is made to fill the memory.
_MOST_RATIO, _ALWAYS_FITS = 250, 1 << 20

_CODEC = "zstd"
_LENGTH = 4


class LeafPart(ManifestPart, frozen=True, kw_only=True):
    """A part as a leaf has it: with its row groups, which are parsed for those who ask for them."""

    row_groups: msgspec.Raw


class Leaf(msgspec.Struct, frozen=True):
    """Some parts that follow each other, by their number in the whole sidecar."""

    parts: dict[int, LeafPart]
    nbytes: int

    def groups_of(self, numbers: Iterable[int]) -> list[ManifestRowGroup]:
        """Return the row groups of some of the parts, in order."""
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
    """Return the bytes of a leaf, and how many they are when they are not compressed."""
    described = []
    for number, (part, groups) in enumerate(parts, first_part):
        numbered = [msgspec.structs.replace(group, part=number) for group in groups]
        own = {name: getattr(part, name) for name in ManifestPart.__struct_fields__}
        described.append(LeafPart(**own, row_groups=msgspec.Raw(msgspec.json.encode(numbered))))
    raw = msgspec.json.encode(described)
    return pa.compress(raw, codec=_CODEC, asbytes=True), len(raw)


def decode_leaf(data: bytes, described: ManifestLeaf) -> Leaf:
    """Check and parse the bytes of a leaf."""
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
    """Return a compressed text that claims to have so many bytes; raise where nobody would have written such a one."""
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
    """All parts of a manifest, for those who go through all of them; row groups of one part at a time.

    What is held of a leaf beside its parts is its compressed bytes.
    """

    parts: tuple[ManifestPart, ...]
    index: ManifestIndex
    data: bytes = b""
    _open: tuple[int, Leaf] | None = None
    _all: dict[int, list[ManifestRowGroup]] | None = None

    def groups_of(self, number: int) -> list[ManifestRowGroup] | None:
        """Return the row groups of a part; None where a manifest without leaves leaves them to the footers."""
        if self.index.leaves is None:
            return self._all_groups().get(number)
        leaves = self.index.leaves.leaves
        place = bisect_right(leaves, number, key=lambda leaf: leaf.first_part) - 1
        if self._open is None or self._open[0] != place:
            self._open = place, decode_leaf(_cut(self.data, leaves[place]), leaves[place])
        return self._open[1].groups_of([number])

    def _all_groups(self) -> dict[int, list[ManifestRowGroup]]:
        """Return the row groups of a manifest without leaves, which are few, by part."""
        if self._all is None:
            found: dict[int, list[ManifestRowGroup]] = {}
            for group in self.index.groups_of(range(len(self.parts))) or ():
                found.setdefault(group.part, []).append(group)
            self._all = found
        return self._all

    def check(self) -> None:
        """Raise where row groups contradict their parts."""
        for number in range(len(self.parts)):
            self.groups_of(number)

    @property
    def files(self) -> dict[str, int]:
        """Return all files that the manifest refers to, with their sizes."""
        return files_of(self.parts, self.index.leaves)


def files_of(parts: Iterable[ManifestPart], leaves: ManifestLeaves | None) -> dict[str, int]:
    """Return the files that a manifest of these parts and leaves refers to, with their sizes."""
    found = {file: size for part in parts for file, size in part.files.items()}
    return found if leaves is None else found | {leaves.file: leaves.size}


def every_part(store: Store, index: ManifestIndex) -> EveryPart:
    """Read all leaves of a manifest, if it has some."""
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
    """Return row groups in a tenth of the memory that they take, for a build that has a great many to keep."""
    raw = msgspec.json.encode(groups)
    packed: bytes = pa.compress(raw, codec=_CODEC, asbytes=True)
    return len(raw).to_bytes(_LENGTH, "little") + packed


def unpack_groups(packed: bytes) -> list[ManifestRowGroup]:
    """Return what was packed."""
    size = int.from_bytes(packed[:_LENGTH], "little")
    raw = pa.decompress(packed[_LENGTH:], decompressed_size=size, codec=_CODEC, asbytes=True)
    return msgspec.json.decode(raw, type=list[ManifestRowGroup])

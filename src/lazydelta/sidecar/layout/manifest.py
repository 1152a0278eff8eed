"""``Manifest``: where in a sidecar which part of the time axis lies; the sidecar's only commit point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Self

import msgspec

from lazydelta.log.actions import Count, DomainMetadata, Metadata, Protocol, Txn
from lazydelta.log.segment import Checkpoint
from lazydelta.sidecar.layout.seal import UNSEALED, is_sealed, sealed
from lazydelta.sidecar.layout.sidecar_columns import FOLDER, READ_FORMATS, SidecarColumn, SidecarLayout, SortColumn
from lazydelta.storage import ObjectInfo

__all__ = [
    "MANIFEST_LIMIT",
    "CheckpointFile",
    "Manifest",
    "ManifestHead",
    "ManifestIndex",
    "ManifestLeaf",
    "ManifestLeaves",
    "ManifestPart",
    "ManifestRowGroup",
    "OtherCheckpointError",
    "RangeText",
    "SidecarError",
    "StatsFile",
    "check_groups",
    "file_identity",
    "is_in_folder",
    "mirrors",
    "range_key",
    "seal",
]

MANIFEST_LIMIT = 1 << 20
_CONTRADICTION = "its numbers contradict each other"


class SidecarError(Exception):
    """A sidecar or manifest that cannot be used. It never leaves a scan: the next tier answers instead."""


class OtherCheckpointError(SidecarError):
    """A manifest of the right version and table that mirrors another checkpoint than the one we know."""


class CheckpointFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of the checkpoint that a sidecar mirrors, as the builder saw it; see ``sidecar.mirrored``."""

    name: str
    size: Count
    tail_length: Count
    tail_sha256: str
    last_modified: int | None = None
    etag: str | None = None

    @property
    def identity(self) -> tuple[str, int]:
        """Return what is compared with the listing, always."""
        return self.name, self.size

    def is_untouched(self, info: ObjectInfo) -> bool:
        """Tell whether the store says that the file is the very object that the builder saw."""
        return self.etag is not None and (self.etag, self.last_modified) == (info.etag, info.last_modified)


class RangeText(msgspec.Struct, frozen=True, omit_defaults=True):
    """The range of one column over the files of a row group or part, as Delta writes partition values."""

    min: str | None = None
    max: str | None = None
    has_missing: bool = False
    has_null: bool = False


class ManifestRowGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A row group: where its bytes are, and which files it can hold."""

    index: Count
    part: Count
    byte_offset: Count
    byte_length: Count
    core_byte_length: Count
    num_rows: Count
    event_hour_min: str | None = None
    event_hour_max: str | None = None
    first: tuple[str | None, ...]
    last: tuple[str | None, ...]
    ranges: dict[str, RangeText] = {}


class StatsFile(msgspec.Struct, frozen=True, kw_only=True):
    """The second tier of a part: the statistics of columns that few ask for, row by row as in its first tier."""

    file: str
    size: Count
    footer_offset: Count
    footer_length: Count
    footer_sha256: str


class ManifestPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Parquet file of the sidecar, or two of them where it has tiers."""

    file: str
    size: Count
    footer_offset: Count
    footer_length: Count
    footer_sha256: str
    num_rows: Count
    num_row_groups: Count
    first: tuple[str | None, ...]
    last: tuple[str | None, ...]
    ranges: dict[str, RangeText] = {}
    stats: StatsFile | None = None

    @property
    def files(self) -> dict[str, int]:
        """Return the files of the part, with their sizes."""
        return (
            {self.file: self.size} if self.stats is None else {self.file: self.size, self.stats.file: self.stats.size}
        )


class ManifestLeaf(msgspec.Struct, frozen=True, kw_only=True):
    """Some parts that follow each other, described together elsewhere: ``length`` bytes at ``offset`` of a file.

    These are compressed, and have ``raw_length`` bytes when they are not.
    """

    offset: Count
    length: Count
    raw_length: Count
    sha256: str
    first_part: Count
    num_parts: Count
    num_rows: Count
    num_row_groups: Count
    first: tuple[str | None, ...]
    last: tuple[str | None, ...]
    ranges: dict[str, RangeText] = {}


class ManifestLeaves(msgspec.Struct, frozen=True, kw_only=True):
    """The leaves of a manifest of many parts, and the file that has them."""

    file: str
    size: Count
    leaves: tuple[ManifestLeaf, ...]

    def are_in_order(self) -> bool:
        """Tell whether the leaves number all parts, and lie within their file."""
        numbers = accumulate((leaf.num_parts for leaf in self.leaves), initial=0)
        return all(
            leaf.first_part == number and leaf.num_parts and leaf.offset + leaf.length <= self.size
            for leaf, number in zip(self.leaves, numbers, strict=False)
        )


class ManifestHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a manifest says of the sidecar as a whole and of its parts; of many parts it has ``leaves`` instead."""

    format_version: int
    version: Count
    table_id: str
    schema_hash: str
    sidecar_file: str
    sidecar_size_bytes: Count
    num_files: Count
    num_row_groups: Count
    sort: tuple[SortColumn, ...]
    columns: tuple[SidecarColumn, ...]
    protocol: Protocol
    meta_data: Metadata = msgspec.field(name="metaData")
    txn: tuple[Txn, ...] = ()
    domain_metadata: tuple[DomainMetadata, ...] = msgspec.field(name="domainMetadata", default=())
    checkpoint: tuple[CheckpointFile, ...]
    parts: tuple[ManifestPart, ...]
    leaves: ManifestLeaves | None = None

    @property
    def layout(self) -> SidecarLayout:
        """Return the columns and the order of the sidecar."""
        return SidecarLayout(self.columns, self.sort)

    @property
    def stretches(self) -> tuple[ManifestPart, ...] | tuple[ManifestLeaf, ...]:
        """Return the coarsest pieces of the order that the manifest describes: its leaves, or its parts."""
        return self.parts if self.leaves is None else self.leaves.leaves

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Check and parse a manifest's bytes."""
        try:
            seal_of = msgspec.json.decode(data, type=_Sealed).sha256
            if not is_sealed(data, _place_of(data, seal_of)):
                message = "its digest does not match"
                raise SidecarError(message)
            manifest = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
            message = f"it cannot be decoded: {error}"
            raise SidecarError(message) from error
        if manifest.format_version not in READ_FORMATS:
            known = " and ".join(map(str, READ_FORMATS))
            message = f"its format version is {manifest.format_version}, and we read {known}"
            raise SidecarError(message)
        return manifest

    def check(self, *, table_id: str, checkpoint: Checkpoint) -> None:
        """Raise unless this manifest is for this table and a checkpoint of these names and sizes."""
        if self.table_id != table_id:
            message = f"it belongs to table {self.table_id}"
        elif self.version != checkpoint.version:
            message = f"it is for version {self.version}"
        elif not mirrors(self.checkpoint, checkpoint):
            message = "it mirrors another checkpoint of this version"
            raise OtherCheckpointError(message)
        elif not self.stretches and self.num_files:
            message = "it has files and no parts"
        elif not all(map(is_in_folder, [file for part in self.parts for file in part.files])):
            message = f"it names a part that is not in {FOLDER}"
        elif self.leaves is not None and not is_in_folder(self.leaves.file):
            message = f"it names leaves that are not in {FOLDER}"
        else:
            return
        raise SidecarError(message)

    def check_numbers(self) -> None:
        """Raise where the manifest contradicts itself: a row group that it forgets would be files that it hides."""
        known = {(column.role, column.path) for column in self.columns}
        if not (
            self.stretches
            and self.num_files == sum(each.num_rows for each in self.stretches)
            and self.num_row_groups == sum(each.num_row_groups for each in self.stretches)
            and all((each.role, each.path) in known for each in self.sort)
            and (self.leaves is None or (not self.parts and self.leaves.are_in_order()))
        ):
            raise SidecarError(_CONTRADICTION)


def is_in_folder(file: str) -> bool:
    """Tell whether a file is one of the folder of sidecars."""
    return file.rpartition("/")[0] == FOLDER


class Manifest(ManifestHead, frozen=True, kw_only=True):
    """The manifest as stored; see ``docs/sidecar.md``."""

    row_groups: tuple[ManifestRowGroup, ...] = ()
    sha256: str = UNSEALED

    def encode(self) -> bytes:
        """Return the manifest's bytes, sealed; row groups are left to the parts' footers where it would be too long."""
        data = msgspec.json.encode(self)
        if len(data) > MANIFEST_LIMIT and self.row_groups:
            data = msgspec.json.encode(msgspec.structs.replace(self, row_groups=()))
        return seal(data)

    def check_numbers(self) -> None:
        """Raise where the manifest contradicts itself, in its row groups too."""
        super().check_numbers()
        if self.row_groups:
            check_groups(self.row_groups, dict(enumerate(self.parts)))


class ManifestIndex(ManifestHead, frozen=True, kw_only=True):
    """A manifest for those who look something up: row groups are parsed only of the parts that they ask for."""

    row_groups: msgspec.Raw = msgspec.Raw(b"[]")
    sha256: str = UNSEALED

    def groups_of(self, numbers: Sequence[int]) -> list[ManifestRowGroup] | None:
        """Return the row groups of some parts, in order; None where a long manifest leaves them to the footers."""
        try:
            pieces = msgspec.json.decode(self.row_groups, type=list[msgspec.Raw])
            if not pieces and self.num_row_groups:
                return None
            ends = list(accumulate(part.num_row_groups for part in self.parts))
            if len(pieces) != self.num_row_groups:
                raise SidecarError(_CONTRADICTION)
            found = [
                msgspec.json.decode(piece, type=ManifestRowGroup)
                for number in numbers
                for piece in pieces[ends[number] - self.parts[number].num_row_groups : ends[number]]
            ]
        except msgspec.MsgspecError as error:
            message = f"its row groups cannot be decoded: {error}"
            raise SidecarError(message) from error
        check_groups(found, {number: self.parts[number] for number in numbers})
        return found


def check_groups(groups: Sequence[ManifestRowGroup], parts: Mapping[int, ManifestPart]) -> None:
    """Raise unless these are the row groups of these parts (by number), all of them and in order."""
    places = [(number, index) for number, part in parts.items() for index in range(part.num_row_groups)]
    rows = Counter[int]()
    for group in groups:
        rows[group.part] += group.num_rows
    if [(group.part, group.index) for group in groups] != places or any(
        rows[number] != parts[number].num_rows for number, _ in places
    ):
        raise SidecarError(_CONTRADICTION)


class _Sealed(msgspec.Struct):
    sha256: str


def mirrors(recorded: Sequence[CheckpointFile], checkpoint: Checkpoint) -> bool:
    """Tell whether a checkpoint has the files that were recorded, by name and size."""
    return [each.identity for each in recorded] == [file_identity(each.info) for each in checkpoint.files]


def file_identity(info: ObjectInfo) -> tuple[str, int]:
    """Return a file's name and size."""
    return info.path.rpartition("/")[2], info.size


def range_key(path: tuple[str, ...]) -> str:
    """Return the name of a column in ``ranges``."""
    return ".".join(name.replace("\\", "\\\\").replace(".", "\\.") for name in path)


def seal(data: bytes) -> bytes:
    """Put the digest of a manifest's bytes in place of the 64 zeros that they hold for it."""
    return sealed(data, data.rfind(UNSEALED.encode()))


def _place_of(data: bytes, digest: str) -> int:
    """Return where the digest stands: the last field, so that nothing else of this text comes later."""
    mark = digest.encode()
    place = data.rfind(mark)
    if len(mark) != len(UNSEALED) or place < 0:
        message = "the digest is not where it should be"
        raise ValueError(message)
    return place


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the manifest."""
    return msgspec.json.schema(Manifest)

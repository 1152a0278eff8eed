"""``Manifest``: maps the sort order to byte ranges of a sidecar. Writing it is the sidecar's only commit point."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Self

import msgspec

from lazydelta.errors import ObjectNotFoundError
from lazydelta.log.segment import Checkpoint, list_from
from lazydelta.protocol.actions import Count, DomainMetadata, Metadata, Protocol, Txn
from lazydelta.protocol.file_names import MAX_VERSION, FileKind
from lazydelta.sidecar.format.columns import FOLDER, READ_FORMATS, SidecarColumn, SidecarLayout, SortColumn
from lazydelta.storage import ObjectInfo, Pending, Store

__all__ = [
    "UNSEALED",
    "CheckpointFile",
    "FolderFile",
    "Manifest",
    "ManifestIndex",
    "ManifestLeaf",
    "ManifestLeaves",
    "ManifestPart",
    "ManifestRowGroup",
    "OtherCheckpointError",
    "Proof",
    "RangeText",
    "SidecarError",
    "StatsFile",
    "UnsealedError",
    "are_in_place",
    "check_groups",
    "file_identity",
    "is_in_folder",
    "is_sealed",
    "list_folder",
    "listed_checkpoints",
    "mirrors",
    "prove",
    "range_key",
    "record",
    "seal",
    "sealed",
    "start_proof",
]


# The embedded digest of manifests and part footers. It is computed over the same bytes with zeros in its place, so each
# object can be verified on its own.


UNSEALED = "0" * 64
"""Placeholder for the digest until it is computed."""


def sealed(data: bytes, place: int) -> bytes:
    """Write the digest of the bytes at ``place``, which must hold ``UNSEALED``."""
    return _with(data, place, hashlib.sha256(data).hexdigest())


def is_sealed(data: bytes, place: int) -> bool:
    """Return whether the digest at ``place`` matches the bytes."""
    digest = hashlib.sha256(_with(data, place, UNSEALED)).hexdigest()
    return data[place : place + len(digest)] == digest.encode()


def _with(data: bytes, place: int, mark: str) -> bytes:
    return data[:place] + mark.encode() + data[place + len(mark) :]


MANIFEST_LIMIT = 1 << 20
_CONTRADICTION = "its numbers contradict each other"


class SidecarError(Exception):
    """Raised for an unusable sidecar or manifest. It never escapes a scan: the scan falls back to the next tier."""


class UnsealedError(SidecarError):
    """Raised for a manifest without a digest: another pipeline may have written it (see ``reading.foreign``)."""


class OtherCheckpointError(SidecarError):
    """Raised for a manifest of the right table and version that mirrors a different checkpoint."""


class CheckpointFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of the mirrored checkpoint, as recorded by the builder; see ``Proof``."""

    name: str
    size: Count
    tail_length: Count
    tail_sha256: str
    last_modified: int | None = None
    etag: str | None = None

    @property
    def identity(self) -> tuple[str, int]:
        """Return the name and size, which are always compared with the listing."""
        return self.name, self.size

    def is_untouched(self, info: ObjectInfo) -> bool:
        """Return whether the store identifies the file as the same object that the builder recorded."""
        return self.etag is not None and (self.etag, self.last_modified) == (info.etag, info.last_modified)


class RangeText(msgspec.Struct, frozen=True, omit_defaults=True):
    """The range of one column over the files of a row group or part, as strings in Delta's partition value format."""

    min: str | None = None
    max: str | None = None
    has_missing: bool = False
    has_null: bool = False


class ManifestRowGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A row group: its byte range, and the ranges of the files in it."""

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
    """The second tier of a part: statistics of rarely queried columns, with the same rows as the first tier."""

    file: str
    size: Count
    footer_offset: Count
    footer_length: Count
    footer_sha256: str


class ManifestPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of the sidecar: one Parquet file, or two if it has tiers."""

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
    """A run of consecutive parts, described in a separate file: ``length`` bytes at ``offset``.

    The bytes are compressed; ``raw_length`` is their uncompressed size.
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
    """The leaves of a manifest with many parts, and the file that holds them."""

    file: str
    size: Count
    leaves: tuple[ManifestLeaf, ...]

    def are_in_order(self) -> bool:
        """Return whether the leaves number all parts consecutively and lie within their file."""
        numbers = accumulate((leaf.num_parts for leaf in self.leaves), initial=0)
        return all(
            leaf.first_part == number and leaf.num_parts and leaf.offset + leaf.length <= self.size
            for leaf, number in zip(self.leaves, numbers, strict=False)
        )


class ManifestHead(msgspec.Struct, frozen=True, kw_only=True):
    """The sidecar-wide fields of a manifest and its parts; with many parts, ``leaves`` replaces ``parts``."""

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
        """Return the columns and the sort order of the sidecar."""
        return SidecarLayout(self.columns, self.sort)

    @property
    def stretches(self) -> tuple[ManifestPart, ...] | tuple[ManifestLeaf, ...]:
        """Return the coarsest ranges of the sort order in the manifest: its leaves, or its parts."""
        return self.parts if self.leaves is None else self.leaves.leaves

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Verify and parse the bytes of a manifest."""
        try:
            seal_of = msgspec.json.decode(data, type=_Sealed).sha256
            if seal_of is None:
                message = "it has no digest"
                raise UnsealedError(message)
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
        """Raise unless this manifest belongs to this table and to a checkpoint with the same file names and sizes."""
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
        """Raise if the manifest contradicts itself: a missing row group would hide files."""
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
    """Return whether a file is directly in the sidecar folder."""
    return file.rpartition("/")[0] == FOLDER


class Manifest(ManifestHead, frozen=True, kw_only=True):
    """The manifest as stored; see ``docs/sidecar.md``."""

    row_groups: tuple[ManifestRowGroup, ...] = ()
    sha256: str = UNSEALED

    def encode(self) -> bytes:
        """Return the sealed bytes; a manifest that would be too long leaves row groups to the part footers."""
        data = msgspec.json.encode(self)
        if len(data) > MANIFEST_LIMIT and self.row_groups:
            data = msgspec.json.encode(msgspec.structs.replace(self, row_groups=()))
        return seal(data)

    def check_numbers(self) -> None:
        """Raise if the manifest contradicts itself, including its row groups."""
        super().check_numbers()
        if self.row_groups:
            check_groups(self.row_groups, dict(enumerate(self.parts)))


class ManifestIndex(ManifestHead, frozen=True, kw_only=True):
    """A manifest for lookups: it parses only the row groups of the requested parts."""

    row_groups: msgspec.Raw = msgspec.Raw(b"[]")
    sha256: str = UNSEALED

    def groups_of(self, numbers: Sequence[int]) -> list[ManifestRowGroup] | None:
        """Return the row groups of the given parts, in order; None if only the part footers have them."""
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
    """Raise unless these are all row groups of these parts (by number), in order."""
    places = [(number, index) for number, part in parts.items() for index in range(part.num_row_groups)]
    rows = Counter[int]()
    for group in groups:
        rows[group.part] += group.num_rows
    if [(group.part, group.index) for group in groups] != places or any(
        rows[number] != parts[number].num_rows for number, _ in places
    ):
        raise SidecarError(_CONTRADICTION)


class _Sealed(msgspec.Struct):
    sha256: str | None = None


def mirrors(recorded: Sequence[CheckpointFile], checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint has the recorded files, by name and size."""
    return [each.identity for each in recorded] == [file_identity(each.info) for each in checkpoint.files]


def file_identity(info: ObjectInfo) -> tuple[str, int]:
    """Return a file's name and size."""
    return info.path.rpartition("/")[2], info.size


def range_key(path: tuple[str, ...]) -> str:
    """Return the key of a column in ``ranges``."""
    return ".".join(name.replace("\\", "\\\\").replace(".", "\\.") for name in path)


def seal(data: bytes) -> bytes:
    """Replace the 64-zero placeholder in a manifest's bytes with the digest."""
    return sealed(data, data.rfind(UNSEALED.encode()))


def _place_of(data: bytes, digest: str) -> int:
    """Return the offset of the digest. It is the last field, so its last occurrence is the right one."""
    mark = digest.encode()
    place = data.rfind(mark)
    if len(mark) != len(UNSEALED) or place < 0:
        message = "the digest is not where it should be"
        raise ValueError(message)
    return place


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the manifest."""
    return msgspec.json.schema(Manifest)


# Identify the mirrored checkpoint: by names and sizes, then by the last bytes of its files. A rewound and rewritten log
# can have a checkpoint of the same version and size. If etag and time match the builder's record, nothing is read. Else
# the file was rewritten or copied: its last bytes, with the Parquet footer and statistics, decide. They are read in
# parallel with the first row groups, so a copied table keeps its sidecar.


_BYTES_OF_ALL_ENDS = 64 << 10
_BYTES_OF_ONE_END = 4 << 10


def record(store: Store, files: Sequence[ObjectInfo]) -> tuple[CheckpointFile, ...]:
    """Return manifest entries for the files of a checkpoint; reads the end of each file."""
    # Keep the total over all files small: readers may have to repeat these reads.
    most = max(_BYTES_OF_ONE_END, _BYTES_OF_ALL_ENDS // max(1, len(files)))
    lengths = [min(each.size, most) for each in files]
    fetched = [
        store.fetch(each.path, start=each.size - length, length=length, if_match=each.etag)
        for each, length in zip(files, lengths, strict=True)
    ]
    return tuple(
        CheckpointFile(
            name=each.path.rpartition("/")[2],
            size=each.size,
            tail_length=length,
            tail_sha256=hashlib.sha256(pending.result()).hexdigest(),
            last_modified=each.last_modified,
            etag=each.etag,
        )
        for each, length, pending in zip(files, lengths, fetched, strict=True)
    )


class Proof:
    """Pending reads of the ends of checkpoint files; ``check`` waits for them and raises on a mismatch."""

    def __init__(self, recorded: Sequence[CheckpointFile], ends: Sequence[Pending[bytes]]) -> None:
        self._recorded = recorded
        self._ends = ends
        self._done = False
        self.when_proven: Callable[[], None] | None = None

    def check(self) -> None:
        """Raise unless the checkpoint is the recorded one; later calls return at once."""
        if self._done:
            return
        for recorded, pending in zip(self._recorded, self._ends, strict=True):
            if hashlib.sha256(pending.result()).hexdigest() != recorded.tail_sha256:
                message = f"it mirrors another {recorded.name}, of the same size"
                raise SidecarError(message)
        self._done = True
        if self.when_proven is not None:
            self.when_proven()

    def cancel(self) -> None:
        """Cancel the reads."""
        for pending in self._ends:
            pending.cancel()


def start_proof(store: Store, recorded: Sequence[CheckpointFile], files: Sequence[ObjectInfo]) -> Proof | None:
    """Start comparing a checkpoint with a record of the same names and sizes; None if no read is needed."""
    if all(each.is_untouched(info) for each, info in zip(recorded, files, strict=True)):
        return None
    for each in recorded:
        if not min(each.size, _BYTES_OF_ONE_END) <= each.tail_length <= each.size:
            message = f"it does not identify its {each.name}"
            raise SidecarError(message)
    ends = [
        store.fetch(info.path, start=info.size - each.tail_length, length=each.tail_length)
        for each, info in zip(recorded, files, strict=True)
    ]
    return Proof(recorded, ends)


def prove(store: Store, recorded: Sequence[CheckpointFile], files: Sequence[ObjectInfo]) -> None:
    """Raise unless a checkpoint with the same names and sizes is the recorded one."""
    proof = start_proof(store, recorded, files)
    if proof is not None:
        proof.check()


# Files in ``_delta_log/_sidecars``: recognizes ours by name and ignores all others.


_UUID = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"
_NAME = (
    r"v(?P<version>0|[1-9]\d{0,18})"
    r"(?:(?P<manifest>\.manifest\.json)|(?P<single>\.parquet)|\.(?:index|stats)\.parquet|"
    rf"-{_UUID}(?:(?P<leaves>\.leaves)|-[1-9]\d*(?:\.(?:index|stats))?\.parquet))"
)
_PARTS_ASKED_ONE_BY_ONE = 4


class FolderFile(msgspec.Struct, frozen=True):
    """A lazydelta file in the folder; ``kind`` is manifest, leaves, single, part, or temporary (with version -1)."""

    info: ObjectInfo
    version: int
    kind: str

    @property
    def path(self) -> str:
        """Return the path relative to the table root."""
        return self.info.path


def list_folder(store: Store) -> list[FolderFile]:
    """Return the lazydelta files in the folder."""
    # Official sidecars, whose names are UUIDs, come before ours and may be many.
    return [file for info in store.list(FOLDER, after="v") if (file := _ours(info)) is not None]


def _ours(info: ObjectInfo) -> FolderFile | None:
    match = re.fullmatch(_NAME, info.path.rpartition("/")[2])
    if match is None or int(match["version"]) > MAX_VERSION:
        return None
    kind = next((name for name in ("manifest", "leaves", "single") if match[name]), "part")
    return FolderFile(info, int(match["version"]), kind)


def are_in_place(store: Store, wanted: Mapping[str, int]) -> bool:
    """Return whether all files exist with their sizes; many files are looked up with one listing."""
    if len(wanted) <= _PARTS_ASKED_ONE_BY_ONE:
        found = {path: size for path in wanted if (size := _size_of(store, path)) is not None}
    else:
        found = {info.path: info.size for info in store.list(FOLDER)}
    return all(found.get(path) == size for path, size in wanted.items())


def _size_of(store: Store, path: str) -> int | None:
    try:
        return store.head(path).size
    except ObjectNotFoundError:
        return None


def listed_checkpoints(store: Store, first: int, last: int) -> frozenset[tuple[str, int]]:
    """Return the checkpoint files of these versions that are in the log now, by name and size."""
    return frozenset(
        file_identity(file.info) for file in list_from(store, first, last) if file.kind is FileKind.CHECKPOINT
    )

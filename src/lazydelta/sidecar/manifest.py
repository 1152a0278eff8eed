"""``Manifest``: where in a sidecar which part of the time axis lies; the sidecar's only commit point."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from lazydelta.log.actions import Count, DomainMetadata, Metadata, Protocol, Txn
from lazydelta.log.segment import Checkpoint
from lazydelta.sidecar.format import FORMAT_VERSION, SidecarColumn, SidecarLayout, SortColumn

__all__ = [
    "MANIFEST_LIMIT",
    "CheckpointFile",
    "Manifest",
    "ManifestPart",
    "ManifestRowGroup",
    "RangeText",
    "SidecarError",
    "checkpoint_files",
    "range_key",
    "seal",
    "unsealed",
]

MANIFEST_LIMIT = 1 << 20
_ZEROS = "0" * 64


class SidecarError(Exception):
    """A sidecar or manifest that cannot be used. It never leaves a scan: the next tier answers instead."""


class CheckpointFile(msgspec.Struct, frozen=True):
    """A file of the checkpoint that a sidecar mirrors."""

    name: str
    size: Count


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


class ManifestPart(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of the sidecar."""

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


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest as stored; see ``docs/sidecar.md``."""

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
    row_groups: tuple[ManifestRowGroup, ...] = ()
    sha256: str = _ZEROS

    @property
    def layout(self) -> SidecarLayout:
        """Return the columns and the order of the sidecar."""
        return SidecarLayout(self.columns, self.sort)

    def encode(self) -> bytes:
        """Return the manifest's bytes, sealed; row groups are left to the parts' footers where it would be too long."""
        data = msgspec.json.encode(self)
        if len(data) > MANIFEST_LIMIT and self.row_groups:
            data = msgspec.json.encode(msgspec.structs.replace(self, row_groups=()))
        return seal(data)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Check and parse a manifest's bytes."""
        try:
            seal_of = msgspec.json.decode(data, type=_Sealed).sha256
            if hashlib.sha256(unsealed(data, seal_of)).hexdigest() != seal_of:
                message = "its digest does not match"
                raise SidecarError(message)
            manifest = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
            message = f"it cannot be decoded: {error}"
            raise SidecarError(message) from error
        if manifest.format_version > FORMAT_VERSION:
            message = f"its format version is {manifest.format_version}, and we know {FORMAT_VERSION}"
            raise SidecarError(message)
        return manifest

    def check(self, *, table_id: str, checkpoint: Checkpoint) -> None:
        """Raise unless this manifest is for this table and this very checkpoint."""
        if self.table_id != table_id:
            message = f"it belongs to table {self.table_id}"
        elif self.version != checkpoint.version:
            message = f"it is for version {self.version}"
        elif self.checkpoint != checkpoint_files(checkpoint):
            message = "it mirrors another checkpoint of this version"
        elif not self.parts and self.num_files:
            message = "it has files and no parts"
        else:
            return
        raise SidecarError(message)

    def check_numbers(self) -> None:
        """Raise where the manifest contradicts itself: a row group that it forgets would be files that it hides."""
        if not self._is_consistent():
            message = "its numbers contradict each other"
            raise SidecarError(message)

    def _is_consistent(self) -> bool:
        places = [(number, index) for number, part in enumerate(self.parts) for index in range(part.num_row_groups)]
        rows = [0] * len(self.parts)
        for group in self.row_groups:
            if group.part < len(rows):
                rows[group.part] += group.num_rows
        known = {(column.role, column.path) for column in self.columns}
        return (
            bool(self.parts)
            and self.num_files == sum(part.num_rows for part in self.parts)
            and self.num_row_groups == len(places)
            and all((each.role, each.path) in known for each in self.sort)
            and (
                not self.row_groups
                or (
                    [(group.part, group.index) for group in self.row_groups] == places
                    and rows == [part.num_rows for part in self.parts]
                )
            )
        )


class _Sealed(msgspec.Struct):
    sha256: str


def checkpoint_files(checkpoint: Checkpoint) -> tuple[CheckpointFile, ...]:
    """Return what identifies a checkpoint in a listing."""
    return tuple(CheckpointFile(each.path.rpartition("/")[2], each.info.size) for each in checkpoint.files)


def range_key(path: tuple[str, ...]) -> str:
    """Return the name of a column in ``ranges``."""
    return ".".join(name.replace("\\", "\\\\").replace(".", "\\.") for name in path)


def seal(data: bytes) -> bytes:
    """Put the digest of the bytes in place of the 64 zeros that they hold for it."""
    place = data.rfind(_ZEROS.encode())
    digest = hashlib.sha256(data).hexdigest().encode()
    return data[:place] + digest + data[place + len(digest) :]


def unsealed(data: bytes, digest: str) -> bytes:
    """Return the bytes as they were when their digest was taken."""
    mark = digest.encode()
    place = data.rfind(mark)
    if len(mark) != len(_ZEROS) or place < 0:
        message = "the digest is not where it should be"
        raise ValueError(message)
    return data[:place] + _ZEROS.encode() + data[place + len(mark) :]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the manifest."""
    return msgspec.json.schema(Manifest)

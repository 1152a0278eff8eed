"""The actions of a Delta log, as the protocol names them.

Attributes are snake case, the JSON is camel case. Unknown fields and unknown actions are ignored, as the protocol
asks; what is known is checked by type, so a log that says ``"size": "ten"`` fails here and nowhere later.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec

__all__ = [
    "Add",
    "DeletionVector",
    "DomainMetadata",
    "Format",
    "LogLine",
    "Metadata",
    "Protocol",
    "Remove",
    "SidecarFile",
    "Txn",
]


# JSON has no integer width, Arrow and Parquet do: what does not fit is an error here, not an overflow later.
Long: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Path: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Protocol(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """What a reader and a writer must understand."""

    min_reader_version: Int
    min_writer_version: Int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None


class Format(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """How data files are encoded; only Parquet is ever met."""

    provider: str = "parquet"
    options: dict[str, str | None] | None = None


class Metadata(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """The table's identity, schema and configuration (the ``metaData`` action)."""

    id: str
    schema_string: str
    name: str | None = None
    description: str | None = None
    format: Format = Format()
    partition_columns: tuple[str, ...] = ()
    configuration: dict[str, str | None] | None = None
    created_time: Long | None = None

    def property(self, key: str, default: str | None = None) -> str | None:
        """Return the table property ``key``."""
        value = (self.configuration or {}).get(key)
        return default if value is None else value


class DeletionVector(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """Where the deleted rows of a file are listed."""

    storage_type: str
    path_or_inline_dv: str
    offset: Int | None = None
    size_in_bytes: Int = 0
    cardinality: Long = 0

    @property
    def unique_id(self) -> str:
        """Return the id that makes two versions of one file different files."""
        suffix = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage_type}{self.path_or_inline_dv}{suffix}"


class Add(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """A file that belongs to the table from this version on."""

    path: Path
    size: Count
    modification_time: Long
    partition_values: dict[str, str | None]
    data_change: bool = True
    stats: str | None = None
    tags: dict[str, str | None] | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: Long | None = None
    default_row_commit_version: Long | None = None
    clustering_provider: str | None = None


class Remove(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """A file that belongs to the table no longer."""

    path: Path
    deletion_timestamp: Long | None = None
    data_change: bool = True
    extended_file_metadata: bool | None = None
    partition_values: dict[str, str | None] | None = None
    size: Long | None = None
    stats: str | None = None
    tags: dict[str, str | None] | None = None
    deletion_vector: DeletionVector | None = None
    base_row_id: Long | None = None
    default_row_commit_version: Long | None = None


class Txn(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """How far an application has come."""

    app_id: str
    version: Long
    last_updated: Long | None = None


class DomainMetadata(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """Configuration of a named domain; ``removed`` ends it."""

    domain: str
    configuration: str = ""
    removed: bool = False


class SidecarFile(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """A file of a V2 checkpoint that holds the checkpoint's file actions (not one of our sidecars)."""

    path: Path
    size_in_bytes: Count = 0
    modification_time: Long = 0


_NOTHING = msgspec.Raw()
_NULL = b"null"


class LogLine(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """One line of a commit or of a JSON checkpoint: at most one of these is set.

    Protocol and metadata are decoded when somebody wants them, because only the newest of each counts: one that was
    superseded may lack what a reader needs, and nobody needs it any more.
    """

    add: Add | None = None
    remove: Remove | None = None
    meta_data: msgspec.Raw = _NOTHING
    protocol: msgspec.Raw = _NOTHING
    txn: Txn | None = None
    domain_metadata: DomainMetadata | None = None
    commit_info: dict[str, Any] | None = None
    sidecar: SidecarFile | None = None
    cdc: dict[str, Any] | None = None
    checkpoint_metadata: dict[str, Any] | None = None

    def has(self, name: str) -> bool:
        """Tell whether the line holds the action that this attribute is for."""
        found = getattr(self, name)
        if found is None or found is _NOTHING:
            return False
        return not isinstance(found, msgspec.Raw) or bytes(found) not in {b"", _NULL}

    def describes_table(self) -> bool:
        """Tell whether the line holds protocol or metadata; quick, because most lines do not."""
        if self.protocol is _NOTHING and self.meta_data is _NOTHING:
            return False
        return self.has("protocol") or self.has("meta_data")

    def is_unknown(self) -> bool:
        """Tell whether the line holds an action that we do not know."""
        return not any(self.has(name) for name in self.__struct_fields__)

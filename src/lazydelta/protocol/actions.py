"""The actions of a Delta log, as the protocol names them.

Attributes are snake case, the JSON is camel case. Unknown fields and actions are ignored, as the protocol requires.
Known fields are type-checked, so a log with ``"size": "ten"`` fails here and not later.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    "add_body",
    "cdc_body",
    "domain_body",
    "metadata_body",
    "protocol_body",
    "remove_body",
    "txn_body",
]


# JSON has no integer width, but Arrow and Parquet do: a value that does not fit is an error here, not an overflow
# later.
Long: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Int: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Path: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Protocol(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """The versions and features that a reader and a writer must support."""

    min_reader_version: Int
    min_writer_version: Int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None


class Format(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """The encoding of data files, in practice always Parquet."""

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
    """The location of the deleted rows of a file."""

    storage_type: str
    path_or_inline_dv: str
    offset: Int | None = None
    size_in_bytes: Int = 0
    cardinality: Long = 0

    @property
    def unique_id(self) -> str:
        """Return the id that distinguishes two versions of one file."""
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
    """A file that no longer belongs to the table."""

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
    """The progress of an application."""

    app_id: str
    version: Long
    last_updated: Long | None = None


class DomainMetadata(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """Configuration of a named domain; ``removed`` deletes it."""

    domain: str
    configuration: str = ""
    removed: bool = False


class SidecarFile(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """A file of a V2 checkpoint that holds the checkpoint's file actions (not one of lazydelta's sidecars)."""

    path: Path
    size_in_bytes: Count = 0
    modification_time: Long = 0


_NOTHING = msgspec.Raw()
_NULL = b"null"


class LogLine(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """One line of a commit or of a JSON checkpoint: at most one field is set.

    Protocol and metadata are decoded on demand, because only the newest of each counts. A superseded one may lack
    required fields, which does not matter.
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
        """Return whether the line holds the action of this attribute."""
        found = getattr(self, name)
        if found is None or found is _NOTHING:
            return False
        return not isinstance(found, msgspec.Raw) or bytes(found) not in {b"", _NULL}

    def describes_table(self) -> bool:
        """Return whether the line holds protocol or metadata; fast, because most lines do not."""
        if self.protocol is _NOTHING and self.meta_data is _NOTHING:
            return False
        return self.has("protocol") or self.has("meta_data")

    def is_unknown(self) -> bool:
        """Return whether the line holds an unknown action."""
        return not any(self.has(name) for name in self.__struct_fields__)


# Serialized actions: the fields that commits and checksums write, under the protocol's names.
#
# Unknown fields are omitted instead of written as null, because older readers take a null for a value.


def protocol_body(protocol: Protocol) -> dict[str, Any]:
    """Return the fields of a ``protocol`` action."""
    return _present(msgspec.to_builtins(protocol))


def metadata_body(metadata: Metadata) -> dict[str, Any]:
    """Return the fields of a ``metaData`` action; maps are written even if empty, as the protocol requires."""
    body = _present(msgspec.to_builtins(metadata))
    body["format"] = {"provider": metadata.format.provider, "options": metadata.format.options or {}}
    body["configuration"] = metadata.configuration or {}
    return body


def txn_body(txn: Txn) -> dict[str, Any]:
    """Return the fields of a ``txn`` action."""
    return _present(msgspec.to_builtins(txn))


def domain_body(domain: DomainMetadata) -> dict[str, Any]:
    """Return the fields of a ``domainMetadata`` action."""
    return _present(msgspec.to_builtins(domain))


def add_body(add: Add) -> dict[str, Any]:
    """Return the fields of an ``add`` action."""
    body: dict[str, Any] = {
        "path": add.path,
        "partitionValues": add.partition_values,
        "size": add.size,
        "modificationTime": add.modification_time,
        "dataChange": add.data_change,
    }
    return body | _optional(
        stats=add.stats,
        tags=add.tags,
        deletionVector=_vector(add.deletion_vector),
        baseRowId=add.base_row_id,
        defaultRowCommitVersion=add.default_row_commit_version,
        clusteringProvider=add.clustering_provider,
    )


def cdc_body(file: Add) -> dict[str, Any]:
    """Return the fields of a ``cdc`` action, which names a file with changed rows."""
    return {"path": file.path, "partitionValues": file.partition_values, "size": file.size, "dataChange": False}


def remove_body(remove: Remove) -> dict[str, Any]:
    """Return the fields of a ``remove`` action."""
    body: dict[str, Any] = {"path": remove.path, "dataChange": remove.data_change}
    return body | _optional(
        deletionTimestamp=remove.deletion_timestamp,
        extendedFileMetadata=remove.extended_file_metadata,
        partitionValues=remove.partition_values,
        size=remove.size,
        stats=remove.stats,
        tags=remove.tags,
        deletionVector=_vector(remove.deletion_vector),
        baseRowId=remove.base_row_id,
        defaultRowCommitVersion=remove.default_row_commit_version,
    )


def _vector(vector: DeletionVector | None) -> dict[str, Any] | None:
    return None if vector is None else _present(msgspec.to_builtins(vector))


def _optional(**fields: Any) -> dict[str, Any]:
    return _present(fields)


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}

"""The table's metadata and protocol in familiar shapes: lists, a dictionary, a tuple to unpack.

The actions of the log (`protocol.actions`) are frozen and shared. The objects returned here belong to the caller.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lazydelta.protocol.actions import Metadata, Protocol

__all__ = ["DeltaTableConfig", "ProtocolVersions", "TableMetadata"]


class TableMetadata:
    """The table's metadata: id, name, description, partition columns, configuration, creation time."""

    __slots__ = ("_metadata",)

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    @property
    def id(self) -> str:
        """The table's unique id."""
        return self._metadata.id

    @property
    def name(self) -> str | None:
        """The table's name, if it has one."""
        return self._metadata.name

    @property
    def description(self) -> str | None:
        """The table's description, if it has one."""
        return self._metadata.description

    @property
    def partition_columns(self) -> list[str]:
        """The partition columns, in order."""
        return list(self._metadata.partition_columns)

    @property
    def created_time(self) -> int | None:
        """When the table was created, in epoch milliseconds."""
        return self._metadata.created_time

    @property
    def configuration(self) -> dict[str, Any]:
        """The table's properties."""
        return dict(self._metadata.configuration or {})

    @property
    def schema_string(self) -> str:
        """The schema string as stored in the log."""
        return self._metadata.schema_string

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TableMetadata):
            return NotImplemented
        return self._metadata == other._metadata

    def __hash__(self) -> int:
        return hash(self._metadata.id)

    def __repr__(self) -> str:
        return (
            f"Metadata(id: {self.id}, name: {self.name}, description: {self.description}, "
            f"partition_columns: {self.partition_columns}, created_time: {self.created_time}, "
            f"configuration: {self.configuration})"
        )


class ProtocolVersions(NamedTuple):
    """The versions and features that readers and writers must support; features are None in older protocol versions."""

    min_reader_version: int
    min_writer_version: int
    writer_features: list[str] | None
    reader_features: list[str] | None

    @classmethod
    def of(cls, protocol: Protocol) -> ProtocolVersions:
        """Return the protocol action in this shape."""
        return cls(
            protocol.min_reader_version,
            protocol.min_writer_version,
            None if protocol.writer_features is None else list(protocol.writer_features),
            None if protocol.reader_features is None else list(protocol.reader_features),
        )


class DeltaTableConfig(NamedTuple):
    """How deltalake loads a table; lazydelta always loads files lazily, whatever these options say."""

    without_files: bool = False
    log_buffer_size: int = 8
    skip_stats: bool = False

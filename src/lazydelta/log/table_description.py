"""What a table says of itself, in the shapes that people know: lists, a dictionary, a tuple to unpack.

The actions of the log (`log.actions`) are frozen and shared; what is handed out here is the caller's own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lazydelta.log.actions import Metadata, Protocol

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
        """The table's name, where somebody gave it one."""
        return self._metadata.name

    @property
    def description(self) -> str | None:
        """The table's description, where somebody gave it one."""
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
        """The schema as the log holds it."""
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
    """What readers and writers of the table must understand; features are None below the versions that list them."""

    min_reader_version: int
    min_writer_version: int
    writer_features: list[str] | None
    reader_features: list[str] | None

    @classmethod
    def of(cls, protocol: Protocol) -> ProtocolVersions:
        """Return the protocol of the log in this shape."""
        return cls(
            protocol.min_reader_version,
            protocol.min_writer_version,
            None if protocol.writer_features is None else list(protocol.writer_features),
            None if protocol.reader_features is None else list(protocol.reader_features),
        )


class DeltaTableConfig(NamedTuple):
    """How deltalake loads a table; here no file is loaded before somebody asks, whatever it says."""

    without_files: bool = False
    log_buffer_size: int = 8
    skip_stats: bool = False

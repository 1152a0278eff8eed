"""What ``info`` tells of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from lazydelta.table import DeltaTable

__all__ = ["Column", "TableInfo", "describe_table"]


class Column(msgspec.Struct, frozen=True):
    """A column of the table; ``type`` is PyArrow's name for it."""

    name: str
    type: str
    nullable: bool


class TableInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``info`` tells; moments are epoch milliseconds."""

    uri: str
    version: int
    timestamp: int | None
    operation: str | None
    id: str
    name: str | None
    description: str | None
    created_time: int | None
    partition_columns: list[str]
    columns: list[Column]
    min_reader_version: int
    min_writer_version: int
    reader_features: list[str]
    writer_features: list[str]
    properties: dict[str, str | None]
    checkpoint_version: int | None
    tail_commits: int


def describe_table(table: DeltaTable) -> TableInfo:
    """Gather what ``info`` tells; one request for the newest commit, none for files."""
    metadata, protocol = table.metadata(), table.protocol()
    newest: dict[str, Any] = next(iter(table.history(1)), {})
    timestamp, operation = newest.get("timestamp"), newest.get("operation")
    plan = table.files().explain().plan
    return TableInfo(
        uri=table.table_uri,
        version=table.version(),
        timestamp=timestamp if isinstance(timestamp, int) else None,
        operation=operation if isinstance(operation, str) else None,
        id=metadata.id,
        name=metadata.name,
        description=metadata.description,
        created_time=metadata.created_time,
        partition_columns=list(metadata.partition_columns),
        columns=[Column(field.name, str(field.type), field.nullable) for field in table.schema().to_arrow()],
        min_reader_version=protocol.min_reader_version,
        min_writer_version=protocol.min_writer_version,
        reader_features=sorted(protocol.reader_features or ()),
        writer_features=sorted(protocol.writer_features or ()),
        properties=dict(metadata.configuration or {}),
        checkpoint_version=plan["base_version"],
        tail_commits=plan["tail_commits"],
    )

"""Column mapping as a writer has it: files carry physical names and ids, and new columns get some of their own.

Rows are worked with under the names that people see. Only what is stored (files, their statistics, partition values in
the log) has the physical ones, so they are given at the last step, to columns as they are in memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import UnknownColumnError
from lazydelta.log.actions import Metadata
from lazydelta.types.schema import Array, DataType, Field, Map, Struct, TableSchema

__all__ = ["PhysicalColumns", "mapped_metadata", "mapping_of"]

_MODE = "delta.columnMapping.mode"
_MAX_ID = "delta.columnMapping.maxColumnId"
_ID = "delta.columnMapping.id"
_NAME = "delta.columnMapping.physicalName"


def mapping_of(metadata: Metadata) -> str:
    """Return the mode of column mapping; that the protocol has the feature was seen before."""
    return (metadata.property(_MODE) or "none").lower()


class PhysicalColumns:
    """The columns of data files: all but those of partitions, under their physical names and with their ids."""

    def __init__(self, table: TableSchema) -> None:
        stored = [each for each in table.fields if each.name not in table.partition_columns]
        self.schema: pa.Schema = pa.schema([_field(each) for each in stored])
        self.partition_columns: tuple[str, ...] = table.physical_partition_columns
        self._table = table

    def renamed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows under physical names; no value is copied."""
        columns = [
            column if column.type == field.type else column.view(field.type)
            for column, field in zip(rows.columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def path_texts(self, names: Sequence[str] | None) -> tuple[str, ...] | None:
        """Return the columns that a property names as statistics name them; what is no column is left out."""
        if names is None:
            return None
        found = []
        for name in names:
            with suppress(UnknownColumnError):
                found.append(".".join(f"`{part}`" for part in self._table.column(name).physical_path))
        return tuple(found)


def mapped_metadata(metadata: Metadata) -> Metadata:
    """Return the metadata with ids and physical names for columns that have none yet, where the table maps columns."""
    if mapping_of(metadata) == "none":
        return metadata
    schema = msgspec.json.decode(metadata.schema_string)
    fields = list(_structs(schema))
    known = [each["metadata"][_ID] for each in fields if isinstance((each.get("metadata") or {}).get(_ID), int)]
    highest = max([int(metadata.property(_MAX_ID) or 0), *known])
    for each in fields:
        notes = each.get("metadata") or {}
        if _NAME not in notes:
            highest += 1
            # The same for whoever prepares a write and for whoever commits it; no id of a table is given twice.
            unique = uuid.uuid5(uuid.NAMESPACE_OID, f"{metadata.id}/{highest}/{each['name']}")
            each["metadata"] = notes | {_ID: highest, _NAME: f"col-{unique}"}
    configuration = dict(metadata.configuration or {}) | {_MAX_ID: str(highest)}
    text = msgspec.json.encode(schema).decode()
    return msgspec.structs.replace(metadata, schema_string=text, configuration=configuration)


def _structs(kind: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of a schema as JSON has it, those inside others too."""
    if not isinstance(kind, dict):
        return
    for each in kind.get("fields", ()):
        yield each
        yield from _structs(each["type"])
    for part in ("elementType", "keyType", "valueType"):
        yield from _structs(kind.get(part))


def _field(field: Field) -> pa.Field:
    notes = None if field.field_id is None else {"PARQUET:field_id": str(field.field_id)}
    return pa.field(field.physical_name, _type(field.type), nullable=field.nullable, metadata=notes)


def _type(kind: DataType) -> pa.DataType:
    match kind:
        case Struct(fields):
            return pa.struct([_field(each) for each in fields])
        case Array(element, contains_null):
            return pa.list_(pa.field("element", _type(element), nullable=contains_null))
        case Map(key, value, value_contains_null):
            return pa.map_(
                pa.field("key", _type(key), nullable=False),
                pa.field("value", _type(value), nullable=value_contains_null),
            )
        case _:
            return kind.to_arrow()

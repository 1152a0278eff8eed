"""Column mapping for writers: files use physical names and ids, and new columns get their own.

Rows are processed under their logical names. Only stored data (files, statistics, partition values in the log) uses
physical names, so they are applied in the last step, without copying columns.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import SchemaMismatchError, UnknownColumnError
from lazydelta.log.replay import ReverseCommitReader
from lazydelta.log.segment import list_commits
from lazydelta.protocol.actions import Metadata
from lazydelta.protocol.properties import Key
from lazydelta.protocol.schema import Array, DataType, Field, Map, Struct, TableSchema
from lazydelta.sidecar.handle import Snapshot

__all__ = ["PhysicalColumns", "check_names", "mapped_metadata", "mapping_of", "with_own_names"]

# Delta-Spark refuses these in the names of columns that are not mapped.
_FORBIDDEN = frozenset(" ,;{}()\n\t=")


def mapping_of(metadata: Metadata) -> str:
    """Return the column mapping mode. The caller has checked that the protocol has the feature."""
    return (metadata.property(Key.COLUMN_MAPPING_MODE) or "none").lower()


class PhysicalColumns:
    """The columns of data files: all but the partition columns, with physical names and ids."""

    def __init__(self, table: TableSchema) -> None:
        stored = [each for each in table.fields if each.name not in table.partition_columns]
        self.schema: pa.Schema = pa.schema([_field(each) for each in stored])
        self.partition_columns: tuple[str, ...] = table.physical_partition_columns
        self._table = table

    def renamed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows under physical names, without copying values."""
        columns = [
            column if column.type == field.type else column.view(field.type)
            for column, field in zip(rows.columns, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def path_texts(self, names: Sequence[str] | None) -> tuple[str, ...] | None:
        """Return the columns named by a property as physical paths for statistics. Unknown columns are skipped."""
        if names is None:
            return None
        found = []
        for name in names:
            with suppress(UnknownColumnError):
                found.append(".".join(f"`{part}`" for part in self._table.column(name).physical_path))
        return tuple(found)


def check_names(metadata: Metadata, known: Metadata | None = None) -> None:
    """Raise if the names of columns require column mapping. ``known`` is the table, whose own names may stay."""
    old = () if known is None else _structs(msgspec.json.decode(known.schema_string))
    kept = {each["name"] for each in old}
    for each in _structs(msgspec.json.decode(metadata.schema_string)):
        name = each["name"]
        if name not in kept and not _FORBIDDEN.isdisjoint(name):
            shown = ", ".join(map(repr, sorted(_FORBIDDEN.intersection(name))))
            message = f"The column name {name!r} holds {shown}, which other Delta readers reject"
            hint = "rename the column, or set the property delta.columnMapping.mode of the table to 'name'"
            raise SchemaMismatchError(message, hint=hint)


def with_own_names(metadata: Metadata, *, is_new: bool = False) -> Metadata:
    """Return the metadata of a table whose columns become mapped: files have them under their current names.

    In a new table, names that are no names of files' columns get others there.
    """
    schema = msgspec.json.decode(metadata.schema_string)
    number = _highest_id(metadata)
    for each in _structs(schema):
        notes = each.get("metadata") or {}
        if Key.PHYSICAL_NAME not in notes:
            number += 1
            is_plain = not is_new or (each["name"] and _FORBIDDEN.isdisjoint(each["name"]))
            physical = each["name"] if is_plain else _physical_name("", number, each["name"])
            each["metadata"] = notes | {Key.COLUMN_ID: number, Key.PHYSICAL_NAME: physical}
    configuration = dict(metadata.configuration or {}) | {Key.MAX_COLUMN_ID: str(number)}
    text = msgspec.json.encode(schema).decode()
    return msgspec.structs.replace(metadata, schema_string=text, configuration=configuration)


def mapped_metadata(metadata: Metadata, snapshot: Snapshot) -> Metadata:
    """Return the metadata with ids and physical names for new columns, if the table uses column mapping.

    ``snapshot`` is the version that the columns are added to.
    """
    if mapping_of(metadata) == "none":
        check_names(metadata, snapshot.metadata)
        return metadata
    schema = msgspec.json.decode(metadata.schema_string)
    fields = list(_structs(schema))
    highest = max(_highest_id(metadata), _highest_logged_id(snapshot))
    for each in fields:
        notes = each.get("metadata") or {}
        if Key.PHYSICAL_NAME not in notes:
            highest += 1
            physical = _physical_name(metadata.id, highest, each["name"])
            each["metadata"] = notes | {Key.COLUMN_ID: highest, Key.PHYSICAL_NAME: physical}
    configuration = dict(metadata.configuration or {}) | {Key.MAX_COLUMN_ID: str(highest)}
    text = msgspec.json.encode(schema).decode()
    return msgspec.structs.replace(metadata, schema_string=text, configuration=configuration)


def _physical_name(table: str, number: int, name: str) -> str:
    # Deterministic, so that preparing and committing a write agree: a new table has another id each time. A table never
    # reuses the id of a column.
    return f"col-{uuid.uuid5(uuid.NAMESPACE_OID, f'{table}/{number}/{name}')}"


def _highest_id(metadata: Metadata) -> int:
    """Return the highest id in the schema or in the property."""
    fields = _structs(msgspec.json.decode(metadata.schema_string))
    ids = [(each.get("metadata") or {}).get(Key.COLUMN_ID) for each in fields]
    return max([int(metadata.property(Key.MAX_COLUMN_ID) or 0), *(each for each in ids if isinstance(each, int))])


def _highest_logged_id(snapshot: Snapshot) -> int:
    """Return the highest id that any commit in the log has assigned.

    An id is never reused, but a restore by delta-rs resets the property. Columns are added rarely enough to read the
    commits again.
    """
    found = [0]
    commits = list(list_commits(snapshot.store, 0, snapshot.version))
    for commit in ReverseCommitReader(snapshot.store, commits, whole=True):
        for lines in commit.actions:
            logged = [msgspec.json.decode(line.meta_data, type=Metadata) for line in lines if line.has("meta_data")]
            found += [_highest_id(each) for each in logged if mapping_of(each) != "none"]
    return max(found)


def _structs(kind: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of a JSON schema, including nested ones."""
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

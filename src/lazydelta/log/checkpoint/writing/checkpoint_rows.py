"""The rows of a V1 checkpoint: columns named and nested as Delta-Spark writes them, and actions made to fit them.

Arrays are built from buffers: a checkpoint is written in the process of whoever committed, and the obvious
``pa.array`` would import pandas there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import bitmap, boolean_array, nested, string_array, typed_array
from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, FileBatch
from lazydelta.log.properties import TableProperties
from lazydelta.log.snapshot import Snapshot
from lazydelta.stats import Ranges, has_range, partition_ranges, stats_ranges
from lazydelta.stats.chosen_columns import stats_columns
from lazydelta.types.schema import Column, Variant

__all__ = ["REMOVE", "CheckpointLayout", "remove_array"]

_STATS_BYTES = 100  # of a column, as text: minimum, maximum and count of nulls with their names
_STRINGS = pa.list_(pa.field("element", pa.string()))
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
# Tombstones are there for VACUUM: the protocol leaves `stats` and `tags` out of them.
REMOVE = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", PARTITION_VALUES),
        ("size", pa.int64()),
        ("deletionVector", DELETION_VECTOR),
        ("baseRowId", pa.int64()),
        ("defaultRowCommitVersion", pa.int64()),
    ]
)
_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", PARTITION_VALUES)])),
        ("schemaString", pa.string()),
        ("partitionColumns", _STRINGS),
        ("configuration", PARTITION_VALUES),
        ("createdTime", pa.int64()),
    ]
)
_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", _STRINGS),
        ("writerFeatures", _STRINGS),
    ]
)
_DOMAIN = pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())])

_encoder = msgspec.json.Encoder(decimal_format="number")

_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """The columns of one table's checkpoint; every method returns whole rows of it."""

    schema: pa.Schema
    stats: tuple[Column, ...]
    partitions: tuple[Column, ...]
    json_stats: bool
    struct_stats: bool

    @classmethod
    def of(cls, snapshot: Snapshot) -> CheckpointLayout:
        """Lay the checkpoint of a version out by its schema and properties."""
        properties, table = TableProperties.of(snapshot.metadata), snapshot.schema
        layout = cls(
            pa.schema([]),
            stats=tuple(each for each in stats_columns(table, properties) if not isinstance(each.type, Variant)),
            partitions=tuple(table.column((name,)) for name in table.partition_columns),
            json_stats=properties.stats_as_json,
            struct_stats=properties.stats_as_struct,
        )
        columns = {
            "txn": _TXN,
            "add": layout._add_array(_NO_FILES).type,
            "remove": REMOVE,
            "metaData": _METADATA,
            "protocol": _PROTOCOL,
            "domainMetadata": _DOMAIN,
        }
        return replace(layout, schema=pa.schema(list(columns.items())))

    def rows_in(self, size: int) -> int:
        """Return how many files have about ``size`` bytes of statistics, 1,024 at the most."""
        return min(1024, max(1, size // (_STATS_BYTES * (len(self.stats) + 1))))

    def actions(self, name: str, actions: Sequence[msgspec.Struct]) -> pa.RecordBatch:
        """Return rows for actions that are not files."""
        rows = [msgspec.to_builtins(action) for action in actions]
        return self.rows(name, _array(rows, self.schema.field(name).type))

    def adds(self, batch: FileBatch) -> pa.RecordBatch:
        """Return rows for active files that were read with their statistics."""
        return self.rows("add", self._add_array(batch))

    def rows(self, name: str, values: pa.Array) -> pa.RecordBatch:
        """Return rows of one kind of action; the columns of the others are null in them."""
        count = len(values)
        columns = [values if field.name == name else pa.nulls(count, field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _add_array(self, batch: FileBatch) -> pa.StructArray:
        count = len(batch)
        vectors = pa.nulls(count, DELETION_VECTOR) if batch.deletion_vector is None else batch.deletion_vector
        fields: dict[str, pa.Array] = {
            "path": batch.path,
            "partitionValues": batch.partition_values,
            "size": batch.size,
            "modificationTime": batch.modification_time,
            "dataChange": boolean_array(np.zeros(count, np.bool_)),
            "tags": _extra(batch, "tags", PARTITION_VALUES),
            "deletionVector": vectors,
            "baseRowId": _extra(batch, "baseRowId", pa.int64()),
            "defaultRowCommitVersion": _extra(batch, "defaultRowCommitVersion", pa.int64()),
            "clusteringProvider": _extra(batch, "clusteringProvider", pa.string()),
        }
        if self.json_stats:
            fields["stats"] = _json_stats(batch)
        if self.struct_stats:
            if self.partitions:
                values = partition_ranges(batch.partition_values, self.partitions)
                leaves = [(each.physical_path, _bound(values, each, "min")) for each in self.partitions]
                fields["partitionValues_parsed"] = nested(leaves)
            fields["stats_parsed"] = self._stats_struct(batch)
        return pa.StructArray.from_arrays(list(fields.values()), names=list(fields))

    def _stats_struct(self, batch: FileBatch) -> pa.StructArray:
        ranges = stats_ranges(batch, self.stats)
        ranged = [column for column in self.stats if has_range(column)]
        leaves: list[tuple[_Path, pa.Array]] = [(("numRecords",), _or_null(ranges.num_records, len(batch), pa.int64()))]
        for section, side, columns in (
            ("minValues", "min", ranged),
            ("maxValues", "max", ranged),
            ("nullCount", "null_count", self.stats),
        ):
            leaves += [((section, *column.physical_path), _bound(ranges, column, side)) for column in columns]
        leaves.append((("tightBounds",), _or_null(ranges.tight_bounds, len(batch), pa.bool_())))
        return nested(leaves, mask=_without_stats(batch))


def remove_array(removes: Sequence[msgspec.Struct]) -> pa.StructArray:
    """Return ``remove`` actions as a column."""
    return _array([msgspec.to_builtins(remove) for remove in removes], REMOVE)


def _without_stats(batch: FileBatch) -> pa.Array:
    missing = boolean_array(np.ones(len(batch), np.bool_))
    for source in (batch.json_stats, batch.parsed_stats):
        if source is not None:
            missing = pc.and_(missing, source.is_null())
    return missing


def _bound(ranges: Ranges, column: Column, side: str) -> pa.Array:
    kind = pa.int64() if side == "null_count" else column.type.to_arrow()
    known = ranges.column(column)
    return _or_null(None if known is None else getattr(known, side), ranges.num_rows, kind)


def _or_null(values: pa.Array | None, count: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(count, kind) if values is None else values


def _extra(batch: FileBatch, name: str, kind: pa.DataType) -> pa.Array:
    return pa.nulls(len(batch), kind) if batch.extra is None else pc.struct_field(batch.extra, name)


def _json_stats(batch: FileBatch) -> pa.Array:
    """Return the statistics as text, written anew where the previous checkpoint had them typed only."""
    texts = _or_null(batch.json_stats, len(batch), pa.string())
    parsed = batch.parsed_stats
    if parsed is None or texts.null_count == 0:
        return texts
    only_typed = pc.and_(texts.is_null(), parsed.is_valid())
    if only_typed.true_count == 0:
        return texts
    written = [_text(struct) for struct in parsed]
    return pc.if_else(only_typed, string_array(written), texts)


def _text(struct: pa.StructScalar) -> str | None:
    try:
        return _encoder.encode(_compact(struct.as_py())).decode() if struct.is_valid else None
    except (ValueError, OverflowError):
        return None  # a date beyond what Python knows: the typed value stays


def _compact(value: Any) -> Any:
    # Native statistics have a null where JSON has nothing.
    if not isinstance(value, dict):
        return value
    return {key: _compact(each) for key, each in value.items() if each is not None}


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build any of the types above from what JSON would hold."""
    count = len(values)
    validity = None if all(value is not None for value in values) else bitmap([value is not None for value in values])
    if pa.types.is_struct(kind):
        children = [_array([value and value.get(field.name) for value in values], field.type) for field in kind]
        return pa.Array.from_buffers(kind, count, [validity], children=children)
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum([len(value or ()) for value in values], out=offsets[1:])
        buffers = [validity, pa.py_buffer(offsets)]
        if pa.types.is_list(kind):
            items = _array([item for value in values for item in value or ()], kind.value_type)
            return pa.Array.from_buffers(kind, count, buffers, children=[items])
        keys = _array([key for value in values for key in value or ()], kind.key_type)
        items = _array([item for value in values for item in (value or {}).values()], kind.item_type)
        entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, count, buffers, children=[entries])
    return string_array(values) if pa.types.is_string(kind) else typed_array(values, kind)


_NO_FILES = FileBatch.from_adds([], extra=True)

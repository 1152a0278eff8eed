"""Rows of a V1 checkpoint, with columns named and nested as Delta-Spark writes them.

Arrays are built from buffers. A checkpoint is written in the committing process, and plain ``pa.array`` would import
pandas there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import LazyDeltaError, ObjectNotFoundError, WriteError
from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, FileBatch
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.protocol.properties import TableProperties
from lazydelta.protocol.schema import Column, Variant
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import bitmap, boolean_array, nested, string_array, typed_array
from lazydelta.runtime.threads import release_memory
from lazydelta.stats import Ranges, has_range, partition_ranges, stats_ranges
from lazydelta.stats.collector import stats_columns
from lazydelta.storage import Store

__all__ = ["REMOVE", "AlreadyThereError", "CheckpointFile", "CheckpointLayout", "json_stats", "remove_array"]


_STATS_BYTES = 100  # per column in JSON: minimum, maximum and null count with their names
_STRINGS = pa.list_(pa.field("element", pa.string()))
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
# Tombstones exist for VACUUM. The protocol omits `stats` and `tags` from them.
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
    """The columns of a table's checkpoint. Every method returns complete rows."""

    schema: pa.Schema
    stats: tuple[Column, ...]
    partitions: tuple[Column, ...]
    json_stats: bool
    struct_stats: bool

    @classmethod
    def of(cls, snapshot: LogSnapshot) -> CheckpointLayout:
        """Return the checkpoint layout of a version, based on its schema and properties."""
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

    def repeated(self) -> list[str]:
        """Return the columns whose values repeat. Others are unique, and a dictionary of them is built in vain."""
        columns = [f"{action}.partitionValues.key_value" for action in ("add", "remove")] + ["add.tags.key_value"]
        names = [f"{column}.{side}" for column in columns for side in ("key", "value")]
        return names + [f"add.partitionValues_parsed.{'.'.join(each.physical_path)}" for each in self.partitions]

    def rows_in(self, size: int) -> int:
        """Return how many files have about ``size`` bytes of statistics, at most 1,024."""
        return min(1024, max(1, size // (_STATS_BYTES * (len(self.stats) + 1))))

    def actions(self, name: str, actions: Sequence[msgspec.Struct]) -> pa.RecordBatch:
        """Return rows for actions other than files."""
        rows = [msgspec.to_builtins(action) for action in actions]
        return self.rows(name, _array(rows, self.schema.field(name).type))

    def adds(self, batch: FileBatch) -> pa.RecordBatch:
        """Return rows for active files read with their statistics."""
        return self.rows("add", self._add_array(batch))

    def rows(self, name: str, values: pa.Array) -> pa.RecordBatch:
        """Return rows of one action type. The columns of other action types are null."""
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
            fields["stats"] = json_stats(batch)
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


def json_stats(batch: FileBatch) -> pa.Array:
    """Return the statistics as JSON strings, re-encoded where the previous checkpoint had only typed statistics."""
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
        return None  # a date outside Python's range: the typed value remains


def _compact(value: Any) -> Any:
    # Typed statistics have a null where JSON omits the key.
    if not isinstance(value, dict):
        return value
    return {key: _compact(each) for key, each in value.items() if each is not None}


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Build an array of any of the types above from JSON-like values."""
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


# ``CheckpointFile``: checkpoint rows encoded lazily as the bytes of one Parquet file.


_GROUP_ROWS = 65_536
_PAGE_BYTES = 1 << 20
# One leaf of each action has Parquet statistics: its null count tells readers which row groups lack that action. Ranges
# of the other columns are unused and would make the footer grow with the table.
_COLUMNS_WITH_NULL_COUNTS = (
    "txn.appId",
    "add.path",
    "remove.path",
    "metaData.id",
    "protocol.minReaderVersion",
    "domainMetadata.domain",
)


class AlreadyThereError(LazyDeltaError):
    """Another process wrote the file first. Raised inside our own upload to abort it, and caught by its caller."""


@dataclass(slots=True)
class CheckpointFile:
    """One file of a version's checkpoint. ``rows`` counts the encoded rows; ``notes`` go into the footer."""

    layout: CheckpointLayout
    path: str
    version: int
    group_bytes: int
    notes: Mapping[str, str] = field(default_factory=dict)
    rows: int = field(default=0, init=False)

    def chunks(
        self, store: Store, batches: Iterable[pa.RecordBatch], advanced: Callable[[], None] | None = None
    ) -> Iterator[bytes]:
        """Yield the bytes of the file. Raise `AlreadyThereError` before the end if ``store`` has the file by then."""
        try:
            yield from self.encoded(batches, advanced, lambda: self._refuse_second(store))
        except LazyDeltaError:
            raise
        except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, KeyError) as error:
            message = f"The checkpoint {self.path} cannot be written: {error}"
            hint = "the table is unharmed and readable without it; report the cause"
            raise WriteError(message, path=self.path, version=self.version, hint=hint) from error

    def encoded(
        self,
        batches: Iterable[pa.RecordBatch],
        advanced: Callable[[], None] | None = None,
        before_last: Callable[[], None] | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes by row group. ``before_last`` is called before the bytes that complete the file."""
        sink = _Sink()
        with closing(
            pq.ParquetWriter(
                pa.PythonFile(sink, mode="w"),
                self.layout.schema,
                compression="zstd",
                use_dictionary=self.layout.repeated(),
                write_statistics=list(_COLUMNS_WITH_NULL_COUNTS),
                write_page_checksum=True,
                # The page size is checked only after this many rows, and readers decode pages whole.
                write_batch_size=self.layout.rows_in(_PAGE_BYTES),
                store_schema=False,
            )
        ) as writer:
            for table in self._row_groups(batches):
                writer.write_table(table, row_group_size=table.num_rows)
                self.rows += table.num_rows
                if advanced is not None:
                    advanced()
                yield from sink.take()
                release_memory()
            if self.notes:
                writer.add_key_value_metadata(dict(self.notes))
        if before_last is not None:
            before_last()
        yield from sink.take()

    def _refuse_second(self, store: Store) -> None:
        # The last bytes complete the file. If another process has written it in the meantime, keep that one.
        if _size_of(store, self.path) > 0:
            raise AlreadyThereError(f"{self.path} was written by another process meanwhile", path=self.path)

    def _row_groups(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= _GROUP_ROWS or size >= self.group_bytes:
                yield pa.Table.from_batches(held)
                held, rows, size = [], 0, 0
        if rows:
            yield pa.Table.from_batches(held)


class _Sink:
    """A file-like object that hands out the bytes written to it."""

    closed = False

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def write(self, data: bytes | memoryview) -> int:
        self._chunks.append(bytes(data))
        return len(data)

    def take(self) -> list[bytes]:
        chunks, self._chunks = self._chunks, []
        return [b"".join(chunks)] if chunks else []

    def flush(self) -> None:
        """Do nothing: no data is buffered."""

    def close(self) -> None:
        """Keep the written bytes for the caller to take."""


def _size_of(store: Store, path: str) -> int:
    try:
        return store.head(path).size
    except ObjectNotFoundError:
        return 0

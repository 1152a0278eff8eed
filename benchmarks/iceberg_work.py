"""PyIceberg on a table of the same files: written once by its own classes, in the environment of the peers, then asked.

The manifests are in order of the hour, as a table that is written hour by hour has them, so that a condition on the
hour leaves most of them out. Each has ten thousand files with bounds of the columns that Delta has statistics of.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import AlwaysTrue, EqualTo, GreaterThanOrEqual
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FILES_A_MANIFEST = 10_000
_PARTITION = "_event_hour"
_FIRST_PARTITION_ID = 1000
_SNAPSHOT = 1
_WRITTEN = "iceberg.metadata.json"


def ask(metadata: str, question: dict[str, Any]) -> dict[str, Any]:
    """Plan a scan, which lists its files."""
    began = time.perf_counter()
    condition: Any = AlwaysTrue()
    if question["device"] is not None:
        condition = EqualTo("device_id", question["device"])
    elif question["since"] is not None:
        condition = GreaterThanOrEqual(_PARTITION, question["since"])
    limit = question["limit"]
    first, count = None, 0
    for _ in StaticTable.from_metadata(metadata).scan(row_filter=condition, limit=limit).plan_files():
        if first is None:
            first = time.perf_counter()
        count += 1
        if count == limit:
            break
    ended = time.perf_counter()
    return {"count": count, "seconds": ended - began, "first_seconds": None if first is None else first - began}


def write(uri: str, folder: str) -> str:
    """Write an Iceberg table of the active files of a Delta table, and return where its metadata is."""
    root = Path(folder)
    if (root / _WRITTEN).exists():
        return str(root / _WRITTEN)
    root.mkdir(parents=True, exist_ok=True)
    files = pa.table(DeltaTable(uri).get_add_actions(flatten=True)).sort_by([(f"partition.{_PARTITION}", "ascending")])
    schema = _schema(files)
    spec = PartitionSpec(
        PartitionField(schema.find_field(_PARTITION).field_id, _FIRST_PARTITION_ID, IdentityTransform(), _PARTITION),
        spec_id=0,
    )
    io = PyArrowFileIO()
    manifests = []
    for number, start in enumerate(range(0, files.num_rows, _FILES_A_MANIFEST)):
        output = io.new_output(str(root / f"manifest-{number}.avro"))
        with write_manifest(2, spec, schema, output, _SNAPSHOT, "deflate") as writer:
            for data in _data_files(files.slice(start, _FILES_A_MANIFEST), schema):
                entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=_SNAPSHOT, data_file=data)
                writer.add_entry(entry)
        manifests.append(writer.to_manifest_file())
    listed = str(root / "manifests.avro")
    with write_manifest_list(2, io.new_output(listed), _SNAPSHOT, None, 1, "deflate") as listing:
        listing.add_manifests(manifests)
    (root / _WRITTEN).write_text(json.dumps(_metadata(root, schema, spec, listed)))
    return str(root / _WRITTEN)


def _schema(files: pa.Table) -> Schema:
    """Return the columns that there are statistics of, and the partition."""
    columns = [name.removeprefix("min.") for name in files.column_names if name.startswith("min.")]
    types = [_type_of(files.schema.field(f"min.{name}").type) for name in columns]
    return Schema(
        *(
            NestedField(number, name, kind, required=False)
            for number, (name, kind) in enumerate(zip([*columns, _PARTITION], [*types, StringType()], strict=True), 1)
        )
    )


def _type_of(kind: pa.DataType) -> Any:
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    for of_arrow, ours in (
        (pa.types.is_timestamp, TimestamptzType),
        (pa.types.is_date, DateType),
        (pa.types.is_boolean, BooleanType),
    ):
        if of_arrow(kind):
            return ours()
    if pa.types.is_int64(kind):
        return LongType()
    if pa.types.is_integer(kind):
        return IntegerType()
    return DoubleType() if pa.types.is_floating(kind) else StringType()


def _data_files(files: pa.Table, schema: Schema) -> Iterator[DataFile]:
    hours = files[f"partition.{_PARTITION}"].to_pylist()
    base = zip(
        files["path"].to_pylist(), files["size_bytes"].to_pylist(), files["num_records"].to_pylist(), hours, strict=True
    )
    fields = [field for field in schema.fields if field.name != _PARTITION]
    bounds = {
        side: [(field.field_id, _encoded(files[f"{side}.{field.name}"], field.field_type)) for field in fields]
        for side in ("min", "max")
    }
    nulls = [(field.field_id, files[f"null_count.{field.name}"].to_pylist()) for field in fields]
    for row, (path, size, records, hour) in enumerate(base):
        data = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(hour),
            record_count=records,
            file_size_in_bytes=size,
            column_sizes={},
            value_counts={number: records for number, _ in nulls},
            null_value_counts={number: values[row] for number, values in nulls if values[row] is not None},
            nan_value_counts={},
            lower_bounds={number: values[row] for number, values in bounds["min"] if values[row] is not None},
            upper_bounds={number: values[row] for number, values in bounds["max"] if values[row] is not None},
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
        )
        data.spec_id = 0
        yield data


def _encoded(values: pa.ChunkedArray, kind: Any) -> list[bytes | None]:
    if isinstance(kind, TimestamptzType):
        values = values.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    elif isinstance(kind, DateType):
        values = values.cast(pa.int32())
    encode: Callable[[Any], bytes] = lambda value: to_bytes(kind, value)  # noqa: E731 - short
    return [None if value is None else encode(value) for value in values.to_pylist()]


def _metadata(root: Path, schema: Schema, spec: PartitionSpec, listed: str) -> dict[str, Any]:
    now = 1_770_764_400_000
    fields = [*schema.fields]
    return {
        "format-version": 2,
        "table-uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, str(root))),
        "location": str(root),
        "last-sequence-number": 1,
        "last-updated-ms": now,
        "last-column-id": len(fields),
        "current-schema-id": 0,
        "schemas": [json.loads(schema.model_dump_json()) | {"schema-id": 0}],
        "default-spec-id": 0,
        "partition-specs": [json.loads(spec.model_dump_json())],
        "last-partition-id": _FIRST_PARTITION_ID,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "current-snapshot-id": _SNAPSHOT,
        "snapshots": [
            {
                "snapshot-id": _SNAPSHOT,
                "sequence-number": 1,
                "timestamp-ms": now,
                "manifest-list": listed,
                "summary": {"operation": "append"},
                "schema-id": 0,
            }
        ],
        "snapshot-log": [],
        "metadata-log": [],
        "properties": {},
        "refs": {"main": {"snapshot-id": _SNAPSHOT, "type": "branch"}},
    }


if __name__ == "__main__":
    print(write(*sys.argv[1:]))

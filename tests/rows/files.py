"""Data files and deletion vectors for the tests of reading rows."""

from __future__ import annotations

import base64
import json
import struct
import uuid
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from lazydelta.data_files.reader import RowReader
from lazydelta.protocol.actions import DeletionVector
from lazydelta.protocol.schema import TableSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pyarrow.compute as pc

    from lazydelta.storage import Store

MAGIC = 1681511377
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


@dataclass
class LoggedFile:
    """A data file as the log describes it."""

    path: str
    size: int
    partition_values: dict[str, str | None] = field(default_factory=dict)
    deletion_vector: DeletionVector | None = None


def column(name: str, kind: object, *, physical: str | None = None, id_: int | None = None) -> dict[str, Any]:
    """Return a field of a schema string, with column mapping where ``physical`` is given."""
    metadata = {} if physical is None else {"delta.columnMapping.physicalName": physical, "delta.columnMapping.id": id_}
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct_type(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array_of(element: object) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def map_of(key: object, value: object) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def schema_of(*fields: dict[str, Any], partitions: Sequence[str] = (), mapping: str = "none") -> TableSchema:
    text = json.dumps(struct_type(*fields))
    return TableSchema.parse(text, partition_columns=tuple(partitions), column_mapping=mapping)


def write(folder: Path, table: pa.Table, name: str = "part-0.parquet", **options: Any) -> LoggedFile:
    pq.write_table(table, folder / name, **options)
    return LoggedFile(name, (folder / name).stat().st_size)


def rows(
    store: Store,
    schema: TableSchema,
    file: LoggedFile,
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | None = None,
    batch_size: int = 65536,
) -> list[dict[str, Any]]:
    """Read a file whole, through validation of every batch."""
    reader = RowReader(store, schema, columns=columns, batch_size=batch_size)
    found: list[dict[str, Any]] = []
    for batch in reader.read(file, filter=where):
        batch.validate(full=True)
        assert batch.schema == reader.schema
        assert 0 < batch.num_rows <= batch_size
        found += batch.to_pylist()
    return found


def z85(raw: bytes) -> str:
    padded = raw + bytes(-len(raw) % 4)
    return base64.b85encode(padded).translate(bytes.maketrans(_B85, _Z85)).decode()


def bitmap(positions: Iterable[int]) -> bytes:
    return struct.pack("<I", MAGIC) + bytes(BitMap64(positions).serialize())


def inline_vector(positions: Sequence[int]) -> DeletionVector:
    raw = bitmap(positions)
    return DeletionVector(
        storage_type="i", path_or_inline_dv=z85(raw), size_in_bytes=len(raw), cardinality=len(set(positions))
    )


def frame(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw + struct.pack(">I", zlib.crc32(raw))


def stored_vector(
    folder: Path, positions: Sequence[int], *, prefix: str = "", padding: int = 0, absolute: bool = False
) -> tuple[DeletionVector, Path]:
    """Write a vector to a file of its own, ``padding`` bytes after the version byte."""
    raw = bitmap(positions)
    key = uuid.uuid4()
    place = folder / prefix / f"deletion_vector_{key}.bin"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"\x01" + bytes(padding) + frame(raw))
    vector = DeletionVector(
        storage_type="p" if absolute else "u",
        path_or_inline_dv=place.as_uri() if absolute else prefix + z85(key.bytes),
        offset=1 + padding,
        size_in_bytes=len(raw),
        cardinality=len(set(positions)),
    )
    return vector, place

"""Checkpoints of every kind, written with pyarrow from a replayed snapshot."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from tests.oracle.replay import arrow_type, parsed_stats

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from tests.oracle.replay import Json, Snapshot

_STRING_MAP = pa.map_(pa.string(), pa.string())
_STRINGS = pa.list_(pa.string())
_DELETION_VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
_REMOVE = pa.struct(
    {
        "path": pa.string(),
        "deletionTimestamp": pa.int64(),
        "dataChange": pa.bool_(),
        "extendedFileMetadata": pa.bool_(),
        "partitionValues": _STRING_MAP,
        "size": pa.int64(),
        "deletionVector": _DELETION_VECTOR,
    }
)
_METADATA = pa.struct(
    {
        "id": pa.string(),
        "name": pa.string(),
        "description": pa.string(),
        "format": pa.struct({"provider": pa.string(), "options": _STRING_MAP}),
        "schemaString": pa.string(),
        "partitionColumns": _STRINGS,
        "configuration": _STRING_MAP,
        "createdTime": pa.int64(),
    }
)
_PROTOCOL = pa.struct(
    {
        "minReaderVersion": pa.int32(),
        "minWriterVersion": pa.int32(),
        "readerFeatures": _STRINGS,
        "writerFeatures": _STRINGS,
    }
)
_TXN = pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()})
_DOMAIN = pa.struct({"domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()})
_CHECKPOINT_METADATA = pa.struct({"version": pa.int64(), "tags": _STRING_MAP})
_SIDECAR = pa.struct(
    {"path": pa.string(), "sizeInBytes": pa.int64(), "modificationTime": pa.int64(), "tags": _STRING_MAP}
)
_NO_BOUNDS = ("variant", "boolean", "binary")
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def physical_name(field: Json) -> str:
    """Return the name that statistics and partition values use for a schema field."""
    metadata: dict[str, str] = field.get("metadata") or {}
    name: str = field["name"]
    return metadata.get("delta.columnMapping.physicalName", name)


def typed(value: Any, delta_type: Any) -> Any:
    """Return a logged statistic or partition text as the value of its type; None if it is none, as Spark does."""
    try:
        return _typed(value, delta_type)
    except ValueError:
        return None


def _typed(value: Any, delta_type: Any) -> Any:
    if value is None or value == "":
        return None
    match delta_type:
        case "date":
            return dt.date.fromisoformat(value)
        case "timestamp":
            timestamp = dt.datetime.fromisoformat(value)
            return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=dt.UTC)
        case "byte" | "short" | "integer" | "long":
            return int(value)
        case "double":
            return float(value)
        case str() if delta_type.startswith("decimal"):
            return Decimal(str(value))
        case _:
            return value


class CheckpointWriter:
    """Writes the checkpoint of one snapshot; what it may vary is drawn from ``rng``."""

    def __init__(self, log: Path, snapshot: Snapshot, rng: random.Random, *, page_checksum: bool = True) -> None:
        self.log = log
        self.snapshot = snapshot
        self.rng = rng
        self.page_checksum = page_checksum
        self.stats = rng.choice(["json", "struct", "both"])
        self.compression = rng.choice(["snappy", "zstd", "none"])
        self.int96 = rng.random() < 0.5  # Spark's default
        assert snapshot.metadata is not None
        partitions = set(snapshot.metadata["partitionColumns"])
        self.partition_fields = [f for f in snapshot.fields if f["name"] in partitions]
        self.data_fields = [f for f in snapshot.fields if f["name"] not in partitions]
        self.parsed_partitions = bool(self.partition_fields) and rng.random() < 0.5

    @property
    def prefix(self) -> str:
        """The start of this checkpoint's file names."""
        return f"{self.snapshot.version:020d}.checkpoint"

    def classic(self) -> list[Path]:
        """Write ``N.checkpoint.parquet`` with everything in it."""
        return [self._parquet(self.log / f"{self.prefix}.parquet", self._state_rows() + self._file_rows())]

    def multipart(self, parts: int) -> list[Path]:
        """Write a classic checkpoint in ``parts`` files."""
        rows = self._state_rows() + self._file_rows()
        self.rng.shuffle(rows)
        return [
            self._parquet(self.log / f"{self.prefix}.{i + 1:010d}.{parts:010d}.parquet", rows[i::parts])
            for i in range(parts)
        ]

    def v2(self, *, main: str, sidecars: int) -> list[Path]:
        """Write a V2 checkpoint; ``main`` is parquet, json or classic, its file actions in ``sidecars`` files."""
        rows: list[Json] = [{"checkpointMetadata": {"version": self.snapshot.version, "tags": None}}]
        rows += self._state_rows()
        files = self._file_rows()
        written = []
        for i in range(sidecars):
            folder = self.log / "_sidecars"
            folder.mkdir(exist_ok=True)
            path = self._parquet(folder / f"{self._uuid()}.parquet", files[i::sidecars], only_files=True)
            written.append(path)
            rows.append({"sidecar": {"path": path.name, "sizeInBytes": path.stat().st_size, "modificationTime": 1}})
        rows += [] if sidecars else files
        if main == "json":
            path = self.log / f"{self.prefix}.{self._uuid()}.json"
            lines = [json.dumps({k: _without_nulls(v) for k, v in row.items()}) for row in rows]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        else:
            name = f"{self.prefix}.parquet" if main == "classic" else f"{self.prefix}.{self._uuid()}.parquet"
            path = self._parquet(self.log / name, rows)
        return [path, *written]

    def _uuid(self) -> str:
        return str(UUID(int=self.rng.getrandbits(128), version=4))

    def _state_rows(self) -> list[Json]:
        state = self.snapshot
        return [
            {"protocol": state.protocol},
            {"metaData": state.metadata},
            *({"txn": txn} for txn in state.transactions.values()),
            *({"domainMetadata": domain} for domain in state.domains.values() if not domain["removed"]),
        ]

    def _file_rows(self) -> list[Json]:
        rows: list[Json] = [{"add": add | {"dataChange": False}} for add in self.snapshot.files.values()]
        rows += [
            {"remove": remove | {"dataChange": False}}
            for remove in self.snapshot.tombstones.values()
            if self.rng.random() < 0.7
        ]
        self.rng.shuffle(rows)
        return rows

    def _add_type(self) -> pa.DataType:
        fields: dict[str, pa.DataType] = {
            "path": pa.string(),
            "partitionValues": _STRING_MAP,
            "size": pa.int64(),
            "modificationTime": pa.int64(),
            "dataChange": pa.bool_(),
            "tags": _STRING_MAP,
            "deletionVector": _DELETION_VECTOR,
        }
        if self.stats != "struct":
            fields["stats"] = pa.string()
        if self.stats != "json":
            bounds = pa.struct(
                {physical_name(f): arrow_type(f["type"]) for f in self.data_fields if f["type"] not in _NO_BOUNDS}
            )
            fields["stats_parsed"] = pa.struct(
                {
                    "numRecords": pa.int64(),
                    "minValues": bounds,
                    "maxValues": bounds,
                    "nullCount": pa.struct({physical_name(f): pa.int64() for f in self.data_fields}),
                    "tightBounds": pa.bool_(),
                }
            )
        if self.parsed_partitions:
            fields["partitionValues_parsed"] = pa.struct(
                {physical_name(f): arrow_type(f["type"]) for f in self.partition_fields}
            )
        return pa.struct(fields)

    def _add_value(self, add: Json) -> Json:
        value = dict(add)
        stats = parsed_stats(add)
        if stats is not None and isinstance(stats.get("numRecords", 0), int):
            types = {physical_name(f): f["type"] for f in self.data_fields}
            value["stats_parsed"] = stats | {
                bound: {k: typed(v, types[k]) for k, v in stats[bound].items() if types[k] not in _NO_BOUNDS}
                for bound in ("minValues", "maxValues")
                if bound in stats
            }
        types = {physical_name(f): f["type"] for f in self.partition_fields}
        value["partitionValues_parsed"] = {k: typed(v, types[k]) for k, v in add["partitionValues"].items()}
        return value

    def _parquet(self, path: Path, rows: list[Json], *, only_files: bool = False) -> Path:
        columns = {"add": self._add_type(), "remove": _REMOVE}
        if not only_files:
            columns |= {
                "metaData": _METADATA,
                "protocol": _PROTOCOL,
                "txn": _TXN,
                "domainMetadata": _DOMAIN,
                "checkpointMetadata": _CHECKPOINT_METADATA,
                "sidecar": _SIDECAR,
            }
        present = {name for row in rows for name in row}
        kept = {name: kind for name, kind in columns.items() if name in present or name in {"add", "remove"}}
        arrays = []
        for name, kind in kept.items():
            values = [row.get(name) for row in rows]
            if name == "add":
                values = [v and self._add_value(v) for v in values]
            arrays.append(pa.array([_fit(v, kind) for v in values], kind))
        pq.write_table(
            pa.table(dict(zip(kept, arrays, strict=True))),
            path,
            row_group_size=self.rng.choice([1, 3, 10, 1000]) if len(rows) < 50 else 100,
            compression=self.compression,
            write_page_checksum=self.page_checksum,
            use_deprecated_int96_timestamps=self.int96,
        )
        return path


def _fit(value: Any, kind: pa.DataType) -> Any:
    """Keep the fields that the type knows, and give maps the shape pyarrow takes."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return list(value.items())
    if pa.types.is_struct(kind):
        return {f.name: _fit(value.get(f.name), f.type) for f in kind}
    return value


def _without_nulls(value: Any) -> Any:
    """Drop absent fields at the top of an action, as writers do; null partition values must stay."""
    return {k: v for k, v in value.items() if v is not None}


def hint_checksum(hint: Json) -> str:
    """Return the MD5 of the protocol's canonical form of ``_last_checkpoint``."""
    pairs: list[tuple[str, str]] = []

    def walk(prefix: str, value: object) -> None:
        match value:
            case dict():
                for name, child in value.items():
                    walk(f'{prefix}+"{quote(name, safe="-._~")}"' if prefix else f'"{quote(name, safe="-._~")}"', child)
            case list():
                for i, child in enumerate(value):
                    walk(f"{prefix}+{i}" if prefix else str(i), child)
            case str():
                pairs.append((prefix, f'"{quote(value, safe="-._~")}"'))
            case _:
                pairs.append((prefix, json.dumps(value)))

    walk("", {k: v for k, v in hint.items() if k != "checksum"})
    pairs.sort(key=lambda pair: pair[0].encode())
    text = ",".join(f"{path}={value}" for path, value in pairs)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def hint_for(snapshot: Snapshot, paths: list[Path], *, parts: int | None = None) -> Json:
    """Return the content of ``_last_checkpoint`` for a checkpoint that was just written."""
    hint: Json = {
        "version": snapshot.version,
        "size": len(snapshot.files) + 2,
        "sizeInBytes": sum(path.stat().st_size for path in paths),
        "numOfAddFiles": len(snapshot.files),
    }
    if parts is not None:
        hint["parts"] = parts
    return hint

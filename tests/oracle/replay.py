"""A plain replay of a Delta log: every commit from the first, in memory, nothing clever.

It is slow and holds everything on purpose. It reads JSON commits only, so a bug in the reading of checkpoints,
compactions, hints or checksums can never be shared with the reader under test.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

Json = dict[str, Any]
Key = tuple[str, str | None]

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "string": pa.string(),
    "binary": pa.binary(),
}


class FileFacts(NamedTuple):
    """What two readers must agree on about one active file."""

    path: str
    size: int
    modification_time: int
    partition_values: tuple[tuple[str, str | None], ...]
    dv_id: str | None
    num_records: int | None


def canonical_path(path: str) -> str:
    """Return the one spelling of a logged path: decoded, and absolute local paths without their scheme."""
    decoded = unquote(path)
    if decoded.startswith("file:"):
        decoded = "/" + decoded.removeprefix("file:").lstrip("/")
    return decoded


def dv_id(action: Json) -> str | None:
    """Return the id of the action's deletion vector."""
    vector = action.get("deletionVector")
    if vector is None:
        return None
    offset = vector.get("offset")
    return f"{vector['storageType']}{vector['pathOrInlineDv']}" + ("" if offset is None else f"@{offset}")


def file_key(action: Json) -> Key:
    """Return what identifies a file: where it is and which of its rows are deleted."""
    return canonical_path(action["path"]), dv_id(action)


def parsed_stats(add: Json) -> Json | None:
    """Return the statistics, or None where there are none or they do not parse."""
    try:
        stats = json.loads(add.get("stats") or "null")
    except json.JSONDecodeError:
        return None
    return stats if isinstance(stats, dict) else None


def num_records(add: Json) -> int | None:
    """Return the row count that the statistics give, or None where they give none."""
    count = (parsed_stats(add) or {}).get("numRecords")
    return count if isinstance(count, int) else None


def arrow_type(delta_type: str | Json) -> pa.DataType:
    """Return the Arrow type of a type in a Delta schema."""
    if isinstance(delta_type, str):
        if delta_type.startswith("decimal("):
            precision, scale = delta_type.removeprefix("decimal(").removesuffix(")").split(",")
            return pa.decimal128(int(precision), int(scale))
        return _PRIMITIVES[delta_type]
    return pa.struct([pa.field(f["name"], arrow_type(f["type"]), f["nullable"]) for f in delta_type["fields"]])


@dataclass
class Snapshot:
    """The state of a table at one version."""

    version: int = -1
    files: dict[Key, Json] = field(default_factory=dict)
    tombstones: dict[Key, Json] = field(default_factory=dict)
    metadata: Json | None = None
    protocol: Json | None = None
    transactions: dict[str, Json] = field(default_factory=dict)
    domains: dict[str, Json] = field(default_factory=dict)

    def apply(self, version: int, actions: Iterable[Json]) -> None:
        """Replay one commit: removes first, then adds, because an add wins over a remove of its own commit."""
        actions = list(actions)
        for action in actions:
            if "remove" in action:
                key = file_key(action["remove"])
                self.files.pop(key, None)
                self.tombstones[key] = action["remove"]
        for action in actions:
            if "add" in action:
                key = file_key(action["add"])
                self.files[key] = action["add"]
                self.tombstones.pop(key, None)
            elif "metaData" in action:
                self.metadata = action["metaData"]
            elif "protocol" in action:
                self.protocol = action["protocol"]
            elif "txn" in action:
                self.transactions[action["txn"]["appId"]] = action["txn"]
            elif "domainMetadata" in action:
                self.domains[action["domainMetadata"]["domain"]] = action["domainMetadata"]
        self.version = version

    @property
    def fields(self) -> list[Json]:
        """The schema's top-level fields as the metadata has them."""
        assert self.metadata is not None
        fields: list[Json] = json.loads(self.metadata["schemaString"])["fields"]
        return fields

    @property
    def schema(self) -> pa.Schema:
        """The schema with logical names."""
        return pa.schema([pa.field(f["name"], arrow_type(f["type"]), f["nullable"]) for f in self.fields])

    @property
    def logical_names(self) -> dict[str, str]:
        """Logical name by physical name; the same names without column mapping."""
        assert self.metadata is not None
        mode = (self.metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")
        if mode == "none":
            return {f["name"]: f["name"] for f in self.fields}
        return {f["metadata"]["delta.columnMapping.physicalName"]: f["name"] for f in self.fields}

    @property
    def facts(self) -> list[FileFacts]:
        """The active files, sorted."""
        names = self.logical_names
        return sorted(
            (
                FileFacts(
                    path=add["path"],
                    size=add["size"],
                    modification_time=add["modificationTime"],
                    partition_values=tuple(
                        sorted((names.get(k, k), v) for k, v in (add.get("partitionValues") or {}).items())
                    ),
                    dv_id=dv_id(add),
                    num_records=num_records(add),
                )
                for add in self.files.values()
            ),
            key=repr,
        )


def commit_name(version: int) -> str:
    """Return the file name of a commit."""
    return f"{version:020d}.json"


def read_commit(log: Path, version: int) -> Iterator[Json]:
    """Yield the actions of a commit."""
    for line in (log / commit_name(version)).read_text(encoding="utf-8").split("\n"):
        if line.strip():
            yield json.loads(line)


def replay(log: Path, version: int | None = None) -> Snapshot:
    """Return the table's state at ``version`` (the latest if None) from a log folder with every commit since 0."""
    snapshot = Snapshot()
    current = 0
    while (version is None or current <= version) and (log / commit_name(current)).is_file():
        snapshot.apply(current, read_commit(log, current))
        current += 1
    if version is not None and snapshot.version != version:
        message = f"the history in {log} ends at {snapshot.version}, before {version}"
        raise AssertionError(message)
    return snapshot

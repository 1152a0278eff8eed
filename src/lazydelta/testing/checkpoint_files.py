"""Checkpoints of generated tables in every layout that readers meet, written in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from lazydelta.testing.files import Destination

__all__ = ["CheckpointLayout", "write_checkpoint"]

_STRINGS = pa.map_(pa.string(), pa.string())
_LIST = pa.list_(pa.string())
_ALL_ROWS = 1 << 26  # the maximum that pyarrow writes into one row group
_PROTOCOL = pa.struct(
    [
        ("minReaderVersion", pa.int32()),
        ("minWriterVersion", pa.int32()),
        ("readerFeatures", _LIST),
        ("writerFeatures", _LIST),
    ]
)
_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("name", pa.string()),
        ("description", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _STRINGS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", _LIST),
        ("configuration", _STRINGS),
        ("createdTime", pa.int64()),
    ]
)
_TXN = pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_REMOVE = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", _STRINGS),
        ("size", pa.int64()),
        ("deletionVector", _VECTOR),
    ]
)
_SIDECAR = pa.struct(
    [("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64()), ("tags", _STRINGS)]
)


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """The layout of a checkpoint: its kind, number of parts, and rows per row group (None: one group per file)."""

    kind: str
    version: int
    parts: int
    row_group_size: int | None
    compression: str
    uuids: tuple[str, ...]


def write_checkpoint(
    destination: Destination,
    layout: CheckpointLayout,
    adds: Iterable[pa.StructArray],
    count: int,
    actions: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Write the checkpoint of ``count`` files and return the content of ``_last_checkpoint``."""
    with destination.scratch() as scratch:
        writer = _Writer(destination, layout, scratch, adds, count)
        return writer.v2(actions) if layout.kind == "v2" else writer.classic(actions)


class _Writer:
    def __init__(
        self,
        destination: Destination,
        layout: CheckpointLayout,
        scratch: Path,
        adds: Iterable[pa.StructArray],
        count: int,
    ) -> None:
        self._destination = destination
        self._layout = layout
        self._scratch = scratch
        self._count = count
        self._stream = _Rebatched(adds)
        self._add = self._stream.type

    def classic(self, actions: dict[str, dict[str, Any]]) -> dict[str, Any]:
        layout = self._layout
        types = {"txn": _TXN, "add": self._add, "remove": _REMOVE, "metaData": _METADATA, "protocol": _PROTOCOL}
        schema = pa.schema(list(types.items()))
        stem = f"{layout.version:020d}.checkpoint"
        parts = layout.parts if layout.kind == "multipart" else 1
        size = 0
        for part, rows in enumerate(_shares(self._count, parts)):
            name = f"{stem}.parquet" if layout.kind == "v1" else f"{stem}.{part + 1:010d}.{parts:010d}.parquet"
            head = [_action_rows(schema, actions)] if part == 0 else []
            size += self._write(name, schema, head, rows)
        hint = {"version": layout.version, "size": self._count + len(actions)}
        hint |= {"parts": parts} if layout.kind == "multipart" else {}
        return hint | {"sizeInBytes": size, "numOfAddFiles": self._count}

    def v2(self, actions: dict[str, dict[str, Any]]) -> dict[str, Any]:
        layout = self._layout
        schema = pa.schema([("add", self._add), ("remove", _REMOVE)])
        sidecars: list[dict[str, Any]] = []
        for uuid, rows in zip(layout.uuids, _shares(self._count, layout.parts), strict=False):
            size = self._write(f"_sidecars/{uuid}.parquet", schema, [], rows)
            sidecars.append({"path": f"{uuid}.parquet", "sizeInBytes": size, "modificationTime": 1_770_760_000_000})
        types = {
            "protocol": _PROTOCOL,
            "metaData": _METADATA,
            "txn": _TXN,
            "sidecar": _SIDECAR,
            "checkpointMetadata": pa.struct([("version", pa.int64()), ("tags", _STRINGS)]),
        }
        top = pa.schema(list(types.items()))
        head = [_action_rows(top, {"checkpointMetadata": {"version": layout.version}, **actions})]
        head += [_action_rows(top, {"sidecar": sidecar}) for sidecar in sidecars]
        name = f"{layout.version:020d}.checkpoint.{layout.uuids[-1]}.parquet"
        size = self._write(name, top, head, 0)
        size += sum(sidecar["sizeInBytes"] for sidecar in sidecars)
        hint = {"version": layout.version, "size": self._count + len(actions) + 1 + len(sidecars)}
        return hint | {"sizeInBytes": size, "numOfAddFiles": self._count}

    def _write(self, name: str, schema: pa.Schema, head: list[pa.Table], rows: int) -> int:
        file = self._scratch / "part.parquet"
        tables = self._tables(schema, head, rows)
        with pq.ParquetWriter(file, schema, compression=self._layout.compression) as out:
            if self._layout.row_group_size is None:
                with _spilled(tables, schema, self._scratch / "spill.arrow") as whole:
                    out.write_table(whole, _ALL_ROWS)
            else:
                for table in _exactly(tables, self._layout.row_group_size):
                    out.write_table(table, self._layout.row_group_size)
        size = file.stat().st_size
        self._destination.write_file(name, file)
        return size

    def _tables(self, schema: pa.Schema, head: list[pa.Table], rows: int) -> Iterator[pa.Table]:
        yield from head
        for adds in self._stream.take(rows):
            yield pa.table(
                [adds if name == "add" else pa.nulls(len(adds), type_) for name, type_ in _fields(schema)], schema
            )


def _fields(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    return zip(schema.names, schema.types, strict=True)


def _shares(count: int, parts: int) -> list[int]:
    return [count * (part + 1) // parts - count * part // parts for part in range(parts)]


def _action_rows(schema: pa.Schema, actions: dict[str, dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([{name: action} for name, action in actions.items()], schema)


class _Rebatched:
    """A stream of slices that can be read in any number of rows."""

    def __init__(self, slices: Iterable[pa.StructArray]) -> None:
        self._slices = iter(slices)
        self._held = next(self._slices)
        self.type = self._held.type

    def take(self, count: int) -> Iterator[pa.StructArray]:
        while count > 0:
            if len(self._held) == 0:
                self._held = next(self._slices)
            step = min(count, len(self._held))
            yield self._held.slice(0, step)
            self._held = self._held.slice(step)
            count -= step


def _exactly(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Split a stream of tables into tables of ``rows`` rows, except for the last one."""
    held: list[pa.Table] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        if count >= rows:
            whole = pa.concat_tables(held)
            done = count - count % rows
            yield whole.slice(0, done)
            held, count = [whole.slice(done)], count - done
    if count:
        yield pa.concat_tables(held)


class _spilled:  # noqa: N801 - used as a context manager
    """All tables as one, through a memory-mapped file on disk.

    A row group is written column by column, so pyarrow needs all its rows at once. A mapped file uses page cache
    instead of process memory, whatever the size of the checkpoint.
    """

    def __init__(self, tables: Iterable[pa.Table], schema: pa.Schema, file: Path) -> None:
        self._file = file
        with pa.OSFile(str(file), "wb") as out, pa.ipc.new_file(out, schema) as writer:
            for table in tables:
                writer.write_table(table)

    def __enter__(self) -> pa.Table:
        self._source = pa.memory_map(str(self._file))
        return pa.ipc.open_file(self._source).read_all()

    def __exit__(self, *_: object) -> None:
        self._source.close()
        self._file.unlink()

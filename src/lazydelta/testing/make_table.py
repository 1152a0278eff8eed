"""``make_table``: a Delta table of any size without its data, for tests and benchmarks of file discovery."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import OptionError
from lazydelta.log.hint import hint_checksum
from lazydelta.protocol.properties import Key
from lazydelta.runtime.arrays import from_numpy
from lazydelta.testing.files import (
    CHOICE,
    PARTITION_COLUMN,
    VECTORS,
    Destination,
    FileMaker,
    LineReader,
    add_lines,
    commit_info,
    hour_text,
    line,
    new_vectors,
    open_destination,
    remove_lines,
    uuid_texts,
)
from lazydelta.testing.stats_columns import StatsColumn, choose_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from os import PathLike
    from pathlib import Path

__all__ = [
    "Checkpoint",
    "CheckpointLayout",
    "Compression",
    "MadeTable",
    "Order",
    "Stats",
    "make_table",
    "write_checkpoint",
]


# Checkpoints of generated tables in every layout that readers meet, written in bounded memory.


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


Compression = Literal["none", "snappy", "zstd"]
Checkpoint = Literal["v1", "multipart", "v2", "none"]
Order = Literal["random", "time"]
Stats = Literal["json", "struct", "both", "none"]

CHECKPOINT_VERSION = 10
_CREATED = 1_770_764_400_000  # 2026-02-10T23:00:00Z: generated tables do not depend on the clock
_SECOND = 1000
_MOST_REMOVES = 1_000_000


@dataclass(frozen=True, slots=True)
class MadeTable:
    """A generated table, with enough facts to check query results against."""

    uri: str
    version: int
    checkpoint_version: int | None
    num_files: int
    size_bytes: int
    first_hour: str
    last_hour: str

    def as_dict(self) -> dict[str, Any]:
        """Return the facts for JSON."""
        return asdict(self)


def make_table(  # noqa: PLR0913 - one name for each property of a table; all but the size have a default
    table_uri: str | PathLike[str],
    *,
    files: int,
    columns: int = 8,
    hours: int = 720,
    order: Order = "random",
    tail: int = 0,
    adds_per_commit: int = 10,
    removes: int = 0,
    deletion_vectors: float = 0.0,
    checkpoint: Checkpoint = "v1",
    parts: int = 4,
    row_group_size: int | None = None,
    compression: Compression = "snappy",
    stats: Stats = "json",
    checksum: bool = False,
    seed: int = 0,
    storage_options: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> MadeTable:
    """Write the log of a table with ``files`` files at its checkpoint. No data file exists.

    The files are in ``hours`` partitions ``_event_hour=yyyyMMddHH`` and have statistics for ``columns`` columns.
    ``order`` is their order in the checkpoint. After it come ``tail`` commits, each adding ``adds_per_commit`` files in
    the newest hour. Together they also remove ``removes`` files of the checkpoint. The fraction ``deletion_vectors`` of
    the checkpoint's files has a deletion vector, and the same fraction of the removed files is added again in the same
    commit with a new one.

    ``checkpoint="none"`` writes the files as commits of ``adds_per_commit`` files instead. ``parts`` is the number of
    files of a multi-part checkpoint, or of sidecars of a V2 checkpoint. ``row_group_size=None`` makes one row group per
    file, like delta-rs. The same arguments make the same bytes. ``progress`` is called for every generated slice of
    files.
    """
    recipe = _Recipe(
        files, columns, hours, order, tail, adds_per_commit, removes, deletion_vectors, checkpoint, parts,
        row_group_size, compression, stats, checksum, seed,
    )  # fmt: skip
    recipe.check()
    destination = open_destination(table_uri, storage_options)
    return _Maker(recipe, destination, progress or (lambda _: None)).make()


@dataclass(frozen=True, slots=True)
class _Recipe:
    files: int
    columns: int
    hours: int
    order: Order
    tail: int
    adds_per_commit: int
    removes: int
    deletion_vectors: float
    checkpoint: Checkpoint
    parts: int
    row_group_size: int | None
    compression: Compression
    stats: Stats
    checksum: bool
    seed: int

    def check(self) -> None:
        for name, allowed in (
            ("checkpoint", Checkpoint),
            ("order", Order),
            ("stats", Stats),
            ("compression", Compression),
        ):
            if getattr(self, name) not in get_args(allowed):
                raise OptionError(f"{name}={getattr(self, name)!r} is not one of {', '.join(get_args(allowed))}")
        for name, least in (("files", 1), ("columns", 1), ("hours", 1), ("tail", 0), ("parts", 1), ("removes", 0)):
            if getattr(self, name) < least:
                raise OptionError(f"{name}={getattr(self, name)} is not valid", hint=f"at least {least}")
        if self.adds_per_commit < (1 if self.checkpoint == "none" else 0):
            raise OptionError(f"adds_per_commit={self.adds_per_commit} is not valid")
        if self.row_group_size is not None and self.row_group_size < 1:
            raise OptionError(f"row_group_size={self.row_group_size} is not valid")
        if not 0 <= self.deletion_vectors <= 1:
            raise OptionError(f"deletion_vectors={self.deletion_vectors} is not a fraction between 0 and 1")
        if self.removes > min(self.files, _MOST_REMOVES) or (self.removes and not self.tail):
            message = f"{self.removes} files cannot be removed by {self.tail} commits from {self.files} files"
            raise OptionError(message, hint=f"at most {_MOST_REMOVES}, and a tail to remove them in")


class _Maker:
    def __init__(self, recipe: _Recipe, destination: Destination, progress: Callable[[int], None]) -> None:
        self._recipe = recipe
        self._destination = destination
        self._progress = progress
        self._files = FileMaker(
            recipe.seed,
            recipe.files,
            recipe.hours,
            recipe.order == "time",
            choose_columns(recipe.columns),
            recipe.stats,
            recipe.deletion_vectors,
        )
        random = np.random.default_rng([recipe.seed, CHOICE])
        self._uuids = uuid_texts(random, recipe.parts + 2)
        chosen = random.choice(recipe.files, recipe.removes, replace=False) if recipe.removes else np.zeros(0, np.int64)
        self._to_remove = np.sort(chosen)
        self._removed: list[pa.StructArray] = []
        self._num_files = 0
        self._size = 0

    def make(self) -> MadeTable:
        recipe = self._recipe
        if recipe.checkpoint == "none":
            version = self._base_commits()
        else:
            version = CHECKPOINT_VERSION
            self._base_checkpoint()
        checkpoint_version = None if recipe.checkpoint == "none" else version
        if recipe.tail:
            version = self._tail(version)
        if recipe.checksum:
            self._checksum(version)
        return MadeTable(
            self._destination.store.uri,
            version,
            checkpoint_version,
            self._num_files,
            self._size,
            hour_text(recipe.hours - 1),
            hour_text(),
        )

    def _base(self) -> Iterator[pa.StructArray]:
        """Yield the base, and keep the files that the tail will remove."""
        start = 0
        for adds in self._files.base():
            first, last = np.searchsorted(self._to_remove, [start, start + len(adds)])
            if last > first:
                self._removed.append(adds.take(from_numpy(self._to_remove[first:last] - start, pa.int64())))
            start += len(adds)
            self._count(adds, 1)
            self._progress(len(adds))
            yield adds

    def _count(self, files: pa.StructArray, sign: int) -> None:
        self._num_files += sign * len(files)
        self._size += sign * int(np.frombuffer(files.field("size").buffers()[1], np.int64, len(files)).sum())

    def _base_checkpoint(self) -> None:
        recipe = self._recipe
        layout = CheckpointLayout(
            recipe.checkpoint,
            CHECKPOINT_VERSION,
            recipe.parts,
            recipe.row_group_size,
            recipe.compression,
            self._uuids[1:],
        )
        actions = {"protocol": self._protocol(), "metaData": self._metadata()}
        hint = write_checkpoint(self._destination, layout, self._base(), recipe.files, actions)
        self._commit(CHECKPOINT_VERSION, "WRITE", [])
        if recipe.checksum:
            hint["checksum"] = hint_checksum(hint)  # as those do that write version checksums
        self._destination.write("_last_checkpoint", [json.dumps(hint).encode()])

    def _base_commits(self) -> int:
        recipe = self._recipe
        lines = LineReader(add_lines(adds) for adds in self._base())
        first = [line({"protocol": self._protocol()}), line({"metaData": self._metadata()})]
        version = -1
        for version, start in enumerate(range(0, recipe.files, recipe.adds_per_commit)):
            count = min(recipe.adds_per_commit, recipe.files - start)
            self._commit(version, "WRITE", first if version == 0 else [], lines.take(count))
        return version

    def _tail(self, version: int) -> int:
        recipe = self._recipe
        removed = pa.concat_arrays(self._removed) if self._removed else None
        removes, returns = LineReader([]), LineReader([])
        back = np.zeros(recipe.removes, np.bool_)
        if removed is not None:
            random = np.random.default_rng([recipe.seed, VECTORS])
            back = random.random(recipe.removes) < recipe.deletion_vectors
            removes = LineReader([remove_lines(removed, _CREATED)])
            returned = _with_new_vectors(removed.take(from_numpy(np.flatnonzero(back), pa.int64())), random)
            returns = LineReader([add_lines(returned)])
            self._count(removed, -1)
            self._count(returned, 1)
        adds = LineReader(self._tail_lines())
        for number in range(recipe.tail):
            first, last = number * recipe.removes // recipe.tail, (number + 1) * recipe.removes // recipe.tail
            version += 1
            operation = "DELETE" if last > first else "WRITE"
            self._commit(
                version,
                operation,
                removes.take(last - first),
                returns.take(int(back[first:last].sum())),
                adds.take(recipe.adds_per_commit),
            )
        return version

    def _tail_lines(self) -> Iterator[pa.Array]:
        for adds in self._files.tail(self._recipe.tail * self._recipe.adds_per_commit):
            self._count(adds, 1)
            self._progress(len(adds))
            yield add_lines(adds)

    def _commit(self, version: int, operation: str, *actions: Iterator[bytes] | list[bytes]) -> None:
        def chunks() -> Iterator[bytes]:
            yield commit_info(version, _CREATED + version * _SECOND, operation)
            for each in actions:
                yield from each

        self._destination.write(f"{version:020d}.json", chunks())

    def _checksum(self, version: int) -> None:
        content = {
            "tableSizeBytes": self._size,
            "numFiles": self._num_files,
            "numMetadata": 1,
            "numProtocol": 1,
            "metadata": self._metadata(),
            "protocol": self._protocol(),
        }
        self._destination.write(f"{version:020d}.crc", [json.dumps(content).encode()])

    def _protocol(self) -> dict[str, Any]:
        features = ["deletionVectors"] if self._recipe.deletion_vectors else []
        features += ["v2Checkpoint"] if self._recipe.checkpoint == "v2" else []
        if not features:
            return {"minReaderVersion": 1, "minWriterVersion": 2}
        return {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": [*features, "appendOnly", "invariants"],
        }

    def _metadata(self) -> dict[str, Any]:
        recipe = self._recipe
        configuration = {}
        if recipe.stats in {"struct", "both"}:
            configuration[Key.STATS_AS_STRUCT] = "true"
        if recipe.stats in {"struct", "none"}:
            configuration[Key.STATS_AS_JSON] = "false"
        if recipe.deletion_vectors:
            configuration[Key.DELETION_VECTORS] = "true"
        if recipe.checkpoint == "v2":
            configuration[Key.CHECKPOINT_POLICY] = "v2"
        return {
            "id": self._uuids[0],
            "format": {"provider": "parquet", "options": {}},
            "schemaString": _schema_text(self._files.columns),
            "partitionColumns": [PARTITION_COLUMN],
            "configuration": configuration,
            "createdTime": _CREATED,
        }


def _schema_text(columns: tuple[StatsColumn, ...]) -> str:
    types = [(PARTITION_COLUMN, "string"), *((column.name, column.delta_type) for column in columns)]
    fields = [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in types]
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


def _with_new_vectors(files: pa.StructArray, random: np.random.Generator) -> pa.StructArray:
    names = [files.type.field(index).name for index in range(files.type.num_fields)]
    vectors = new_vectors(np.ones(len(files), np.bool_), random)
    return pa.StructArray.from_arrays(
        [vectors if name == "deletionVector" else files.field(name) for name in names], names
    )

"""Checkpoints, classic and V2, streamed inside row groups with projection.

Some writers put a whole checkpoint into a single row group, so "one row group at a time" bounds nothing: batches are
decoded page by page from buffers that are small and fixed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from threading import Lock
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lazydelta.errors import CorruptLogError, LazyDeltaError, ObjectNotFoundError
from lazydelta.log.actions import DomainMetadata, LogLine, Metadata, Protocol, SidecarFile, Txn
from lazydelta.log.commits import read_actions
from lazydelta.log.file_batch import DELETION_VECTOR, PARTITION_VALUES, FileBatch
from lazydelta.log.names import LOG, FileKind, LogFile
from lazydelta.log.segment import Checkpoint
from lazydelta.storage import ObjectInfo, Store

__all__ = ["BATCH_SIZE", "CheckpointReader", "StatsWanted"]

BATCH_SIZE = 8192
TIER = 3
_BUFFER = 1 << 20
_CORE = ("path", "size", "modificationTime", "partitionValues", "deletionVector")
_SIDECARS = f"{LOG}/_sidecars"

_ACTIONS: dict[str, type[msgspec.Struct]] = {
    "protocol": Protocol,
    "metaData": Metadata,
    "txn": Txn,
    "domainMetadata": DomainMetadata,
    "sidecar": SidecarFile,
}
_FIELDS = {
    "protocol": "protocol",
    "metaData": "meta_data",
    "txn": "txn",
    "domainMetadata": "domain_metadata",
    "sidecar": "sidecar",
}


@dataclass(frozen=True, slots=True)
class StatsWanted:
    """Which statistics a scan needs: physical column paths, and parsed partition values by physical name.

    ``columns`` None asks for all of them, as text or struct, whichever the checkpoint has.
    """

    columns: tuple[tuple[str, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CheckpointReader:
    """Reads one complete checkpoint.

    ``stats_store`` is where statistics are read that somebody asks for after the scan (``store`` may be closed by
    then); ``row_groups`` is told how many row groups were begun.
    """

    store: Store
    checkpoint: Checkpoint
    batch_size: int = BATCH_SIZE
    stats_store: Store | None = None
    row_groups: Callable[[int], None] | None = None

    def actions(self, *names: str) -> Iterator[LogLine]:
        """Yield the actions of the given kinds (``protocol``, ``metaData``, …) that are not files."""
        for file in self.checkpoint.files:
            if file.is_json:
                wanted = {_FIELDS[name] for name in names}
                for lines in read_actions(self.store, file):
                    yield from (line for line in lines if any(getattr(line, name) is not None for name in wanted))
            else:
                with self._open(file) as parquet:
                    yield from _parquet_actions(parquet, file, [name for name in names if _has(parquet, name)])

    def files(self, stats: StatsWanted | None = None) -> Iterator[FileBatch]:
        """Yield the files of the checkpoint in storage order; statistics are read only when they are wanted."""
        for part in self.parts():
            if part.is_json:
                yield from self._json_files(part)
            else:
                yield from self._parquet_files(part, stats)

    def parts(self) -> Iterator[LogFile]:
        """Yield the files that hold file actions: the checkpoint's own, then the sidecars that it names."""
        yield from self.checkpoint.files
        if len(self.checkpoint.files) > 1:
            return  # only V1 checkpoints have several parts, and those have no sidecars
        for line in self.actions("sidecar"):
            if line.sidecar is not None:
                yield self._sidecar(line.sidecar)

    def _sidecar(self, sidecar: SidecarFile) -> LogFile:
        # The protocol keeps sidecars in their folder and lets writers log the bare name; anything else is an escape.
        owner = self.checkpoint.files[0]
        folder, _, name = unquote(sidecar.path).rpartition("/")
        at_home = not folder or f"/{folder}".endswith(f"/{_SIDECARS}")
        if not at_home or not name.endswith(".parquet") or "\0" in name or "/../" in sidecar.path:
            message = f"{owner.path} names a sidecar {sidecar.path!r}, which is not a Parquet file in {_SIDECARS}"
            raise CorruptLogError(message, path=owner.path, version=owner.version)
        info = ObjectInfo(f"{_SIDECARS}/{name}", sidecar.size_in_bytes, sidecar.modification_time, None)
        return LogFile(FileKind.CHECKPOINT, owner.version, info, owner.version)

    def _json_files(self, part: LogFile) -> Iterator[FileBatch]:
        for lines in read_actions(self.store, part):
            adds = [line.add for line in lines if line.add is not None]
            if adds:
                yield FileBatch.from_adds(adds, tier=TIER)

    def _parquet_files(self, part: LogFile, stats: StatsWanted | None) -> Iterator[FileBatch]:
        with self._open(part) as parquet:
            if not _has(parquet, "add"):
                return
            available = _add_fields(parquet, part)
            columns = [f"add.{name}" for name in _CORE if name in available]
            columns += _stats_columns(stats, available)
            later = None if stats is not None else _LaterStats(self, part, available)
            row, begun = 0, _RowGroups(parquet)
            for batch in _batches(parquet, part, columns, self.batch_size):
                if self.row_groups is not None:
                    self.row_groups(begun.upto(row + batch.num_rows))
                adds = batch.column("add")
                files = _file_batch(adds, part)
                if len(files):
                    yield files if later is None else later.attach(files, row, adds)
                row += batch.num_rows

    @contextmanager
    def _open(self, file: LogFile) -> Iterator[pq.ParquetFile]:
        size = file.info.size
        with _corrupt_if_unreadable(file):
            if size <= 0:
                size = self.store.head(file.path).size
            source = self.store.open_input(file.path, size=size, read_ahead=_BUFFER)
            try:
                yield pq.ParquetFile(
                    source, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True
                )
            finally:
                source.close()


class _RowGroups:
    """Counts the row groups that reading rows in order begins."""

    def __init__(self, parquet: pq.ParquetFile) -> None:
        sizes = [parquet.metadata.row_group(index).num_rows for index in range(parquet.num_row_groups)]
        self._starts = [0, *accumulate(sizes)][:-1]
        self._begun = 0

    def upto(self, row: int) -> int:
        before = self._begun
        self._begun = bisect_left(self._starts, row)
        return self._begun - before


class _LaterStats:
    """Reads the statistics of batches that were emitted without them, when somebody asks after all.

    The cursor moves forward with the batches it is asked for, so a consumer that asks for all of them costs one more
    pass over the statistics column, and one that asks for none costs nothing.
    """

    def __init__(self, reader: CheckpointReader, part: LogFile, available: dict[str, pa.DataType]) -> None:
        self._reader = reader
        self._part = part
        self._columns = _stats_columns(StatsWanted(), available)
        self._cursor: Iterator[pa.RecordBatch] | None = None
        self._held: list[tuple[int, pa.Array]] = []
        self._next_row = 0
        self._lock = Lock()

    def attach(self, files: FileBatch, first_row: int, adds: pa.StructArray) -> FileBatch:
        if not self._columns:
            return files
        live = adds.is_valid() if adds.null_count else None

        def load() -> FileBatch:
            with self._lock:
                found = self._read(first_row, len(adds))
            found = found if live is None else found.filter(live)
            return replace(files, **_stats_of(found), load_stats=None)

        return replace(files, load_stats=load)

    def _read(self, first_row: int, count: int) -> pa.Array:
        if self._cursor is None or first_row < self._start():
            self._cursor = self._open_cursor()
            self._held, self._next_row = [], 0
        while self._next_row < first_row + count:
            try:
                batch = next(self._cursor)
            except StopIteration:
                message = f"{self._part.path} changed while it was read"
                raise CorruptLogError(message, path=self._part.path, version=self._part.version) from None
            self._held.append((self._next_row, batch.column("add")))
            self._next_row += batch.num_rows
            self._held = [(row, adds) for row, adds in self._held if row + len(adds) > first_row]
        pieces = [
            adds.slice(max(0, first_row - row), min(row + len(adds), first_row + count) - max(row, first_row))
            for row, adds in self._held
            if row < first_row + count
        ]
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)

    def _start(self) -> int:
        return self._held[0][0] if self._held else self._next_row

    def _open_cursor(self) -> Iterator[pa.RecordBatch]:
        reader = replace(self._reader, store=self._reader.stats_store or self._reader.store)
        with reader._open(self._part) as parquet:  # noqa: SLF001 - the two halves of one reader
            yield from _batches(parquet, self._part, self._columns, self._reader.batch_size)


@contextmanager
def _corrupt_if_unreadable(file: LogFile) -> Iterator[None]:
    try:
        yield
    except ObjectNotFoundError as error:
        message = f"{file.path} is part of the checkpoint {file.version} and is gone"
        hint = "the log was cleaned up meanwhile: open the table again"
        raise CorruptLogError(message, path=file.path, version=file.version, hint=hint) from error
    except LazyDeltaError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, msgspec.MsgspecError) as error:
        message = f"{file.path} is not a readable checkpoint: {error}"
        hint = "restore it, or delete it if the commits before it are still there"
        raise CorruptLogError(message, path=file.path, version=file.version, hint=hint) from error


def _batches(
    parquet: pq.ParquetFile, file: LogFile, columns: Sequence[str], batch_size: int
) -> Iterator[pa.RecordBatch]:
    with _corrupt_if_unreadable(file):
        batches = parquet.iter_batches(batch_size=batch_size, columns=list(columns), use_threads=False)
    while True:
        with _corrupt_if_unreadable(file):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _has(parquet: pq.ParquetFile, name: str) -> bool:
    return parquet.schema_arrow.get_field_index(name) >= 0


def _add_fields(parquet: pq.ParquetFile, file: LogFile) -> dict[str, pa.DataType]:
    type_ = parquet.schema_arrow.field("add").type
    if not pa.types.is_struct(type_):
        message = f"{file.path} has a column 'add' of type {type_}, which is not a struct"
        raise CorruptLogError(message, path=file.path, version=file.version)
    return {type_.field(index).name: type_.field(index).type for index in range(type_.num_fields)}


def _stats_columns(stats: StatsWanted | None, available: dict[str, pa.DataType]) -> list[str]:
    # Native statistics go first: they need no parsing. A checkpoint may have either, both or none.
    if stats is None:
        return []
    parsed = available.get("stats_parsed")
    if stats.columns is None:
        names = [name for name in ("stats", "stats_parsed") if name in available]
        return [f"add.{name}" for name in names]
    columns: list[str] = []
    if "partitionValues_parsed" in available:
        columns.append("add.partitionValues_parsed")
    if parsed is None or not pa.types.is_struct(parsed):
        return [*columns, "add.stats"] if "stats" in available else columns
    kinds = {parsed.field(index).name for index in range(parsed.num_fields)}
    columns += [f"add.stats_parsed.{name}" for name in ("numRecords", "tightBounds") if name in kinds]
    for path in stats.columns:
        columns += [
            ".".join(("add.stats_parsed", kind, *path))
            for kind in ("minValues", "maxValues", "nullCount")
            if kind in kinds and _nested(parsed.field(kind).type, path)
        ]
    return columns


def _nested(type_: pa.DataType, path: tuple[str, ...]) -> bool:
    for name in path:
        if not pa.types.is_struct(type_) or type_.get_field_index(name) < 0:
            return False
        type_ = type_.field(name).type
    return True


def _file_batch(adds: pa.StructArray, file: LogFile) -> FileBatch:
    with _corrupt_if_unreadable(file):
        if adds.null_count:
            adds = adds.filter(adds.is_valid())
        path = _column(adds, "path", pa.string(), file)
        size = _column(adds, "size", pa.int64(), file)
        modified = _column(adds, "modificationTime", pa.int64(), file)
        if path.null_count or size.null_count or modified.null_count or _any_empty(path):
            message = f"{file.path} holds files without path, size or modification time"
            raise CorruptLogError(message, path=file.path, version=file.version)
        return FileBatch(
            path=path,
            size=size,
            modification_time=modified,
            partition_values=_column(adds, "partitionValues", PARTITION_VALUES, file),
            deletion_vector=_vectors(adds, file),
            tier=TIER,
            **_stats_of(adds),
        )


def _stats_of(adds: pa.StructArray) -> dict[str, pa.Array]:
    found: dict[str, pa.Array] = {}
    for name, field in (
        ("stats", "json_stats"),
        ("stats_parsed", "parsed_stats"),
        ("partitionValues_parsed", "parsed_partitions"),
    ):
        column = _child(adds, name)
        if column is not None:
            found[field] = column.cast(pa.string()) if name == "stats" and column.type != pa.string() else column
    return found


def _child(adds: pa.StructArray, name: str) -> pa.Array | None:
    index = adds.type.get_field_index(name)
    return None if index < 0 else pc.struct_field(adds, [index])


def _column(adds: pa.StructArray, name: str, type_: pa.DataType, file: LogFile) -> pa.Array:
    column = _child(adds, name)
    if column is None:
        message = f"{file.path} has no column 'add.{name}'"
        raise CorruptLogError(message, path=file.path, version=file.version)
    if column.type == type_:
        return column
    # Writers differ in width (int32, large strings) and in the names inside a map; a number for a path is damage.
    alike = (
        (pa.types.is_integer(column.type) and pa.types.is_integer(type_))
        or (_is_text(column.type) and _is_text(type_))
        or (pa.types.is_map(column.type) and _is_text(column.type.key_type) and _is_text(column.type.item_type))
    )
    if not alike:
        message = f"{file.path} has a column 'add.{name}' of type {column.type} where {type_} is due"
        raise CorruptLogError(message, path=file.path, version=file.version)
    return column.cast(type_)


def _is_text(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        return _is_text(type_.value_type)
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_binary(type_))


def _any_empty(path: pa.StringArray) -> bool:
    offsets = np.frombuffer(path.buffers()[1], np.int32, len(path) + 1, path.offset * 4)
    return bool((offsets[1:] == offsets[:-1]).any())


def _vectors(adds: pa.StructArray, file: LogFile) -> pa.Array | None:
    column = _child(adds, "deletionVector")
    if column is None or column.null_count == len(column):
        return None
    if not pa.types.is_struct(column.type):
        message = f"{file.path} has deletion vectors of type {column.type}, which is not a struct"
        raise CorruptLogError(message, path=file.path, version=file.version)
    children = []
    for field in DELETION_VECTOR:
        index = column.type.get_field_index(field.name)
        child = pa.nulls(len(column), field.type) if index < 0 else pc.struct_field(column, [index]).cast(field.type)
        children.append(child)
    # The older writers' checkpoints give every row a struct of nulls; only a storage type makes it a vector.
    return pa.StructArray.from_arrays(children, fields=list(DELETION_VECTOR), mask=children[0].is_null())


def _parquet_actions(parquet: pq.ParquetFile, file: LogFile, names: Sequence[str]) -> Iterator[LogLine]:
    if not names:
        return
    for batch in _batches(parquet, file, names, BATCH_SIZE):
        for name in names:
            column = batch.column(name)
            if column.null_count == len(column):
                continue
            if not pa.types.is_struct(column.type):
                message = f"{file.path} has a column {name!r} of type {column.type}, which is not a struct"
                raise CorruptLogError(message, path=file.path, version=file.version)
            with _corrupt_if_unreadable(file):
                rows = column.filter(column.is_valid()).to_pylist(maps_as_pydicts="strict")
                actions = [msgspec.convert(_without_nulls(row), _ACTIONS[name], strict=True) for row in rows]
            for action in actions:
                yield LogLine(**{_FIELDS[name]: action})


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    # Parquet writes null where JSON leaves a field out, for instance `domainMetadata.removed`.
    return {key: value for key, value in row.items() if value is not None}

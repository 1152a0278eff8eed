"""Checkpoints, classic and V2, streamed inside row groups with projection.

Some writers put a whole checkpoint into a single row group, so "one row group at a time" bounds nothing: batches are
decoded page by page from buffers that are small and fixed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta import compute as pc
from lazydelta.errors import CorruptLogError
from lazydelta.execution import ReadAhead
from lazydelta.log.actions import DomainMetadata, LogLine, Metadata, Protocol, SidecarFile, Txn
from lazydelta.log.checkpoint.bounded_batches import MEMORY_BUDGET, BoundedBatches
from lazydelta.log.checkpoint.checkpoint_columns import (
    TIER,
    StatsWanted,
    add_fields,
    coded_partitions,
    core_columns,
    corrupt_if_unreadable,
    file_batch,
    has_column,
    joined,
    read_batches,
    stats_columns,
)
from lazydelta.log.checkpoint.parquet_pages import Watches
from lazydelta.log.checkpoint.stats_cursor import StatsCursor
from lazydelta.log.commits import read_actions
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.names import LOG, FileKind, LogFile
from lazydelta.log.segment import Checkpoint
from lazydelta.storage import ObjectInfo, Store

__all__ = ["BATCH_SIZE", "SIDECARS", "CheckpointReader", "StatsWanted"]

BATCH_SIZE = 8192
_BUFFER = 1 << 20
_PATH = "add.path"
SIDECARS = f"{LOG}/_sidecars"

_ACTIONS: dict[str, type[msgspec.Struct]] = {
    "protocol": Protocol,
    "metaData": Metadata,
    "txn": Txn,
    "domainMetadata": DomainMetadata,
    "sidecar": SidecarFile,
}
# A field that every action of the kind has. What names further files is read whatever statistics say of it.
_PRESENT = {
    "protocol": "protocol.minReaderVersion",
    "metaData": "metaData.id",
    "txn": "txn.appId",
    "domainMetadata": "domainMetadata.domain",
}
_FIELDS = {
    "protocol": "protocol",
    "metaData": "meta_data",
    "txn": "txn",
    "domainMetadata": "domain_metadata",
    "sidecar": "sidecar",
}


class CheckpointReader(msgspec.Struct, frozen=True):
    """Reads one complete checkpoint.

    ``stats_store`` is where statistics are read that somebody asks for after the scan (``store`` may be closed by
    then); ``row_groups`` is told how many row groups were begun; ``parallel`` decodes columns side by side where that
    pays; ``coded`` leaves partition values in the codes of the file where it has any, for those who compare them.
    Statistics that do not fit ``memory_budget`` are left out, and ``without_stats`` is told of how many files and why;
    they are an error for those who say ``needs_stats``. ``sidecars`` says what the sidecars are by now that are not as
    the checkpoint describes them. ``groups`` are the row groups to take the files of, None all of them; it is for those
    who read one part.

    A file is read as the object that was listed: one that was replaced is an ``ObjectChangedError``, wherever the store
    tells objects apart, and never a mixture of both.
    """

    store: Store
    checkpoint: Checkpoint
    batch_size: int = BATCH_SIZE
    stats_store: Store | None = None
    row_groups: Callable[[int], None] | None = None
    parallel: bool = False
    coded: bool = False
    memory_budget: int = MEMORY_BUDGET
    needs_stats: bool = False
    without_stats: Callable[[int, str], None] | None = None
    sidecars: Mapping[str, ObjectInfo] = msgspec.field(default_factory=dict)
    groups: range | None = None

    def actions(self, *names: str) -> Iterator[LogLine]:
        """Yield the actions of the given kinds (``protocol``, ``metaData``, …) that are not files."""
        for file in self.checkpoint.files:
            if file.is_json:
                wanted = {_FIELDS[name] for name in names}
                for lines in read_actions(self.store, file):
                    yield from (line for line in lines if any(line.has(name) for name in wanted))
            else:
                with self.open(file) as parquet:
                    yield from _parquet_actions(parquet, file, [name for name in names if has_column(parquet, name)])

    def files(self, stats: StatsWanted | None = None) -> Generator[FileBatch]:
        """Yield the files of the checkpoint in storage order; statistics are read only when they are wanted."""
        for part in self.parts():
            yield from self.files_of(part, stats)

    def files_of(self, part: LogFile, stats: StatsWanted | None = None) -> Iterator[FileBatch]:
        """Yield the files of one part, as ``files`` does for all."""
        return self._json_files(part, stats) if part.is_json else self._parquet_files(part, stats)

    def row_counts(self, part: LogFile) -> list[int] | None:
        """Return how many rows each row group of a part has, by its footer; None for a part that is JSON."""
        if part.is_json:
            return None
        with self.open(part) as parquet:
            footer = parquet.metadata
            return [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]

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
        at_home = not folder or f"/{folder}".endswith(f"/{SIDECARS}")
        if not at_home or not name.endswith(".parquet") or "\0" in name or "/../" in sidecar.path:
            message = f"{owner.path} names a sidecar {sidecar.path!r}, which is not a Parquet file in {SIDECARS}"
            raise CorruptLogError(message, path=owner.path, version=owner.version)
        path = f"{SIDECARS}/{name}"
        info = self.sidecars.get(path) or ObjectInfo(path, sidecar.size_in_bytes, sidecar.modification_time, None)
        return LogFile(FileKind.CHECKPOINT, owner.version, info, owner.version)

    def _json_files(self, part: LogFile, stats: StatsWanted | None) -> Iterator[FileBatch]:
        for lines in read_actions(self.store, part):
            adds = [line.add for line in lines if line.add is not None]
            if adds:
                yield FileBatch.from_adds(adds, tier=TIER, extra=stats is not None and stats.extra)

    def _parquet_files(self, part: LogFile, stats: StatsWanted | None) -> Iterator[FileBatch]:
        with self.open(part) as parquet:
            if not has_column(parquet, "add"):
                return
            available = add_fields(parquet, part)
            columns = core_columns(parquet, available) + stats_columns(stats, available)
            later = self._later_stats(part, available) if stats is None else None
            codes = coded_partitions(parquet) if self.coded else []
            row, begun = 0, _RowGroups(parquet, self.groups)
            reasons: list[str] = []
            # With statistics as text, parsing them takes longer than decoding does: a thread more would gain nothing.
            read = self._side_by_side if self.parallel and "add.stats" not in columns else self._rows
            rows = read(part, parquet.metadata, columns, codes, reasons.append)
            with closing(rows):
                for adds in rows:
                    if self.row_groups is not None:
                        self.row_groups(begun.upto(row + len(adds)))
                    files = file_batch(adds, part, coded=bool(codes))
                    if reasons and self.without_stats is not None and not _has_stats(adds):
                        self.without_stats(len(files), reasons[-1])
                    if len(files):
                        yield files if later is None else later.attach(files, row, adds)
                    row += len(adds)

    def _rows(
        self,
        part: LogFile,
        metadata: pq.FileMetaData,
        columns: Sequence[str],
        codes: Sequence[str] = (),
        passed_by: Callable[[str], None] | None = None,
    ) -> Generator[pa.StructArray]:
        batches = BoundedBatches(
            lambda watch: self.open(part, metadata, codes, watch),
            part,
            metadata,
            columns,
            self.batch_size,
            memory_budget=self.memory_budget,
            needs_stats=self.needs_stats,
            by_group=bool(codes),
            groups=self.groups,
            passed_by=passed_by,
        )
        with closing(iter(batches)) as found:
            for batch in found:
                yield batch.column("add")

    def _side_by_side(
        self,
        part: LogFile,
        metadata: pq.FileMetaData,
        columns: Sequence[str],
        codes: Sequence[str],
        passed_by: Callable[[str], None],
    ) -> Generator[pa.StructArray]:
        """Decode paths, which take half of the time, in this thread and the other columns in another one."""
        others = self._rows(part, metadata, [name for name in columns if name != _PATH], codes, passed_by)
        with (
            closing(ReadAhead(others, depth=1, stop=_nothing)) as rest,
            closing(self._rows(part, metadata, [_PATH], codes)) as rows,
        ):
            more: pa.StructArray | None = None
            for some in rows:
                paths = some
                while len(paths):
                    # Either side ends its batches by what its own columns take.
                    more = next(rest, None) if more is None or not len(more) else more
                    count = len(paths) if more is None else min(len(paths), len(more))
                    yield joined(paths.slice(0, count), None if more is None else more.slice(0, count), part)
                    paths, more = paths.slice(count), None if more is None else more.slice(count)

    def _later_stats(self, part: LogFile, available: dict[str, pa.DataType]) -> StatsCursor | None:
        columns = stats_columns(StatsWanted(), available)
        if not columns:
            return None
        reader = msgspec.structs.replace(self, store=self.stats_store or self.store)

        def read() -> Iterator[pa.StructArray]:
            with reader.open(part) as parquet:
                metadata = parquet.metadata
            yield from reader._rows(part, metadata, columns)  # noqa: SLF001 - itself, over another store

        return StatsCursor(part, read)

    @contextmanager
    def open(
        self,
        file: LogFile,
        metadata: pq.FileMetaData | None = None,
        codes: Sequence[str] = (),
        watch: Watches | None = None,
    ) -> Iterator[pq.ParquetFile]:
        """Open a Parquet file of the checkpoint: nobody else does, so that all read the same values."""
        size = file.info.size
        with corrupt_if_unreadable(file):
            if size <= 0:
                size = self.store.head(file.path).size
            source = self.store.open_input(file.path, size=size, if_match=file.info.etag, read_ahead=_BUFFER)
            if watch is not None:
                source = watch.over(source, size, file.path)
            try:
                yield pq.ParquetFile(
                    source,
                    metadata=metadata,
                    read_dictionary=list(codes) or None,
                    pre_buffer=False,
                    buffer_size=_BUFFER,
                    page_checksum_verification=True,
                    # Delta-Spark's default. As nanoseconds, which Arrow makes of them, 9999-12-31 is in 1816.
                    coerce_int96_timestamp_unit="us",
                )
            finally:
                source.close()


def _has_stats(adds: pa.StructArray) -> bool:
    return any(adds.type.get_field_index(name) >= 0 for name in ("stats", "stats_parsed"))


class _RowGroups:
    """Counts the row groups that reading rows in order begins."""

    def __init__(self, parquet: pq.ParquetFile, groups: range | None = None) -> None:
        chosen = range(parquet.num_row_groups) if groups is None else groups
        sizes = [parquet.metadata.row_group(index).num_rows for index in chosen]
        self._starts = [0, *accumulate(sizes)][:-1]
        self._begun = 0

    def upto(self, row: int) -> int:
        before = self._begun
        self._begun = bisect_left(self._starts, row)
        return self._begun - before


def _parquet_actions(parquet: pq.ParquetFile, file: LogFile, names: Sequence[str]) -> Iterator[LogLine]:
    with corrupt_if_unreadable(file):
        groups, left = _groups_with(parquet.metadata, names)
    if not groups:
        return
    for batch in read_batches(parquet, file, names, BATCH_SIZE, groups):
        for name in names:
            column = batch.column(name)
            if column.null_count == len(column):
                continue
            if not pa.types.is_struct(column.type):
                message = f"{file.path} has a column {name!r} of type {column.type}, which is not a struct"
                raise CorruptLogError(message, path=file.path, version=file.version)
            with corrupt_if_unreadable(file):
                rows = pc.filter(column, pc.is_valid(column)).to_pylist(maps_as_pydicts="strict")
                actions = [msgspec.convert(_without_nulls(row), _ACTIONS[name], strict=True) for row in rows]
            left -= len(actions)
            for action in actions:
                yield _line(name, action)
        if left <= 0:
            return  # some writers make one row group of everything, with ten million files behind these few rows


def _groups_with(metadata: pq.FileMetaData, names: Sequence[str]) -> tuple[list[int], float]:
    """Return the row groups that may hold such actions, and how many they hold, which is infinite if nobody knows.

    Nearly all row groups of a large checkpoint hold files and no others.
    """
    if not names or not metadata.num_row_groups:
        return [], 0
    wanted = {_PRESENT.get(name) for name in names}
    # Not by the schema: it and the metadata hold each other, and a footer of megabytes would wait for the collector.
    first = metadata.row_group(0)
    columns = [index for index in range(metadata.num_columns) if first.column(index).path_in_schema in wanted]
    if len(columns) < len(names):
        return list(range(metadata.num_row_groups)), math.inf
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    present = [sum(_present(group, index) for index in columns) for group in groups]
    return [number for number, count in enumerate(present) if count], sum(present)


def _present(group: pq.RowGroupMetaData, column: int) -> float:
    """Return how many rows of a row group have a value in this column."""
    chunk = group.column(column)
    known = chunk.is_stats_set and chunk.statistics.has_null_count
    count = group.num_rows - chunk.statistics.null_count if known else -1
    return count if 0 <= count <= group.num_rows else math.inf


def _nothing() -> None:
    """Nothing needs to be told to stop: closing the file is enough."""


def _line(name: str, action: msgspec.Struct) -> LogLine:
    # Protocol and metadata are handed on as logged (see ``LogLine``); here they are known to decode.
    is_raw = name in {"protocol", "metaData"}
    fields: dict[str, Any] = {_FIELDS[name]: msgspec.Raw(msgspec.json.encode(action)) if is_raw else action}
    return LogLine(**fields)


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    # Parquet writes null where JSON leaves a field out, for instance `domainMetadata.removed`.
    return {key: value for key, value in row.items() if value is not None}

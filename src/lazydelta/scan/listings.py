"""The active files as one table, with the columns of deltalake's ``get_add_actions``.

It holds every file with its statistics, so its size grows with the number of files. Use ``files()`` for a lazy stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from lazydelta.errors import DataFileError, WriteError
from lazydelta.log.file_batch import FileBatch
from lazydelta.protocol.actions import Metadata
from lazydelta.protocol.deletion_vectors import read_deletion_vector
from lazydelta.protocol.properties import TableProperties
from lazydelta.protocol.schema import Column, Primitive, TableSchema
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import int64_array, numpy_of, string_array
from lazydelta.scan.file import DataFile, to_record_batch
from lazydelta.scan.request import NamedFiles, ScanRequest, ScanStrategy
from lazydelta.scan.stream import FileStream
from lazydelta.stats import has_range, partition_ranges
from lazydelta.stats.collector import indexed_columns
from lazydelta.storage import Store

__all__ = ["SELECTION_VECTORS", "AddActions", "selection_vectors", "stats_of_files"]


_FIXED = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("modification_time", pa.int64(), nullable=False),
        pa.field("num_records", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class AddActions:
    """The columns of the add actions table: those with statistics, and the partition columns."""

    schema: TableSchema
    counted: tuple[Column, ...]

    @classmethod
    def of(cls, schema: TableSchema, metadata: Metadata) -> AddActions:
        """Choose the columns that have statistics according to the table properties."""
        try:
            properties = TableProperties.of(metadata)
        except WriteError:
            properties = TableProperties()  # properties that only writers need must not prevent reading
        paths = indexed_columns(schema.to_arrow(), properties, partition_columns=schema.partition_columns)
        leaves = (each for each in schema.leaves() if not each.is_partition)
        # A variant is a leaf in Delta and a struct in Arrow.
        above = {path[:length] for path in paths for length in range(1, len(path) + 1)}
        chosen = tuple(each for each in leaves if each.path in above)
        return cls(schema, chosen)

    @property
    def stats_columns(self) -> list[str]:
        """Return the column names whose statistics the scan must report."""
        return [".".join(f"`{part}`" if "." in part else part for part in each.path) for each in self.counted]

    def table(self, batches: Iterable[pa.RecordBatch], *, flatten: bool) -> pa.Table:
        """Return the files of a scan that reports ``stats_columns``.

        With ``flatten`` each statistic is a column (``min.a.b``). Otherwise statistics are nested like the columns.
        """
        flat = [self._flat(each) for each in batches]
        schema = pa.schema([*_FIXED, *(field for _, _, field in self._statistics()), *self._partition_fields()])
        table = pa.Table.from_batches(flat, schema=schema)
        return table if flatten else self._nested(table)

    def _statistics(self) -> list[tuple[str, Column, pa.Field]]:
        counts = [("null_count", each, pa.int64()) for each in self.counted]
        ranged = [each for each in self.counted if _is_ranged(each)]
        bounds = [(kind, each, each.type.to_arrow()) for kind in ("min", "max") for each in ranged]
        return [(kind, each, pa.field(f"{kind}.{each.name}", type_)) for kind, each, type_ in [*counts, *bounds]]

    def _partition_fields(self) -> list[pa.Field]:
        return [pa.field(f"partition.{each.name}", each.type.to_arrow()) for each in self._partitions()]

    def _partitions(self) -> list[Column]:
        # A scan returns partition values under logical names.
        named = (self.schema.column((name,)) for name in self.schema.partition_columns)
        return [Column(each.path, each.path, each.type, is_partition=True) for each in named]

    def _flat(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        partitions = self._partitions()
        known = partition_ranges(batch.column("partition_values"), partitions)
        values = [known.column(each) for each in partitions]
        fields = [field for _, _, field in self._statistics()]
        columns = [
            *(batch.column(name) for name in ("path", "size", "modification_time", "num_records")),
            *(batch.column(field.name) for field in fields),
            *(
                pa.nulls(batch.num_rows, each.type.to_arrow()) if value is None or value.min is None else value.min
                for each, value in zip(partitions, values, strict=True)
            ),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*_FIXED, *fields, *self._partition_fields()]))

    def _nested(self, table: pa.Table) -> pa.Table:
        table = table.combine_chunks()
        names, columns = list(_FIXED.names), [table.column(name) for name in _FIXED.names]
        for kind in ("null_count", "min", "max"):
            leaves = [(each.path, table.column(field.name)) for name, each, field in self._statistics() if name == kind]
            if leaves:
                names.append(kind)
                columns.append(_struct(leaves))
        if self.schema.partition_columns:
            leaves = [((each.name,), table.column(f"partition.{each.name}")) for each in self._partitions()]
            names.append("partition")
            columns.append(_struct(leaves))
        made = pa.table(columns, names=names)
        return made.cast(pa.schema([*_FIXED, *list(made.schema)[len(_FIXED) :]]))


def _is_ranged(column: Column) -> bool:
    return has_range(column) or column.type == Primitive("boolean")


def _struct(leaves: Sequence[tuple[tuple[str, ...], pa.ChunkedArray]]) -> pa.Array:
    """Return columns as one struct, nested by their paths."""
    groups: dict[str, list[tuple[tuple[str, ...], pa.ChunkedArray]]] = {}
    for path, values in leaves:
        groups.setdefault(path[0], []).append((path[1:], values))
    arrays = [_struct(inner) if inner[0][0] else _whole(inner[0][1]) for inner in groups.values()]
    return pa.StructArray.from_arrays(arrays, names=list(groups))


def _whole(values: pa.ChunkedArray) -> pa.Array:
    return values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks or [pa.nulls(0, values.type)])


# Statistics of files given by path.


def stats_of_files(
    paths: Sequence[str],
    columns: tuple[Column, ...],
    schema: TableSchema,
    scan: Callable[[ScanRequest], FileStream],
    *,
    missing: str,
) -> pa.Table:
    """Return a row for each path in the given order: ``num_records``, and the statistics of ``columns``.

    Files are first searched for in the partitions that their paths show, and everywhere only if one is missing. A path
    that is not an active file raises an error, or gives a row of nulls if ``missing`` is ``"null"``.
    """
    found = _FoundFiles(paths, to_record_batch(FileBatch.from_adds([]), schema, columns).schema)
    everywhere = ScanRequest(strategy=ScanStrategy.FORWARD, stats_columns=columns)
    # The whole tail is read before the base, because it may have rewritten a file.
    near = replace(everywhere, strategy=ScanStrategy.REVERSE, named=NamedFiles.of(paths, schema))
    if paths and found.take_from(scan(near)):
        found.take_from(scan(everywhere))
    if missing != "null":
        found.check()
    return found.table(paths)


class _FoundFiles:
    """The rows of a scan that belong to paths, each with the index of its path."""

    def __init__(self, paths: Sequence[str], schema: pa.Schema) -> None:
        self._wanted = string_array(list(dict.fromkeys(paths)))
        self._rows = np.full(len(self._wanted), -1, np.int64)
        self._batches: list[pa.RecordBatch] = []
        self._count = 0
        self._schema = schema

    def take_from(self, files: FileStream) -> bool:
        """Take matching rows until all are found. Return whether the rest may be where the scan did not look."""
        with files:
            for batch in files.batches():
                at = pc.index_in(batch.column("path"), value_set=self._wanted)
                rows = batch.filter(at.is_valid())
                if rows.num_rows:
                    places = numpy_of(at.drop_null().cast(pa.int64()))
                    self._rows[places] = np.arange(self._count, self._count + rows.num_rows)
                    self._batches.append(rows)
                    self._count += rows.num_rows
                if (self._rows >= 0).all():
                    return False
            return files.metrics.row_groups_pruned > 0

    def check(self) -> None:
        """Raise if a path was not found."""
        lost = [self._wanted[int(index)].as_py() for index in np.flatnonzero(self._rows < 0)]
        if lost:
            more = "" if len(lost) == 1 else f" (and {len(lost) - 1} more)"
            message = f"{lost[0]!r}{more} is not an active file of this version"
            raise DataFileError(message, path=lost[0], hint="pass paths as logged, or missing='null' for rows of nulls")

    def table(self, paths: Sequence[str]) -> pa.Table:
        """Return the rows in the order of ``paths``, nulls for paths that were not found."""
        where = dict(zip(self._wanted.to_pylist(), self._rows.tolist(), strict=True))
        order = int64_array([None if where[path] < 0 else where[path] for path in paths])
        names = [name for name in self._schema.names if name == "num_records" or "." in name]
        rows = pa.Table.from_batches(self._batches, schema=self._schema)
        return pa.table({"path": string_array(list(paths)), **{name: rows.column(name).take(order) for name in names}})


# Deletion vectors as masks of the rows to keep, one for each file that has a vector.


SELECTION_VECTORS = pa.schema(
    [
        pa.field("filepath", pa.string(), nullable=False),
        pa.field("selection_vector", pa.list_(pa.field("element", pa.bool_(), nullable=False)), nullable=False),
    ]
)


def selection_vectors(files: Iterable[DataFile], store: Store) -> Iterator[pa.RecordBatch]:
    """Yield one row for each file with a deletion vector: its URI, and for every row whether it is kept.

    A mask has one entry per row of the file. If the log has no row count, it ends with the last deleted row.
    """
    for file in files:
        vector = file.to_read().deletion_vector
        if vector is None:
            continue
        deleted = read_deletion_vector(store, vector, data_file=file.path)
        rows = deleted.end if file.num_records is None else file.num_records
        if deleted.end > rows:
            message = f"The deletion vector of {file.path} deletes row {deleted.end - 1}, but the file has {rows} rows"
            raise DataFileError(message, path=file.path, hint="the vector belongs to another file; restore the table")
        mask = deleted.keep_mask(0, rows)
        kept = pa.array(np.ones(rows, dtype=bool)) if mask is None else mask
        values = pa.ListArray.from_arrays(pa.array([0, rows], pa.int32()), kept)
        uri = _as_uri(store, file.path)
        yield pa.RecordBatch.from_arrays(
            [pa.array([uri]), values.cast(SELECTION_VECTORS.field(1).type)], schema=SELECTION_VECTORS
        )


def _as_uri(store: Store, path: str) -> str:
    place = store.uri_of(path)
    return place if "://" in place else Path(place).as_uri()

"""The columns of a Parquet checkpoint: select them, and convert rows to files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import CorruptLogError, LazyDeltaError, ObjectNotFoundError
from lazydelta.log.file_batch import DELETION_VECTOR, EXTRA, PARTITION_VALUES, FileBatch
from lazydelta.protocol.file_names import LogFile
from lazydelta.runtime import compute as pc
from lazydelta.runtime.threads import release_memory

__all__ = [
    "CheckpointFile",
    "StatsWanted",
    "add_fields",
    "coded_partitions",
    "core_columns",
    "corrupt_if_unreadable",
    "file_batch",
    "has_column",
    "joined",
    "read_batches",
    "rows_at_once",
    "stats_columns",
    "stats_of",
]

TIER = 3
_RELEASE_AFTER = 48 << 20
_CORE = ("path", "size", "modificationTime", "partitionValues", "deletionVector")
_VECTOR = "add.deletionVector.storageType"
_PARTITIONS = "add.partitionValues."
_CODE_BYTES = 4
_SMALL_DICTIONARY = 64 << 10
_LEAST_ROWS_CODED = 1_000
_CODED_VALUES = pa.map_(pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int32(), pa.string()))


class StatsWanted(msgspec.Struct, frozen=True):
    """The statistics that a scan needs: physical column paths, and parsed partition values by physical name.

    With ``columns`` None all statistics are read, as string or struct, whichever the checkpoint has. ``extra`` adds the
    other fields of an ``add``, and with ``stats`` False only those are read.
    """

    columns: tuple[tuple[str, ...], ...] | None = None
    extra: bool = False
    stats: bool = True


class CheckpointFile:
    """A Parquet file of a checkpoint. A ``ParquetFile`` lists all names first, half the time of a small checkpoint."""

    def __init__(
        self, source: pa.NativeFile, metadata: pq.FileMetaData | None, codes: Sequence[str], buffer: int
    ) -> None:
        self._reader = pq.ParquetReader()
        self._reader.open(
            source,
            metadata=metadata,
            read_dictionary=list(codes) or None,
            pre_buffer=False,
            buffer_size=buffer,
            page_checksum_verification=True,
            # Delta-Spark's default. In nanoseconds, Arrow's default, 9999-12-31 would become a date in 1816.
            coerce_int96_timestamp_unit="us",
        )
        self.metadata: pq.FileMetaData = self._reader.metadata

    @cached_property
    def schema_arrow(self) -> pa.Schema:
        """The schema of the rows."""
        return self._reader.schema_arrow

    def iter_batches(
        self, batch_size: int, row_groups: Sequence[int] | None, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of these columns; a name includes the columns below it."""
        wanted = frozenset(columns)
        chosen = [
            index
            for index, path in enumerate(self._reader.column_paths)
            if any(name in wanted for name in accumulate(path, "{}.{}".format))
        ]
        groups = range(self.metadata.num_row_groups) if row_groups is None else row_groups
        batches: Iterator[pa.RecordBatch] = self._reader.iter_batches(batch_size, groups, chosen, use_threads=False)
        return batches


@contextmanager
def corrupt_if_unreadable(file: LogFile) -> Iterator[None]:
    """Convert the errors that pyarrow raises for a damaged file into an error that names the file."""
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


def read_batches(
    parquet: CheckpointFile,
    file: LogFile,
    columns: Sequence[str],
    batch_size: int,
    row_groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows with only these columns, decoded one batch at a time."""
    with corrupt_if_unreadable(file):
        batches = parquet.iter_batches(batch_size, row_groups, columns)
    decoded = 0
    while True:
        with corrupt_if_unreadable(file):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
        decoded += batch.nbytes
        if decoded >= _RELEASE_AFTER:
            release_memory()
            decoded = 0


def rows_at_once(metadata: pq.FileMetaData, columns: Sequence[str], most: int, batch_bytes: int) -> int:
    """Return how many rows of these columns to decode at a time: at most ``most``, and at most ``batch_bytes``.

    Statistics of a hundred columns take several kilobytes per file. Batches with as many rows as for narrow columns
    would take proportionally more memory.
    """
    prefixes = tuple(f"{name}." for name in columns)
    widest = 0
    paths = [_path_of(metadata, index) for index in range(metadata.num_columns)]
    read = [index for index, path in enumerate(paths) if f"{path}.".startswith(prefixes)]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size = sum(group.column(index).total_uncompressed_size for index in read)
        widest = max(widest, size // max(1, group.num_rows))
    return min(most, max(1, batch_bytes // max(1, widest)))


def joined(first: pa.StructArray, second: pa.StructArray | None, file: LogFile) -> pa.StructArray:
    """Combine columns of the same rows that were read separately."""
    if second is None or len(first) != len(second):
        message = f"{file.path} has columns of different lengths"
        raise CorruptLogError(message, path=file.path, version=file.version)
    fields = [*first.type, *second.type]
    mask = pc.is_null(first) if first.null_count else None
    return pa.StructArray.from_arrays([*first.flatten(), *second.flatten()], fields=fields, mask=mask)


def has_column(parquet: CheckpointFile, name: str) -> bool:
    """Return whether the file has a column for this action; writers omit unused ones."""
    return bool(parquet.schema_arrow.get_field_index(name) >= 0)


def add_fields(parquet: CheckpointFile, file: LogFile) -> dict[str, pa.DataType]:
    """Return the fields that this checkpoint has for a file."""
    type_ = parquet.schema_arrow.field("add").type
    if not pa.types.is_struct(type_):
        message = f"{file.path} has a column 'add' of type {type_}, which is not a struct"
        raise CorruptLogError(message, path=file.path, version=file.version)
    return {type_.field(index).name: type_.field(index).type for index in range(type_.num_fields)}


def core_columns(parquet: CheckpointFile, available: dict[str, pa.DataType]) -> list[str]:
    """Return the columns to read for every file; deletion vectors only if the footer says that there may be any."""
    names = [name for name in _CORE if name in available]
    if "deletionVector" in names and _null_throughout(parquet.metadata, _VECTOR):
        names.remove("deletionVector")
    return [f"add.{name}" for name in names]


def coded_partitions(parquet: CheckpointFile) -> list[str]:
    """Return the partition value columns if they can be read as dictionary codes, which need no string comparison.

    This requires that the file is dictionary-encoded or the columns are small. Otherwise the codes would have to be
    computed, and there might be as many as rows. Codes are valid within a row group, so no batch crosses one, and row
    groups must not be too small.
    """
    metadata = parquet.metadata
    if metadata.num_row_groups > 1 and metadata.num_rows < _LEAST_ROWS_CODED * metadata.num_row_groups:
        return []
    found = [index for index in range(metadata.num_columns) if _path_of(metadata, index).startswith(_PARTITIONS)]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        most = max(_SMALL_DICTIONARY, _CODE_BYTES * group.num_rows)
        if any(group.column(index).total_uncompressed_size > most for index in found):
            return []
    return [_path_of(metadata, index) for index in found]


def _null_throughout(metadata: pq.FileMetaData, path: str) -> bool:
    for index in range(metadata.num_columns):
        if _path_of(metadata, index) == path:
            chunks = [metadata.row_group(number).column(index) for number in range(metadata.num_row_groups)]
            known = [(chunk.statistics, chunk.num_values) for chunk in chunks]
            return all(stats is not None and stats.null_count == values for stats, values in known)
    return False


def _path_of(metadata: pq.FileMetaData, index: int) -> str:
    path: str = metadata.schema.column(index).path
    return path


def stats_columns(stats: StatsWanted | None, available: dict[str, pa.DataType]) -> list[str]:
    """Return the columns to read for the requested statistics."""
    # Native statistics come first: they need no parsing. A checkpoint may have either, both or none.
    if stats is None:
        return []
    extra = [f"add.{field.name}" for field in EXTRA if field.name in available] if stats.extra else []
    if not stats.stats:
        return extra
    parsed = available.get("stats_parsed")
    if stats.columns is None:
        names = [name for name in ("stats", "stats_parsed") if name in available]
        return [*extra, *(f"add.{name}" for name in names)]
    columns = extra
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


def file_batch(adds: pa.StructArray, file: LogFile, *, coded: bool = False) -> FileBatch:
    """Return the files among the rows of the ``add`` column; rows of other actions are null there.

    ``coded`` keeps partition values dictionary-encoded, as they were read.
    """
    with corrupt_if_unreadable(file):
        if adds.null_count:
            adds = pc.filter(adds, pc.is_valid(adds))
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
            partition_values=_column(adds, "partitionValues", _CODED_VALUES if coded else PARTITION_VALUES, file),
            deletion_vector=_vectors(adds, file),
            tier=TIER,
            **stats_of(adds),
        )


def stats_of(adds: pa.StructArray) -> dict[str, pa.Array]:
    """Return the statistics among the columns that were read, under their names in ``FileBatch``."""
    found: dict[str, pa.Array] = {}
    for name, field in (
        ("stats", "json_stats"),
        ("stats_parsed", "parsed_stats"),
        ("partitionValues_parsed", "parsed_partitions"),
    ):
        column = _child(adds, name)
        if column is not None:
            found[field] = pc.cast(column, pa.string()) if name == "stats" and column.type != pa.string() else column
    if any(_child(adds, field.name) is not None for field in EXTRA):
        found["extra"] = _struct(adds, EXTRA)
    return found


def _struct(parent: pa.StructArray, type_: pa.StructType, mask: pa.Array | None = None) -> pa.StructArray:
    """Return the named children of ``parent`` as a struct of this type; missing children are null."""
    children = [
        pa.nulls(len(parent), field.type)
        if (child := _child(parent, field.name)) is None
        else pc.cast(child, field.type)
        for field in type_
    ]
    return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask)


def _child(adds: pa.StructArray, name: str) -> pa.Array | None:
    index = adds.type.get_field_index(name)
    if index < 0:
        return None
    # A kernel call releases the GIL and then waits for it again; without nulls to mask, no call is needed.
    return pc.struct_field(adds, [index]) if adds.null_count or adds.offset else adds.field(index)


def _column(adds: pa.StructArray, name: str, type_: pa.DataType, file: LogFile) -> pa.Array:
    column = _child(adds, name)
    if column is None:
        message = f"{file.path} has no column 'add.{name}'"
        raise CorruptLogError(message, path=file.path, version=file.version)
    if column.type == type_:
        return column
    # Writers differ in width (int32, large strings) and in the names inside a map. A number for a path is corruption.
    alike = (
        (pa.types.is_integer(column.type) and pa.types.is_integer(type_))
        or (_is_text(column.type) and _is_text(type_))
        or (pa.types.is_map(column.type) and _is_text(column.type.key_type) and _is_text(column.type.item_type))
    )
    if not alike:
        message = f"{file.path} has a column 'add.{name}' of type {column.type} instead of {type_}"
        raise CorruptLogError(message, path=file.path, version=file.version)
    return pc.cast(column, type_)


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
    # Checkpoints of older writers give every row a struct of nulls; only a storage type makes it a vector.
    kind = _child(column, "storageType")
    return _struct(column, DELETION_VECTOR, mask=pc.is_null(column if kind is None else kind))

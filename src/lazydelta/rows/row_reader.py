"""Reading the rows of data files as the table presents them.

In this order: columns are found in the file, deleted rows are masked by their position in the file, values take the
table's types, partition values join from the log, and only then a filter is applied, to logical columns.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta import compute as pc
from lazydelta.errors import DataFileError, ObjectNotFoundError, OptionError, PredicateError, StorageError
from lazydelta.rows.column_finder import ColumnFinder, check_field_ids
from lazydelta.rows.conversion import Converter
from lazydelta.rows.deletion_vectors import DeletedRows, read_deletion_vector
from lazydelta.types.conversion_steps import Conversion
from lazydelta.types.partition_values import partition_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lazydelta.log.actions import DeletionVector
    from lazydelta.storage import Store
    from lazydelta.types.schema import Field, TableSchema

__all__ = ["FileToRead", "RowReader"]

_BATCH_BYTES = 64 << 20
_READ_BYTES = 16 << 20
_LEAST_BUFFER, _MOST_BUFFER = 64 << 10, 1 << 20


class FileToRead(Protocol):
    """What the log says of a data file; partition values are keyed by physical column name."""

    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def partition_values(self) -> Mapping[str, str | None]: ...  # noqa: D102
    @property
    def deletion_vector(self) -> DeletionVector | None: ...  # noqa: D102


class RowReader:
    """Reads rows of one table's files; safe to share between threads.

    ``schema`` is that of the batches: the columns asked for, in that order, under logical names.
    """

    def __init__(
        self,
        store: Store,
        schema: TableSchema,
        *,
        columns: Sequence[str] | None = None,
        batch_size: int = 65536,
    ) -> None:
        if batch_size < 1:
            message = f"batch_size must be at least 1, not {batch_size}"
            raise OptionError(message)
        self._store = store
        self._table = schema
        self._batch_size = batch_size
        self._by_id = schema.column_mapping == "id"
        fields = schema.fields if columns is None else tuple(schema.field(name) for name in columns)
        if len({each.name for each in fields}) != len(fields):
            message = f"A column is named twice in {list(columns or ())}"
            raise OptionError(message, hint="name each column once")
        self._fields = fields
        self._partitions = frozenset(schema.partition_columns)
        self.schema: pa.Schema = pa.schema([each.to_arrow() for each in fields])
        self._last_filter: tuple[pc.Expression, list[Field]] | None = None
        if self._by_id:
            check_field_ids(each for each in schema.fields if each.name not in self._partitions)

    def read(self, file: FileToRead, *, filter: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:  # noqa: A002 - pyarrow's name for it
        """Yield the live rows of ``file`` that satisfy ``filter``; rows for which it is null are left out.

        The filter may name any column of the table. Closing the iterator closes the file.
        """
        fields = self._fields
        if filter is not None:
            fields = (*fields, *self._more_fields(filter))
        for batch in self._rows(file, fields):
            if filter is None:
                yield batch
                continue
            try:
                kept = batch.filter(filter)
            except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
                raise _bad_filter(filter, error) from error
            if kept.num_rows:
                yield kept.select(range(len(self._fields)))

    def _more_fields(self, expression: pc.Expression) -> list[Field]:
        """Return the fields that ``expression`` needs beside those asked for.

        An expression does not tell which columns it names. It cannot be bound without one that it does name, so
        each column is left out in turn.
        """
        last = self._last_filter
        if last is None or not last[0].equals(expression):
            # Files come by the thousand with one and the same filter: it is taken apart once.
            last = self._last_filter = (expression, self._find_fields(expression))
        return last[1]

    def _find_fields(self, expression: pc.Expression) -> list[Field]:
        if _binds(expression, self.schema) is None:
            return []
        known = self._table.to_arrow()
        error = _binds(expression, known)
        if error is not None:
            raise _bad_filter(expression, error) from error
        asked = {each.name for each in self._fields}
        rest = [(index, each) for index, each in enumerate(self._table.fields) if each.name not in asked]
        return [each for index, each in rest if _binds(expression, known.remove(index)) is not None]

    def _rows(self, file: FileToRead, fields: Sequence[Field]) -> Iterator[pa.RecordBatch]:
        home, path = self._store.locate(file.path)
        stored = [each for each in fields if each.name not in self._partitions]
        constants = self._constants(file, fields)
        deleted = None
        if file.deletion_vector is not None:
            deleted = read_deletion_vector(self._store, file.deletion_vector, data_file=file.path)
        finder = ColumnFinder(file.path, self._by_id)
        out = pa.schema([each.to_arrow() for each in fields])
        with _open(home, path, file) as (source, parquet):
            with _faults(file.path):
                leaves = finder.leaves(stored, parquet.schema_arrow) if stored else []
                parquet = _parquet(source, parquet.metadata, len(leaves))  # noqa: PLW2901 - the footer is kept
            _check_extent(parquet, deleted, file.path)
            plans: list[tuple[int, Conversion]] | None = None
            for batch in _live(self._batches(parquet, leaves, file.path), deleted):
                with _faults(file.path, "has values that do not fit the table's types"):
                    if plans is None:
                        plans = Converter(finder).fields(stored, list(batch.schema), "")
                    arrays = iter([_column(batch, index, convert) for index, convert in plans])
                columns = [
                    pa.repeat(constants[each.name], batch.num_rows) if each.name in constants else next(arrays)
                    for each in fields
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=out) if columns else batch

    def _constants(self, file: FileToRead, fields: Sequence[Field]) -> dict[str, pa.Scalar]:
        values = file.partition_values
        return {
            each.name: partition_value(values.get(each.physical_name), each.type, column=each.name, path=file.path)
            for each in fields
            if each.name in self._partitions
        }

    def _batches(self, parquet: pq.ParquetFile, leaves: list[int], path: str) -> Iterator[pa.RecordBatch]:
        """Yield the file's rows in order; where no column is wanted, empty rows, as many as the footer counts."""
        if not leaves:
            left = parquet.metadata.num_rows
            while left > 0:
                length = min(left, self._batch_size)
                yield pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), length, [None]))
                left -= length
            return
        with _faults(path):
            names = [parquet.schema.column(index).path for index in leaves]
            batches = parquet.iter_batches(batch_size=self._rows_a_batch(parquet), columns=names)
        while True:
            with _faults(path):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _rows_a_batch(self, parquet: pq.ParquetFile) -> int:
        # Rows may be megabytes each: bound a batch by bytes too.
        metadata = parquet.metadata
        widest = 1
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            widest = max(widest, group.total_byte_size // max(group.num_rows, 1))
        return max(1, min(self._batch_size, _BATCH_BYTES // widest))


def _column(batch: pa.RecordBatch, index: int, convert: Conversion) -> pa.Array:
    # What is missing in the file is made from the batch's length alone.
    return convert(batch.column(index)) if index >= 0 else convert(batch)


def _live(batches: Iterator[pa.RecordBatch], deleted: DeletedRows | None) -> Iterator[pa.RecordBatch]:
    """Yield ``batches`` without the deleted rows, counted from the start of the file."""
    start = 0
    for batch in batches:
        length = batch.num_rows
        mask = deleted.keep_mask(start, length) if deleted is not None else None
        kept = batch
        if deleted is not None and mask is not None:
            # A batch without columns has rows to count and nothing to filter.
            kept = batch.filter(mask) if batch.num_columns else batch.slice(0, deleted.kept(start, length))
        start += length
        if kept.num_rows:
            yield kept


@contextmanager
def _open(store: Store, path: str, file: FileToRead) -> Iterator[tuple[pa.NativeFile, pq.ParquetFile]]:
    """Open the Parquet file; a size that the log has wrong costs a request, not the read."""
    try:
        size = file.size if file.size > 0 else store.head(path).size
        try:
            source, parquet = _open_sized(store, path, size)
        except (pa.ArrowException, OSError, ValueError, StorageError):
            actual = store.head(path).size
            if actual == size:
                raise
            source, parquet = _open_sized(store, path, actual)
    except ObjectNotFoundError as error:
        raise _missing(file.path) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(file.path, error) from error
    try:
        yield source, parquet
    finally:
        source.close()


def _open_sized(store: Store, path: str, size: int) -> tuple[pa.NativeFile, pq.ParquetFile]:
    source = store.open_input(path, size=size)
    try:
        parquet = _parquet(source)
    except BaseException:
        source.close()
        raise
    return source, parquet


def _parquet(source: pa.NativeFile, metadata: pq.FileMetaData | None = None, columns: int = 0) -> pq.ParquetFile:
    # Without pre-buffering a column is read as its pages are needed, through a buffer of its own: memory does not
    # depend on the size of row groups, and the buffers share one bound however many columns there are.
    return pq.ParquetFile(
        source,
        metadata=metadata,
        buffer_size=max(_LEAST_BUFFER, min(_MOST_BUFFER, _READ_BYTES // max(columns, 1))),
        pre_buffer=False,
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
    )


def _check_extent(parquet: pq.ParquetFile, deleted: DeletedRows | None, path: str) -> None:
    metadata = parquet.metadata
    rows = sum(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
    if rows != metadata.num_rows:
        message = f"Data file {path} counts {metadata.num_rows} rows but its row groups have {rows}"
        raise DataFileError(message, path=path, hint="the file is damaged; restore it")
    if deleted is not None and deleted.end > rows:
        message = f"The deletion vector of {path} deletes row {deleted.end - 1}, but the file has {rows} rows"
        raise DataFileError(message, path=path, hint="the vector belongs to another file; restore the table")


@contextmanager
def _faults(path: str, what: str = "cannot be read as Parquet") -> Iterator[None]:
    try:
        yield
    except ObjectNotFoundError as error:
        raise _missing(path) from error
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError, IndexError) as error:
        raise _unreadable(path, error, what) from error


def _missing(path: str) -> DataFileError:
    message = f"Data file {path} does not exist"
    return DataFileError(message, path=path, hint="it may have been vacuumed; read a newer version of the table")


def _unreadable(path: str, error: Exception, what: str = "cannot be read as Parquet") -> DataFileError:
    if "encrypt" in str(error).lower():
        message = f"Data file {path} is encrypted"
        return DataFileError(message, path=path, hint="lazydelta does not read Parquet modular encryption")
    message = f"Data file {path} {what}: {error}"
    return DataFileError(message, path=path, hint="the file is damaged or of another format; restore it")


def _binds(expression: pc.Expression, schema: pa.Schema) -> Exception | None:
    """Return why ``expression`` cannot be evaluated over ``schema``; None if it can."""
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in schema], schema=schema)
    try:
        empty.filter(expression)
    except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
        return error
    return None


def _bad_filter(expression: pc.Expression, error: Exception) -> PredicateError:
    message = f"The filter {str(expression)[:200]} cannot be applied to the table's columns: {error}"
    return PredicateError(message, hint="compare each column with values of its own type")

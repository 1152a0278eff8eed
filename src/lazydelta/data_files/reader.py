"""``OpenedFile``: a data file whose footer has been read, and its rows by row group.

A ``Selection`` is a set of fields as this file stores them. Its rows are read raw, so that deleted rows can be dropped
by position and others by a filter. Only then are they converted to the table's types.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.data_files.columns import ColumnFinder, bad_filter, check_field_ids, named_fields
from lazydelta.data_files.conversion import Converter
from lazydelta.errors import DataFileError, MemoryLimitError, ObjectNotFoundError, OptionError, StorageError
from lazydelta.log.checkpoint.pages import (
    LargeBatchError,
    LargePageError,
    PageWatch,
    budget_for_page,
    page_bytes_within,
)
from lazydelta.options import Options
from lazydelta.protocol.actions import DeletionVector
from lazydelta.protocol.arrow_types import Conversion, unchanged
from lazydelta.protocol.deletion_vectors import DeletedRows, read_deletion_vector
from lazydelta.protocol.schema import Field, Primitive, TableSchema
from lazydelta.protocol.values import partition_value
from lazydelta.runtime import compute as pc
from lazydelta.storage import Store, open_native
from lazydelta.storage.input import PrefetchedReads
from lazydelta.storage.local import DirectReads

__all__ = ["FileToRead", "OpenedFile", "RowReader", "Selection", "page_limit", "rows_without_columns"]


_BATCH_BYTES = 64 << 20
_READ_BYTES = 16 << 20
_LEAST_BUFFER, _MOST_BUFFER = 64 << 10, 1 << 20
_TAIL = 64 << 10
# A remote file up to this size is fetched whole, which is faster than a second request.
_SMALL = 512 << 10
# The key in a Parquet footer as Thrift writes it: the first field, with twelve bytes. The value follows as the next
# field.
_ARROW_SCHEMA = b"\x18\x0cARROW:schema"
_CODED_TEXT = pa.dictionary(pa.int32(), pa.string())
# How far a codec can expand data at most; other codecs have no limit worth a name. A column that could not become a
# large page is not inspected.
_EXPANSION = {"UNCOMPRESSED": 1, "SNAPPY": 22, "LZ4": 256, "GZIP": 1040}
_ANY_EXPANSION = 1 << 20
# Rows of row groups up to this size are joined with those of the next, from so many files at most.
_SMALL_GROUP, _MOST_JOINED = 64 << 10, 256
# Row groups with up to this many stored bytes are fetched at once. Larger ones are streamed through small buffers.
_AT_ONCE = 16 << 20


def page_limit(options: Options) -> int | None:
    """Return the largest page of a data file to decode, in bytes; None unless a budget was given.

    Arrow decodes a page as a whole. A reader of its own tables reads what other readers do.
    """
    return None if options.page_sizes == "any" else page_bytes_within(options.memory_budget)


class FileToRead(Protocol):
    """A data file as logged. Partition values are keyed by physical column name."""

    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def partition_values(self) -> Mapping[str, str | None]: ...  # noqa: D102
    @property
    def deletion_vector(self) -> DeletionVector | None: ...  # noqa: D102


@dataclass(slots=True)
class Selection:
    """Fields of the table, with the Parquet leaves that hold them in one file."""

    fields: tuple[Field, ...]
    leaves: tuple[int, ...]
    names: list[str]
    planned: tuple[pa.Schema, list[tuple[int, Conversion]]] | None = None


class OpenedFile:
    """A data file as the table presents it. Used by one thread at a time, aborted from any.

    ``codes`` are columns likely to be requested as dictionary codes, as in earlier files. ``verified`` enables the
    verification of page checksums, if the file has them. A page of more than ``page_bytes`` raises an error before it
    is decoded; see `page_limit`. With ``trusts_footers``, only columns that could have one by their size in the footer
    are inspected. A footer may lie, but inspecting every column takes a third of the time of small files. Rows take
    their memory from ``memory_pool``, by default Arrow's.
    """

    def __init__(
        self,
        store: Store,
        schema: TableSchema,
        file: FileToRead,
        *,
        codes: Sequence[str] = (),
        verified: bool = True,
        page_bytes: int | None = None,
        trusts_footers: bool = True,
        memory_pool: pa.MemoryPool | None = None,
    ) -> None:
        self.file = file
        self._pool = memory_pool
        self._verified = verified
        self._page_bytes = sys.maxsize if page_bytes is None else page_bytes
        self._trusts_footers = trusts_footers
        # Reopening the file to read the same columns as codes would take about as long as opening it.
        self._codes = tuple(codes)
        self._store = store
        self._schema = schema
        self._finder = ColumnFinder(file.path, schema.column_mapping == "id")
        self._home, self._path = store.locate(file.path)
        self._streams: list[pa.NativeFile] = []
        self._deleted: DeletedRows | None = None
        self._is_fitted = False
        self._extents: dict[tuple[int, tuple[int, ...]], tuple[int, int, list[tuple[int, int]]]] = {}
        self._reads, self._source, self._parquet = self._open()
        self.metadata: pq.FileMetaData = self._parquet.metadata
        with faults(file.path):
            self.groups = [self.metadata.row_group(index) for index in range(self.metadata.num_row_groups)]
            self.arrow_schema: pa.Schema = self._parquet.schema_arrow
        self._first_rows = [0]
        for group in self.groups:
            self._first_rows.append(self._first_rows[-1] + group.num_rows)

    def close(self) -> None:
        """Cancel the file's requests. Does nothing if it is closed."""
        self._reads.close()
        self._source.close()

    def abort(self) -> None:
        """Cancel the file's requests from a thread other than its reader. The reader closes the file."""
        self._reads.close()
        if self._home.is_remote:
            for stream in list(self._streams):
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def deleted(self) -> DeletedRows | None:
        """The deletion vector, read with the first row. It must match the file."""
        if not self._is_fitted:
            self._deleted = self._fitting_vector()
            self._is_fitted = True
        return self._deleted

    def _fitting_vector(self) -> DeletedRows | None:
        vector, path = self.file.deletion_vector, self.file.path
        found = None if vector is None else read_deletion_vector(self._store, vector, data_file=path)
        rows = self._first_rows[-1]
        if rows != self.metadata.num_rows:
            message = f"Data file {path} counts {self.metadata.num_rows} rows but its row groups have {rows}"
            raise DataFileError(message, path=path, hint="the file is damaged; restore it")
        if found is not None and found.end > rows:
            message = f"The deletion vector of {path} deletes row {found.end - 1}, but the file has {rows} rows"
            raise DataFileError(message, path=path, hint="the vector belongs to another file; restore the table")
        return found

    def constants(self, fields: Sequence[Field]) -> dict[str, pa.Scalar]:
        """Return the values that all rows share: those of the partition columns among ``fields``."""
        values = self.file.partition_values
        return {
            each.name: partition_value(values.get(each.physical_name), each.type, column=each.name, path=self.file.path)
            for each in fields
            if each.name in self._schema.partition_columns
        }

    def select(self, fields: Sequence[Field]) -> Selection:
        """Find those of ``fields`` that this file stores."""
        stored = tuple(each for each in fields if each.name not in self._schema.partition_columns)
        with faults(self.file.path):
            leaves = self._finder.leaves(stored, self.arrow_schema) if stored else []
            # Not by the schema of the footer: the two refer to each other, and would stay alive until garbage
            # collection.
            names = [self.groups[0].column(index).path_in_schema for index in leaves] if self.groups else []
        return Selection(stored, tuple(leaves), names)

    def size_of(self, group: int, leaves: tuple[int, ...]) -> tuple[int, int]:
        """Return the stored size of leaves of a row group in bytes, and their approximate decoded size."""
        return self._extent(group, leaves)[:2]

    def foresee(self, group: int, leaves: tuple[int, ...]) -> None:
        """Prefetch leaves of a row group in one go, or announce that Arrow reads them, unless they are too large."""
        if not leaves:
            return
        stored, _, spans = self._extent(group, leaves)
        if stored <= _AT_ONCE:
            with faults(self.file.path):
                self._reads.foresee(spans)

    def _extent(self, group: int, leaves: tuple[int, ...]) -> tuple[int, int, list[tuple[int, int]]]:
        """Return the stored and decoded size of leaves of a row group, and their ranges. Called repeatedly."""
        found = self._extents.get((group, leaves))
        if found is None:
            column, stored, decoded, spans = self.groups[group].column, 0, 0, []
            for leaf in leaves:
                chunk = column(leaf)
                size = chunk.total_compressed_size
                first = chunk.data_page_offset
                if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                    first = min(first, chunk.dictionary_page_offset)
                stored += size
                decoded += chunk.total_uncompressed_size
                spans.append((first, size))
            found = self._extents[group, leaves] = stored, decoded, spans
        return found

    def forget(self) -> None:
        """Drop prefetched data of row groups that have been read."""
        self._reads.forget()

    def repeats(self, selection: Selection, group: int) -> tuple[str, ...]:
        """Return the string columns of a selection that repeat so much that each value is best checked once."""
        texts = {each.physical_name for each in selection.fields if each.type == Primitive("string")}
        found = []
        for leaf, name in zip(selection.leaves, selection.names, strict=True):
            if name not in texts:
                continue
            chunk = self.groups[group].column(leaf)
            # Writers abandon a dictionary that grows too large in the middle of a column, which is then as large as its
            # strings.
            if chunk.has_dictionary_page and chunk.total_uncompressed_size < 4 * chunk.num_values:
                found.append(name)
        return tuple(found)

    def raw(
        self, selection: Selection, group: int, batch_size: int, *, codes: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group as stored, including deleted ones; empty rows if nothing is selected.

        Columns in ``codes`` are returned as dictionary codes.
        """
        rows = self.groups[group].num_rows
        if not selection.leaves:
            for start in range(0, rows, batch_size):
                yield rows_without_columns(min(batch_size, rows - start))
            return
        stored, decoded = self.size_of(group, selection.leaves)
        # Single rows may be megabytes: limit a batch by bytes too.
        length = max(1, min(batch_size, _BATCH_BYTES * max(rows, 1) // max(decoded, 1)))
        done = 0
        with self._page_errors():
            watch = self._watch(group, selection.leaves, min(length, rows))
            if watch is not None and not self._is_streamed(stored):
                largest = watch.look_ahead(lambda start, size: self._source.read_at(size, start))
                length, watch = max(1, min(length, int(_BATCH_BYTES / max(largest, 1)))), None
        while True:
            try:
                for batch in self._decoded(group, selection, length, codes, watch, skip=done):
                    done += batch.num_rows
                    yield batch
            except LargeBatchError as error:
                length = max(1, min(error.rows, length - 1))
                watch = self._watch(group, selection.leaves, length)
            else:
                return

    def _decoded(
        self,
        group: int,
        selection: Selection,
        length: int,
        codes: Sequence[str],
        watch: PageWatch | None,
        *,
        skip: int,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group after the first ``skip`` ones."""
        stored, at = self.size_of(group, selection.leaves)[0], 0
        with self._page_errors(), self._source_of(stored, selection.names, codes, watch) as parquet:
            with faults(self.file.path):
                batches = parquet.iter_batches(length, [group], selection.leaves, use_threads=False)
            while True:
                if watch is not None:
                    watch.expect(at, length)
                with faults(self.file.path):
                    batch = next(batches, None)
                if batch is None:
                    return
                at += batch.num_rows
                if at > skip:
                    yield batch if at - batch.num_rows >= skip else batch.slice(skip - at + batch.num_rows)

    def _watch(self, group: int, leaves: tuple[int, ...], rows: int) -> PageWatch | None:
        """Return a watch over those leaves that could take too much memory; None if there are none."""
        if self._trusts_footers:
            decoded = self.size_of(group, leaves)[1]
            if decoded <= self._page_bytes and decoded * rows <= _BATCH_BYTES:
                return None  # nor is any of them
        found, column = [], self.groups[group].column
        for leaf in leaves:
            chunk = column(leaf)
            if self._trusts_footers:
                most = chunk.total_uncompressed_size
            else:
                most = chunk.total_compressed_size * _EXPANSION.get(chunk.compression, _ANY_EXPANSION)
            repeats = chunk.has_dictionary_page and chunk.physical_type == "BYTE_ARRAY"
            if most > self._page_bytes or (repeats and most * rows > _BATCH_BYTES):
                found.append(leaf)
        if not found:
            return None
        watch = PageWatch(self.metadata, found, [group], self._page_bytes, _BATCH_BYTES)
        watch.expect(0, rows)
        return watch

    @contextmanager
    def _page_errors(self) -> Iterator[None]:
        try:
            yield
        except LargePageError as error:
            message = f"Data file {self.file.path} has {error}, which is too much for the memory budget"
            hint = f"use a memory_budget of {budget_for_page(error)} MB, or omit the column"
            raise MemoryLimitError(message, path=self.file.path, hint=hint) from None

    def _is_streamed(self, stored: int) -> bool:
        """Return whether columns of this many bytes are fetched in pieces while they are decoded."""
        return stored > _AT_ONCE and self._home.is_remote

    def live_mask(self, group: int, offset: int, length: int) -> pa.BooleanArray | None:
        """Return which rows of a row group, starting at ``offset``, are not deleted; None if all are live."""
        deleted = self.deleted
        return None if deleted is None else deleted.keep_mask(self._first_rows[group] + offset, length)

    def convert(self, selection: Selection, batch: pa.RecordBatch, *, keep_codes: bool = False) -> dict[str, pa.Array]:
        """Return stored rows as columns of the table's types, by field name.

        With ``keep_codes``, strings that were read as dictionary codes stay codes.
        """
        with faults(self.file.path, "has values that do not fit the table's types"):
            planned, schema = selection.planned, batch.schema
            if planned is None or planned[0] != schema:
                # Row groups of one file may hold codes or strings. Files that are read in parallel share this.
                plans = Converter(self._finder).fields(selection.fields, list(schema), "")
                planned = selection.planned = schema, plans
            arrays: dict[str, pa.Array] = {}
            for each, (index, convert) in zip(selection.fields, planned[1], strict=True):
                # A missing column is built from the length of the batch alone.
                column = batch if index < 0 else batch.column(index)
                is_kept = convert is unchanged or (keep_codes and index >= 0 and column.type == _CODED_TEXT)
                arrays[each.name] = column if is_kept else convert(column)
        return arrays

    @contextmanager
    def _source_of(
        self, stored: int, columns: Sequence[str], codes: Sequence[str], watch: PageWatch | None
    ) -> Iterator[pq.ParquetReader]:
        """Open the source for columns of this many bytes: the prefetched data, otherwise a stream."""
        if stored <= _AT_ONCE:
            if not set(columns).intersection(set(self._codes).symmetric_difference(codes)):
                yield self._parquet
                return
            with faults(self.file.path):
                parquet = _parquet(self._source, self.metadata, 0, self._verified, codes=codes, pool=self._pool)
            yield parquet
            return
        # Without pre-buffering a column is read as its pages are needed, through its own buffer. So memory does not
        # depend on the size of row groups, and the buffers share one limit whatever the number of columns.
        buffer = max(_LEAST_BUFFER, min(_MOST_BUFFER, _READ_BYTES // max(len(columns), 1)))
        with faults(self.file.path):
            source = self._home.open_input(self._path, size=self._source.size())
            if watch is not None:
                source = watch.over(source, self._source.size(), self._path)
        self._streams.append(source)
        try:
            with faults(self.file.path):
                parquet = _parquet(source, self.metadata, buffer, self._verified, codes=codes, pool=self._pool)
            yield parquet
        finally:
            self._streams.remove(source)
            source.close()

    def _open(self) -> tuple[DirectReads | PrefetchedReads, pa.NativeFile, pq.ParquetReader]:
        """Open the file and read its footer. A wrong size in the log costs a request, but the read succeeds."""
        path, logged = self.file.path, self.file.size
        try:
            # Arrow uses the actual size of the file. The logged size serves to announce the read.
            if 0 < logged <= _TAIL and self._home.reads_directly:
                # One read is faster than a file that Arrow opens, whatever is read of it.
                data = self._home.get(self._path, length=_TAIL + 1)
                if len(data) <= _TAIL:
                    return self._open_held(data)
            start = max(0, logged - _TAIL)
            source = self._home.open_direct(self._path, start=start, length=max(0, logged) - start)
            if source is not None:
                return self._open_direct(source)
            size = logged if logged > 0 else self._home.head(self._path).size
            try:
                return self._open_sized(size)
            except ObjectNotFoundError:
                raise
            except (pa.ArrowException, OSError, ValueError, StorageError):
                actual = self._home.head(self._path).size
                if actual == size:
                    raise
                return self._open_sized(actual)
        except ObjectNotFoundError as error:
            raise missing(path) from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise unreadable(path, error) from error

    def _open_held(self, data: bytes) -> tuple[DirectReads, pa.NativeFile, pq.ParquetReader]:
        at = _arrow_schema_in(data, max(0, len(data) - 8 - int.from_bytes(data[-8:-4], "little")))
        source = pa.BufferReader(data if at < 0 else _renamed(data, at))
        return DirectReads(self._home, self._path, is_held=True), source, self._reader_of(source, None)

    def _open_direct(self, source: pa.NativeFile) -> tuple[DirectReads, pa.NativeFile, pq.ParquetReader]:
        try:
            return DirectReads(self._home, self._path), source, self._first_parquet(source)
        except BaseException:
            source.close()
            raise

    def _first_parquet(self, source: pa.NativeFile) -> pq.ParquetReader:
        return self._reader_of(source, _without_arrow_schema(source))

    def _reader_of(self, source: pa.NativeFile, metadata: pq.FileMetaData | None) -> pq.ParquetReader:
        try:
            return _parquet(source, metadata, 0, self._verified, codes=self._codes, pool=self._pool)
        except KeyError:
            # The file is older than the column.
            self._codes = ()
            return _parquet(source, metadata, 0, self._verified, pool=self._pool)

    def _open_sized(self, size: int) -> tuple[PrefetchedReads, pa.NativeFile, pq.ParquetReader]:
        reads = PrefetchedReads(self._home, self._path, size)
        try:
            reads.keep_tail(_SMALL if self._home.is_remote and size <= _SMALL else _TAIL)
            source = open_native(reads, size, self._path)
            return reads, source, self._first_parquet(source)
        except BaseException:
            reads.close()
            raise


def rows_without_columns(number: int) -> pa.RecordBatch:
    """Return rows without columns, which have only a count."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), number, [None]))


def _without_arrow_schema(source: pa.NativeFile) -> pq.FileMetaData | None:
    """Return the footer of a file without the Arrow schema that its writer stored; None if there is none.

    That schema determines the layout of values in Arrow: as views, dictionaries, runs or list views, most of which
    Arrow can neither filter nor take rows from. Without it Arrow uses the Parquet types, as other readers do. PyArrow
    has no option for that, so the key is changed to one that Arrow does not know. This takes no longer than reading the
    schema.
    """
    size = source.size()
    tail = source.read_at(min(size, _TAIL), max(0, size - _TAIL))
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if not tail.endswith(b"PAR1") or length > size:
        return None  # Arrow reports what is wrong with it
    footer = tail[-length:] if length <= len(tail) else source.read_at(length, size - length)
    at = _arrow_schema_in(footer, 0)
    if at < 0:
        return None
    with pa.BufferReader(b"PAR1" + _renamed(footer, at)) as buffer:
        return _parquet(buffer, None, 0, verified=False).metadata


def _arrow_schema_in(footer: bytes, start: int) -> int:
    """Return where the key of the Arrow schema is in a footer that begins at ``start``; -1 if it has none."""
    # Searching from the end finds the metadata after the row groups first. A match in a statistic would be a maximum,
    # which may safely be larger.
    return footer.rfind(_ARROW_SCHEMA + b"\x18", start)


def _renamed(footer: bytes, at: int) -> bytes:
    return footer[:at] + _ARROW_SCHEMA[:-1] + b"\x7f" + footer[at + len(_ARROW_SCHEMA) :]


def _parquet(
    source: pa.NativeFile,
    metadata: pq.FileMetaData | None,
    buffer: int,
    verified: bool,  # noqa: FBT001 - one of several settings, all required
    *,
    codes: Sequence[str] = (),
    pool: pa.MemoryPool | None = None,
) -> pq.ParquetReader:
    # Not through ``ParquetFile``: it lists all names for each file, and columns are selected by position here.
    reader = pq.ParquetReader(memory_pool=pool)
    reader.open(
        source,
        metadata=metadata,
        read_dictionary=list(codes) or None,
        buffer_size=buffer,
        pre_buffer=False,
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=verified,
        arrow_extensions_enabled=True,
    )
    return reader


class faults:  # noqa: N801 - reads as a word where it is used
    """Convert errors of PyArrow and the store about a data file into lazydelta errors that name it."""

    __slots__ = ("_path", "_what")

    def __init__(self, path: str, what: str = "cannot be read as Parquet") -> None:
        self._path = path
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            return
        if isinstance(error, ObjectNotFoundError):
            raise missing(self._path) from error
        if isinstance(error, pa.ArrowException | OSError | ValueError | OverflowError | KeyError | IndexError):
            raise unreadable(self._path, error, self._what) from error


def missing(path: str) -> DataFileError:
    """Return the error for a file in the log that does not exist."""
    message = f"Data file {path} does not exist"
    return DataFileError(message, path=path, hint="it may have been vacuumed; read a newer version of the table")


def unreadable(path: str, error: Exception, what: str = "cannot be read as Parquet") -> DataFileError:
    """Return the error for a file that is not valid."""
    if "encrypt" in str(error).lower():
        message = f"Data file {path} is encrypted"
        return DataFileError(message, path=path, hint="lazydelta does not read Parquet modular encryption")
    message = f"Data file {path} {what}: {error}"
    return DataFileError(message, path=path, hint="the file is damaged or of another format; restore it")


# Read the rows of data files as the table presents them.
#
# The order of steps: find the columns in the file, mask deleted rows by position, convert values to the table's types,
# add the partition values of the log, and then apply the filter to logical columns.


class RowReader:
    """Reads rows of the files of one table. Safe to share between threads.

    ``schema`` is the schema of the batches: the requested columns, in that order, under logical names.

    Rows take their memory from the C allocator. Arrow's own gives pages back to the system between batches; clearing
    them anew takes a quarter of the time of a rewrite.
    """

    def __init__(
        self,
        store: Store,
        schema: TableSchema,
        *,
        columns: Sequence[str] | None = None,
        batch_size: int = 65536,
        page_bytes: int | None = None,
    ) -> None:
        if batch_size < 1:
            message = f"batch_size must be at least 1, not {batch_size}"
            raise OptionError(message)
        self._store = store
        self._table = schema
        self._batch_size = batch_size
        self._page_bytes = page_bytes
        self._by_id = schema.column_mapping == "id"
        fields = schema.fields if columns is None else tuple(schema.field(name) for name in columns)
        if len({each.name for each in fields}) != len(fields):
            message = f"A column is named twice in {list(columns or ())}"
            raise OptionError(message, hint="name each column once")
        self._fields = fields
        self._partitions = frozenset(schema.partition_columns)
        self.schema: pa.Schema = pa.schema([each.to_arrow() for each in fields])
        self._last_filter: tuple[pc.Expression, list[Field]] | None = None
        self._last_selection: tuple[pa.Schema, Sequence[Field], Selection] | None = None
        if self._by_id:
            check_field_ids(each for each in schema.fields if each.name not in self._partitions)

    def read(self, file: FileToRead, *, filter: pc.Expression | None = None) -> Iterator[pa.RecordBatch]:  # noqa: A002 - pyarrow's name for it
        """Yield the live rows of ``file`` that satisfy ``filter``. Rows for which it is null are dropped.

        The filter may use any column of the table. Closing the iterator closes the file.
        """
        fields = self._fields
        if filter is not None:
            fields = (*fields, *self._more_fields(filter))
        for batch in self._rows([file], fields):
            if filter is None:
                yield batch
                continue
            try:
                kept = batch.filter(filter)
            except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
                raise bad_filter(filter, error) from error
            if kept.num_rows:
                yield kept.select(range(len(self._fields)))

    def _more_fields(self, expression: pc.Expression) -> list[Field]:
        """Return the fields that ``expression`` needs in addition to the requested ones."""
        last = self._last_filter
        if last is None or not last[0].equals(expression):
            # Thousands of files share the same filter, so it is analysed once.
            asked = {each.name for each in self._fields}
            more = [each for each in named_fields(expression, self._table) if each.name not in asked]
            last = self._last_filter = (expression, more)
        return last[1]

    def read_in_order(self, files: Iterable[FileToRead]) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of all ``files``. Rows of neighbouring small files come in one batch."""
        return self._rows(files, self._fields)

    def _rows(self, files: Iterable[FileToRead], fields: Sequence[Field]) -> Iterator[pa.RecordBatch]:
        out, pool = pa.schema([each.to_arrow() for each in fields]), pa.system_memory_pool()
        held, count = list[_Stored](), 0
        for file in files:
            with OpenedFile(self._store, self._table, file, page_bytes=self._page_bytes, memory_pool=pool) as opened:
                constants, selection = opened.constants(fields), self._select(opened, fields)
                for group in range(len(opened.groups)):
                    opened.foresee(group, selection.leaves)
                    is_small = not constants and 0 < opened.size_of(group, selection.leaves)[1] <= _SMALL_GROUP
                    for batch in _live(opened, group, opened.raw(selection, group, self._batch_size)):
                        count += batch.num_rows
                        fits = len(held) < _MOST_JOINED and count <= self._batch_size
                        if held and not (is_small and fits and selection is held[0].selection):
                            yield _joined(held, fields, out)
                            held, count = [], batch.num_rows
                        held.append(_Stored(opened, selection, batch, constants))
                        if not is_small:
                            yield _joined(held, fields, out)
                            held, count = [], 0
                    opened.forget()
        if held:
            yield _joined(held, fields, out)

    def _select(self, opened: OpenedFile, fields: Sequence[Field]) -> Selection:
        """Select fields of a file. Consecutive files usually have one schema, whose columns are found once."""
        last, schema = self._last_selection, opened.arrow_schema
        if last is not None and opened.groups and last[1] == fields and last[0].equals(schema, check_metadata=True):
            return last[2]
        selection = opened.select(fields)
        # Nested columns may have other names in Parquet under the same Arrow schema.
        if opened.groups and frozenset(schema.names).issuperset(selection.names):
            self._last_selection = schema, fields, selection
        return selection


class _Stored(NamedTuple):
    """Live rows as a file stores them, with the values that all of them share."""

    opened: OpenedFile
    selection: Selection
    rows: pa.RecordBatch
    constants: dict[str, pa.Scalar]


def _joined(held: Sequence[_Stored], fields: Sequence[Field], out: pa.Schema) -> pa.RecordBatch:
    """Return stored rows as the table presents them. Files of a hundred rows take longer to convert than to read."""
    opened, selection, rows, constants = held[0]
    if len(held) > 1:
        rows = pa.concat_batches([each.rows for each in held], memory_pool=pa.system_memory_pool())
    try:
        arrays = opened.convert(selection, rows)
    except DataFileError:
        for each in held:
            each.opened.convert(selection, each.rows)  # the error names the file
        raise
    columns = [
        pa.repeat(constants[each.name], rows.num_rows) if each.name in constants else arrays[each.name]
        for each in fields
    ]
    return pa.RecordBatch.from_arrays(columns, schema=out) if columns else rows


def _live(opened: OpenedFile, group: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group without the deleted ones."""
    start = 0
    for batch in batches:
        mask = opened.live_mask(group, start, batch.num_rows)
        start += batch.num_rows
        kept = batch
        if mask is not None:
            # A batch without columns has rows to count but nothing to filter.
            kept = batch.filter(mask) if batch.num_columns else rows_without_columns(mask.true_count)
        if kept.num_rows:
            yield kept

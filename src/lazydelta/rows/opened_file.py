"""``OpenedFile``: one data file whose footer was read; its rows come out row group by row group.

A ``Selection`` is a set of fields as this file stores them. Its rows are read raw, so that deleted ones can be left out
by their position and others by a filter, and converted to the table's types only then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self

import pyarrow as pa
import pyarrow.parquet as pq

from lazydelta.errors import DataFileError, ObjectNotFoundError, StorageError
from lazydelta.log.actions import DeletionVector
from lazydelta.rows.column_finder import ColumnFinder
from lazydelta.rows.conversion import Converter
from lazydelta.rows.deletion_vectors import DeletedRows, read_deletion_vector
from lazydelta.storage import Store, open_native
from lazydelta.storage.direct import DirectReads
from lazydelta.storage.prefetched import PrefetchedReads
from lazydelta.types.conversion_steps import Conversion, unchanged
from lazydelta.types.partition_values import partition_value
from lazydelta.types.schema import Field, Primitive, TableSchema

__all__ = ["FileToRead", "OpenedFile", "Selection", "rows_without_columns"]

_BATCH_BYTES = 64 << 20
_READ_BYTES = 16 << 20
_LEAST_BUFFER, _MOST_BUFFER = 64 << 10, 1 << 20
_TAIL = 64 << 10
# A remote file of this size is fetched whole: it takes less time than a second request.
_SMALL = 512 << 10
_CODED_TEXT = pa.dictionary(pa.int32(), pa.string())
# What a row group may take on the wire to be fetched in one go; larger ones are streamed through small buffers.
_AT_ONCE = 16 << 20


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


@dataclass(slots=True)
class Selection:
    """Fields of the table with the Parquet leaves that hold them in one file."""

    fields: tuple[Field, ...]
    leaves: tuple[int, ...]
    names: list[str]
    planned: tuple[pa.Schema, list[tuple[int, Conversion]]] | None = None


class OpenedFile:
    """A data file as the table presents it; used by one thread at a time, aborted from any.

    ``codes`` are columns that will presumably be asked for as codes of a dictionary, as they were in files before.
    ``verified`` has the checksums of pages compared, where the file has them.
    """

    def __init__(
        self,
        store: Store,
        schema: TableSchema,
        file: FileToRead,
        *,
        codes: Sequence[str] = (),
        verified: bool = True,
    ) -> None:
        self.file = file
        self._verified = verified
        # To open the file once more for the same columns as codes would take about as long as to open it.
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
        """End the file's requests; harmless when it is closed."""
        self._reads.close()
        self._source.close()

    def abort(self) -> None:
        """End the file's requests, from another thread than the one that reads it; that one closes it."""
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
        """The file's deletion vector, read when the first row is; it has to fit the file."""
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
        """Find the stored ones of ``fields`` in this file."""
        stored = tuple(each for each in fields if each.name not in self._schema.partition_columns)
        with faults(self.file.path):
            leaves = self._finder.leaves(stored, self.arrow_schema) if stored else []
            # Not by the schema of the footer: the two hold each other, and would wait for the collector of garbage.
            names = [self.groups[0].column(index).path_in_schema for index in leaves] if self.groups else []
        return Selection(stored, tuple(leaves), names)

    def size_of(self, group: int, leaves: tuple[int, ...]) -> tuple[int, int]:
        """Return how many bytes leaves of a row group take as stored, and about how many when decoded."""
        return self._extent(group, leaves)[:2]

    def foresee(self, group: int, leaves: tuple[int, ...]) -> None:
        """Fetch leaves of a row group in one go, or announce that Arrow does, unless they are too large for that."""
        if not leaves:
            return
        stored, _, spans = self._extent(group, leaves)
        if stored <= _AT_ONCE:
            with faults(self.file.path):
                self._reads.foresee(spans)

    def _extent(self, group: int, leaves: tuple[int, ...]) -> tuple[int, int, list[tuple[int, int]]]:
        """Return what leaves of a row group take, stored and decoded, and where they are; asked more than once."""
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
        """Drop what was fetched for row groups that have been read."""
        self._reads.forget()

    def repeats(self, selection: Selection, group: int) -> tuple[str, ...]:
        """Return the texts of a selection whose values repeat so much that they are best judged once each."""
        texts = {each.physical_name for each in selection.fields if each.type == Primitive("string")}
        found = []
        for leaf, name in zip(selection.leaves, selection.names, strict=True):
            if name not in texts:
                continue
            chunk = self.groups[group].column(leaf)
            # Dictionaries that grew too large are given up in the middle of a column, and it is as large as its texts.
            if chunk.has_dictionary_page and chunk.total_uncompressed_size < 4 * chunk.num_values:
                found.append(name)
        return tuple(found)

    def raw(
        self, selection: Selection, group: int, batch_size: int, *, codes: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a row group as stored, deleted ones included; empty rows where nothing is selected.

        Columns named in ``codes`` come as codes of a dictionary.
        """
        rows = self.groups[group].num_rows
        if not selection.leaves:
            for start in range(0, rows, batch_size):
                yield rows_without_columns(min(batch_size, rows - start))
            return
        stored, decoded = self.size_of(group, selection.leaves)
        # Rows may be megabytes each: bound a batch by bytes too.
        length = max(1, min(batch_size, _BATCH_BYTES * max(rows, 1) // max(decoded, 1)))
        with self._source_of(stored, selection.names, codes) as parquet:
            with faults(self.file.path):
                batches = parquet.iter_batches(length, [group], selection.leaves, use_threads=False)
            while True:
                with faults(self.file.path):
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch

    def live_mask(self, group: int, offset: int, length: int) -> pa.BooleanArray | None:
        """Tell which of the rows from ``offset`` in a row group are not deleted; None where all of them are live."""
        deleted = self.deleted
        return None if deleted is None else deleted.keep_mask(self._first_rows[group] + offset, length)

    def convert(self, selection: Selection, batch: pa.RecordBatch, *, keep_codes: bool = False) -> dict[str, pa.Array]:
        """Return rows as stored as columns of the table's types, by the name of the field.

        ``keep_codes`` leaves texts as codes that were read so.
        """
        with faults(self.file.path, "has values that do not fit the table's types"):
            planned, schema = selection.planned, batch.schema
            if planned is None or planned[0] != schema:
                # Row groups of one file may come as codes or as texts. Files that are read side by side share this.
                plans = Converter(self._finder).fields(selection.fields, list(schema), "")
                planned = selection.planned = schema, plans
            arrays: dict[str, pa.Array] = {}
            for each, (index, convert) in zip(selection.fields, planned[1], strict=True):
                # What is missing in the file is made from the batch's length alone.
                column = batch if index < 0 else batch.column(index)
                is_kept = convert is unchanged or (keep_codes and index >= 0 and column.type == _CODED_TEXT)
                arrays[each.name] = column if is_kept else convert(column)
        return arrays

    @contextmanager
    def _source_of(self, stored: int, columns: Sequence[str], codes: Sequence[str]) -> Iterator[pq.ParquetReader]:
        """Open what columns of so many bytes are read through: what was fetched at once, or else a stream."""
        if stored <= _AT_ONCE:
            if all((name in self._codes) == (name in codes) for name in columns):
                yield self._parquet
                return
            with faults(self.file.path):
                parquet = _parquet(self._source, self.metadata, 0, self._verified, codes=codes)
            yield parquet
            return
        # Without pre-buffering a column is read as its pages are needed, through a buffer of its own: memory does not
        # depend on the size of row groups, and the buffers share one bound however many columns there are.
        buffer = max(_LEAST_BUFFER, min(_MOST_BUFFER, _READ_BYTES // max(len(columns), 1)))
        with faults(self.file.path):
            source = self._home.open_input(self._path, size=self._source.size())
        self._streams.append(source)
        try:
            with faults(self.file.path):
                parquet = _parquet(source, self.metadata, buffer, self._verified, codes=codes)
            yield parquet
        finally:
            self._streams.remove(source)
            source.close()

    def _open(self) -> tuple[DirectReads | PrefetchedReads, pa.NativeFile, pq.ParquetReader]:
        """Open the file and read its footer; a size that the log has wrong costs a request, not the read."""
        path, logged = self.file.path, self.file.size
        try:
            # Arrow goes by the size that the file has; the one in the log serves to say what is read.
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

    def _open_direct(self, source: pa.NativeFile) -> tuple[DirectReads, pa.NativeFile, pq.ParquetReader]:
        try:
            return DirectReads(self._home, self._path), source, self._first_parquet(source)
        except BaseException:
            source.close()
            raise

    def _first_parquet(self, source: pa.NativeFile) -> pq.ParquetReader:
        try:
            return _parquet(source, None, 0, self._verified, codes=self._codes)
        except KeyError:
            # The file was written before the column was there.
            self._codes = ()
            return _parquet(source, None, 0, self._verified)

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
    """Return rows that have nothing but their number."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), number, [None]))


def _parquet(
    source: pa.NativeFile,
    metadata: pq.FileMetaData | None,
    buffer: int,
    verified: bool,  # noqa: FBT001 - one of a row of settings, all given
    *,
    codes: Sequence[str] = (),
) -> pq.ParquetReader:
    # Not by way of ``ParquetFile``: it lists all names for each file, and columns are asked for by their place.
    reader = pq.ParquetReader()
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
    """Turn what PyArrow and the store raise about a data file into errors of ours that name it."""

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
    """Return the error for a file that the log names and that is not there."""
    message = f"Data file {path} does not exist"
    return DataFileError(message, path=path, hint="it may have been vacuumed; read a newer version of the table")


def unreadable(path: str, error: Exception, what: str = "cannot be read as Parquet") -> DataFileError:
    """Return the error for a file that is not what it should be."""
    if "encrypt" in str(error).lower():
        message = f"Data file {path} is encrypted"
        return DataFileError(message, path=path, hint="lazydelta does not read Parquet modular encryption")
    message = f"Data file {path} {what}: {error}"
    return DataFileError(message, path=path, hint="the file is damaged or of another format; restore it")

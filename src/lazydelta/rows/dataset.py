"""``RowsDataset``: a table as a PyArrow dataset whose scans all go through the row scanner.

Engines recognize datasets by PyArrow's class, so this is a subclass of it. PyArrow's own functions may bypass the
methods below and use the C++ dataset instead. That one holds a single fragment in a file system that refuses every
call, so an unsupported operation raises an error and never returns an empty table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn
from weakref import WeakSet

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from lazydelta.data_files.columns import named_fields
from lazydelta.data_files.reader import FileToRead, rows_without_columns
from lazydelta.errors import OptionError, PredicateError, ScanError, UnknownColumnError
from lazydelta.predicates import NanOrder, Predicate, conjunction, parse_predicate
from lazydelta.protocol.schema import Column, Field, TableSchema
from lazydelta.rows.flow import ReadingPool
from lazydelta.rows.request import RowRequest, pruned_fields
from lazydelta.rows.scanner import FilesScanner, RowScanner
from lazydelta.rows.stream import RowStream
from lazydelta.runtime.arrays import from_numpy
from lazydelta.sidecar.handle import PinnedVersion, Snapshot, TableHandle, TableOrUri, snapshot_of
from lazydelta.storage import Store, open_store

__all__ = ["RowsDataset", "check_filesystem", "engine_dataset", "table_dataset"]


# Scanners and fragments of the dataset, which read through the row scanner.
#
# They have the methods of PyArrow's classes, which engines call by name. They do not subclass them, because PyArrow
# would look for a C++ scanner that does not exist.


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a dataset scan in the forms PyArrow accepts: names, nested names, or named expressions."""

    read: tuple[Field, ...]
    schema: pa.Schema
    picked: tuple[tuple[str, ...], ...] | None = None
    computed: Mapping[str, pc.Expression] = field(default_factory=dict)

    @classmethod
    def of(cls, table: TableSchema, names: Sequence[str] | Mapping[str, Any] | None, shown: pa.Schema) -> Columns:
        """Bind the requested columns. ``shown`` is the schema of the dataset and determines types and order."""
        if isinstance(names, Mapping):
            return cls._of_expressions(table, names)
        if isinstance(names, str):
            raise OptionError("columns is a list of names, not a string", hint=f"write [{names!r}]")
        found = [table.column(name) for name in (shown.names if names is None else names)]
        fields = [_shown_field(each, shown) for each in found]
        return cls(pruned_fields(table, found), pa.schema(fields), tuple(each.path for each in found))

    @classmethod
    def _of_expressions(cls, table: TableSchema, named: Mapping[str, Any]) -> Columns:
        if not all(isinstance(each, pc.Expression) for each in named.values()):
            raise OptionError("columns as a mapping takes expressions", hint="write {'name': pc.field('column')}")
        needed = {each.name for value in named.values() for each in named_fields(value.is_valid(), table)}
        read = tuple(each for each in table.fields if each.name in needed)
        empty = pa.schema([each.to_arrow() for each in read]).empty_table()
        return cls(read, pads.dataset(empty).to_table(columns=dict(named)).schema, computed=dict(named))

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the requested columns of a batch that was read."""
        if self.picked is None:
            if not self.read:
                # Only constants: PyArrow has no rows without columns, so add a placeholder column that is not selected.
                number = from_numpy(np.zeros(batch.num_rows, np.int64))
                batch = pa.RecordBatch.from_arrays([number], names=["\0"])
            made = pads.dataset(pa.Table.from_batches([batch])).to_table(columns=dict(self.computed))
            return made.combine_chunks().to_batches()[0]
        if not self.picked:
            return rows_without_columns(batch.num_rows)
        arrays = [_at(batch, path) for path in self.picked]
        cast = [
            each if each.type == shown.type else each.cast(shown.type)
            for each, shown in zip(arrays, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(cast, schema=self.schema)


class DatasetScanner:
    """One scan of a dataset. Each method starts a new scan and closes it."""

    def __init__(self, dataset: RowsDataset, columns: Columns, expression: pc.Expression | None, size: int) -> None:
        self._dataset = dataset
        self._columns = columns
        self._filter = expression
        self._batch_size = size

    @property
    def dataset_schema(self) -> pa.Schema:
        """The schema of the dataset."""
        return self._dataset.schema

    @property
    def projected_schema(self) -> pa.Schema:
        """The schema of the returned rows."""
        return self._columns.schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Closing the iterator stops the scan."""
        return self._batches(None)

    def scan_batches(self) -> Iterator[pads.TaggedRecordBatch]:
        """Yield each batch with the fragment it came from, reading one file at a time."""
        for fragment in self._dataset.get_fragments(self._filter):
            batches = fragment.with_columns(self._columns, self._batch_size).to_batches()
            yield from (pads.TaggedRecordBatch(record_batch=batch, fragment=fragment) for batch in batches)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a reader. Dropping the reader stops the scan."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches(None))

    def to_table(self) -> pa.Table:
        """Return all rows."""
        return _table(self._batches(None), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """Return the first rows, opening only as many files as needed."""
        return _table(self._batches(num_rows), self.projected_schema)

    def count_rows(self) -> int:
        """Return the number of rows, from the log where possible."""
        return self._dataset.scan_rows((), self._filter, None).count()

    def take(self, indices: object) -> pa.Table:
        """Return the rows at these positions, in the given order. No file after the last position is opened.

        Positions count the matching rows in files ordered by path, so they are stable for a version.
        """
        wanted = np.asarray(indices.to_pylist() if hasattr(indices, "to_pylist") else indices, dtype=np.int64)
        if len(wanted) and wanted.min() < 0:
            raise OptionError(f"There is no row {wanted.min()}", hint="positions count from 0")
        distinct = np.unique(wanted)
        found: list[pa.RecordBatch] = []
        start = 0
        limit = int(distinct[-1]) + 1 if len(distinct) else 0
        rows = self._dataset.scan_rows(self._columns.read, self._filter, limit, self._batch_size, by_path=True)
        for batch in self._converted(rows.stream()):
            here = distinct[(distinct >= start) & (distinct < start + batch.num_rows)] - start
            found.append(batch.take(from_numpy(here.astype(np.int64))))
            start += batch.num_rows
        if len(distinct) and start <= distinct[-1]:
            raise OptionError(f"There is no row {distinct[-1]}: the scan has {start}", hint="positions count from 0")
        places = np.searchsorted(distinct, wanted).astype(np.int64)
        return _table(iter(found), self.projected_schema).take(from_numpy(places))

    def _batches(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        rows = self._dataset.scan_rows(self._columns.read, self._filter, limit, self._batch_size)
        return self._converted(rows.stream())

    def _converted(self, stream: RowStream) -> Iterator[pa.RecordBatch]:
        if self._dataset.scans is not None:
            self._dataset.scans.append(stream.explanation)
        if self._dataset.running is not None:
            self._dataset.running.add(stream)
        return _converted(stream, self._columns)


class DatasetFragment:
    """One file of a dataset, or the whole dataset. Deletion vectors are applied.

    ``DeltaTable.fragments`` returns pieces of similar size for several readers.
    """

    def __init__(self, dataset: RowsDataset, path: str | None = None) -> None:
        self._dataset = dataset
        self.path = path
        """URI of the file, or None if the fragment covers the whole dataset."""

    @property
    def physical_schema(self) -> pa.Schema:
        """The schema of its rows."""
        return self._dataset.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """The guarantee that holds for all rows, which is none."""
        return self._dataset.partition_expression

    def with_columns(self, columns: Columns, batch_size: int) -> DatasetScanner:
        """Return a scanner for columns that are already bound."""
        return DatasetScanner(self._dataset, columns, None, batch_size)

    def scanner(self, schema: pa.Schema | None = None, **options: Any) -> DatasetScanner:
        """Return a scanner with the options of ``RowsDataset.scanner``."""
        same = schema is None or schema == self._dataset.schema
        found: DatasetScanner = (self._dataset if same else self._dataset.replace_schema(schema)).scanner(**options)
        return found

    def to_batches(self, schema: pa.Schema | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        return self.scanner(schema, **options).to_batches()

    def to_table(self, schema: pa.Schema | None = None, **options: Any) -> pa.Table:
        """Return the rows."""
        return self.scanner(schema, **options).to_table()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """Return the first rows."""
        return self.scanner(**options).head(num_rows)

    def take(self, indices: object, **options: Any) -> pa.Table:
        """Return rows by their position."""
        return self.scanner(**options).take(indices)

    def count_rows(self, **options: Any) -> int:
        """Return the number of rows."""
        return self._dataset.count_rows(**options)


def _converted(stream: RowStream, columns: Columns) -> Iterator[pa.RecordBatch]:
    with stream:
        for batch in stream:
            try:
                yield columns.of_batch(batch)
            except (pa.ArrowException, ValueError) as error:
                message = f"The rows cannot be shown as {columns.schema}: {error}"
                raise PredicateError(message, hint="use types that hold every value of the column") from error


def _table(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    found = list(batches)
    if not len(schema):
        number = sum(batch.num_rows for batch in found)
        return pa.Table.from_batches([rows_without_columns(number)])
    return pa.Table.from_batches(found, schema=schema)


def _shown_field(column: Column, shown: pa.Schema) -> pa.Field:
    found = shown.field(column.path[0])
    for name in column.path[1:]:
        found = found.type.field(name)
    return found


def _at(batch: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    found = batch.column(path[0])
    return pc.struct_field(found, list(path[1:])) if len(path) > 1 else found


_BATCH = 65536


class _Refusing(pafs.FileSystemHandler):  # type: ignore[misc]
    """A file system in which nothing can be opened."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Refusing)

    def __hash__(self) -> int:
        return hash(_Refusing)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def get_type_name(self) -> str:
        return "lazydelta"

    def normalize_path(self, path: str) -> str:
        return path

    def _refuse(self, *_: Any) -> NoReturn:
        message = "PyArrow tried to read a Delta table directly, without deletion vectors and partition values"
        hint = "call to_table, to_batches, scanner or another method of the dataset, or use rows() of the table"
        raise ScanError(message, hint=hint)

    get_file_info = get_file_info_selector = create_dir = delete_dir = delete_dir_contents = _refuse
    delete_root_dir_contents = delete_file = move = copy_file = _refuse
    open_input_stream = open_input_file = open_output_stream = open_append_stream = _refuse


class RowsDataset(PinnedVersion, pads.FileSystemDataset):  # type: ignore[misc]
    """Rows of a pinned version that match ``predicate``; ``files_where`` only skips whole files.

    ``nan_is_largest`` is for SQL engines: filters passed to a scan then order NaN as SQL engines do. ``pool`` is shared
    with the other tables of a query. ``in_one`` is for engines that list all fragments before they read any: they get
    one fragment for all rows. ``only`` is the single file of a fragment. Set ``scans`` to a list to collect an
    explanation of every scan. Set ``running`` to a ``WeakSet`` to collect the running streams, so that another thread
    can close them.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        predicate: Predicate | None = None,
        files_where: Predicate | None = None,
        schema: pa.Schema | None = None,
        nan_is_largest: bool = False,
        pool: ReadingPool | None = None,
        in_one: bool = False,
        only: FileToRead | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._predicate = predicate
        self._files_where = files_where
        self._nan_is_largest = nan_is_largest
        self._pool = pool
        self._in_one = in_one
        self._only = only
        self.scans: list[Callable[[], dict[str, Any]]] | None = None
        self.running: WeakSet[RowStream] | None = None
        refusing = pafs.PyFileSystem(_Refusing())
        form = pads.ParquetFileFormat()
        fragment = form.make_fragment("rows-of-a-delta-table", filesystem=refusing)
        super().__init__([fragment], schema or snapshot.schema.to_arrow(), form, refusing)

    def __reduce__(self) -> Any:
        # The receiving process pins the same version, and raises if a commit that a catalog ratified is not in its log.
        keywords = {
            "predicate": self._predicate,
            "files_where": self._files_where,
            "schema": self.schema,
            "nan_is_largest": self._nan_is_largest,
            "in_one": self._in_one,
            "only": self._only,
        }
        return (_opened_again, (self._snapshot.table, self._snapshot.version, keywords))

    @property
    def table_schema(self) -> TableSchema:
        """The schema of the table, with its types in Delta."""
        return self._snapshot.schema

    def skip_files(self, where: Predicate) -> None:
        """Skip the files that cannot hold rows matching ``where``, in addition to those skipped already."""
        given = [each for each in (self._files_where, where) if each is not None]
        self._files_where = conjunction(given)

    def scan_rows(
        self,
        output: tuple[Field, ...],
        expression: pc.Expression | None,
        limit: int | None,
        batch_size: int = _BATCH,
        *,
        by_path: bool = False,
    ) -> RowScanner | FilesScanner:
        """Return a row scanner for fields of the table, with a filter in addition to the dataset's own."""
        request = RowRequest.of(
            self._snapshot.schema,
            where=self._with(expression),
            limit=limit,
            batch_size=batch_size,
            output=output,
            files_where=self._files_where,
        )
        if self._only is not None:
            return FilesScanner(self._snapshot.table, request, [self._only], pool=self._pool)
        return RowScanner(self._snapshot, request, pool=self._pool, by_path=by_path)

    # --- methods of PyArrow's datasets

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, Any] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - PyArrow's name for it
        batch_size: int = _BATCH,
        **options: Any,
    ) -> Any:
        """Return a scanner. PyArrow's readahead options are accepted and ignored."""
        scanner = DatasetScanner(
            self, Columns.of(self._snapshot.schema, columns, self.schema), self._checked(filter), batch_size
        )
        if set(options) == {"use_threads"} and columns is None and filter is None:
            # `write_dataset` calls it this way. It accepts only a C++ scanner and reads all of it anyway.
            return pads.Scanner.from_batches(scanner.to_reader(), **options)
        return scanner

    def to_batches(self, **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        return self._own(options).to_batches()

    def to_table(self, **options: Any) -> pa.Table:
        """Return the rows as a table."""
        return self._own(options).to_table()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """Return the first rows, opening only as many files as needed."""
        return self._own(options).head(num_rows)

    def take(self, indices: object, **options: Any) -> pa.Table:
        """Return the rows at these positions, with files ordered by path. All files are listed first."""
        return self._own(options).take(indices)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:  # noqa: A002
        """Return the number of rows, from the log where possible."""
        return self._own({**options, "filter": filter}).count_rows()

    def filter(self, expression: pc.Expression) -> RowsDataset:
        """Return a dataset of the rows that match."""
        return self._like(predicate=self._with(self._checked(expression)))

    def replace_schema(self, schema: pa.Schema) -> RowsDataset:
        """Return the dataset with its columns reordered or cast to other types."""
        for each in schema:
            if each.name not in self._snapshot.schema.to_arrow().names:
                message = f"The table has no column {each.name!r} to replace its schema by"
                raise UnknownColumnError(message, hint="use only columns of the table")
        return self._like(schema=schema)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Any]:  # noqa: A002
        """Yield a fragment for each file that may hold matching rows, as files are discovered."""
        passing = self if filter is None else self.filter(filter)
        if self._in_one:
            yield DatasetFragment(passing)
            return
        for file in passing.scan_rows((), None, None).found_files():
            yield DatasetFragment(passing._like(only=file), self._snapshot.store.uri_of(file.path))  # noqa: SLF001

    def sort_by(self, sorting: Any, **options: Any) -> pads.InMemoryDataset:
        """Return all rows, sorted, in memory."""
        return pads.InMemoryDataset(self.to_table().sort_by(sorting, **options))

    def join(self, right_dataset: Any, *arguments: Any, **options: Any) -> pads.InMemoryDataset:
        """Return the join with another dataset, in memory."""
        return pads.InMemoryDataset(self.to_table().join(_rows(right_dataset), *arguments, **options))

    def join_asof(self, right_dataset: Any, *arguments: Any, **options: Any) -> pads.InMemoryDataset:
        """Return the join with another dataset by the nearest key, in memory."""
        return pads.InMemoryDataset(self.to_table().join_asof(_rows(right_dataset), *arguments, **options))

    @property
    def files(self) -> list[str]:
        """URIs of the files that may hold rows of the dataset. All files are listed first."""
        stream = self.scan_rows((), None, None).found_files()
        return [self._snapshot.store.uri_of(file.path) for file in stream]

    @property
    def partitioning(self) -> None:
        """None: the log determines the partition of a file, not its path."""
        return

    @classmethod
    def from_paths(cls, *_: Any, **__: Any) -> NoReturn:
        """Raise ``OptionError``: only the log determines the files of a Delta table."""
        raise OptionError("A Delta table is not made from paths", hint="use DeltaTable(uri).to_pyarrow_dataset()")

    def __repr__(self) -> str:
        return f"RowsDataset({self._snapshot.uri!r}, version={self._snapshot.version})"

    # --- internals

    def _own(self, options: dict[str, Any]) -> DatasetScanner:
        known = {name: options[name] for name in ("columns", "filter", "batch_size") if name in options}
        found: DatasetScanner = self.scanner(**known)
        return found

    def _checked(self, expression: object) -> pc.Expression | None:
        if expression is not None and not isinstance(expression, pc.Expression):
            kind = type(expression).__name__
            raise OptionError(
                f"A dataset is filtered by an expression, not by a {kind}", hint="write pc.field('a') > 1"
            )
        return expression

    def _with(self, expression: pc.Expression | None) -> Predicate | None:
        if expression is None:
            return self._predicate
        order = NanOrder.LARGEST if self._nan_is_largest else NanOrder.UNORDERED
        trust = self._snapshot.options.float_max == "trust"
        predicate = parse_predicate(expression, self._snapshot.schema, nan=order, trust_float_max=trust)
        given = [each for each in (self._predicate, predicate) if each is not None]
        return conjunction(given) if given else None

    def _like(
        self, *, predicate: Predicate | None = None, schema: pa.Schema | None = None, only: FileToRead | None = None
    ) -> RowsDataset:
        return RowsDataset(
            self._snapshot,
            predicate=predicate or self._predicate,
            files_where=self._files_where,
            schema=schema or self.schema,
            nan_is_largest=self._nan_is_largest,
            pool=self._pool,
            in_one=self._in_one,
            only=only or self._only,
        )


def _opened_again(handle: TableHandle, version: int, keywords: dict[str, Any]) -> RowsDataset:
    return RowsDataset(handle.snapshot(version), **keywords)


def _rows(other: Any) -> pa.Table:
    return other.to_table() if isinstance(other, pads.Dataset) else other


# The dataset of a table, with the parameters of deltalake's ``to_pyarrow_dataset``.


def table_dataset(
    snapshot: Snapshot,
    predicate: Predicate | None,
    files_where: Predicate | None,
    *,
    filesystem: object = None,
    schema: pa.Schema | None = None,
    as_large_types: bool = False,
    dictionary_columns: Collection[str] = (),
) -> RowsDataset:
    """Return a dataset of the rows that match ``predicate``, in files that may match ``files_where``.

    ``dictionary_columns`` are returned dictionary-encoded.
    """
    check_filesystem(filesystem, snapshot.store)
    dataset = RowsDataset(snapshot, predicate=predicate, files_where=files_where)
    if schema is None and as_large_types:
        schema = pa.schema([each.with_type(_large(each.type)) for each in dataset.schema])
    if dictionary_columns:
        asked = dataset.schema if schema is None else schema
        unknown = sorted(set(dictionary_columns) - set(asked.names))
        if unknown:
            raise OptionError(f"The dataset has no columns {unknown} to read as dictionaries", hint="list its columns")
        schema = pa.schema([_encoded(each) if each.name in dictionary_columns else each for each in asked])
    return dataset if schema is None else dataset.replace_schema(schema)


def check_filesystem(filesystem: object, store: Store) -> None:
    """Raise for a file system other than the local folder of the table, which is read either way."""
    if filesystem is None:
        return
    if isinstance(filesystem, pafs.SubTreeFileSystem) and isinstance(filesystem.base_fs, pafs.LocalFileSystem):
        folder = os.path.abspath(filesystem.base_path)  # noqa: PTH100 - Path.resolve would follow links
        if open_store(folder).uri == store.uri:
            return
    message = "lazydelta reads through its own store, not through a file system of PyArrow"
    raise OptionError(message, hint="omit filesystem; use storage_options")


def _encoded(field: pa.Field) -> pa.Field:
    return field.with_type(pa.dictionary(pa.int32(), field.type))


def _large(kind: pa.DataType) -> pa.DataType:
    """Return the type with 64-bit offsets. A map has no such variant, but its key and item types may."""
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(kind.value_field.with_type(_large(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_large(each.type)) for each in kind])
    if pa.types.is_map(kind):
        key, item = (each.with_type(_large(each.type)) for each in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    return kind


def engine_dataset(
    table: TableOrUri,
    storage_options: Mapping[str, str] | None = None,
    *,
    version: int | None = None,
    pool: ReadingPool | None = None,
    nan_is_largest: bool = True,
) -> RowsDataset:
    """Return a table as a dataset whose filters order NaN as SQL engines do."""
    snapshot = snapshot_of(table, storage_options, version)
    return RowsDataset(snapshot, nan_is_largest=nan_is_largest, pool=pool, in_one=True)

"""``RowsDataset``: a table as a PyArrow dataset whose every scan goes through the row scanner.

Engines know datasets by PyArrow's class, so this is a subclass of it. PyArrow's own functions may go past the methods
below to what the class holds in C++: a single fragment in a file system that refuses. So what we do not serve is an
error, and never a table without rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn
from weakref import WeakSet

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.fs as pafs

from lazydelta.errors import OptionError, ScanError, UnknownColumnError
from lazydelta.handle import TableHandle
from lazydelta.log.snapshot import Snapshot
from lazydelta.pruning import NanOrder, Predicate, conjunction, parse_predicate
from lazydelta.row_scan.dataset_scan import Columns, DatasetFragment, DatasetScanner
from lazydelta.row_scan.reading_pool import ReadingPool
from lazydelta.row_scan.row_request import RowRequest
from lazydelta.row_scan.row_scanner import FilesScanner, RowScanner
from lazydelta.row_scan.row_stream import RowStream
from lazydelta.rows.opened_file import FileToRead
from lazydelta.types.schema import Field

__all__ = ["RowsDataset"]

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
        message = "PyArrow tried to read a Delta table by itself, without deletion vectors and partition values"
        hint = "call to_table, to_batches, scanner or another method of the dataset, or take rows() of the table"
        raise ScanError(message, hint=hint)

    get_file_info = get_file_info_selector = create_dir = delete_dir = delete_dir_contents = _refuse
    delete_root_dir_contents = delete_file = move = copy_file = _refuse
    open_input_stream = open_input_file = open_output_stream = open_append_stream = _refuse


class RowsDataset(pads.FileSystemDataset):  # type: ignore[misc]
    """Rows of a pinned version; ``predicate`` holds for all of them, ``files_where`` leaves out whole files only.

    ``nan_is_largest`` is for SQL engines: filters given to a scan then order NaN as these do. ``pool`` is shared with
    the other tables of a query. ``in_one`` is for engines that ask for all fragments before they read one: they get one
    fragment for all rows. ``only`` is the one file that a fragment stands for. Who sets ``scans`` to a list gets an
    explanation of every scan there; who sets ``running`` to a set of weak references finds the streams of its scans
    there, to close them from another thread.
    """

    def __init__(  # noqa: PLR0913 - keywords but for two
        self,
        handle: TableHandle,
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
        self._handle = handle
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
        # The other process pins the same version; what a catalog had ratified is in its log by then, or an error.
        keywords = {
            "predicate": self._predicate,
            "files_where": self._files_where,
            "schema": self.schema,
            "nan_is_largest": self._nan_is_largest,
            "in_one": self._in_one,
            "only": self._only,
        }
        return (_opened_again, (self._handle, self._snapshot.version, keywords))

    def scan_rows(
        self,
        output: tuple[Field, ...],
        expression: pc.Expression | None,
        limit: int | None,
        batch_size: int = _BATCH,
    ) -> RowScanner | FilesScanner:
        """Return the row scanner for fields of the table and a filter beside the dataset's own."""
        request = RowRequest.of(
            self._snapshot.schema,
            where=self._with(expression),
            limit=limit,
            batch_size=batch_size,
            output=output,
            files_where=self._files_where,
        )
        if self._only is not None:
            return FilesScanner(self._handle, request, [self._only], pool=self._pool)
        return RowScanner(self._handle, self._snapshot, request, pool=self._pool)

    # --- what PyArrow's datasets have

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, Any] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - pyarrow's name for it
        batch_size: int = _BATCH,
        **options: Any,
    ) -> Any:
        """Return a scanner of ours; how far PyArrow would read ahead is not ours to follow and is ignored."""
        scanner = DatasetScanner(
            self, Columns.of(self._snapshot.schema, columns, self.schema), self._checked(filter), batch_size
        )
        if set(options) == {"use_threads"} and columns is None and filter is None:
            # This is how `write_dataset` asks, which takes a scanner of C++ only; it drains it anyway.
            return pads.Scanner.from_batches(scanner.to_reader(), **options)
        return scanner

    def to_batches(self, **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        return self._own(options).to_batches()

    def to_table(self, **options: Any) -> pa.Table:
        """Return the rows as a table."""
        return self._own(options).to_table()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """Return the first rows; no more files are opened than it takes."""
        return self._own(options).head(num_rows)

    def take(self, indices: object, **options: Any) -> pa.Table:
        """Return the rows at these positions of a scan."""
        return self._own(options).take(indices)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:  # noqa: A002
        """Return the number of rows, from the log where it knows."""
        return self._own({**options, "filter": filter}).count_rows()

    def filter(self, expression: pc.Expression) -> RowsDataset:
        """Return the dataset of the rows that pass."""
        return self._like(predicate=self._with(self._checked(expression)))

    def replace_schema(self, schema: pa.Schema) -> RowsDataset:
        """Return the dataset with columns of the table in another order or of other types, to which they are cast."""
        for each in schema:
            if each.name not in self._snapshot.schema.to_arrow().names:
                message = f"The table has no column {each.name!r} to replace its schema by"
                raise UnknownColumnError(message, hint="name columns of the table only")
        return self._like(schema=schema)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Any]:  # noqa: A002
        """Yield a fragment for each file that may hold rows that pass, while files are found."""
        passing = self if filter is None else self.filter(filter)
        if self._in_one:
            yield DatasetFragment(passing)
            return
        for file in passing.scan_rows((), None, None).found_files():
            yield DatasetFragment(passing._like(only=file), self._snapshot.store.uri_of(file.path))  # noqa: SLF001

    def sort_by(self, sorting: Any, **options: Any) -> pads.InMemoryDataset:
        """Return all rows in order, in memory."""
        return pads.InMemoryDataset(self.to_table().sort_by(sorting, **options))

    def join(self, right_dataset: Any, *arguments: Any, **options: Any) -> pads.InMemoryDataset:
        """Return the join with another dataset, in memory."""
        return pads.InMemoryDataset(self.to_table().join(_rows(right_dataset), *arguments, **options))

    def join_asof(self, right_dataset: Any, *arguments: Any, **options: Any) -> pads.InMemoryDataset:
        """Return the join with another dataset by the nearest key, in memory."""
        return pads.InMemoryDataset(self.to_table().join_asof(_rows(right_dataset), *arguments, **options))

    @property
    def files(self) -> list[str]:
        """The places of the files that may hold rows of the dataset; all of them are found first."""
        stream = self.scan_rows((), None, None).found_files()
        return [self._snapshot.store.uri_of(file.path) for file in stream]

    @property
    def partitioning(self) -> None:
        """Nothing: the log says which partition a file belongs to, not its path."""
        return

    @classmethod
    def from_paths(cls, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the files of a Delta table are known by its log."""
        raise OptionError("A Delta table is not made from paths", hint="use DeltaTable(uri).to_pyarrow_dataset()")

    def __repr__(self) -> str:
        return f"RowsDataset({self._handle.uri!r}, version={self._snapshot.version})"

    # --- inside

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
        trust = self._handle.options.float_max == "trust"
        predicate = parse_predicate(expression, self._snapshot.schema, nan=order, trust_float_max=trust)
        given = [each for each in (self._predicate, predicate) if each is not None]
        return conjunction(given) if given else None

    def _like(
        self, *, predicate: Predicate | None = None, schema: pa.Schema | None = None, only: FileToRead | None = None
    ) -> RowsDataset:
        return RowsDataset(
            self._handle,
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
    return RowsDataset(handle, handle.snapshot(version), **keywords)


def _rows(other: Any) -> pa.Table:
    return other.to_table() if isinstance(other, pads.Dataset) else other

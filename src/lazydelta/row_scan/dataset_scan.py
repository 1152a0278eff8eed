"""What a dataset of ours hands out: scanners and fragments that read through the row scanner.

They have the methods of PyArrow's own, which engines call by name. They are no subclasses of them: PyArrow would reach
through such an object to a scanner in C++ that is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from lazydelta.arrays import from_numpy
from lazydelta.errors import OptionError, PredicateError
from lazydelta.row_scan.projection import pruned_fields
from lazydelta.rows.expression_fields import named_fields
from lazydelta.rows.opened_file import rows_without_columns
from lazydelta.types.schema import Column, Field, TableSchema

if TYPE_CHECKING:
    from lazydelta.row_scan.row_stream import RowStream
    from lazydelta.row_scan.rows_dataset import RowsDataset

__all__ = ["Columns", "DatasetFragment", "DatasetScanner"]


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a dataset's scan, as PyArrow takes them: names, nested names, or named expressions."""

    read: tuple[Field, ...]
    schema: pa.Schema
    picked: tuple[tuple[str, ...], ...] | None = None
    computed: Mapping[str, pc.Expression] = field(default_factory=dict)

    @classmethod
    def of(cls, table: TableSchema, names: Sequence[str] | Mapping[str, Any] | None, shown: pa.Schema) -> Columns:
        """Bind what was asked for; ``shown`` is the dataset's schema, whose types and order count."""
        if isinstance(names, Mapping):
            return cls._of_expressions(table, names)
        if isinstance(names, str):
            raise OptionError("columns is a list of names, not a text", hint=f"write [{names!r}]")
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
        """Return the columns asked for of rows that were read."""
        if self.picked is None:
            if not self.read:
                # Constants alone: PyArrow has no rows without columns, so they are given one that nobody asks for.
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
    """One scan of a dataset; each method reads anew, and closes what it opened."""

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
        """The schema of the rows that leave."""
        return self._columns.schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; closing the iterator ends the scan."""
        return self._batches(None)

    def scan_batches(self) -> Iterator[pads.TaggedRecordBatch]:
        """Yield the rows, each batch beside the fragment it came from; one file is read after the other."""
        for fragment in self._dataset.get_fragments(self._filter):
            batches = fragment.with_columns(self._columns, self._batch_size).to_batches()
            yield from (pads.TaggedRecordBatch(record_batch=batch, fragment=fragment) for batch in batches)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a reader, which ends the scan when it is dropped."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches(None))

    def to_table(self) -> pa.Table:
        """Return all rows."""
        return _table(self._batches(None), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """Return the first rows; no more files are opened than it takes."""
        return _table(self._batches(num_rows), self.projected_schema)

    def count_rows(self) -> int:
        """Return the number of rows, from the log where it knows."""
        return self._dataset.scan_rows((), self._filter, None).count()

    def take(self, indices: object) -> pa.Table:
        """Return the rows at these positions of the scan, in the order given; the scan ends at the last of them."""
        wanted = np.asarray(indices.to_pylist() if hasattr(indices, "to_pylist") else indices, dtype=np.int64)
        if len(wanted) and wanted.min() < 0:
            raise OptionError(f"There is no row {wanted.min()}", hint="positions count from 0")
        distinct = np.unique(wanted)
        found: list[pa.RecordBatch] = []
        start = 0
        for batch in self._batches(int(distinct[-1]) + 1 if len(distinct) else 0):
            here = distinct[(distinct >= start) & (distinct < start + batch.num_rows)] - start
            found.append(batch.take(from_numpy(here.astype(np.int64))))
            start += batch.num_rows
        if len(distinct) and start <= distinct[-1]:
            raise OptionError(f"There is no row {distinct[-1]}: the scan has {start}", hint="positions count from 0")
        places = np.searchsorted(distinct, wanted).astype(np.int64)
        return _table(iter(found), self.projected_schema).take(from_numpy(places))

    def _batches(self, limit: int | None) -> Iterator[pa.RecordBatch]:
        stream = self._dataset.scan_rows(self._columns.read, self._filter, limit, self._batch_size).stream()
        if self._dataset.scans is not None:
            self._dataset.scans.append(stream.explanation)
        if self._dataset.running is not None:
            self._dataset.running.add(stream)
        return _converted(stream, self._columns)


class DatasetFragment:
    """One file of a dataset, or all of it; it reads as the table has it, without what a deletion vector names.

    Pieces of about the same size, for several readers, are made by ``DeltaTable.fragments``.
    """

    def __init__(self, dataset: RowsDataset, path: str | None = None) -> None:
        self._dataset = dataset
        self.path = path
        """Where the file is, if it is one."""

    @property
    def physical_schema(self) -> pa.Schema:
        """The schema of its rows."""
        return self._dataset.schema

    @property
    def partition_expression(self) -> pc.Expression:
        """What is known of all its rows: nothing."""
        return self._dataset.partition_expression

    def with_columns(self, columns: Columns, batch_size: int) -> DatasetScanner:
        """Return a scanner of columns that are bound already."""
        return DatasetScanner(self._dataset, columns, None, batch_size)

    def scanner(self, schema: pa.Schema | None = None, **options: Any) -> DatasetScanner:
        """Return a scanner, as the dataset does."""
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
                raise PredicateError(message, hint="ask for types that hold every value of the column") from error


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

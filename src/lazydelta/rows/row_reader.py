"""Reading the rows of data files as the table presents them.

In this order: columns are found in the file, deleted rows are masked by their position in the file, values take the
table's types, partition values join from the log, and only then a filter is applied, to logical columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.errors import OptionError
from lazydelta.rows.column_finder import check_field_ids
from lazydelta.rows.expression_fields import bad_filter, named_fields
from lazydelta.rows.opened_file import FileToRead, OpenedFile, rows_without_columns
from lazydelta.storage import Store
from lazydelta.types.schema import Field, TableSchema

__all__ = ["FileToRead", "RowReader"]


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
                raise bad_filter(filter, error) from error
            if kept.num_rows:
                yield kept.select(range(len(self._fields)))

    def _more_fields(self, expression: pc.Expression) -> list[Field]:
        """Return the fields that ``expression`` needs beside those asked for."""
        last = self._last_filter
        if last is None or not last[0].equals(expression):
            # Files come by the thousand with one and the same filter: it is taken apart once.
            asked = {each.name for each in self._fields}
            more = [each for each in named_fields(expression, self._table) if each.name not in asked]
            last = self._last_filter = (expression, more)
        return last[1]

    def _rows(self, file: FileToRead, fields: Sequence[Field]) -> Iterator[pa.RecordBatch]:
        out = pa.schema([each.to_arrow() for each in fields])
        with OpenedFile(self._store, self._table, file) as opened:
            constants, selection = opened.constants(fields), opened.select(fields)
            for group in range(len(opened.groups)):
                opened.foresee(group, selection.leaves)
                for batch in _live(opened, group, opened.raw(selection, group, self._batch_size)):
                    arrays = opened.convert(selection, batch)
                    columns = [
                        pa.repeat(constants[each.name], batch.num_rows) if each.name in constants else arrays[each.name]
                        for each in fields
                    ]
                    yield pa.RecordBatch.from_arrays(columns, schema=out) if columns else batch
                opened.forget()


def _live(opened: OpenedFile, group: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group without the deleted ones."""
    start = 0
    for batch in batches:
        mask = opened.live_mask(group, start, batch.num_rows)
        start += batch.num_rows
        kept = batch
        if mask is not None:
            # A batch without columns has rows to count and nothing to filter.
            kept = batch.filter(mask) if batch.num_columns else rows_without_columns(mask.true_count)
        if kept.num_rows:
            yield kept

"""``RowsTable``: the rows of a table at a version, in every form: streams, PyArrow, Polars, pandas, counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lazydelta.deltalake_names.parameters import (
    named_columns,
    warn_of,
)
from lazydelta.errors import OptionError, require
from lazydelta.missing_names import known_arguments
from lazydelta.predicates import Predicate, Where, conjunction, parse_predicate
from lazydelta.table.pinned_table import PinnedTable

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyarrow.dataset import Dataset, ParquetReadOptions

    from lazydelta.rows.scanner import RowEstimate, RowFragment, RowScanner
    from lazydelta.rows.stream import BatchStream, RowStream

    KqlResult = Any  # a layer above

__all__ = ["RowsTable"]


class RowsTable(PinnedTable):
    """``DeltaTable`` as far as it reads rows."""

    def scan(
        self,
        columns: list[str] | None = None,
        predicate: Where = None,
        *,
        where: Where = None,
        limit: int | None = None,
    ) -> BatchStream:
        """Return the rows that match as a stream of record batches, read while files are found.

        ``predicate`` is deltalake's name of ``where``; if both are given, both must hold.
        """
        # A column can be requested twice; it is read once.
        columns = self._named(columns)
        once = self._distinct(columns)
        found = self.rows(once, self._both(predicate, where), limit=limit)
        if columns is None or once == columns:
            return found
        from lazydelta.rows.stream import IteratorStream  # noqa: PLC0415 - see the head of this module

        asked = found.schema.empty_table().select(columns).schema
        return IteratorStream(asked, (batch.select(columns) for batch in found))

    def count(self, where: Where = None) -> int:
        """Return the number of live rows, or of those that match ``where``, from the log as far as it tells.

        Args:
            where: Count rows for which this holds: SQL, an expression, or tuples.

        Returns:
            The number of rows.

        Raises:
            PredicateError: If `where` cannot be parsed or evaluated.

        Example:
            >>> DeltaTable("telemetry").count("value >= 238")
            2

        """
        return self.count_rows(where)

    @known_arguments
    def rows(
        self, columns: Sequence[str] | str | None = None, where: Where = None, *, limit: int | None = None
    ) -> RowStream:
        """Return the rows that match ``where`` as a stream of record batches, read while files are found.

        A column ``a.b`` is the struct ``a`` with only its field ``b``. Rows are in scan order file by file, newest
        files first with a limit, and within a file in file order.

        Args:
            columns: The columns to read; all by default.
            where: Keep rows for which this holds: SQL, an expression, or tuples.
            limit: Stop after this many rows.

        Returns:
            A stream of record batches. Nothing is read before it is consumed.

        Raises:
            PredicateError: If ``where`` cannot be parsed or evaluated.
            UnknownColumnError: If the table has no column of that name.

        Example:
            >>> DeltaTable("telemetry").rows(["value"], "value >= 238").to_list()
            [{'value': 238.0}, {'value': 239.0}]

        """
        if isinstance(where, str) and where in self.columns and self.dtypes[where] != "bool":
            hint = f"write rows({[*(self._named(columns) or ()), where]})"
            raise OptionError(f"{where!r} is a column, not a condition", hint=hint)
        return self._row_scanner(columns=self._named(columns), where=self._bound(where), limit=limit).stream()

    def to_pyarrow_reader(
        self,
        columns: Sequence[str] | None = None,
        filters: Where = None,
        *,
        where: Where = None,
        limit: int | None = None,
    ) -> pa.RecordBatchReader:
        """Return the rows as a PyArrow reader; closing or dropping it ends the scan."""
        return self.rows(columns, self._both(filters, where), limit=limit).to_reader()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export all rows to another library; nothing is read before it pulls."""
        return self.rows().__arrow_c_stream__(requested_schema)

    def to_pyarrow_dataset(
        self,
        partitions: Where = None,
        filesystem: object = None,
        parquet_read_options: ParquetReadOptions | None = None,
        schema: pa.Schema | None = None,
        as_large_types: bool = False,  # noqa: FBT001, FBT002
        file_pruning_predicate: Where = None,
        *,
        where: Where = None,
    ) -> Dataset:
        """Return the rows as a PyArrow dataset that finds its files while it is read.

        ``where`` filters rows and files, ``file_pruning_predicate`` only files, as in deltalake. ``schema``
        and ``as_large_types`` change the types, and ``parquet_read_options`` reads columns as dictionaries (INT96 is
        always read as microseconds).
        """
        from lazydelta.rows.dataset import table_dataset  # noqa: PLC0415 - pyarrow.dataset takes a while

        if partitions is not None and file_pruning_predicate is not None:
            message = "`partitions` is deprecated, and `file_pruning_predicate` is given as well"
            raise OptionError(message, hint="filter the dataset, or pass `file_pruning_predicate` alone")
        if partitions is not None:
            warn_of("`partitions` is deprecated; filter the dataset, or use `file_pruning_predicate`")
        given = [self._both(partitions, where), self._bound(file_pruning_predicate)]
        kinds = {
            "filesystem": filesystem,
            "schema": schema,
            "as_large_types": as_large_types,
            "dictionary_columns": () if parquet_read_options is None else parquet_read_options.dictionary_columns,
        }
        return table_dataset(self._snapshot, *given, **kinds)  # type: ignore[arg-type]

    def to_pyarrow_table(
        self,
        partitions: Where = None,
        columns: list[str] | None = None,
        filesystem: object = None,
        filters: Where = None,
        *,
        where: Where = None,
        limit: int | None = None,
    ) -> pa.Table:
        """Return the rows as a table; ``where`` and deltalake's ``filters`` accept every form of predicate."""
        if filesystem is not None:
            from lazydelta.rows.dataset import check_filesystem  # noqa: PLC0415 - see the head of this module

            check_filesystem(filesystem, self._snapshot.store)
        if isinstance(partitions, list) and partitions and set(map(str, partitions)) <= set(self.columns):
            message = "The first argument is a list of filters, as in deltalake"
            raise OptionError(message, hint=f"write columns={partitions!r}")
        if partitions is not None:
            warn_of("`partitions` is deprecated; use `filters` instead")
        columns = self._named(columns)
        once = self._distinct(columns)  # a column can be requested twice
        table = self.rows(once, self._both(partitions, filters, where), limit=limit).read_all()
        return table if columns is None or once == columns else table.select(columns)

    def to_polars(
        self, columns: Sequence[str] | None = None, *, where: Where = None, limit: int | None = None
    ) -> pl.LazyFrame:
        """Return the table as a Polars lazy frame. With ``where``, it is a frame of the rows that match."""
        from lazydelta.engines.polars import scan  # noqa: PLC0415 - an extra

        if where is not None:
            frame = self.rows(columns, where, limit=limit).to_polars().lazy()
        else:
            frame = scan(self)
            frame = frame if columns is None else frame.select(self._named(columns))
        return frame if limit is None else frame.head(limit)

    def to_arrow(
        self, columns: Sequence[str] | None = None, *, where: Where = None, limit: int | None = None
    ) -> pa.Table:
        """Return the rows as a PyArrow table."""
        return self.to_pyarrow_table(columns=self._named(columns), where=where, limit=limit)

    def to_list(
        self, columns: Sequence[str] | None = None, *, where: Where = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows as a list of dictionaries."""
        return self.rows(columns, where, limit=limit).to_list()

    def head(self, n: int = 10, columns: Sequence[str] | None = None, *, where: Where = None) -> pa.Table:
        """Return a few of the newest rows; no more files are read than these rows need.

        Args:
            n: The number of rows.
            columns: The columns to read; all by default.
            where: Keep rows for which this holds: SQL, an expression, or tuples.

        Returns:
            The rows as a PyArrow table.

        Raises:
            PredicateError: If `where` cannot be parsed or evaluated.

        Example:
            >>> DeltaTable("telemetry").head(1, ["value"]).to_pylist()
            [{'value': 180.0}]

        """
        return self.rows(columns, where, limit=n).read_all()

    def show(self, n: int = 10, columns: Sequence[str] | None = None, *, where: Where = None) -> None:
        """Print a few of the newest rows."""
        from lazydelta.runtime.results import text_table  # noqa: PLC0415 - for people only

        print(text_table(self.head(n, columns, where=where)))  # noqa: T201 - what it is for

    def fragments(self, number: int, *, columns: Sequence[str] | None = None, where: Where = None) -> list[RowFragment]:
        """Return the rows as at most ``number`` fragments of similar size, for other threads or processes."""
        from lazydelta.rows.scanner import row_fragments  # noqa: PLC0415 - as above

        return row_fragments(self._row_scanner(columns=columns, where=self._bound(where)), number)

    def estimate(self, where: Where = None) -> RowEstimate:
        """Return an upper bound of the files, bytes and rows that a scan would read, from the log alone."""
        from lazydelta.rows.scanner import estimate_rows  # noqa: PLC0415 - as above

        return estimate_rows(self._row_scanner(where=self._bound(where)))

    def count_rows(self, where: Where = None) -> int:
        """Return the number of matching rows, from the log where possible, otherwise from the files concerned."""
        return self._row_scanner(where=self._bound(where)).count()

    def to_pandas(
        self,
        partitions: Where = None,
        columns: list[str] | None = None,
        filesystem: object = None,
        filters: Where = None,
        types_mapper: Callable[[pa.DataType], Any] | None = None,
        *,
        where: Where = None,
        limit: int | None = None,
    ) -> pd.DataFrame:
        """Return the rows as a pandas data frame.

        Args:
            partitions: deltalake's condition on partition columns.
            columns: The columns to read; all by default.
            filesystem: Taken for compatibility: the local folder of the table.
            filters: deltalake's name of ``where``; if both are given, both must hold.
            types_mapper: As for ``pyarrow.Table.to_pandas``.
            where: Keep rows for which this holds: SQL, an expression, or tuples.
            limit: Stop after this many rows.

        Returns:
            The data frame.

        Raises:
            MissingExtraError: If pandas is not installed.
            PredicateError: If `where` cannot be parsed or evaluated.

        Example:
            >>> DeltaTable("telemetry").to_pandas(columns=["value"], where="value >= 238")["value"].tolist()
            [238.0, 239.0]

        """
        require("pandas", "pandas")
        table = self.to_pyarrow_table(partitions, columns, filesystem, filters, where=where, limit=limit)
        return table.to_pandas(types_mapper=types_mapper)

    def _row_scanner(self, **keywords: Any) -> RowScanner:
        from lazydelta.rows.request import RowRequest  # noqa: PLC0415 - as above
        from lazydelta.rows.scanner import RowScanner  # noqa: PLC0415 - as above

        request = RowRequest.of(self._snapshot.schema, **keywords)
        return RowScanner(self._snapshot, request)

    def _both(self, *conditions: Where) -> Predicate | None:
        now = time.time_ns()
        given = [each for each in (self._bound(condition, now) for condition in conditions) if each is not None]
        return conjunction(given) if given else None

    def _all_of(self, first: Where, second: Where) -> Where:
        """Return the conditions of a file scan, which binds the second itself; SQL of the first is deltalake's."""
        if isinstance(first, str):
            first = parse_predicate(first, self._snapshot.schema, by_engine=True, numbers_as_text=True)
        return (
            self._both(first, second)
            if first is not None and second is not None
            else second
            if first is None
            else first
        )

    def _named(self, columns: Sequence[str] | str | None) -> list[str] | None:
        return named_columns(columns, self._snapshot.schema)

    def _distinct(self, columns: Sequence[str] | str | None) -> list[str] | None:
        names = self._named(columns)
        return None if names is None else list(dict.fromkeys(names))

    def _bound(self, where: Where, now: int | None = None) -> Predicate | None:
        trust = self._snapshot.options.float_max == "trust"
        return parse_predicate(where, self._snapshot.schema, now=now, trust_float_max=trust, by_engine=True)

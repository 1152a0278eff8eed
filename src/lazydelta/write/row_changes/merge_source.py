"""The source of a MERGE: its rows in a database of their own, and the ranges of its keys."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np
import pyarrow as pa

from lazydelta.errors import PredicateError, QueryError, SchemaMismatchError, WriteError, require
from lazydelta.predicates import Predicate, conjunction
from lazydelta.predicates.binding import compare, membership
from lazydelta.protocol.schema import Column, TableSchema
from lazydelta.runtime.arrays import from_numpy
from lazydelta.runtime.database import connect
from lazydelta.write.row_changes.merge_clauses import MERGE_TIME, Bounds

__all__ = ["BYTES_AT_ONCE", "ROWS_AT_ONCE", "ROW_NUMBER", "MergeSource", "of_keys"]

ROW_NUMBER = "__lazydelta_row"
"""The column with the number of each row of the source."""
ROWS_AT_ONCE, BYTES_AT_ONCE = 1 << 17, 32 << 20
# DuckDB does not start a join with less memory.
_LEAST_MEMORY = 64 << 20
# Up to this many keys are looked for one by one; the range of the others is.
_MOST_KEYS, _MOST_PARTITIONS = 1_000, 10_000


class MergeSource:
    """The rows to merge, in a database of their own.

    Each statement is a transaction of its own: DuckDB 2.0 scans a large table that the same transaction filled as an
    empty one.
    """

    def __init__(self, schema: pa.Schema, memory_budget: int, most_spilled: int | None = None) -> None:
        require("duckdb", "duckdb")
        self.schema = schema
        self.rows = 0
        self._home = tempfile.TemporaryDirectory(prefix="lazydelta-merge-")
        limits = {} if most_spilled is None else {"max_temp_directory_size": f"{most_spilled}B"}
        try:
            self._con = connect(
                enable_external_access="false",
                temp_directory=self._home.name,
                memory_limit=f"{max(memory_budget, _LEAST_MEMORY)}B",
                **limits,
            )
            self._con.execute(f"SET VARIABLE {MERGE_TIME} = now()")
        except BaseException:
            self._home.cleanup()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._con.close()
        self._home.cleanup()

    def load(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Load the rows, each with its number."""
        self.run_on(self._numbered(pa.Table.from_batches([], self.schema)), "CREATE TABLE s AS FROM rows")
        for rows in _joined(batches):
            self.run_on(self._numbered(rows), "INSERT INTO s FROM rows")
            self.rows += rows.num_rows

    def _numbered(self, rows: pa.Table) -> pa.Table:
        numbers = from_numpy(np.arange(self.rows, self.rows + rows.num_rows, dtype=np.int64))
        columns = [_stored(each) for each in rows.columns]
        return pa.table([*columns, numbers], names=[*rows.schema.names, ROW_NUMBER])

    def run_on(self, rows: pa.Table, query: str) -> None:
        """Run a statement that names ``rows``."""
        self._con.register("rows", rows)
        try:
            self.run(query)
        finally:
            self._con.unregister("rows")

    def run(self, query: str) -> None:
        """Run a statement without a result."""
        with _refusals():
            self._con.execute(query)

    def read(self, query: str, rows: pa.Table | None = None) -> pa.Table:
        """Return the result of a query that may name ``rows``."""
        if rows is not None:
            self._con.register("rows", rows)
        try:
            with _refusals():
                return self._con.sql(query).to_arrow_table()
        finally:
            if rows is not None:
                self._con.unregister("rows")

    def stream(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yield the result of a query. No other query may run before its end."""
        with _refusals():
            reader = self._con.sql(query).to_arrow_reader(1 << 16)
        while True:
            with _refusals():
                batch = next(reader, None)
            if batch is None:
                return
            yield batch


class _refusals:  # noqa: N801 - used like a function
    """Turns errors of DuckDB into those of lazydelta."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        import duckdb  # noqa: PLC0415 - optional, and slow to import

        if isinstance(error, duckdb.InterruptException):
            raise KeyboardInterrupt from error
        if isinstance(error, duckdb.OutOfMemoryException):
            message = f"The merge does not fit into its memory and disk: {error}"
            raise WriteError(
                message, hint="nothing was committed; raise max_spill_size, or merge fewer rows"
            ) from error
        if isinstance(error, duckdb.Error):
            message = f"DuckDB cannot evaluate the merge: {error}"
            raise QueryError(
                message, hint="nothing was committed; check the column types and the syntax of DuckDB's SQL"
            ) from error


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROWS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)


def _stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of the source as DuckDB takes it without a loss."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_timestamp(kind) and kind.unit == "ns" and kind.tz is not None:
        try:
            return column.cast(pa.timestamp("us", kind.tz))
        except pa.ArrowInvalid as error:
            raise SchemaMismatchError(f"The source has a timestamp finer than a microsecond: {error}") from error
    return column


def of_keys(bounds: Bounds, source: MergeSource, table: TableSchema) -> Predicate | None:
    """Return the range of a key, or its values if they are few."""
    try:
        column = table.column(bounds.column)
    except PredicateError:  # a column that this merge adds
        return None
    value = bounds.value
    kind = source.read(f"SELECT {value} FROM s LIMIT 0").schema.types[0]  # noqa: S608 - the caller's own condition
    if not _is_comparable(column, kind):
        return None
    most = _MOST_PARTITIONS if column.is_partition else _MOST_KEYS
    try:
        if bounds.op == "=":
            asked = f"SELECT DISTINCT {value} AS v FROM s WHERE v IS NOT NULL LIMIT {most + 1}"  # noqa: S608
            values = source.read(asked).column(0)
            if len(values) <= most:
                return membership(column, values.to_pylist())
        low, high = source.read(f"SELECT min({value}), max({value}) FROM s").to_pylist()[0].values()  # noqa: S608
        ends = {"=": ((">=", low), ("<=", high)), ">": ((">", low),), ">=": ((">=", low),)}
        ends |= {"<": (("<", high),), "<=": (("<=", high),)}
        return conjunction([compare(column, op, end) for op, end in ends[bounds.op]])
    except (PredicateError, ValueError, OverflowError):  # a timestamp that Python does not hold
        return None


def _is_comparable(column: Column, kind: pa.DataType) -> bool:
    """Return whether DuckDB compares the two types by value, without a conversion that changes the order."""
    types, own = pa.types, column.type.to_arrow()
    if types.is_integer(own) or types.is_decimal(own):
        return bool(types.is_integer(kind) or types.is_decimal(kind))
    if types.is_timestamp(own):
        return bool(types.is_timestamp(kind) and (kind.tz is None) == (own.tz is None) and kind.unit == "us")
    texts = types.is_string(own) and (types.is_string(kind) or types.is_large_string(kind))
    return bool(texts or (own == kind and (types.is_date32(own) or types.is_boolean(own))))

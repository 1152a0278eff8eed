"""The tables that a query may name, and how their rows reach DuckDB: the one place that knows how tables are read.

Each reference to a table is a reader of its own, with the columns that are used, the predicate that files are pruned
by, and the row limit. Rows are made while DuckDB pulls them, in one of its threads; what goes wrong there is kept,
because DuckDB would turn it into an error of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from lazydelta.delta_table import DeltaTable
from lazydelta.engines.table_source import pinned
from lazydelta.errors import OptionError
from lazydelta.kql.meaning.query_plan import Scan
from lazydelta.kql.running.nested_json import nested_json
from lazydelta.kql.running.pushdown import Pushed
from lazydelta.pruning import parse_predicate
from lazydelta.row_scan import RowRequest, RowScanner
from lazydelta.row_scan.reading_pool import ReadingPool

__all__ = ["KqlTables", "Queryable"]

Queryable: TypeAlias = "DeltaTable | pa.Table | str | os.PathLike[str]"
"""What a name may stand for: a Delta table, where one is, or an Arrow table."""

_UTC_MICROSECONDS = pa.timestamp("us")


class KqlTables:
    """Tables by name, opened when a query first names them; all of them read with ``pool`` if there is one."""

    def __init__(
        self,
        tables: Mapping[str, Queryable],
        open_table: Callable[[str], DeltaTable] | None = None,
        pool: ReadingPool | None = None,
    ) -> None:
        self._given = dict(tables)
        self._open_table = open_table or DeltaTable
        self._pool = pool
        self._opened: dict[str, DeltaTable | pa.Table] = {}
        self.failure: BaseException | None = None
        self._running: list[Iterator[pa.RecordBatch]] = []
        self.stopped = False

    def names(self) -> list[str]:
        """Return the names that are known."""
        return sorted(self._given)

    def open(self, name: str) -> DeltaTable | pa.Table | None:
        """Return the table of that name, None if there is none."""
        if name not in self._given:
            return None
        if name not in self._opened:
            given = self._given[name]
            if isinstance(given, str | os.PathLike):
                self._opened[name] = self._open_table(os.fspath(given))
            elif isinstance(given, DeltaTable | pa.Table):
                self._opened[name] = given
            else:
                message = f"The table {name!r} is a {type(given).__name__}"
                raise OptionError(message, hint="give a DeltaTable, a URI or a pyarrow.Table")
        return self._opened[name]

    def columns(self, name: str) -> list[tuple[str, str]] | None:
        """Return the columns of a table with Kusto's types."""
        table = self.open(name)
        return None if table is None else [(field.name, _kind(field.type)) for field in _schema(table)]

    def has_bounds(self, scan: Scan, name: str) -> bool:
        """Tell whether files can be pruned by a column; binary is no text for the log, though it is one here."""
        table = self.open(scan.table)
        if not isinstance(table, DeltaTable):
            return False
        kind = _schema(table).field(name).type
        return not (pa.types.is_binary(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind))

    def column_sql(self, scan: Scan, identity: str) -> str:
        """Return SQL that makes a column of the reader one of Kusto's types."""
        table = self.open(scan.table)
        assert table is not None  # noqa: S101 - the plan was made from it
        kind = _schema(table).field(scan.columns[identity]).type
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            sql = f"coalesce({identity}, '')"
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            sql = f"coalesce(to_base64({identity}), '')"
        elif pa.types.is_nested(kind) or pa.types.is_null(kind):
            sql = nested_json(identity, kind)
        else:
            types = {"int": "INTEGER", "long": "BIGINT", "real": "DOUBLE", "datetime": "TIMESTAMP", "bool": "BOOLEAN"}
            made = types.get(_kind(kind))
            sql = f"CAST({identity} AS {made})" if made else identity
        return f"{sql} AS {identity}"

    def reader(self, scan: Scan, identities: list[str], pushed: Pushed) -> pa.RecordBatchReader:
        """Return the rows of one reference to a table, under the identities of its columns."""
        table = self.open(scan.table)
        assert table is not None  # noqa: S101 - the plan was made from it
        names = [scan.columns[each] for each in identities]
        fields = [
            pa.field(each, _delivered(_schema(table).field(name).type))
            for each, name in zip(identities, names, strict=True)
        ]
        schema = pa.schema(fields or [pa.field("nothing", pa.bool_())])
        rows = self._rows(table, names, pushed)
        self._running.append(rows)
        return pa.RecordBatchReader.from_batches(schema, self._delivered_batches(rows, schema, pushed.limit))

    def halt(self) -> None:
        """Let no further request begin, and wait for nothing."""
        self.stopped = True
        for rows in list(self._running):
            stop: Any = getattr(rows, "stop", None)
            if stop is not None:
                stop()

    def close(self) -> None:
        """Stop reading; whoever still pulls gets no more rows."""
        self.stopped = True
        for rows in self._running:
            # A thread of DuckDB may be inside it; it then ends at the next batch.
            if getattr(rows, "gi_running", False):
                continue
            close: Any = getattr(rows, "close", None)
            if close is not None:
                close()

    def _rows(self, table: DeltaTable | pa.Table, names: list[str], pushed: Pushed) -> Iterator[pa.RecordBatch]:
        if isinstance(table, pa.Table):
            return iter(table.select(names).to_batches() if names else _empty_batches(table.num_rows))
        if self._pool is None:
            return table.rows(columns=names, where=pushed.where, limit=pushed.limit)
        handle, snapshot = pinned(table)
        trust = handle.options.float_max == "trust"
        where = parse_predicate(pushed.where, snapshot.schema, trust_float_max=trust)
        request = RowRequest.of(snapshot.schema, columns=names, where=where, limit=pushed.limit)
        return RowScanner(handle, snapshot, request, pool=self._pool).stream()

    def _delivered_batches(
        self, rows: Iterator[pa.RecordBatch], schema: pa.Schema, limit: int | None
    ) -> Iterator[pa.RecordBatch]:
        left = limit
        try:
            if left == 0:
                return
            for batch in rows:
                if self.stopped:
                    return
                taken = batch if left is None else batch.slice(0, left)
                yield _delivered_batch(taken, schema)
                if left is not None:
                    left -= taken.num_rows
                    if left <= 0:
                        return
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failure = error
            raise
        finally:
            close: Any = getattr(rows, "close", None)
            if close is not None:
                close()


def _schema(table: DeltaTable | pa.Table) -> pa.Schema:
    return table.schema().to_arrow() if isinstance(table, DeltaTable) else table.schema


def _kind(kind: pa.DataType) -> str:
    tests: list[tuple[Callable[[pa.DataType], bool], str]] = [
        (pa.types.is_boolean, "bool"),
        (lambda each: pa.types.is_int8(each) or pa.types.is_int16(each) or pa.types.is_int32(each), "int"),
        (pa.types.is_integer, "long"),
        (pa.types.is_floating, "real"),
        (pa.types.is_decimal, "decimal"),
        (pa.types.is_string, "string"),
        (pa.types.is_large_string, "string"),
        (pa.types.is_binary, "string"),
        (pa.types.is_large_binary, "string"),
        (pa.types.is_timestamp, "datetime"),
        (pa.types.is_date, "datetime"),
    ]
    return next((name for test, name in tests if test(kind)), "dynamic")


def _delivered(kind: pa.DataType) -> pa.DataType:
    # Moments are UTC here whatever zone the schema shows, and DuckDB's are microseconds.
    return _UTC_MICROSECONDS if pa.types.is_timestamp(kind) else kind


def _delivered_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not batch.num_columns:
        return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows, pa.bool_())], schema=schema)
    columns = [
        column if column.type == field.type else column.cast(field.type, safe=False)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _empty_batches(count: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))]

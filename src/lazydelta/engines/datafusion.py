"""DataFusion: tables registered in a session, and the table function ``delta('URI')``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lazydelta.errors import QueryError, ScanError
from lazydelta.options import Options
from lazydelta.rows.dataset import engine_dataset
from lazydelta.rows.flow import ReadingPool
from lazydelta.runtime.arrays import from_numpy
from lazydelta.runtime.database import engine
from lazydelta.sidecar.handle import TableOrUri

if TYPE_CHECKING:
    from arro3.core import RecordBatchReader

__all__ = ["QueryBuilder", "SqlColumn", "register_table"]


# The process in which DataFusion runs its threads. A forked child does not inherit them.
_at_work_in: int | None = None


def begin_here() -> None:
    """Record that DataFusion runs in this process, or raise if it already ran in the parent before a fork."""
    global _at_work_in  # noqa: PLW0603 - process-wide, like DataFusion's threads
    if _at_work_in is None:
        _at_work_in = os.getpid()
    if _at_work_in != os.getpid():
        message = (
            "The tokio runtime does not support forked processes: this one was forked from one that had run queries,"
        )
        message += " and DataFusion's threads stayed there"
        raise ScanError(
            message, hint="start the process with 'spawn' or 'forkserver', or run queries only in the child"
        )


def register_table(
    ctx: Any,
    name: str,
    table: TableOrUri,
    *,
    storage_options: Mapping[str, str] | None = None,
    pool: ReadingPool | None = None,
) -> Any:
    """Register a table as ``name`` and return the session. The version is pinned now."""
    engine("datafusion", "datafusion")
    ctx.register_dataset(name, engine_dataset(table, storage_options, pool=pool))
    return ctx


def register_function(ctx: Any, *, storage_options: Mapping[str, str] | None = None) -> Any:
    """Register the table function ``delta('URI')`` and return the session."""
    datafusion = engine("datafusion", "datafusion")

    def delta(*arguments: Any) -> Any:
        texts = [_text(each) for each in arguments]
        if len(texts) != 1 or texts[0] is None:
            raise QueryError("delta(…) takes the URI of a table as a string", hint="write delta('URI')")
        return datafusion.catalog.Table(engine_dataset(texts[0], storage_options))

    ctx.register_udtf(datafusion.udtf(delta, "delta"))
    return ctx


def _text(argument: Any) -> str | None:
    try:
        value = argument.python_value()
    except Exception:  # noqa: BLE001 - DataFusion raises no narrower class if the argument is not a literal
        return None
    return value if isinstance(value, str) else value.as_py() if hasattr(value, "as_py") else None


# ``QueryBuilder``: SQL over tables with deltalake's API, run by DataFusion.


_DEFAULTS = {"datafusion.sql_parser.enable_ident_normalization": "false"}


class QueryBuilder:
    """Named tables, and SQL queries over them in DataFusion's dialect.

    Names are case-sensitive, as in deltalake: ``Day`` is not ``day``, unless the setting
    ``datafusion.sql_parser.enable_ident_normalization`` is true. ``session_config`` maps DataFusion settings to values.
    All tables share the threads and memory of one pool.
    """

    def __init__(self, session_config: Mapping[str, str] | None = None) -> None:
        self._datafusion = engine("datafusion", "datafusion")
        self._arro3 = engine("arro3.core", "datafusion")
        try:
            config = self._datafusion.SessionConfig({**_DEFAULTS, **(session_config or {})})
        except ValueError as error:
            raise QueryError(
                f"DataFusion refuses a setting: {error}", hint="check the names of DataFusion's settings"
            ) from error
        self._context = register_function(self._datafusion.SessionContext(config))
        self._pool = ReadingPool.for_store(Options().memory_budget, remote=True)

    def register(self, table_name: str, delta_table: TableOrUri) -> QueryBuilder:
        """Register a table as ``table_name`` at its current version, and return the builder."""
        if self._context.table_exist(table_name):
            self._context.deregister_table(table_name)
        register_table(self._context, table_name, delta_table, pool=self._pool)
        return self

    def execute(self, sql: str) -> RecordBatchReader:
        """Return the result of a query as an arro3 reader, as deltalake does; ``pa.table`` makes it a PyArrow table.

        Rows are computed as they are read (``read_all`` reads all).

        Raises if the process was forked from one that had already run a query.
        """
        begin_here()
        try:
            frame = self._context.sql(sql)
        except Exception as error:  # DataFusion raises no narrower class
            raise QueryError(
                f"DataFusion refuses the query: {error}", hint="check the syntax of DataFusion's SQL"
            ) from error
        rows = pa.RecordBatchReader.from_stream(frame)
        found: RecordBatchReader = self._arro3.RecordBatchReader.from_stream(rows.cast(_with_views(rows.schema)))
        return found


def _with_views(schema: pa.Schema) -> pa.Schema:
    """Return the schema with string and binary columns as views, as deltalake returns them."""
    views = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}
    return pa.schema([each.with_type(views.get(each.type, each.type)) for each in schema], schema.metadata)


# ``SqlColumn``: a column computed by an SQL expression in DataFusion's dialect, as in deltalake.


_ROWS, _PLACE = "rows", "__place"
_SETTINGS = {
    # Names are case-sensitive, and rows keep their order.
    "datafusion.sql_parser.enable_ident_normalization": "false",
    "datafusion.execution.target_partitions": "1",
}


@dataclass(frozen=True)
class SqlColumn:
    """An SQL expression over the columns of a batch, with one value per row."""

    text: str

    @cached_property
    def _context(self) -> Any:
        datafusion = engine("datafusion", "datafusion")
        return datafusion.SessionContext(datafusion.SessionConfig(_SETTINGS))

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        """Evaluate the expression for each row."""
        places = from_numpy(np.arange(rows.num_rows, dtype=np.int64))
        numbered = pa.RecordBatch.from_arrays([*rows.columns, places], names=[*rows.schema.names, _PLACE])
        context = self._context
        begin_here()
        if context.table_exist(_ROWS):
            context.deregister_table(_ROWS)
        try:
            context.register_record_batches(_ROWS, [[numbered]])
            # Because another column is selected as well, DataFusion rejects an aggregate instead of returning a single
            # value. The newline after the expression ends a trailing SQL comment.
            asked = f'SELECT "{_PLACE}", ({self.text}\n) AS value FROM {_ROWS} ORDER BY "{_PLACE}"'  # noqa: S608
            frame = context.sql(asked)
            found = pa.RecordBatchReader.from_stream(frame).read_all()
        except Exception as error:  # DataFusion raises no narrower class
            message = f"DataFusion cannot compute {self.text!r}: {error}"
            raise QueryError(message, hint="write an expression over the table's columns") from error
        column = found.column(1).combine_chunks()
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

"""``QueryBuilder``: SQL over tables as deltalake has it, run by DataFusion."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from lazydelta.engines.datafusion import begin_here, register_function, register_table
from lazydelta.engines.table_source import TableOrUri, engine
from lazydelta.errors import QueryError
from lazydelta.options import Options
from lazydelta.row_scan.reading_pool import ReadingPool

__all__ = ["QueryBuilder"]

_DEFAULTS = {"datafusion.sql_parser.enable_ident_normalization": "false"}


class QueryBuilder:
    """Tables under names, and queries over them in DataFusion's dialect.

    Names in queries mean what they are written as, as in deltalake: ``Day`` is not ``day``, unless the setting
    ``datafusion.sql_parser.enable_ident_normalization`` is true. ``session_config`` are DataFusion's settings by name.
    All tables share the threads and the memory of one pool.
    """

    def __init__(self, session_config: Mapping[str, str] | None = None) -> None:
        self._datafusion = engine("datafusion", "datafusion")
        try:
            config = self._datafusion.SessionConfig({**_DEFAULTS, **(session_config or {})})
        except ValueError as error:
            raise QueryError(f"DataFusion refuses a setting: {error}", hint="mind DataFusion's names") from error
        self._context = register_function(self._datafusion.SessionContext(config))
        self._pool = ReadingPool.for_store(Options().memory_budget, remote=True)

    def register(self, table_name: str, delta_table: TableOrUri) -> QueryBuilder:
        """Make a table known as ``table_name``, at the version that it has now; return the builder."""
        if self._context.table_exist(table_name):
            self._context.deregister_table(table_name)
        register_table(self._context, table_name, delta_table, pool=self._pool)
        return self

    def execute(self, sql: str) -> pa.RecordBatchReader:
        """Return the rows of a query as a reader; they are computed while they are taken (``read_all`` takes all).

        A process that was forked from one that had run a query cannot run any, and says so.
        """
        begin_here()
        try:
            frame = self._context.sql(sql)
        except Exception as error:  # DataFusion raises no narrower class
            raise QueryError(f"DataFusion refuses the query: {error}", hint="mind DataFusion's SQL") from error
        return pa.RecordBatchReader.from_stream(frame)

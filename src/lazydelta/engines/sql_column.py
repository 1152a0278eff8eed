"""``SqlColumn``: a column computed from rows by an expression of SQL, in DataFusion's dialect as deltalake has it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from lazydelta.arrays import from_numpy
from lazydelta.engines.datafusion import begin_here
from lazydelta.engines.table_source import engine
from lazydelta.errors import QueryError

__all__ = ["SqlColumn"]

_ROWS, _PLACE = "rows", "__place"
_SETTINGS = {
    # Names mean what they are written as, and rows come back in their order.
    "datafusion.sql_parser.enable_ident_normalization": "false",
    "datafusion.execution.target_partitions": "1",
}


@dataclass(frozen=True)
class SqlColumn:
    """An expression over the columns of rows; it gives one value for each of them."""

    text: str

    @cached_property
    def _context(self) -> Any:
        datafusion = engine("datafusion", "datafusion")
        return datafusion.SessionContext(datafusion.SessionConfig(_SETTINGS))

    def __call__(self, rows: pa.RecordBatch) -> pa.Array:
        """Compute the values for rows."""
        places = from_numpy(np.arange(rows.num_rows, dtype=np.int64))
        numbered = pa.RecordBatch.from_arrays([*rows.columns, places], names=[*rows.schema.names, _PLACE])
        context = self._context
        begin_here()
        if context.table_exist(_ROWS):
            context.deregister_table(_ROWS)
        try:
            context.register_record_batches(_ROWS, [[numbered]])
            # With a column beside it, an aggregate of all rows is refused rather than taken for a value of each.
            # The line ends behind the text, so that a comment in it hides nothing of ours.
            asked = f'SELECT "{_PLACE}", ({self.text}\n) AS value FROM {_ROWS} ORDER BY "{_PLACE}"'  # noqa: S608
            frame = context.sql(asked)
            found = pa.RecordBatchReader.from_stream(frame).read_all()
        except Exception as error:  # DataFusion raises no narrower class
            message = f"DataFusion cannot compute {self.text!r}: {error}"
            raise QueryError(message, hint="write an expression over the table's columns") from error
        column = found.column(1).combine_chunks()
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column

"""A query that is written for DuckDB by hand, over the files of a table."""

from __future__ import annotations

import duckdb
import pyarrow as pa
from deltalake import DeltaTable


def rows(uri: str, sql: str) -> int:
    """Run the query over the table ``T``, and count the rows of its record batches."""
    con = duckdb.connect()
    con.execute("SET enable_progress_bar=false; SET TimeZone='UTC'")
    con.from_parquet(DeltaTable(uri).file_uris()).create_view("T")
    reader: pa.RecordBatchReader = con.sql(sql).to_arrow_reader()
    return sum(batch.num_rows for batch in reader)

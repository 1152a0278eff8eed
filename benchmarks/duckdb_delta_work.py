"""What DuckDB's own extension for Delta tables is measured at; run in the environment of the peers."""

from __future__ import annotations

from pathlib import Path

import duckdb
import duckdb_extension_delta


def limited(uri: str, hour: str, limit: int) -> int:
    """Take rows of one hour."""
    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    con.execute(f"LOAD '{extension}'")
    # Drawn on the standard output where the program came by `-c`.
    con.execute("SET enable_progress_bar=false")
    sql = "SELECT device_id, value, sequence FROM delta_scan(?) WHERE _event_hour = ? LIMIT ?"
    return len(con.execute(sql, [uri, hour, limit]).fetchall())

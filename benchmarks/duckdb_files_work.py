"""What DuckDB's own extension for Delta tables is asked for files; run in the environment of the peers.

It lists all files by ``delta_list_files``. Where there is a condition, the plan of a query is asked for: the extension
finds the matching files to estimate their rows, and does not say how many they are.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta


def ask(uri: str, question: dict[str, Any]) -> dict[str, Any]:
    """Load the extension, then open the table and answer."""
    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    con.execute(f"LOAD '{extension}'")
    con.execute("SET enable_progress_bar=false")
    began = time.perf_counter()
    count: int | None = None
    if question["where"] is not None:
        # The plan takes no parameters; both texts are ours.
        con.execute(f"EXPLAIN SELECT * FROM delta_scan('{uri}') WHERE {question['where']}").fetchall()  # noqa: S608
    elif question["limit"] is not None:
        count = len(con.execute("FROM delta_list_files(?) LIMIT ?", [uri, question["limit"]]).fetchall())
    else:
        (count,) = con.execute("SELECT count(*) FROM delta_list_files(?)", [uri]).fetchall()[0]
    seconds = time.perf_counter() - began
    return {"count": count, "seconds": seconds, "first_seconds": seconds}

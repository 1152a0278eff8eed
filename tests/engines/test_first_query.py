"""What the first query of a process loads, beside what it imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.rows.made_table import make_table

_PROGRAM = """
import sys
import duckdb, pyarrow.dataset, pyarrow.parquet
import lazydelta.rows.scanner
from lazydelta.engines import duckdb as lazy

before = set(sys.modules)
con = duckdb.connect()
lazy.register(con, "t", sys.argv[1])
rows = con.sql("SELECT id FROM t WHERE part = 1 AND text > '0' LIMIT 5").to_arrow_reader().read_all()
print(rows.num_rows, sorted(name for name in set(sys.modules) - before if name.startswith("lazydelta.predicates")))
"""


def test_a_filter_of_duckdb_needs_nothing_that_was_not_imported_with_the_engine(tmp_path: Path) -> None:
    made = make_table(tmp_path, files=3, rows=10)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, made.uri], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "5 []"

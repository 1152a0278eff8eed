"""Scans by a sidecar stay light: pandas, which Arrow loads for some conversions, takes more memory than they do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lazydelta import sidecar
from lazydelta.testing import make_table

_SCANS = """
import sys
from lazydelta import DeltaTable
uri = sys.argv[1]
hour = [("_event_hour", "=", "2026021023")]
assert next(DeltaTable(uri).files(hour)).tier == 1
assert len(DeltaTable(uri).file_uris(hour)) > 0
for where in (None, [("device_id", "=", "sensor-04242")], [("sequence", ">", 5)], [("timestamp", ">", "2026-02-10")]):
    stream = DeltaTable(uri).files(where)
    assert sum(batch.num_rows for batch in stream.batches()) > 0, where
    assert stream.metrics.tier == 1
path = next(DeltaTable(uri).files(hour)).path
assert DeltaTable(uri).get_stats_for_files([path], stat_columns=["value"]).num_rows == 1
assert DeltaTable(uri).files(limit=3).collect()[0].tier == 1
print("pandas" in sys.modules)
"""


@pytest.mark.parametrize("sort_by", [None, "timestamp"])
def test_scans_do_not_load_pandas(tmp_path: Path, sort_by: str | None) -> None:
    """Nor where rows are sorted by a minimum, whose keys are timestamps."""
    make_table(tmp_path, files=2000, hours=24)
    sidecar.build(tmp_path, sort_by=None if sort_by is None else [sort_by])
    done = subprocess.run([sys.executable, "-c", _SCANS, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


_ONE_HOUR = """
import sys
import pyarrow as pa
from lazydelta import DeltaTable
stream = DeltaTable(sys.argv[1]).files("_event_hour >= '2026021023'", strategy="reverse")
print("pyarrow._compute" in sys.modules)
assert sum(batch.num_rows for batch in stream.batches()) > 0
assert (stream.metrics.tier, stream.metrics.row_groups_read) == (1, 1)
print("pyarrow.compute" in sys.modules, pa.default_memory_pool().max_memory() < 1_200_000)
"""


def test_one_hour_by_sql_text_takes_little_of_arrow(tmp_path: Path) -> None:
    """Neither its module of three hundred functions, nor a copy of the row group by the allocator that keeps it."""
    make_table(tmp_path, files=12_000, hours=24)
    sidecar.build(tmp_path)
    done = subprocess.run([sys.executable, "-c", _ONE_HOUR, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nFalse True\n"

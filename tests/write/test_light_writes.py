"""Writers stay light: pandas, which Arrow loads for some conversions, takes longer than a small commit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_COMMIT = """
import sys
import pyarrow as pa
import lazydelta
timestamps = pa.Array.from_buffers(pa.timestamp("us", "UTC"), 2, [None, pa.py_buffer(bytes(16))])
lazydelta.write_arrow(sys.argv[1], pa.table({"at": timestamps}), timestamp_column="at")
lazydelta.write_arrow(sys.argv[1], pa.table({"at": timestamps}), timestamp_column="at")
print(lazydelta.DeltaTable(sys.argv[1]).version(), "pandas" in sys.modules)
"""


def test_commits_do_not_load_pandas(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _COMMIT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1 False\n", "")

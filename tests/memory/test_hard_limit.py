"""Files are found where the system gives no more memory: a child under a hard limit, a little above what imports take.

The limit is on memory that a process may write (``RLIMIT_DATA``), stacks of threads included; Arrow uses the system's
allocator there, because its own reserves a gigabyte at its start, in which nothing would be counted. Short versions run
over a hundred thousand files; ``make soak`` goes through ten million, which deltalake cannot even begin with.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.ladder_tables import LADDER_TABLE, indexed_table
from tests.support.rounds import quick

if TYPE_CHECKING:
    from lazydelta.testing import MadeTable

pytestmark = [pytest.mark.memory, pytest.mark.timeout(3600)]

SMALL, LARGE = 100_000, 10_000_000
_MB = 1 << 20
ONE_HOUR, LISTING = 120 * _MB, 300 * _MB
"""What a scan may take beyond the imports."""

_CHILD = """
import importlib, resource, sys
from pathlib import Path
work, uri, where, room = sys.argv[1:]
for name in {"lazydelta": ("lazydelta", "pyarrow.parquet", "obstore"), "deltalake": ("deltalake", "pyarrow")}[work]:
    module = importlib.import_module(name)
status = Path("/proc/self/status").read_text()
held = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmData:")) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (held + int(room),) * 2)
try:
    bytearray(int(room) + (1 << 20))
except MemoryError:
    pass
else:
    sys.exit("the limit is none")
if work == "lazydelta":
    stream = sys.modules["lazydelta"].DeltaTable(uri).files(where or None)
    count = sum(batch.num_rows for batch in stream.batches())
    assert stream.metrics.sidecar_hits == 1, stream.metrics.sidecar
else:
    count = len(sys.modules["deltalake"].DeltaTable(uri).file_uris())
print(count)
"""


def run(work: str, made: MadeTable, where: str, room: int) -> subprocess.CompletedProcess[str]:
    """Let a child find files within so many bytes."""
    environment = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"}
    arguments = [sys.executable, "-c", _CHILD, work, made.uri, where, str(room)]
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize("files", quick([SMALL, LARGE], 1))
def test_an_hour_and_all_files_are_found_under_a_hard_limit_of_memory(files: int) -> None:
    _, made = indexed_table(files, **LADDER_TABLE)
    hour = run("lazydelta", made, f"_event_hour >= '{made.last_hour}'", ONE_HOUR)
    assert hour.returncode == 0, hour.stderr
    assert 0 < int(hour.stdout) < files // 300
    everything = run("lazydelta", made, "", LISTING)
    assert everything.returncode == 0, everything.stderr
    assert int(everything.stdout) == made.num_files


@pytest.mark.slow
def test_deltalake_does_not_open_ten_million_files_under_the_larger_limit() -> None:
    """So the limit is one that counts."""
    _, made = indexed_table(LARGE, **LADDER_TABLE)
    refused = run("deltalake", made, "", LISTING)
    assert refused.returncode != 0
    assert "memory allocation" in refused.stderr

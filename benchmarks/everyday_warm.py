"""Does the work of the suite ``everyday`` once on a small table when it is imported: no side pays for first calls."""

from __future__ import annotations

import tempfile

from benchmarks import everyday_work as work

for _by in ("lazydelta", "deltalake"):
    with tempfile.TemporaryDirectory(prefix="lazydelta-bench-warm-") as _folder:
        work.write(_by, f"{_folder}/table", 8)
        work.read(_by, f"{_folder}/table")
        work.listing(_by, f"{_folder}/table")
        work.delete(_by, f"{_folder}/table", "c5 = 2")
        work.history(_by, f"{_folder}/table")
        work.commits(_by, f"{_folder}/small", 3)
        work.optimize(_by, f"{_folder}/small")
        work.checkpoint(_by, f"{_folder}/table")

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {
    "click",
    "datafusion",
    "deltalake",
    "duckdb",
    "lark",
    "pandas",
    "polars",
    "pyspark",
    "rich",
    "sqlglot",
    "substrait",
}


def test_importing_lazydelta_loads_no_heavy_or_optional_package() -> None:
    """A fresh interpreter is asked, because this one has loaded everything already."""
    program = "import json, sys, lazydelta; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    loaded = set(json.loads(child.stdout))
    assert "lazydelta" in loaded
    assert loaded & HEAVY == set()

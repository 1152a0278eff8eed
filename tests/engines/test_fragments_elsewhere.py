"""Pieces of a table read by Dask and by Ray, as the documentation has it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.compute as pc
import pytest

from lazydelta import DeltaTable
from tests.project.test_code_blocks import ALL, WITH_RAY
from tests.rows.made_table import make_rich_table
from tests.support.code_blocks import ROOT, make_world

# Ray finds out the machine's address by itself; tests stay on the loopback.
LOOPBACK = 'include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir={folder!r}'


def test_dask_computes_over_pieces_what_the_rows_say(tmp_path: Path) -> None:
    import dask.dataframe as dd  # noqa: PLC0415 - slow to import

    made = make_rich_table(tmp_path, seed=11, files=8)
    pieces = DeltaTable(made.uri).fragments(3, columns=["id", "s"], where="id >= 20")
    meta = pieces[0].schema.empty_table().to_pandas()
    from_map: Any = dd.from_map  # untyped
    frame = from_map(lambda piece: piece.to_table().to_pandas(), pieces, meta=meta)
    assert frame.npartitions == 3
    kept = [row for row in made.rows if row["id"] >= 20]
    assert int(frame["id"].sum().compute(scheduler="synchronous")) == sum(row["id"] for row in kept)
    counted = frame.groupby("s")["id"].count().compute(scheduler="synchronous").to_dict()
    words = [row["s"] for row in kept if row["s"] is not None]
    assert counted == {word: words.count(word) for word in set(words)}


@pytest.mark.slow  # a cluster of one machine takes a quarter of a minute to start and to end
@pytest.mark.timeout(300)
def test_the_example_of_ray_counts_every_row(tmp_path: Path) -> None:
    (block,) = [each for each in ALL if each.title in WITH_RAY]
    make_world(tmp_path)
    rows = deltalake.DeltaTable(tmp_path / "telemetry").to_pyarrow_table(columns=["value"])
    more = pc.sum(pc.greater(rows["value"], 3)).as_py()
    # Ray's sockets lie in this folder, and their names must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        code = block.code.replace("include_dashboard=False", LOOPBACK.format(folder=folder))
        assert LOOPBACK.format(folder=folder) in code
        environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == str(more)

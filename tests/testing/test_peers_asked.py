"""The peers of the other environment find the files that lazydelta finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import ladder_work
from benchmarks.ladder_tables import LADDER_TABLE, PEERS_PYTHON
from benchmarks.measure import measure
from benchmarks.questions import questions
from lazydelta.testing import make_table
from tests.support import unavailable

pytestmark = pytest.mark.peers


def test_pyiceberg_and_duckdb_find_the_same_files(tmp_path: Path) -> None:
    if not PEERS_PYTHON.exists():
        unavailable("the environment of the peers is not there: run `make setup`")
    made = make_table(tmp_path / "table", files=500, **LADDER_TABLE)
    uri, python = str(tmp_path / "table"), str(PEERS_PYTHON)
    written = measure("benchmarks.iceberg_work:write", uri, str(tmp_path / "iceberg"), python=python)
    assert written.failure is None
    asked = {question.name: question.as_dict() for question in questions(made)}
    ours = {name: ladder_work.ask(uri, asked[name], {}, limits=True, remembers=False)["count"] for name in asked}
    for name in ("24 hours", "statistics"):
        theirs = measure("benchmarks.iceberg_work:ask", written.answer, asked[name], python=python)
        assert theirs.failure is None
        assert theirs.answer["count"] == ours[name] > 0
    duckdb = measure("benchmarks.duckdb_files_work:ask", uri, asked["all files"], python=python)
    assert duckdb.failure is None
    assert duckdb.answer["count"] == ours["all files"] == made.num_files

"""Microsoft's analyser of KQL, asked about many queries in one process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from scripts.install_kusto import ANALYSER, KUSTO_VERSION
from scripts.npm_cache import node_bin
from tests.support import unavailable

__all__ = ["Opinion", "analysed", "documented_names"]


class Opinion(NamedTuple):
    """What the analyser thinks of a query: its errors, and the columns of its result with their types."""

    errors: list[dict[str, Any]]
    columns: list[tuple[str, str]]


def analysed(queries: list[str], tables: dict[str, str]) -> list[Opinion]:
    """Return the analyser's opinion of each query; ``tables`` has the schema of each table as KQL writes it."""
    answers = _asked({"tables": tables, "queries": queries})
    return [Opinion(each["errors"], [(name, kind) for name, kind in each["columns"]]) for each in answers]


def documented_names() -> dict[str, list[str]]:
    """Return the names of all functions and plugins that the analyser knows and that are not obsolete."""
    found: dict[str, list[str]] = _asked({"names": True})
    return found


def _asked(question: dict[str, Any]) -> Any:
    entry = ANALYSER.entry_point(ANALYSER.location())
    if not entry.exists():
        unavailable(f"Microsoft's analyser of KQL {KUSTO_VERSION} is not installed: run `make setup`")
    child = subprocess.run(
        [node_bin() / "node", Path(__file__).parent / "analyse.js", entry.parent],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)

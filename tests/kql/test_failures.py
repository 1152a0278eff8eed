"""What fails while a query runs is told of a place in its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import KqlError
from lazydelta.kql.execution.query import run
from lazydelta.kql.language import parser

LARGEST = 2**63 - 1
# A query, the line and column of the part that fails, and a word of the hint.
FAILURES = [
    (f"range x from 1 to 3 step 1\n| extend y = x * {LARGEST}", 2, 16, "todouble()"),
    (f"print {LARGEST} + 1", 1, 27, "todouble()"),
    (f"Telemetry | project y = n * {LARGEST}", 1, 27, "todouble()"),
    (f"range x from 1 to 3 step 1 | extend y = {LARGEST} | summarize sum(y)", 1, 73, "todouble()"),
    (f"print abs(-{LARGEST} - 1)", 1, 7, "todouble()"),
    (f"print toscalar(range x from 1 to 3 step 1 | summarize max(x * {LARGEST}))", 1, 61, "todouble()"),
    ("Telemetry | where device_id matches regex strcat('(', device_id) | count", 1, 43, "regular expression"),
    # Two parts may be to blame, and DuckDB does not say which.
    (f"let y = 1;\nprint 1 + 2, {LARGEST} + y", 2, 1, "todouble()"),
]


@pytest.mark.parametrize(("text", "line", "column", "hint"), FAILURES, ids=[each[0][:50] for each in FAILURES])
def test_a_failure_has_the_place_of_the_only_part_that_it_may_be_of(
    text: str, line: int, column: int, hint: str, tables: dict[str, DeltaTable]
) -> None:
    with pytest.raises(KqlError, match="the query failed: ") as caught, run(text, tables) as result:
        result.read_all()
    assert (caught.value.line, caught.value.column) == (line, column), caught.value
    assert hint in str(caught.value.hint)
    assert caught.value.excerpt is not None
    shown, caret = caught.value.excerpt.split("\n")
    assert shown[caret.index("^") :].startswith(text.split("\n")[line - 1][column - 1 :][:20])


def test_the_tables_of_the_parser_are_kept_and_damaged_ones_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = (Path(parser.__file__).parent / "grammar.lark").read_text(encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept = Path(str(parser._tables_file(grammar)))
    kept.write_bytes(b"torn")
    assert parser._lark.__wrapped__().parse("print 1") is not None
    written = kept.stat()
    assert written.st_size > 1000
    assert parser._lark.__wrapped__().parse("print 1") is not None
    assert kept.stat().st_mtime_ns == written.st_mtime_ns
    kept.parent.chmod(0o777)
    assert parser._tables_file(grammar) is False  # another user could put a pickle there
    monkeypatch.setenv("XDG_CACHE_HOME", str(kept))
    assert parser._tables_file(grammar) is False

"""The page of features says what the table of features says; it is written from it."""

from __future__ import annotations

from pathlib import Path

from lazydelta.protocol.features import FEATURES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "features.md"


def _rows() -> list[str]:
    rows = ["| feature | read | written | checkpoints written | |", "| --- | --- | --- | --- | --- |"]
    for each in FEATURES:
        copied = "yes" if each.copied else "no"
        cells = (f"`{each.name}`", each.reading.value, each.writing.value, copied, each.note)
        rows.append("| " + " | ".join(cells).rstrip() + " |")
    return rows


def test_the_page_has_the_table_of_features() -> None:
    found = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    expected = _rows()
    assert found == expected, "write this table into docs/features.md:\n" + "\n".join(expected)

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_navigation_names_every_page_and_no_other() -> None:
    """The builder fails on broken links, but takes a missing page of the navigation in silence."""
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = {page for entry in navigation for value in entry.values() for page in _pages(value)}
    docs = ROOT / "docs"
    assert named == {str(path.relative_to(docs)) for path in docs.rglob("*.md")}


def _pages(entry: str | list[dict[str, str]]) -> list[str]:
    """Return the pages of an entry, which may be a section."""
    return [entry] if isinstance(entry, str) else [page for each in entry for page in each.values()]

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_the_navigation_names_every_page_and_no_other() -> None:
    """The builder fails on broken links, but takes a missing page of the navigation in silence."""
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = {page for entry in navigation for page in entry.values()}
    docs = ROOT / "docs"
    assert named == {str(path.relative_to(docs)) for path in docs.rglob("*.md")}

"""The pages of the Python API are up to date, and name all there is."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import deltalake
import pytest

import lazydelta
from lazydelta import errors, maintenance, sidecar
from lazydelta.options import Options
from lazydelta.scan.file import FILES_SCHEMA

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
COMING = (ROOT / "docs" / "coming-from-deltalake.md").read_text(encoding="utf-8")


def public(cls: type) -> set[str]:
    """Return the methods and properties of a class."""
    return {name for name, _ in inspect.getmembers_static(cls) if not name.startswith("_")}


def named(text: str) -> set[str]:
    """Return the words that stand in code."""
    lines = re.sub(r"(?ms)^```.*?^```$", "", text)
    return {word for code in re.findall(r"`([^`]+)`", lines) for word in re.findall(r"\w+", code)}


def test_the_page_is_what_the_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("make_python_page", ROOT / "scripts" / "make_python_page.py")
    assert spec is not None
    assert spec.loader is not None
    script: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.page() == PAGE, "run scripts/make_python_page.py"


def test_the_page_says_something_of_every_public_method() -> None:
    left = {name for name in public(lazydelta.DeltaTable) if "deltalake does this" in (doc(name) or "")}
    for cls in (lazydelta.DeltaTable, lazydelta.FileStream, lazydelta.DataFile):
        for name in public(cls) - left:
            entry = re.search(rf"\*\*`{name}(\(.*\).*)?`\*\*:?\s+(\S.*)", PAGE)
            assert entry is not None, f"{cls.__name__}.{name}"


def doc(name: str) -> str | None:
    """Return what a method of a table says of itself."""
    return inspect.getdoc(inspect.getattr_static(lazydelta.DeltaTable, name))


@pytest.mark.parametrize("package", [lazydelta, sidecar, maintenance, errors], ids=lambda each: each.__name__)
def test_the_page_names_every_public_name(package: Any) -> None:
    known = named(PAGE) | named(COMING)
    assert {name for name in package.__all__ if name not in known and not name.startswith("__")} == set()


def test_the_page_names_every_option_and_every_column_of_batches() -> None:
    assert [each for each in Options.__struct_encode_fields__ if f"`{each}`" not in PAGE] == []
    assert [each for each in FILES_SCHEMA.names if f"| `{each}` |" not in PAGE] == []


def test_every_method_of_deltalake_has_an_answer() -> None:
    assert public(deltalake.DeltaTable) - named(COMING) == set()
    assert {name for name in deltalake.__all__ if not name.startswith("__")} - named(COMING) == set()
    assert set(deltalake.exceptions.__all__) - named(COMING) == set()


def test_what_is_said_to_be_refused_is_refused_and_nothing_else() -> None:
    rows = [line for line in COMING.splitlines() if "refused by name: use deltalake's" in line]
    refused = {name for row in rows for name in named(row.split("|")[1])}
    says_so = {name for name in public(lazydelta.DeltaTable) if "deltalake does this" in (doc(name) or "")}
    assert refused == says_so

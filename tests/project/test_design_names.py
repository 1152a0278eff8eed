"""The design page names packages, modules, functions and methods that are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "lazydelta"
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
# Names with dots that are no places in the source, or are found there by `__getattr__` alone.
OTHERS = frozenset({"lazydelta.connect", "libdelta_lazy.so"})
NAMES = sorted(set(re.findall(r"`([A-Za-z_]+(?:\.[A-Za-z_]+)+)`", PAGE)))


@cache
def _defined(module: Path) -> frozenset[str]:
    """Return what a module defines or hands on, methods as ``Class.method``."""
    names: set[str] = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {each.id for each in targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return frozenset(names)


def _exists(name: str) -> bool:
    """Tell whether a dotted name is a module, or something in one, from the package's root."""
    parts = name.split(".")
    place = PACKAGE
    for index, part in enumerate(parts):
        if (place / part).is_dir():
            place = place / part
            continue
        module, rest = (place / f"{part}.py", parts[index + 1 :])
        if not module.exists():
            module, rest = place / "__init__.py", parts[index:]
        return not rest or ".".join(rest) in _defined(module)
    return True


def _is_method(name: str) -> bool:
    return any(name in _defined(module) for module in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("name", [name for name in NAMES if name[0].islower() and not name.startswith("delta.")])
def test_a_place_that_the_design_page_names_is_there(name: str) -> None:
    assert name in OTHERS or _exists(name.removeprefix("lazydelta.")), f"{name} has moved"


@pytest.mark.parametrize("name", [name for name in NAMES if name.strip("_")[0].isupper()])
def test_a_method_that_the_design_page_names_is_there(name: str) -> None:
    assert _is_method(name), f"{name} has moved"


def test_names_were_found() -> None:
    assert {"log.checksum.reader", "Snapshot.scan"} <= set(NAMES)
    assert not _exists("log.checksum.nowhere")
    assert not _exists("log.checkpoint.check_writable")
    assert not _is_method("TableHandle.nothing")

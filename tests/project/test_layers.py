"""Dependencies point one way: storage, log, then pruning and rows, scan, sidecar, write, the table, the edges."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "lazydelta"

# A part may import parts of a lower layer, and itself. Parts of one layer do not know each other.
LAYERS: dict[str, int] = {
    "errors": 0,
    "options": 1,
    "lru": 1,
    "read_ahead": 1,
    "metrics": 1,
    "telemetry": 2,
    "storage": 2,
    "log": 3,
    "pruning": 4,
    "rows": 4,
    "scan": 5,
    "sidecar": 6,
    "write": 7,
    "sources": 8,
    "table": 8,
    "__init__": 9,
    "bench": 10,
    "capi": 10,
    "cli": 10,
    "engines": 10,
    "flight": 10,
    "kql": 10,
    "spark": 10,
}
# The command is the outermost edge: it has a subcommand for each of the others.
OUTERMOST = "cli"


def _part_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imported_parts(module: Path) -> set[str]:
    """Name the parts of the package that a module imports, also inside functions and for types only."""
    inside = ("lazydelta", *module.relative_to(PACKAGE).parts[:-1])
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(inside[: len(inside) - node.level + 1]) if node.level else ""
            target = ".".join(filter(None, [base, node.module]))
            # `from lazydelta import storage` names the part in the list, `from lazydelta.storage import x` before it.
            names |= {f"{target}.{alias.name}" for alias in node.names} if target == "lazydelta" else {target}
    parts: set[str] = set()
    for name in names:
        head, _, rest = name.partition(".")
        if head == "lazydelta":
            part = rest.partition(".")[0]
            parts.add(part if (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").exists() else "__init__")
    return parts


MODULES = sorted(PACKAGE.rglob("*.py"))


def test_the_package_was_found() -> None:
    assert PACKAGE / "errors.py" in MODULES


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_lower_layers(module: Path) -> None:
    part = _part_of(module)
    assert part in LAYERS, f"give {part} a layer in this test"
    for imported in _imported_parts(module) - {part}:
        assert imported in LAYERS, f"give {imported} a layer in this test"
        allowed = LAYERS[imported] < LAYERS[part] or part == OUTERMOST
        assert allowed, f"{module.relative_to(PACKAGE)} ({part}) imports {imported}, which lies further out"

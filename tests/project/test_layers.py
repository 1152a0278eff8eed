"""Dependencies point one way; docs/design.md says what each package is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "lazydelta"

# A package may import the packages above it in this list, and itself.
LAYERS = (
    "runtime",
    "storage",
    "protocol",
    "log",
    "stats",
    "predicates",
    "data_files",
    "scan",
    "sidecar",
    "rows",
    "write",
    "maintenance",
    "engines",
    "ingest",
    "deltalake_names",
    "table",
    "client",
    "kql",
    "spark",
    "capi",
    "testing",
    "server",
    "demo",
    "cli",
)
# Modules that every package may import; `options` and `missing_names` import `errors`.
FOUNDATIONS = frozenset({"errors", "missing_names", "options", "warned"})
# Public names of what lies elsewhere: those of deltalake's modules, and one of ours. Only programs import them.
NAMES_ALONE = frozenset(
    {"_internal", "_util", "exceptions", "fs", "query", "schema", "telemetry", "transaction", "writer"}
)
MOST_LAYERS = 24
MOST_LINES = 700
LISTS = {"kql/language/syntax.py"}  # of all kinds of nodes

MODULES = sorted(PACKAGE.rglob("*.py"))


def _part(module: Path) -> str:
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


def _imported_parts(module: Path) -> set[str]:
    """Return the top-level names below lazydelta that a module imports, also inside functions and for types only."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.relative_to(PACKAGE)} has a relative import"
            if node.module == "lazydelta":
                names |= {f"lazydelta.{alias.name}" for alias in node.names}
            else:
                names.add(node.module or "")
    found = {name.split(".")[1] for name in names if name.startswith("lazydelta.")}
    return {part for part in found if (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").exists()}


def test_the_package_was_found() -> None:
    assert PACKAGE / "errors.py" in MODULES


def test_every_package_has_one_layer() -> None:
    parts = {_part(module) for module in MODULES} - FOUNDATIONS - NAMES_ALONE - {"__init__", "__main__"}
    assert parts == set(LAYERS)
    assert len(LAYERS) <= MOST_LAYERS


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_lower_layers(module: Path) -> None:
    part = _part(module)
    if part in {"__init__", "__main__"}:
        return
    imported = _imported_parts(module) - {part} - FOUNDATIONS
    if part in FOUNDATIONS:
        assert imported == set()
    elif part in NAMES_ALONE:
        assert imported <= set(LAYERS[: LAYERS.index("table") + 1]) | NAMES_ALONE
    else:
        assert imported <= set(LAYERS[: LAYERS.index(part)])


def _imported_paths(module: Path) -> set[tuple[str, ...]]:
    """Return the paths of the packages, modules and names below lazydelta that a module imports."""
    paths: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            paths |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            paths |= {alias.name for alias in node.names}
    return {tuple(path.split(".")[1:]) for path in paths if path.startswith("lazydelta.")}


def _facade(package: Path) -> set[str]:
    """Return what a package names for others: `__all__`, and `SHARED` where `__all__` is for programs."""
    names: set[str] = set()
    for node in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in {"__all__", "SHARED"}:
            names |= set(ast.literal_eval(node.value))
    return names


FACADES = {package.parent: _facade(package.parent) for package in PACKAGE.glob("*/**/__init__.py")}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_other_packages_name(module: Path) -> None:
    unnamed = set()
    for path in _imported_paths(module):
        for depth in range(1, len(path)):
            package = PACKAGE.joinpath(*path[:depth])
            if package in FACADES and package not in module.parents and path[depth] not in FACADES[package]:
                unnamed.add(".".join(path[: depth + 1]))
    assert unnamed == set()


def test_packages_name_nothing_that_no_other_imports() -> None:
    """Where a package names modules, another package imports each of them."""
    imported = {
        (PACKAGE.joinpath(*path[:depth]), path[depth])
        for module in MODULES
        for path in _imported_paths(module)
        for depth in range(1, len(path))
        if PACKAGE.joinpath(*path[:depth]) not in module.parents
    }
    modules = {
        (package, name)
        for package, names in FACADES.items()
        for name in names
        if (package / f"{name}.py").exists() or (package / name).is_dir()
    }
    assert modules - imported == set()


def test_threads_are_started_in_one_module() -> None:
    """Where Ctrl-C cannot reach what starts them, nor what waits for them."""
    words = ("Thread(", "ThreadPoolExecutor", "start_new_thread", "threading.Timer")
    found = {
        str(each.relative_to(PACKAGE)) for each in MODULES if any(word in each.read_text("utf-8") for word in words)
    }
    assert found - {"scan/stream.py"} == {"runtime/threads.py"}  # it has a class _OneThread, which starts none


def test_every_package_says_what_it_is() -> None:
    for init in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))), init


def test_no_module_is_giant() -> None:
    lengths = {str(module.relative_to(PACKAGE)): len(module.read_text("utf-8").splitlines()) for module in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES and name not in LISTS} == {}

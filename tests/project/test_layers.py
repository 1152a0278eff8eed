"""Dependencies point one way, also between the folders of a package; docs/design.md says what each is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "lazydelta"

# A part may import parts of a lower layer, and itself. Parts of one layer do not know each other.
LAYERS: dict[str, int] = {
    "errors": 0,
    "warned": 0,
    "compute": 0,
    "arrays": 1,
    "execution": 1,
    "lru": 1,
    "metrics": 1,
    "options": 1,
    "wire": 1,
    "telemetry": 2,
    "storage": 2,
    "types": 2,
    "log": 3,
    "rows": 4,
    "stats": 4,
    "pruning": 5,
    "scan": 6,
    "log.checkpoint.writing": 7,
    "change_data": 7,
    "file_changes": 7,
    "sidecar.layout": 7,
    "sidecar.reading": 8,
    "handle": 9,
    "row_scan": 10,
    "stream_source": 10,
    "sidecar.upkeep": 10,
    "sidecar.building": 11,
    "sidecar.inspection": 12,
    "sidecar": 13,
    "write": 11,
    "sources": 12,
    "engines": 13,
    "maintenance": 14,
    "deltalake_api.left_to_deltalake": 1,
    "deltalake_api.deprecated_parameters": 1,
    "deltalake_api.raw_table": 3,
    "deltalake_api.storage_handler": 4,
    "deltalake_api.commit_properties": 12,
    "deltalake_api.parquet_properties": 12,
    "deltalake_api.table_features": 1,
    "deltalake_api.table_creation": 15,
    "deltalake_api.deltalake_maintenance": 15,
    "deltalake_api.changes": 15,
    "pinned_table": 15,
    "delta_table": 16,
    "client": 16,
    "writing": 15,
    "deltalake_api.deltalake_writing": 16,
    "deltalake_api": 16,
    # Where programs look that were written for deltalake: each only names what is defined elsewhere.
    "table": 17,
    "exceptions": 17,
    "schema": 17,
    "transaction": 17,
    "writer": 17,
    "query": 17,
    "fs": 17,
    "_util": 17,
    "_internal": 18,
    "__init__": 19,
    "kql": 20,
    "showcase.bench": 20,
    "spark": 20,
    "capi": 20,
    "serve": 21,
    "cli": 22,
    "showcase.demo": 23,
    "showcase": 24,
}
# Packages of which each folder is a layer of its own.
DIVIDED = ("sidecar", "showcase")
# Modules that are named as deltalake's are, and hold nothing of their own: they are not what a search is for.
NAMED_AS_DELTALAKES = frozenset(
    {"_internal", "_util", "exceptions", "fs", "query", "schema", "table", "transaction", "writer"}
)
# The command is the outermost edge: it has a subcommand for each of the others.
OUTERMOST = "cli"


def _part_of(module: Path) -> str:
    return _part(module.relative_to(PACKAGE).with_suffix("").parts)


def _part(names: tuple[str, ...]) -> str:
    """Return the innermost folder or module above that has a layer of its own."""
    found = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((name for name in found if name in LAYERS), names[0])


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
            known = (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").exists()
            parts.add(_part(tuple(rest.split("."))) if part and known else "__init__")
    return parts


MODULES = sorted(PACKAGE.rglob("*.py"))


# A module of one concept seldom passes 400 lines; one that does has to be looked at before this.
MOST_LINES = 460


def test_no_module_is_long() -> None:
    lengths = {str(module.relative_to(PACKAGE)): len(module.read_text("utf-8").splitlines()) for module in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


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


def test_only_parts_that_exist_have_a_layer() -> None:
    found = {_part_of(module) for module in MODULES}
    assert set(LAYERS) == found


def test_each_folder_of_a_divided_package_has_a_layer() -> None:
    folders = {path.parent for name in DIVIDED for path in (PACKAGE / name).glob("*/__init__.py")}
    assert {".".join(folder.relative_to(PACKAGE).parts) for folder in folders} <= set(LAYERS)


def test_no_two_modules_have_the_same_name() -> None:
    """What a name stands for is found by searching for it."""
    names = [
        module.name
        for module in MODULES
        if not module.name.startswith("__") and _part_of(module) not in NAMED_AS_DELTALAKES
    ]
    assert sorted(names) == sorted(set(names))

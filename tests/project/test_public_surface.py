from __future__ import annotations

import importlib

import deltalake
import pytest

import lazydelta

# Names that deltalake's modules only import from each other.
INSIDE = {"DeltaTable", "PyQueryBuilder", "Schema"}
# A new public name is a promise: add it here on purpose, with a line in CHANGELOG.md.
OURS = [
    "DataFile",
    "DeltaTable",
    "FileStream",
    "LazyDeltaError",
    "PredicateWarning",
    "RetentionWarning",
    "__version__",
    "connect",
    "create_table",
    "kql",
    "read",
    "scan",
    "sql",
    "write_arrow",
]
# What deltalake exports, and what a program that changes one import expects.
PUBLIC = sorted({*OURS, *deltalake.__all__})


def test_the_package_exports_exactly_these_names() -> None:
    assert sorted(lazydelta.__all__) == sorted(PUBLIC)


def test_every_exported_name_exists() -> None:
    assert [name for name in lazydelta.__all__ if not hasattr(lazydelta, name)] == []


def test_dir_shows_what_there_is() -> None:
    assert dir(lazydelta) == PUBLIC


@pytest.mark.parametrize("name", ["exceptions", "query", "schema", "transaction", "writer"])
def test_every_module_of_deltalake_is_there_with_its_names(name: str) -> None:
    theirs = importlib.import_module(f"deltalake.{name}")
    ours = importlib.import_module(f"lazydelta.{name}")
    named = getattr(theirs, "__all__", None) or [
        each
        for each, value in vars(theirs).items()
        if getattr(value, "__module__", "").startswith(("deltalake", "_in"))
    ]
    private = {each for each in named if each.startswith(("_", "deprecate_"))}
    assert {each for each in named if not hasattr(ours, each)} - private - INSIDE == set()

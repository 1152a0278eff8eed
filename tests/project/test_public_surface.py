from __future__ import annotations

import lazydelta

# A new public name is a promise: add it here on purpose, with a line in CHANGELOG.md.
PUBLIC = [
    "DataFile",
    "DeltaTable",
    "FileStream",
    "LazyDeltaError",
    "PredicateWarning",
    "__version__",
    "create_table",
    "write_arrow",
]


def test_the_package_exports_exactly_these_names() -> None:
    assert sorted(lazydelta.__all__) == sorted(PUBLIC)


def test_every_exported_name_exists() -> None:
    assert [name for name in lazydelta.__all__ if not hasattr(lazydelta, name)] == []

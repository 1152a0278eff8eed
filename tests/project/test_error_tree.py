from __future__ import annotations

import inspect
import pickle
import re

import pytest

from lazydelta import errors

CLASSES = [getattr(errors, name) for name in errors.__all__]


def _parents_drawn() -> dict[str, str | None]:
    """Read the tree in the module's docstring: each class with the parent it is drawn under."""
    parents: dict[str, str | None] = {}
    branch: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([ │├└─]*)(\w+Error)\b", line)
        if match is None:
            continue
        # Four columns a level; the root itself is indented by four.
        depth = len(match[1]) // 4 - 1
        branch[depth:] = [match[2]]
        parents[match[2]] = branch[depth - 1] if depth else None
    return parents


def test_every_class_of_the_module_is_exported() -> None:
    defined = {name for name, _ in inspect.getmembers(errors, inspect.isclass)}
    assert defined == set(errors.__all__)


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_derives_from_the_root(error: type) -> None:
    assert issubclass(error, errors.LazyDeltaError)


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    # The first base is ours; a second one is what Python calls such an error.
    actual = {error.__name__: error.__bases__[0].__name__ for error in CLASSES if error is not errors.LazyDeltaError}
    assert _parents_drawn() == {"LazyDeltaError": None, **actual}


@pytest.mark.parametrize("error", CLASSES)
def test_an_error_survives_pickling_with_its_facts(error: type[errors.LazyDeltaError]) -> None:
    """Spark workers send their errors to the driver pickled."""
    facts: dict[str, object] = {"path": "_delta_log/00000000000000000007.json", "version": 7, "hint": "try again"}
    known = inspect.signature(error).parameters
    own = {"earliest": 3, "latest": 9, "features": ("catalogManaged",)}
    own |= {"line": 2, "column": 5, "excerpt": "T | take\n    ^"}
    facts |= {name: value for name, value in own.items() if name in known}
    assert set(known) == {"message", *facts}, "give the new attribute an example value here"
    original = error("it broke", **facts)  # type: ignore[arg-type]
    copy = pickle.loads(pickle.dumps(original))  # noqa: S301  our own bytes
    assert type(copy) is error
    assert {name: getattr(copy, name) for name in facts} == facts
    assert str(copy) == str(original) == "it broke (try again)"

"""How many rounds of a long test the quick suite goes through; the rest are soak tests.

``quick`` takes the first values of one parameter. Where parameters multiply, ``@pytest.mark.each_value`` lets the quick
suite try each value of each of them, fixtures included, and ``make soak`` the other combinations. Of many cases alike
``@pytest.mark.one_in(5)`` takes every fifth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

__all__ = ["leave_to_soak", "quick"]


def quick(values: Iterable[Any], rounds: int) -> list[Any]:
    """Return the values for ``parametrize``: the first few as they are, the others for ``make soak``."""
    return [
        value if number < rounds else pytest.param(value, marks=pytest.mark.slow) for number, value in enumerate(values)
    ]


def leave_to_soak(items: Sequence[pytest.Item]) -> None:
    """Mark as slow what the marks of a test leave to ``make soak``; a case that is asked for alone is never left."""
    asked = [
        item
        for item in items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("slow") is None
    ]
    by_test: dict[tuple[Any, str], list[pytest.Function]] = {}
    for item in asked:
        by_test.setdefault((item.parent, item.originalname), []).append(item)
    for cases in by_test.values():
        if cases[0].get_closest_marker("each_value") is not None:
            chosen = _covering([set(_values(case)) for case in cases])
        elif (mark := cases[0].get_closest_marker("one_in")) is not None:
            chosen = set(range(0, len(cases), mark.args[0]))
        else:
            continue
        for number, case in enumerate(cases):
            if number not in chosen:
                case.add_marker("slow")


def _values(case: pytest.Function) -> Iterable[tuple[str, int]]:
    """Return the parameters, each value by its identity: not all can be compared, and combinations share them."""
    values: dict[str, Any] = case.callspec.params
    return [(name, id(value)) for name, value in values.items()]


def _covering(cases: list[set[tuple[str, int]]]) -> set[int]:
    """Return the numbers of a few cases that hold every value of all; of equals the first."""
    missing = set().union(*cases)
    chosen: set[int] = set()
    while missing:
        best = max(range(len(cases)), key=lambda number: len(cases[number] & missing))
        chosen.add(best)
        missing -= cases[best]
    return chosen

"""How many rounds of a long test the quick suite goes through; the rest are soak tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["quick"]


def quick(values: Iterable[Any], rounds: int) -> list[Any]:
    """Return the values for ``parametrize``: the first few as they are, the others for ``make soak``."""
    return [
        value if number < rounds else pytest.param(value, marks=pytest.mark.slow) for number, value in enumerate(values)
    ]

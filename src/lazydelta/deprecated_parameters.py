"""Parameters that deltalake calls deprecated: they are understood, and say what deltalake says of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TypeVar

from lazydelta.errors import OptionError

__all__ = ["instead_of", "warn_of", "warn_of_ignored"]

T = TypeVar("T")


def warn_of_ignored(given: Mapping[str, object]) -> None:
    """Say of every parameter that was given a value that it changes nothing."""
    for name, value in given.items():
        if value not in (None, False):
            message = f"The '{name}' parameter is deprecated and ignored: no file is loaded before somebody asks."
            warnings.warn(message, DeprecationWarning, stacklevel=3)


def warn_of(message: str) -> None:
    """Say that something is deprecated to whoever called our caller."""
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def instead_of(old_name: str, old: T | None, new: T | None) -> T | None:
    """Return the predicate, whichever of the two parameters it was given as."""
    if old is None:
        return new
    if new is not None:
        message = f"`{old_name}` is deprecated, and `file_pruning_predicate` is given as well"
        raise OptionError(message, hint="pass only `file_pruning_predicate`, which takes every form of predicate")
    message = f"`{old_name}` is deprecated; pass the filters to `file_pruning_predicate` instead"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return old

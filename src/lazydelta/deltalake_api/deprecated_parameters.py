"""Parameters that deltalake calls deprecated: they are understood, and say what deltalake says of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from lazydelta.errors import OptionError

__all__ = ["by_position", "deprecate_positional_commit_args", "instead_of", "warn_of", "warn_of_ignored"]

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


def by_position(function: str, given: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords with those that were given by position, which deltalake still takes and calls deprecated.

    A keyword is None where it was not given.
    """
    found = dict(keywords)
    if not given:
        return found
    message = f"Passing commit arguments positionally to {function}() is deprecated. Use keyword arguments instead."
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    if len(given) > len(found):
        raise TypeError(f"{function}() got unexpected positional arguments: it takes at most {len(found)}")
    for name, value in zip(found, given, strict=False):
        if found[name] is not None:
            raise TypeError(f"{function}() got multiple values for '{name}'")
        found[name] = value
    return found


def deprecate_positional_commit_args(
    method_name: str,
    args: Sequence[Any],
    commit_properties: Any = None,
    post_commithook_properties: Any = None,
    legacy_order: Sequence[str] = ("commit_properties", "post_commithook_properties"),
) -> tuple[Any, Any]:
    """Return the two with those that were given by position, in the order that a method once had them in."""
    given = {"commit_properties": commit_properties, "post_commithook_properties": post_commithook_properties}
    found = {**given, **by_position(method_name, args, {name: given[name] for name in legacy_order})}
    return found["commit_properties"], found["post_commithook_properties"]


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

"""Parameters that deltalake deprecates: they are accepted with deltalake's warnings."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar

from lazydelta.errors import OptionError, UnsupportedOperationError

__all__ = [
    "LeftToDeltalake",
    "by_position",
    "deprecate_positional_commit_args",
    "enable_nanosecond_timestamps",
    "init_tracing",
    "instead_of",
    "only_where",
    "refuse",
    "rust_core_version",
    "warn_of",
    "warn_of_ignored",
]


T = TypeVar("T")
P = ParamSpec("P")
_NAMES_OF_WHERE = ("filter", "filters", "partition_filters", "partitions", "predicate")


def warn_of_ignored(given: Mapping[str, object]) -> None:
    """Warn that each parameter with a value has no effect."""
    for name, value in given.items():
        if value not in (None, False):
            message = f"The '{name}' parameter is deprecated and ignored: files are always loaded on demand."
            warnings.warn(message, DeprecationWarning, stacklevel=3)


def warn_of(message: str) -> None:
    """Issue a deprecation warning that points at the user's call."""
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def by_position(function: str, given: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords merged with positional arguments, which deltalake still accepts but deprecates.

    A keyword is None if it was not given.
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
    """Return the two properties merged with positional arguments, in the method's former parameter order."""
    given = {"commit_properties": commit_properties, "post_commithook_properties": post_commithook_properties}
    found = {**given, **by_position(method_name, args, {name: given[name] for name in legacy_order})}
    return found["commit_properties"], found["post_commithook_properties"]


def instead_of(old_name: str, old: T | None, new: T | None) -> T | None:
    """Return the predicate, given by either its old or its new parameter name."""
    if old is None:
        return new
    if new is not None:
        message = f"`{old_name}` is deprecated, and `file_pruning_predicate` is given as well"
        raise OptionError(message, hint="pass only `file_pruning_predicate`, which takes every form of predicate")
    message = f"`{old_name}` is deprecated; pass the filters to `file_pruning_predicate` instead"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return old


def only_where(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function that has ``where`` answer its names in other functions and libraries with what to write."""

    @functools.wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> T:
        for name in _NAMES_OF_WHERE:
            if name in keywords:
                message = f"{function.__name__}() has no argument {name!r}"
                raise OptionError(message, hint=f"write where={keywords[name]!r}")
        return function(*args, **keywords)

    return checked


# Operations of deltalake tables that lazydelta does not have. Each name exists and raises: a missing name looks like an
# error, while the message tells users who changed an import what to call instead. Both packages can work on one table
# at the same time and see each other's commits.


def refuse(name: str, purpose: str) -> NoReturn:
    """Raise an error that refers to deltalake for an operation."""
    message = f"lazydelta does not {purpose}, so there is no {name}"
    hint = f"deltalake does: use deltalake's {name} on the same table; both packages may share a table"
    raise UnsupportedOperationError(message, hint=hint)


def _method(name: str, purpose: str) -> Callable[..., NoReturn]:
    def method(self: object, *_: Any, **__: Any) -> NoReturn:  # noqa: ARG001 - whatever deltalake accepts
        refuse(f"DeltaTable.{name}", purpose)

    method.__name__ = name
    method.__qualname__ = f"DeltaTable.{name}"
    method.__doc__ = f"Refuse to {purpose}: deltalake does this, and both may share a table."
    return method


class LeftToDeltalake:
    """The additional methods of deltalake tables; each raises `UnsupportedOperationError`."""

    compact_logs = _method("compact_logs", "combine commits of the log")


def enable_nanosecond_timestamps() -> NoReturn:
    """Refuse nanosecond timestamps, an experiment of delta-rs that no other reader supports."""
    refuse("enable_nanosecond_timestamps", "read or write nanosecond timestamps")


def _disable_nanosecond_timestamps() -> None:
    """Do nothing: nanosecond timestamps are never enabled."""


def _nanosecond_timestamps_enabled() -> bool:
    return False


def init_tracing(endpoint: str | None = None) -> NoReturn:  # noqa: ARG001 - deltalake's parameter
    """Refuse to trace delta-rs; `lazydelta.runtime.metrics` exports scan metrics to OpenTelemetry."""
    refuse("init_tracing", "trace delta-rs")


def rust_core_version() -> NoReturn:
    """Refuse to return a version of delta-rs: lazydelta does not contain it."""
    refuse("rust_core_version", "use delta-rs")

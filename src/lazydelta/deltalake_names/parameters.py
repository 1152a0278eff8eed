"""Parameters and methods of deltalake and other libraries: some are accepted, others are answered with ours."""

from __future__ import annotations

import importlib.metadata
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from lazydelta.errors import LazyDeltaError, OptionError, UnsupportedOperationError
from lazydelta.missing_names import OF_A_TABLE, OF_THE_CLASS, AnswersNames, no_attribute

if TYPE_CHECKING:
    from lazydelta.protocol.schema import TableSchema

__all__ = [
    "NOT_GIVEN",
    "LeftToDeltalake",
    "by_position",
    "deprecate_positional_commit_args",
    "enable_nanosecond_timestamps",
    "init_tracing",
    "instead_of",
    "named_columns",
    "refuse",
    "rust_core_version",
    "warn_of",
    "warn_of_ignored",
]


T = TypeVar("T")
_SQL_SIGN = r"[=<>!]|\s(is|in|like|between|and|or)\s"


class _NotGiven(int):
    """The default of a parameter that is False in deltalake, where ours does something else than for False."""

    def __repr__(self) -> str:
        return "False"


NOT_GIVEN: Any = _NotGiven(0)


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


def named_columns(columns: Any, schema: TableSchema) -> list[str] | None:
    """Return the columns as a list, None for all. A condition in their place is an error that says where it belongs."""
    known = {field.name for field in schema.fields}
    if columns is None or ("*" not in known and columns in ("*", ["*"])):
        return None
    if not isinstance(columns, Sequence):
        message = f"Columns cannot be a {type(columns).__name__}"
        raise OptionError(message, hint="pass names; a condition is where='…', an expression or tuples")
    names = [columns] if isinstance(columns, str) else list(columns)
    if isinstance(columns, str) and columns not in known and "," in columns:
        hint = f"write {[name.strip() for name in columns.split(',')]}"
        raise OptionError(f"{columns!r} is not a column of the table, but looks like several", hint=hint)
    for name in names:
        if name not in known and re.search(_SQL_SIGN, name, re.IGNORECASE):
            try:
                schema.column(name)
            except LazyDeltaError:
                message = f"{name!r} is not a column of the table, but looks like a condition"
                raise OptionError(message, hint=f"write where={name!r}") from None
    return names


# Operations of deltalake tables that lazydelta does not have. Each name exists and raises: a missing name looks like an
# error, while the message tells users who changed an import what to call instead. Both packages can work on one table
# at the same time and see each other's commits.


def refuse(name: str, purpose: str) -> NoReturn:
    """Raise an error that refers to deltalake for an operation."""
    message = f"lazydelta does not {purpose}, so there is no {name}"
    hint = f"deltalake does: use deltalake's {name} on the same table; both packages may share a table"
    raise UnsupportedOperationError(message, hint=hint)


class _AnswersNames(type):
    """The class of ``DeltaTable``: constructors that other libraries have are answered with ours."""

    def __getattr__(cls, name: str) -> NoReturn:
        raise no_attribute(f"type object {cls.__name__!r}", name, OF_THE_CLASS, dir(type))


class LeftToDeltalake(AnswersNames, metaclass=_AnswersNames):
    """What a table does not have: each name raises an error that says what to use."""

    _INSTEAD = OF_A_TABLE
    _OTHERWISE = "data frames of it are to_pandas() and to_polars(), and sql(…) computes"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if not name.startswith("_") and name in self.columns:
                message = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(f"{message}, which is a column; use rows([{name!r}]), or to_pandas()[{name!r}]")
            return super().__getattr__(name)

        def __contains__(self, name: object) -> NoReturn:
            raise TypeError(f"a DeltaTable has no items; use {name!r} in table.columns")

        def __getitem__(self, key: object) -> NoReturn:
            asked = [key] if isinstance(key, str) else key
            columns = repr(asked) if isinstance(asked, list) else ""
            raise TypeError(f"a DeltaTable has no items; use rows({columns}), or to_pandas() for a data frame")

        def __len__(self) -> NoReturn:
            raise TypeError("a DeltaTable has no length; use count() for its rows, files().count() for its files")

    def __datafusion_table_provider__(self, session: object = None) -> NoReturn:
        """Refuse to be registered by DataFusion itself, which takes objects of Rust, and say what to call instead."""
        try:
            installed = f"DataFusion {importlib.metadata.version('datafusion')} registers by itself"
        except importlib.metadata.PackageNotFoundError:
            installed = "The package datafusion is not installed, and it registers by itself"
        message = f"{installed} only table providers in C, which lazydelta does not export"
        hint = "call lazydelta.engines.datafusion.register_table(ctx, name, table), or use QueryBuilder; "
        raise UnsupportedOperationError(message, hint=f"{hint}deltalake exports one for datafusion==55")


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


def rust_core_version() -> str:
    """Return lazydelta's own version: there is no core in Rust below it."""
    from lazydelta import __version__  # noqa: PLC0415 - the package imports this module

    return __version__

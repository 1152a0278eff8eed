"""Parameters and methods of deltalake and other libraries: some are accepted, others are answered with ours."""

from __future__ import annotations

import functools
import importlib.metadata
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

from lazydelta.errors import OptionError, UnsupportedOperationError, no_attribute

__all__ = [
    "NOT_GIVEN",
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
# Other keywords of rows that other libraries have.
_OTHER_NAMES = {
    "n_rows": "write limit={0!r}",
    "nrows": "write limit={0!r}",
    "order_by": "write sql('FROM self ORDER BY …')",
    "sort_by": "write sql('FROM self ORDER BY …')",
}
_NAMES_OF_WHERE = ("filter", "filters", "partition_filters", "partitions", "predicate")


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


def only_where(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function that has ``where`` answer its names in other functions and libraries with what to write."""

    @functools.wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> T:
        for name in _NAMES_OF_WHERE:
            if name in keywords:
                message = f"{function.__name__}() has no argument {name!r}"
                raise OptionError(message, hint=f"write where={keywords[name]!r}")
        for name in _OTHER_NAMES.keys() & keywords.keys():
            message = f"{function.__name__}() has no argument {name!r}"
            raise OptionError(message, hint=_OTHER_NAMES[name].format(keywords[name]))
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


# What users of pandas, Polars, PyArrow, Spark and older releases of deltalake call, and what a table has.
_INSTEAD = {
    "alias": "merge(source, condition, target_alias=…), or a name in sql(…)",
    "append": "write_deltalake(table, data, mode='append')",
    "arrow": "to_arrow()",
    "as_of": "DeltaTable(uri, version=…)",
    "assign": "to_polars() or to_pandas(), and change the frame",
    "close": "nothing: a table holds no connection open",
    "collect": "to_arrow() or to_polars().collect()",
    "compact": "optimize.compact()",
    "describe": "info()",
    "detail": "info()",
    "df": "to_pandas()",
    "drop": "to_polars() or to_pandas(), and change the frame",
    "dropna": "to_polars() or to_pandas(), and change the frame",
    "fetchall": "to_list()",
    "fillna": "to_polars() or to_pandas(), and change the frame",
    "filter": "rows(where=…) or to_polars().filter(…)",
    "first": "rows().first(), or head(1)",
    "groupBy": "sql('SELECT … FROM self GROUP BY …') or to_polars().group_by(…)",
    "group_by": "sql('SELECT … FROM self GROUP BY …') or to_polars().group_by(…)",
    "groupby": "sql('SELECT … FROM self GROUP BY …') or to_polars().group_by(…)",
    "iloc": "to_pandas().iloc[…]",
    "insert": "write_deltalake(table, data, mode='append')",
    "iterrows": "rows(), or to_list()",
    "latest_version": "update_incremental(), which moves to the newest version",
    "limit": "head(n), or rows(limit=n)",
    "load_version": "load_as_version(version)",
    "load_with_datetime": "load_as_version(timestamp)",
    "loc": "to_pandas().loc[…]",
    "location": "uri",
    "log": "history()",
    "max": "sql('SELECT max(…) FROM self')",
    "mean": "sql('SELECT avg(…) FROM self')",
    "min": "sql('SELECT min(…) FROM self')",
    "name": "metadata().name",
    "num_files": "files().count()",
    "num_rows": "count()",
    "orderBy": "sql('FROM self ORDER BY …') or to_polars().sort(…)",
    "order_by": "sql('FROM self ORDER BY …') or to_polars().sort(…)",
    "overwrite": "write_deltalake(table, data, mode='overwrite')",
    "path": "uri",
    "pl": "to_polars()",
    "query": "sql(…)",
    "read": "to_arrow(), to_pandas() or rows()",
    "refresh": "update_incremental(), which moves to the newest version",
    "reload": "update_incremental(), which moves to the newest version",
    "rename": "to_polars() or to_pandas(), and change the frame",
    "sample": "sql('FROM self USING SAMPLE 10')",
    "select": "rows([columns])",
    "shape": "count() and columns",
    "sort": "sql('FROM self ORDER BY …') or to_polars().sort(…)",
    "sort_by": "sql('FROM self ORDER BY …') or to_polars().sort(…)",
    "sort_values": "sql('FROM self ORDER BY …') or to_polars().sort(…)",
    "sum": "sql('SELECT sum(…) FROM self')",
    "tail": "head(n), which returns the newest rows",
    "take": "head(n), or rows(limit=n)",
    "toDF": "to_pandas() or to_polars(); lazydelta.spark.read(spark, uri) for Spark",
    "toPandas": "to_pandas()",
    "to_csv": "to_pandas().to_csv(path)",
    "to_dask": "fragments(n), one for each task",
    "to_df": "to_pandas() or to_polars()",
    "to_dict": "to_list()",
    "to_dicts": "to_list()",
    "to_duckdb": "lazydelta.sql(query, {'name': table}), or duckdb's FROM over to_pyarrow_dataset()",
    "to_json": "to_pandas().to_json(path)",
    "to_numpy": "to_pandas().to_numpy()",
    "to_parquet": "pyarrow.parquet.write_table(table.to_arrow(), path)",
    "to_pydict": "to_arrow().to_pydict()",
    "to_pylist": "to_list()",
    "to_spark": "lazydelta.spark.read(spark, uri)",
    "to_table": "to_arrow()",
    "upsert": "merge(data, condition).when_matched_update_all().when_not_matched_insert_all().execute()",
    "url": "uri",
    "value_counts": "sql('SELECT …, count(*) FROM self GROUP BY ALL')",
    "versions": "history()",
    "where": "rows(where=…)",
    "with_columns": "to_polars() or to_pandas(), and change the frame",
    "write": "write_deltalake(table, data, mode='append')",
}
_INSTEAD_OF_CLASS = dict.fromkeys(
    ("for_path", "forPath", "forName", "from_uri", "load", "open", "read"), "DeltaTable(uri)"
) | {"convertToDelta": "lazydelta.convert_to_deltalake(uri)", "isDeltaTable": "DeltaTable.is_deltatable(uri)"}


class _AnswersNames(type):
    """The class of ``DeltaTable``: constructors that other libraries have are answered with ours."""

    def __getattr__(cls, name: str) -> NoReturn:
        raise no_attribute(f"type object {cls.__name__!r}", name, _INSTEAD_OF_CLASS)


class LeftToDeltalake(metaclass=_AnswersNames):
    """What a table does not have: each name raises an error that says what to use."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(f"{type(self).__name__!r} object", name, _INSTEAD)

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

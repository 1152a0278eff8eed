"""Names that users bring from other libraries, and what to write in their place.

Attributes, arguments and modules that lazydelta does not have are answered with what it has. The tables below are data;
their classes and functions name them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import CO_VARKEYWORDS as _TAKES_KEYWORDS
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, ParamSpec, TypeVar

from lazydelta.errors import OptionError

__all__ = [
    "CALLED",
    "OF_A_FILE",
    "OF_A_STREAM",
    "OF_A_TABLE",
    "OF_INFORMATION",
    "OF_THE_CLASS",
    "OF_THE_PACKAGE",
    "AnswersNames",
    "CallablePackage",
    "called",
    "known_arguments",
    "no_attribute",
]

P = ParamSpec("P")
T = TypeVar("T")


def no_attribute(
    owner: str, name: str, instead: Mapping[str, str], known: Iterable[str] = (), otherwise: str = ""
) -> AttributeError:
    """Return the error for a missing attribute.

    ``instead`` says what to write for names of other libraries. For other names, the error suggests a similar one of
    ``known``, or says ``otherwise``.
    """
    message = f"{owner} has no attribute {name!r}"
    if name.startswith("_"):
        return AttributeError(message)
    words = re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()
    hint = instead.get(name) or instead.get(words)
    if hint is not None:
        return AttributeError(f"{message}; use {hint}")
    near = _near(words, known)
    return AttributeError(f"{message}; did you mean {near}?" if near else f"{message}; {otherwise}".rstrip("; "))


class AnswersNames:
    """Objects whose missing attributes are answered with what to write."""

    __slots__ = ()
    _INSTEAD: ClassVar[Mapping[str, str]] = {}
    _OTHERWISE: ClassVar[str] = ""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            kind = type(self)
            raise no_attribute(f"{kind.__name__!r} object", name, self._INSTEAD, dir(kind), self._OTHERWISE)


# Arguments of other functions and libraries: our parameter and its value, for functions that have the parameter.
_ARGUMENTS = {
    **dict.fromkeys(("filter", "filters", "partition_filters", "partitions", "predicate"), "where={!r}"),
    **dict.fromkeys(("head", "max_rows", "n", "n_rows", "nrows", "num_rows"), "limit={!r}"),
    **dict.fromkeys(("as_of", "at", "timestamp", "timestamp_as_of", "version_as_of"), "version={!r}"),
    **dict.fromkeys(("partitionBy", "partition_cols", "partition_columns", "partitioned_by"), "partition_by={!r}"),
    **dict.fromkeys(("on", "condition", "where"), "predicate={!r}"),
    **dict.fromkeys(("sort", "order_by", "z_order_by"), "sort_by={!r}"),
    **dict.fromkeys(("set", "values", "assignments"), "updates={!r}"),
    **dict.fromkeys(("uri", "path", "table", "location"), "table_uri={!r}"),
    "if_exists": "mode={!r}",
    "overwrite_schema": "schema_mode='overwrite'",
    "merge_schema": "schema_mode='merge'",
    "mergeSchema": "schema_mode='merge'",
    "compression": "writer_properties=WriterProperties(compression={!r})",
    "properties": "configuration={!r}",
    "version": "target={!r}",
}
# Arguments that no parameter of ours takes.
_NO_ARGUMENT = {
    **dict.fromkeys(("order_by", "sort", "sort_by"), "write sql('FROM self ORDER BY …')"),
    **dict.fromkeys(("since", "start", "after"), 'write where="<the timestamp column> >= {!r}"'),
    **dict.fromkeys(("until", "end", "before"), 'write where="<the timestamp column> < {!r}"'),
    "batch_size": "omit it: a batch is what a file has at most; batch.slice(start, length) cuts one",
    "engine": "omit it: there is one engine",
    "index": "omit it: reset_index() makes columns of an index",
    "last": "write where=\"<the timestamp column> >= now() - interval '1 day'\"",
    "schema": "cast the data before: table.cast(schema), or frame.cast(…)",
    "version": "open that version: DeltaTable(uri, version={!r})",
}


def known_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function answer keywords that it does not have with what to write."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    takes_more = bool(code.co_flags & _TAKES_KEYWORDS)

    @functools.wraps(function)
    def checked(*args: P.args, **keywords: P.kwargs) -> T:
        for name, value in keywords.items():
            if name not in names and (hint := _argument_hint(name, value, names, takes_more)) is not None:
                raise OptionError(f"{function.__name__.strip('_')}() has no argument {name!r}", hint=hint)
        return function(*args, **keywords)

    return checked


def _argument_hint(name: str, value: object, names: Sequence[str], takes_more: bool) -> str | None:  # noqa: FBT001
    written = _ARGUMENTS.get(name)
    if written is not None and written.partition("=")[0] in names:
        return f"write {written.format(value)}"
    if takes_more:
        return None
    if name in _NO_ARGUMENT:
        return _NO_ARGUMENT[name].format(value)
    public = [each for each in names if each not in {"self", "cls"}]
    near = _near(name, public)
    return f"did you mean {near}?" if near else f"it has: {', '.join(public)}"


def _near(name: str, known: Iterable[str]) -> str:
    import difflib  # noqa: PLC0415 - only needed for errors

    public = [each for each in known if not each.startswith("_")]
    return " or ".join(difflib.get_close_matches(name, public, n=2, cutoff=0.75))


class _Bound(functools.partial[T]):
    """A method of an object, whose attributes say that it has to be called."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            function = self.func.__name__
            message = f"{function} is a method and has no attribute {name!r}"
            raise AttributeError(message if name.startswith("_") else f"{message}; write {function}().{name}")

        def __getitem__(self, key: object) -> NoReturn:
            raise TypeError(f"{self.func.__name__} is a method; write {self.func.__name__}()[{key!r}]")


def called(function: Callable[P, T]) -> Callable[P, T]:
    """Make a method whose name is a noun answer ``table.schema.names`` with ``schema().names``."""
    return _Called(function)  # type: ignore[return-value]


class _Called:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.__func__ = function
        self.__doc__, self.__name__ = function.__doc__, function.__name__

    def __get__(self, holder: object, owner: type) -> Callable[..., Any]:
        return self.__func__ if holder is None else _Bound(self.__func__, holder)


class CallablePackage(ModuleType):
    """A package or module whose name users call as a function."""

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raise an error that says what to write."""
        raise TypeError(f"{self.__name__!r} is a module; use {CALLED[self.__name__.rpartition('.')[2]]}")


CALLED = {
    "ingest": "write_arrow(uri, data), or the command lazydelta ingest",
    "log": "DeltaTable(uri).history()",
    "query": "sql(query, name=uri)",
    "rows": "scan(uri), or DeltaTable(uri).rows()",
    "schema": "DeltaTable(uri).schema()",
    "table": "DeltaTable(uri)",
    "write": "write_arrow(uri, data) or write_deltalake(uri, data)",
}


# What users of pandas, Polars, PyArrow, DuckDB, Spark and older releases of deltalake try, and what there is.

OF_A_TABLE = {
    "add": "write_deltalake(table, data, mode='append')",
    "add_column": "alter.add_columns([Field('name', 'long')])",
    "add_columns": "alter.add_columns([Field('name', 'long')])",
    "agg": "sql('SELECT … FROM self') or to_polars().select(…)",
    "alias": "merge(source, condition, target_alias=…), or a name in sql(…)",
    "append": "write_deltalake(table, data, mode='append')",
    "arrow": "to_arrow()",
    "as_of": "DeltaTable(uri, version=…)",
    "assign": "to_polars() or to_pandas(), and change the frame",
    "at": "DeltaTable(uri, version=…)",
    "cdf": "load_cdf(version)",
    "change_data_feed": "load_cdf(version)",
    "checkpoint": "create_checkpoint()",
    "clone": "shallow_clone(uri)",
    "close": "nothing: a table holds no connection open",
    "collect": "to_arrow() or to_polars().collect()",
    "compact": "optimize.compact()",
    "compaction": "optimize.compact()",
    "configuration": "metadata().configuration",
    "copy": "copy.copy(table)",
    "created_at": "metadata().created_time",
    "describe": "info()",
    "detail": "info()",
    "df": "to_pandas()",
    "diff": "changes(version), or load_cdf(version) for rows",
    "display": "show()",
    "distinct": "sql('SELECT DISTINCT … FROM self')",
    "drop": "alter.drop_columns([names]), or to_polars().drop(…)",
    "drop_column": "alter.drop_columns([names])",
    "drop_columns": "alter.drop_columns([names])",
    "drop_duplicates": "sql('SELECT DISTINCT … FROM self')",
    "dropna": "to_polars() or to_pandas(), and change the frame",
    "empty": "count() == 0",
    "exists": "DeltaTable.is_deltatable(uri)",
    "fetchall": "to_list()",
    "fields": "schema().fields",
    "fillna": "to_polars() or to_pandas(), and change the frame",
    "filter": "rows(where=…) or to_polars().filter(…)",
    "first": "rows().first(), or head(1)",
    "get_latest_version": "update_incremental(), which moves to the newest version",
    "groupBy": "sql('SELECT … FROM self GROUP BY …') or to_polars().group_by(…)",
    "group_by": "sql('SELECT … FROM self GROUP BY …') or to_polars().group_by(…)",
    "groupby": "sql('SELECT … FROM self GROUP BY …') or to_polars().group_by(…)",
    "height": "count()",
    "iloc": "to_pandas().iloc[…]",
    "index": "to_polars() or to_pandas(), and change the frame",
    "insert": "write_deltalake(table, data, mode='append')",
    "insert_into": "write_deltalake(table, data, mode='append')",
    "isDeltaTable": "DeltaTable.is_deltatable(uri)",
    "is_empty": "count() == 0",
    "iter_batches": "rows(), which yields record batches",
    "iter_rows": "rows(), or to_list()",
    "iterrows": "rows(), or to_list()",
    "itertuples": "rows(), or to_list()",
    "join": "sql('SELECT … FROM self JOIN other USING (…)', other=…)",
    "latest_version": "update_incremental(), which moves to the newest version",
    "len": "count()",
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
    "nbytes": "info().size_bytes",
    "nrows": "count()",
    "num_files": "files().count()",
    "num_rows": "count()",
    "orderBy": "sql('FROM self ORDER BY …') or to_polars().sort(…)",
    "order_by": "sql('FROM self ORDER BY …') or to_polars().sort(…)",
    "overwrite": "write_deltalake(table, data, mode='overwrite')",
    "partitioned_by": "partition_columns",
    "path": "uri",
    "pl": "to_polars()",
    "print": "show()",
    "properties": "metadata().configuration",
    "purge": "vacuum(), or optimize.purge() for rows that deletion vectors hide",
    "query": "sql(…)",
    "read": "to_arrow(), to_pandas() or rows()",
    "read_all": "to_arrow()",
    "refresh": "update_incremental(), which moves to the newest version",
    "reload": "update_incremental(), which moves to the newest version",
    "remove": "delete(where=…)",
    "rename": "alter.rename_column(old, new), or to_polars().rename(…)",
    "rename_column": "alter.rename_column(old, new)",
    "rollback": "restore(version)",
    "row_count": "count()",
    "sample": "sql('FROM self USING SAMPLE 10')",
    "save": "write_deltalake(uri, table)",
    "select": "rows([columns])",
    "set_properties": "alter.set_table_properties({…})",
    "shape": "count() and columns",
    "sidecar": "sidecar_status() or build_sidecar()",
    "size": "count() for rows, info().size_bytes for bytes",
    "snapshot": "DeltaTable(uri, version=…)",
    "sort": "sql('FROM self ORDER BY …') or to_polars().sort(…)",
    "sort_by": "sql('FROM self ORDER BY …') or to_polars().sort(…)",
    "sort_values": "sql('FROM self ORDER BY …') or to_polars().sort(…)",
    "statistics": "get_add_actions(flatten=True), or info()",
    "stats": "get_add_actions(flatten=True), or info()",
    "stream": "rows()",
    "sum": "sql('SELECT sum(…) FROM self')",
    "table_name": "metadata().name",
    "tables": "lazydelta.sql('SHOW TABLES', name=table); this is one table",
    "tail": "head(n), which returns the newest rows",
    "take": "head(n), or rows(limit=n)",
    "time_travel": "DeltaTable(uri, version=…)",
    "timestamp": "info().timestamp",
    "toDF": "to_pandas() or to_polars(); lazydelta.spark.read(spark, uri) for Spark",
    "toPandas": "to_pandas()",
    "to_arrow_table": "to_arrow()",
    "to_batches": "rows(), which yields record batches",
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
    "to_reader": "to_pyarrow_reader()",
    "to_records": "to_pandas().to_records()",
    "to_spark": "lazydelta.spark.read(spark, uri)",
    "to_table": "to_arrow()",
    "truncate": "delete()",
    "types": "dtypes",
    "unique": "sql('SELECT DISTINCT … FROM self')",
    "upsert": "merge(data, condition).when_matched_update_all().when_not_matched_insert_all().execute()",
    "url": "uri",
    "value_counts": "sql('SELECT …, count(*) FROM self GROUP BY ALL')",
    "values": "to_pandas().values",
    "versions": "history()",
    "where": "rows(where=…)",
    "width": "len(columns)",
    "with_columns": "to_polars() or to_pandas(), and change the frame",
    "write": "write_deltalake(table, data, mode='append')",
    "z_order": "optimize.z_order([columns])",
    "zorder": "optimize.z_order([columns])",
}
OF_THE_CLASS = dict.fromkeys(
    ("for_path", "forPath", "forName", "from_uri", "load", "open", "read"), "DeltaTable(uri)"
) | {"convertToDelta": "lazydelta.convert_to_deltalake(uri)", "isDeltaTable": "DeltaTable.is_deltatable(uri)"}
OF_A_STREAM = {
    "agg": "lazydelta.sql('SELECT … FROM s', s=stream)",
    "arrow": "to_arrow()",
    "batch": "batches(), or a for loop",
    "count_rows": "count()",
    "description": "schema",
    "df": "to_pandas()",
    "dtypes": "schema",
    "fetch_arrow_table": "to_arrow()",
    "fetch_df": "to_pandas()",
    "fetchall": "to_list()",
    "fetchdf": "to_pandas()",
    "fetchmany": "limit=…, when the stream is made",
    "fetchnumpy": "to_pandas().to_numpy()",
    "fetchone": "first()",
    "filter": "where=…, when the stream is made",
    "group_by": "lazydelta.sql('SELECT … FROM s GROUP BY …', s=stream)",
    "groupby": "lazydelta.sql('SELECT … FROM s GROUP BY …', s=stream)",
    "head": "limit=…, when the stream is made",
    "item": "first()",
    "iter_batches": "batches(), or a for loop",
    "iter_rows": "to_list(), or a for loop over batches",
    "iterrows": "to_list(), or a for loop over batches",
    "join": "lazydelta.sql('SELECT … FROM s JOIN …', s=stream)",
    "lazy": "to_polars().lazy(), or table.to_polars() for a LazyFrame",
    "limit": "limit=…, when the stream is made",
    "num_files": "count()",
    "num_rows": "count()",
    "order_by": "lazydelta.sql('FROM s ORDER BY …', s=stream)",
    "paths": "to_arrow()['path'], or [file.path for file in stream]",
    "pl": "to_polars()",
    "scalar": "first()",
    "select": "columns=[…], when the stream is made",
    "shape": "count() and columns",
    "size": "to_arrow()['size'] for files, count() for rows",
    "sort": "lazydelta.sql('FROM s ORDER BY …', s=stream)",
    "take": "limit=…, when the stream is made",
    "to_batches": "batches(), or a for loop",
    "to_csv": "to_pandas().to_csv(path)",
    "to_dict": "to_list()",
    "to_dicts": "to_list()",
    "to_json": "to_pandas().to_json(path)",
    "to_numpy": "to_pandas().to_numpy()",
    "to_parquet": "pyarrow.parquet.write_table(stream.to_arrow(), path)",
    "to_pydict": "to_arrow().to_pydict()",
    "to_pylist": "to_list()",
    "to_table": "to_arrow()",
    "total_size": "to_arrow()['size']",
    "uris": "[file.uri for file in stream]",
    "where": "where=…, when the stream is made",
    "write_csv": "to_polars().write_csv(path)",
    "write_parquet": "pyarrow.parquet.write_table(stream.to_arrow(), path)",
}
OF_A_FILE = {
    "bytes": "size",
    "file": "path",
    "file_name": "path",
    "file_path": "path",
    "filename": "path",
    "last_modified": "modification_time",
    "length": "size",
    "location": "uri",
    "max_values": "stats['maxValues'], or files(stats_columns=[…]) for columns",
    "min_values": "stats['minValues'], or files(stats_columns=[…]) for columns",
    "mtime": "modification_time",
    "name": "path",
    "num_rows": "num_records",
    "partition": "partition_values",
    "partitions": "partition_values",
    "record_count": "num_records",
    "row_count": "num_records",
    "size_bytes": "size",
    "statistics": "stats",
    "timestamp": "modification_time",
    "to_dict": "files().to_arrow().to_pylist()",
    "url": "uri",
}
OF_INFORMATION = {
    "configuration": "properties",
    "created_at": "created_time",
    "num_rows": "DeltaTable.count()",
    "rows": "DeltaTable.count()",
    "schema": "columns",
    "size": "size_bytes",
}
OF_THE_PACKAGE = {
    "DeltaLake": "DeltaTable(uri)",
    "Table": "DeltaTable(uri)",
    "append": "write_arrow(uri, data)",
    "count": "DeltaTable(uri).count()",
    "create": "create_table(uri, schema), or DeltaTable.create(uri, schema)",
    "delete": "DeltaTable(uri).delete(where=…)",
    "file_uris": "DeltaTable(uri).file_uris()",
    "files": "DeltaTable(uri).files()",
    "from_pandas": "write_arrow(uri, frame)",
    "head": "DeltaTable(uri).head()",
    "history": "DeltaTable(uri).history()",
    "info": "DeltaTable(uri).info()",
    "load": "DeltaTable(uri)",
    "merge": "DeltaTable(uri).merge(data, condition)",
    "open": "DeltaTable(uri)",
    "open_table": "DeltaTable(uri)",
    "optimize": "DeltaTable(uri).optimize.compact()",
    "read_delta": "read(uri)",
    "read_deltalake": "read(uri)",
    "read_parquet": "read(uri)",
    "read_table": "read(uri)",
    "save": "write_arrow(uri, data)",
    "scan_delta": "scan(uri), or DeltaTable(uri).to_polars() for a LazyFrame",
    "to_delta": "write_arrow(uri, data)",
    "to_pandas": "read(uri).to_pandas()",
    "to_polars": "DeltaTable(uri).to_polars()",
    "update": "DeltaTable(uri).update(…)",
    "vacuum": "DeltaTable(uri).vacuum()",
    "write_delta": "write_arrow(uri, data) or write_deltalake(uri, data)",
    "write_pandas": "write_arrow(uri, frame)",
    "write_polars": "write_arrow(uri, frame)",
    "write_table": "write_arrow(uri, data) or write_deltalake(uri, data)",
}

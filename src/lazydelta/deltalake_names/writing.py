"""``write_deltalake``: lazydelta's writer with deltalake's function and parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa

from lazydelta.deltalake_names.changes import ChangesTable
from lazydelta.deltalake_names.commit_properties import (
    CommitProperties,
    PostCommitHookProperties,
    WriterProperties,
    attempts_of,
    compression_of,
    encoding_of,
    maintains,
    note_of,
)
from lazydelta.deltalake_names.parameters import deprecate_positional_commit_args
from lazydelta.errors import OptionError, TableExistsError, UnknownColumnError
from lazydelta.ingest.arrow import ArrowData, commit_arrow
from lazydelta.maintenance.after_commit import after_commit
from lazydelta.missing_names import known_arguments
from lazydelta.protocol.delta_types import Schema
from lazydelta.sidecar.handle import TableHandle, snapshot_of
from lazydelta.write.create import create_table
from lazydelta.write.data_files import TARGET_FILE_SIZE
from lazydelta.write.options import WriteOptions

__all__ = ["convert_to_deltalake", "create", "write_deltalake"]


_MODES = ("error", "append", "overwrite", "ignore")


@known_arguments
def write_deltalake(  # noqa: PLR0913 - deltalake's parameters
    table_or_uri: Any,
    data: ArrowData,
    *,
    partition_by: list[str] | str | None = None,
    mode: Literal["error", "append", "overwrite", "ignore"] = "error",
    name: str | None = None,
    description: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    schema_mode: Literal["merge", "overwrite"] | None = None,
    storage_options: Mapping[str, str] | None = None,
    predicate: str | None = None,
    target_file_size: int | None = None,
    writer_properties: WriterProperties | None = None,
    commit_properties: CommitProperties | None = None,
    post_commithook_properties: PostCommitHookProperties | None = None,
) -> None:
    """Write rows to a table in one commit; a table that does not exist is created.

    `write_arrow` is the same writer with its own options: alignment to time, exactly-once writes, memory budget.

    Args:
        table_or_uri: A location, or a `DeltaTable`, which then moves to the written version.
        data: What exports Arrow batches: a table of PyArrow, Polars, pandas or arro3, a reader, or batches.
        partition_by: Partition columns of a new table.
        mode: What happens to an existing table: raise an error, append, overwrite, or ignore the write.
        name: The name of a new table.
        description: The description of a new table.
        configuration: Properties of a new table.
        schema_mode: Add new columns (``merge``), or replace the columns by those of the data (``overwrite``,
            as the mode; with a ``predicate``, the data must have all of the table's columns).
        storage_options: Credentials and settings of the store.
        predicate: The rows that an overwrite replaces; new rows for which it is not true are refused.
        target_file_size: About the largest size of a data file, in bytes.
        writer_properties: How Parquet files are written.
        commit_properties: What the commit records, and how often it is tried.
        post_commithook_properties: What maintenance follows the commit.

    Returns:
        Nothing; the table has a new version.

    Raises:
        TableExistsError: If the table exists and ``mode`` is ``error``.
        SchemaMismatchError: If the data does not fit the table.

    Example:
        >>> lazydelta.write_deltalake("new", {"id": [1, 2]})
        >>> lazydelta.write_deltalake("new", {"id": [3]}, mode="append")
        >>> DeltaTable("new").count()
        3

    """
    if mode not in _MODES:
        raise OptionError(f"mode={mode!r} is not valid", hint=f"use one of {', '.join(_MODES)}")
    if not isinstance(table_or_uri, str | os.PathLike | ChangesTable):
        message = f"The table is a {type(table_or_uri).__name__}, not a location"
        raise OptionError(message, hint="write write_deltalake(uri, data)")
    if schema_mode not in {None, "merge", "overwrite"}:
        raise OptionError(f"schema_mode={schema_mode!r} is not valid", hint="use 'merge' or 'overwrite'")
    if predicate is not None and mode != "overwrite":
        raise OptionError("predicate needs mode='overwrite'", hint="pass mode='overwrite', or omit the predicate")
    # Rows that do not match the predicate keep their columns: the data must then have the table's, and none are
    # replaced.
    replaces = schema_mode == "overwrite" and predicate is None
    if schema_mode == "overwrite" and mode == "append":
        message = "schema_mode='overwrite' replaces the table's columns, and with them all of its rows"
        raise OptionError(message, hint="pass mode='overwrite' or schema_mode='merge'")
    table = table_or_uri if isinstance(table_or_uri, ChangesTable) else None
    encoding, maintain = encoding_of(writer_properties), maintains(post_commithook_properties)
    options = WriteOptions(
        partition_by=[partition_by] if isinstance(partition_by, str) else partition_by,
        merge_schema=schema_mode == "merge",
        overwrite_where=predicate,
        compression=compression_of(writer_properties, "zstd"),
        name=name,
        description=description,
        properties={key: value for key, value in (configuration or {}).items() if value is not None},
        storage_options=dict(storage_options or {}),
        maintain=maintain is True,
        max_attempts=attempts_of(commit_properties, WriteOptions().max_attempts),
        target_file_size=TARGET_FILE_SIZE if target_file_size is None else target_file_size,
    )
    place = os.fspath(table_or_uri) if not isinstance(table_or_uri, ChangesTable) else snapshot_of(table_or_uri).table
    note = note_of(commit_properties, None if table is None else table.transaction_version)
    same = schema_mode == "overwrite" and predicate is not None
    try:
        done = commit_arrow(
            place,
            data,
            options,
            mode,
            note=note,
            replaces_schema=replaces,
            same_columns=same,
            casts=True,
            encoding=encoding,
        )
    except UnknownColumnError as error:
        error.args = (f"No field named {error.column}. {error.args[0]}",)  # deltalake's sentence: programs look for it
        raise
    if maintain == "keep log" and not done.already_committed:
        handle = TableHandle.open(place, storage_options) if isinstance(place, str) else place
        after_commit(handle, done.version, done.metadata, maintain=maintain)
    if table is not None:
        table.update_incremental()


def convert_to_deltalake(  # noqa: PLR0913 - deltalake's parameters
    uri: str | os.PathLike[str],
    mode: Literal["error", "ignore"] = "error",
    partition_by: Schema | pa.Schema | None = None,
    partition_strategy: Literal["hive", "directory"] | None = None,
    name: str | None = None,
    description: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    storage_options: Mapping[str, str] | None = None,
    *args: Any,
    collect_stats: bool = True,
    commit_properties: CommitProperties | None = None,
    post_commithook_properties: PostCommitHookProperties | None = None,
) -> None:
    """Make a table of the Parquet files below a place, where they are, in one commit.

    ``partition_by`` has the columns that the names of folders hold, and ``partition_strategy`` says how: ``hive`` for
    ``name=value``, ``directory`` for values alone. Only footers are read; ``collect_stats`` takes row counts, nulls and
    the bounds of integers, decimals, dates and timestamps from them. ``args`` are the commit properties by position,
    which deltalake deprecates.
    """
    from lazydelta.ingest.conversion import check_strategy, convert_parquet  # noqa: PLC0415 - few programs convert

    commit, hooks = deprecate_positional_commit_args(
        "convert_to_deltalake", args, commit_properties, post_commithook_properties
    )
    if mode not in {"error", "ignore"}:
        raise OptionError(f"mode={mode!r} is not valid", hint="use 'error' or 'ignore'")
    check_strategy(partition_by, partition_strategy)
    maintains(hooks)  # no hook is due after a first commit, but invalid values are refused
    handle = TableHandle.open(uri, storage_options)
    try:
        convert_parquet(
            handle,
            partition_by=partition_by.to_arrow() if isinstance(partition_by, Schema) else partition_by,
            strategy=partition_strategy or "hive",
            properties={key: value for key, value in (configuration or {}).items() if value is not None},
            name=name,
            description=description,
            collect_stats=collect_stats,
            note=note_of(commit),
        )
    except TableExistsError:
        if mode == "error":
            raise


# ``DeltaTable.create``: table creation with deltalake's parameters.


def create(  # noqa: PLR0913 - deltalake's parameters
    table_uri: str | os.PathLike[str],
    schema: Schema | pa.Schema,
    *,
    mode: str,
    partition_by: list[str] | str | None,
    name: str | None,
    description: str | None,
    configuration: Mapping[str, str | None] | None,
    storage_options: Mapping[str, str] | None,
    commit_properties: CommitProperties | None,
    post_commithook_properties: PostCommitHookProperties | None,
    raise_if_key_not_exists: bool | None,
) -> None:
    """Create an empty table; ``schema`` can be any object that exports an Arrow schema."""
    if mode not in _MODES:
        raise OptionError(f"mode={mode!r} is not valid", hint=f"use one of {', '.join(_MODES)}")
    given = {key: value for key, value in (configuration or {}).items() if value is not None}
    if raise_if_key_not_exists is not False:
        _check_names(given)
    maintains(post_commithook_properties)  # no hook is due after a first commit, but invalid values are refused
    create_table(
        table_uri,
        schema,
        partition_by=[partition_by] if isinstance(partition_by, str) else partition_by or (),
        properties=given,
        name=name,
        description=description,
        storage_options=storage_options,
        mode="error" if mode == "append" else mode,  # type: ignore[arg-type]  # deltalake refuses it for a table, too
        note=note_of(commit_properties),
    )


def _check_names(properties: Mapping[str, str]) -> None:
    for key in properties:
        if not key.lower().startswith("delta."):
            message = f"{key!r} is not a Delta table property"
            raise OptionError(
                message, hint="table properties begin with delta.; pass raise_if_key_not_exists=False to set others"
            )

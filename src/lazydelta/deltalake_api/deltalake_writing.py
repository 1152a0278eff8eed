"""``write_deltalake``: our writer behind the function that deltalake's users call, with its parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

from lazydelta.deltalake_api.commit_properties import (
    CommitProperties,
    PostCommitHookProperties,
    attempts_of,
    maintains,
    note_of,
)
from lazydelta.deltalake_api.left_to_deltalake import refuse
from lazydelta.deltalake_api.parquet_properties import WriterProperties, compression_of, encoding_of
from lazydelta.errors import OptionError
from lazydelta.write.data_files import TARGET_FILE_SIZE
from lazydelta.write.write_options import WriteOptions
from lazydelta.writing import ArrowData, commit_arrow

__all__ = ["convert_to_deltalake", "write_deltalake"]

_MODES = ("error", "append", "overwrite", "ignore")


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

    ``table_or_uri`` is a place, or a `DeltaTable`, which is then at the version that was written. ``data`` is anything
    that gives Arrow batches: a table of PyArrow, Polars, pandas or arro3, a reader, a list of batches. ``mode`` says
    what happens to a table that exists: it is an error, is appended to, overwritten, or left alone. ``schema_mode``
    lets new columns in (``merge``) or gives the table the data's columns in place of its own (``overwrite``, with
    ``mode="overwrite"``; beside a ``predicate`` the data must have all of the table's). ``predicate`` selects the rows
    that an overwrite replaces; new rows for which it is not true are refused. ``name``, ``description`` and
    ``configuration`` are those of a new table.

    `write_arrow` is the same writer with its own options: alignment to time, writes that happen once, memory budget.
    """
    if mode not in _MODES:
        raise OptionError(f"mode={mode!r} makes no sense", hint=f"say one of {', '.join(_MODES)}")
    if schema_mode not in {None, "merge", "overwrite"}:
        raise OptionError(f"schema_mode={schema_mode!r} makes no sense", hint="say 'merge' or 'overwrite'")
    if predicate is not None and mode != "overwrite":
        raise OptionError("predicate needs mode='overwrite'", hint="say so, or leave the predicate out")
    # Rows that a predicate lets stay keep their columns: then the data must have the table's, and nothing is replaced.
    replaces = schema_mode == "overwrite" and predicate is None
    if schema_mode == "overwrite" and mode == "append":
        message = "schema_mode='overwrite' replaces the table's columns, and with them all of its rows"
        raise OptionError(message, hint="say mode='overwrite', or schema_mode='merge'")
    table = getattr(table_or_uri, "_handle", None)
    encoding = encoding_of(writer_properties)
    options = WriteOptions(
        partition_by=[partition_by] if isinstance(partition_by, str) else partition_by,
        merge_schema=schema_mode == "merge",
        overwrite_where=predicate,
        compression=compression_of(writer_properties, "zstd"),
        name=name,
        description=description,
        properties={key: value for key, value in (configuration or {}).items() if value is not None},
        storage_options=dict(storage_options or {}),
        maintain=maintains(post_commithook_properties),
        max_attempts=attempts_of(commit_properties, WriteOptions().max_attempts),
        target_file_size=TARGET_FILE_SIZE if target_file_size is None else target_file_size,
    )
    place: Any = os.fspath(table_or_uri) if table is None else table
    note = note_of(commit_properties, None if table is None else table_or_uri.transaction_version)
    same = schema_mode == "overwrite" and predicate is not None
    commit_arrow(place, data, options, mode, note=note, replaces_schema=replaces, same_columns=same, encoding=encoding)
    if table is not None:
        table_or_uri.update_incremental()


def convert_to_deltalake(*_: Any, **__: Any) -> NoReturn:
    """Refuse to make a table of Parquet files where they are: deltalake does this."""
    refuse("convert_to_deltalake", "make tables of Parquet files where they are")

"""Creating a table, with the lowest protocol that serves it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa

from lazydelta.errors import (
    CommitConflictError,
    OptionError,
    SchemaMismatchError,
    TableExistsError,
    UnsupportedFeatureError,
    WriteError,
)
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Metadata, Protocol
from lazydelta.log.features import FEATURES, READER_FEATURES, WRITER_FEATURES
from lazydelta.log.features.writable import check_writable
from lazydelta.log.properties import TableProperties, is_true
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.snapshot_opening import open_snapshot
from lazydelta.storage import Store
from lazydelta.types.delta_types import Schema
from lazydelta.types.from_arrow import has_timestamp_ntz, to_schema_string
from lazydelta.types.schema import Array, Map, Struct, TableSchema, Variant
from lazydelta.write.alignment import Alignment
from lazydelta.write.commit_note import CommitNote
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = ["create_table", "new_metadata", "protocol_for", "stage_creation"]

_WRITER_VERSION = 2
# The version stands for these; a list of features has to name them.
_IN_WRITER_VERSION = frozenset(each.name for each in FEATURES if each.writer_version == _WRITER_VERSION)
_BY_PROPERTY = "delta.feature."
_VERSION_PROPERTIES = frozenset({"delta.minreaderversion", "delta.minwriterversion"})


def create_table(  # noqa: PLR0913 - keyword-only, and each stands for itself
    uri: str | os.PathLike[str],
    schema: pa.Schema | Schema,
    *,
    partition_by: Sequence[str] = (),
    timestamp_column: str | None = None,
    boundary: str | None = None,
    partition_column: str | None = None,
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    mode: Literal["error", "ignore", "overwrite"] = "error",
    note: CommitNote | None = None,
) -> int:
    """Create an empty table and return its version; with ``mode="ignore"`` a table that exists is left as it is.

    ``mode="overwrite"`` empties a table that exists and gives it these columns and properties; it keeps its id and its
    protocol. ``note`` is what the commit says beside.

    ``timestamp_column`` aligns it to time: its first partition column is made from that column (``partition_column``,
    by default ``_event_hour`` or what goes with the ``boundary``), and added to the schema if it is not there. The
    table remembers it, so whoever appends need not say it again.
    """
    if mode not in {"error", "ignore", "overwrite"}:
        raise OptionError(f"mode={mode!r} makes no sense", hint="say 'error', 'ignore' or 'overwrite'")
    properties = dict(properties or {})
    if timestamp_column is not None:
        aligned = Alignment.of(timestamp_column, boundary, partition_column)
        schema = aligned.added_to(schema.to_arrow() if isinstance(schema, Schema) else schema, "The table")
        properties |= aligned.properties
        if not isinstance(partition_by, str) and aligned.partition_column not in partition_by:
            partition_by = [aligned.partition_column, *partition_by]
    elif boundary is not None or partition_column is not None:
        hint = "name the timestamp column, or leave boundary and partition_column out"
        raise OptionError("A boundary of time needs a column that it is taken from", hint=hint)
    metadata = new_metadata(
        schema, partition_by=partition_by, properties=properties, name=name, description=description
    )
    handle = TableHandle.open(uri, storage_options)
    store = handle.store
    parameters = {
        "partitionBy": list(metadata.partition_columns),
        "properties": metadata.configuration or {},
        "isManaged": False,
    }
    operation = "CREATE OR REPLACE TABLE" if mode == "overwrite" else "CREATE TABLE"
    with Transaction.begin(handle, operation=operation, parameters=parameters) as transaction:
        transaction.note = note or CommitNote()
        if transaction.snapshot is not None and mode == "overwrite":
            _stage_replacement(transaction, transaction.snapshot, metadata)
            return transaction.commit().version
        if transaction.snapshot is None:
            stage_creation(transaction, metadata)
            try:
                result: CommitResult = transaction.commit()
            except CommitConflictError:
                if mode != "ignore":
                    raise
                return open_snapshot(store).version
            return result.version
        if mode == "ignore":
            return transaction.snapshot.version
    raise _exists(store)


def stage_creation(transaction: Transaction, metadata: Metadata) -> None:
    """Let a transaction on a place without a table create one; files may be added in the same commit."""
    transaction.set_protocol(protocol_for(metadata))
    transaction.set_metadata(metadata)


def _stage_replacement(transaction: Transaction, snapshot: Snapshot, metadata: Metadata) -> None:
    asked, had = protocol_for(metadata), snapshot.protocol
    lacking = set(asked.writer_features or ()) - set(had.writer_features or _IN_WRITER_VERSION)
    if lacking:
        message = f"The table at {transaction.store.uri} lacks features that the new columns or properties need"
        hint = "drop the table and create it anew, or add the features with deltalake"
        raise UnsupportedFeatureError(f"{message}: {', '.join(sorted(lacking))}", features=tuple(lacking), hint=hint)
    transaction.set_metadata(msgspec.structs.replace(metadata, id=snapshot.metadata.id))
    transaction.remove_all()


def new_metadata(
    schema: pa.Schema | Schema,
    *,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
) -> Metadata:
    """Return the metadata of a new table; what makes no sense, or what we do not write, is refused here."""
    if isinstance(partition_by, str):
        raise OptionError("partition_by is a list of names, not a text", hint=f"write [{partition_by!r}]")
    schema_string = _schema_string(schema)
    columns = _partition_columns(TableSchema.parse(schema_string), partition_by)
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=schema_string,
        name=name,
        description=description,
        partition_columns=columns,
        configuration=_configuration(properties or {}),
        created_time=time.time_ns() // 1_000_000,
    )
    TableProperties.of(metadata)
    check_writable(protocol_for(metadata), metadata)
    return metadata


def _schema_string(schema: pa.Schema | Schema) -> str:
    if not isinstance(schema, Schema):
        return to_schema_string(schema)
    to_schema_string(schema.to_arrow())  # names that cannot be are refused there
    written = schema.to_json()
    if any(isinstance(each.type, Variant) for each in TableSchema.parse(written).leaves()):
        message = "lazydelta does not write tables with variants"
        raise UnsupportedFeatureError(message, features=("variantType",), hint="create the table with deltalake")
    return written


def protocol_for(metadata: Metadata) -> Protocol:
    """Return the lowest protocol under which readers and writers treat a new table as its metadata asks."""
    features: set[str] = set()
    schema = TableSchema.parse(metadata.schema_string, partition_columns=metadata.partition_columns)
    if has_timestamp_ntz(schema.to_arrow()):
        features.add("timestampNtz")
    properties = TableProperties.of(metadata)
    if properties.in_commit_timestamps:
        features.add("inCommitTimestamp")
    if is_true(metadata, "delta.enableChangeDataFeed"):
        features.add("changeDataFeed")
    if properties.deletion_vectors:
        features.add("deletionVectors")
    features |= _asked_for(metadata.configuration or {})
    if not features:
        return Protocol(min_reader_version=1, min_writer_version=_WRITER_VERSION)
    readers = sorted(features & READER_FEATURES)
    return Protocol(
        min_reader_version=3 if readers else 1,
        min_writer_version=7,
        reader_features=tuple(readers) if readers else None,
        writer_features=tuple(sorted(features | _IN_WRITER_VERSION)),
    )


def _asked_for(configuration: Mapping[str, Any]) -> set[str]:
    asked = {
        key[len(_BY_PROPERTY) :] for key in configuration if key.lower().startswith(_BY_PROPERTY) and configuration[key]
    }
    unknown = tuple(sorted(asked - WRITER_FEATURES))
    if unknown:
        message = f"The properties ask for features that lazydelta does not write: {', '.join(unknown)}"
        known = ", ".join(sorted(WRITER_FEATURES))
        raise UnsupportedFeatureError(message, features=unknown, hint=f"it writes: {known}")
    return asked


def _configuration(properties: Mapping[str, str]) -> dict[str, str | None]:
    given: Mapping[Any, Any] = properties
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            message = f"The table property {key!r} is {value!r}, and properties are text"
            raise WriteError(message, hint=f"write {str(key)!r}: {str(value).lower()!r}")
        if key.lower() in _VERSION_PROPERTIES:
            message = f"The property {key} cannot be set: the protocol follows from what the table uses"
            raise WriteError(message, hint="leave it out")
    return dict(properties)


def _partition_columns(schema: TableSchema, partition_by: Sequence[str]) -> tuple[str, ...]:
    columns: list[str] = []
    for name in partition_by:
        field = next((each for each in schema.fields if each.name == name), None)
        if field is None:
            known = ", ".join(each.name for each in schema.fields)
            raise SchemaMismatchError(f"There is no column {name!r} to partition by", hint=f"the columns are: {known}")
        if isinstance(field.type, Struct | Array | Map):
            raise SchemaMismatchError(f"The column {name!r} is a {field.type}, and tables are not partitioned by those")
        if name in columns:
            raise SchemaMismatchError(f"The column {name!r} is named twice in partition_by")
        columns.append(name)
    if not schema.fields:
        raise SchemaMismatchError("A table needs columns", hint="give a schema with at least one field")
    if len(columns) == len(schema.fields):
        message = "Every column is a partition column, so the data files would hold no column at all"
        raise SchemaMismatchError(message, hint="partition by fewer columns")
    return tuple(columns)


def _exists(store: Store) -> TableExistsError:
    message = f"There is a Delta table at {store.uri} already"
    return TableExistsError(message, path=store.uri, hint="use mode='ignore', or another place")

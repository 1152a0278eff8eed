"""Creation of tables, with the lowest protocol that supports them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
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
from lazydelta.log.snapshot import open_snapshot
from lazydelta.missing_names import known_arguments
from lazydelta.protocol.actions import Metadata, Protocol
from lazydelta.protocol.arrow_types import has_timestamp_ntz, to_schema_string
from lazydelta.protocol.delta_types import Schema, schema_of
from lazydelta.protocol.features import FEATURES, LISTS_SINCE, READER_FEATURES, WRITER_FEATURES, check_writable
from lazydelta.protocol.properties import Key, TableProperties, is_true
from lazydelta.protocol.schema import Array, Map, Struct, TableSchema, Variant
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.storage import Store
from lazydelta.write.alignment import Alignment
from lazydelta.write.column_mapping import check_names, mapping_of, with_own_names
from lazydelta.write.commit import CommitNote
from lazydelta.write.computed_columns import ComputedColumns, generated_columns
from lazydelta.write.identity import with_typed_identities
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = [
    "create_table",
    "is_version_property",
    "new_metadata",
    "protocol_for",
    "stage_creation",
    "with_features",
    "with_versions",
]

_WRITER_VERSION = 2
_BY_COLUMN = {
    Key.GENERATION: "generatedColumns",
    Key.IDENTITY: "identityColumns",
    "CURRENT_DEFAULT": "allowColumnDefaults",
}
_VERSION_PROPERTIES = {Key.MIN_READER_VERSION.lower(): "reader", Key.MIN_WRITER_VERSION.lower(): "writer"}


@known_arguments
def create_table(  # noqa: PLR0913 - keyword-only options
    uri: str | os.PathLike[str],
    schema: pa.Schema | Schema | Mapping[str, Any] | Any,
    *,
    partition_by: Sequence[str] | str = (),
    timestamp_column: str | None = None,
    boundary: str | None = None,
    partition_column: str | None = None,
    partition_format: str | None = None,
    partition_generated: bool = False,
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    mode: Literal["error", "ignore", "overwrite"] = "error",
    note: CommitNote | None = None,
) -> int:
    """Create an empty table and return its version.

    Args:
        uri: The location.
        schema: A schema of lazydelta or PyArrow, a dictionary of types by name, or a data frame.
        partition_by: Partition columns.
        timestamp_column: Align the table to time: its first partition column is derived from this column, and added if
            missing. The table records the alignment, so later appends can omit it.
        boundary: The unit of that time: ``hour`` by default.
        partition_column: The name of that partition column: ``_event_hour`` by default, or likewise.
        partition_format: How its values are written, by directives of ``strftime`` that sort as time; or digits.
        partition_generated: Make it a generated column of Delta, as in `write_arrow`.
        properties: Table properties.
        name: A name for people.
        description: A description for people.
        storage_options: Credentials and settings of the store.
        mode: ``ignore`` leaves an existing table unchanged; ``overwrite`` empties it and gives it these columns and
            properties, while it keeps its id, and its protocol grows by the features that they need.
        note: What is added to the commit.

    Returns:
        The version.

    Raises:
        TableExistsError: If the table exists and ``mode`` is ``error``.
        SchemaMismatchError: If the schema is not one of a table.

    Example:
        >>> lazydelta.create_table("empty", {"id": "bigint", "at": "timestamp"}, timestamp_column="at")
        0
        >>> DeltaTable("empty").columns
        ['id', 'at', '_event_hour']

    """
    if mode not in {"error", "ignore", "overwrite"}:
        raise OptionError(f"mode={mode!r} is not valid", hint="use 'error', 'ignore' or 'overwrite'")
    properties, schema = dict(properties or {}), schema_of(schema)
    partition_by = [partition_by] if isinstance(partition_by, str) else partition_by
    if timestamp_column is not None:
        aligned = Alignment.of(
            timestamp_column, boundary, partition_column, partition_format, is_generated=partition_generated
        )
        schema = aligned.added_to(schema.to_arrow() if isinstance(schema, Schema) else schema, "The table")
        properties |= aligned.properties
        if aligned.partition_column not in partition_by:
            partition_by = [aligned.partition_column, *partition_by]
    elif partition_generated or any(each is not None for each in (boundary, partition_column, partition_format)):
        hint = "name the timestamp column, or omit boundary and the options of the partition column"
        raise OptionError("A time boundary needs a timestamp column", hint=hint)
    metadata = new_metadata(
        schema, partition_by=partition_by, properties=properties, name=name, description=description
    )
    handle = TableHandle.open(uri, storage_options)
    store = handle.store
    parameters = {
        "partitionBy": list(metadata.partition_columns),
        "properties": properties,
        "isManaged": False,
    }
    operation = "CREATE OR REPLACE TABLE" if mode == "overwrite" else "CREATE TABLE"
    with Transaction.begin(handle, operation=operation, parameters=parameters) as transaction:
        transaction.note = note or CommitNote()
        if transaction.snapshot is not None and mode == "overwrite":
            _stage_replacement(transaction, transaction.snapshot, metadata, properties)
            return transaction.commit().version
        if transaction.snapshot is None:
            stage_creation(transaction, metadata, properties)
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


def stage_creation(transaction: Transaction, metadata: Metadata, properties: Mapping[str, str] | None = None) -> None:
    """Stage the creation of a table in a transaction. Files may be added in the same commit.

    ``properties`` are those that the caller gave, and may ask for versions of the protocol.
    """
    transaction.set_protocol(with_versions(protocol_for(metadata), properties or {}))
    transaction.set_metadata(metadata)


def _stage_replacement(
    transaction: Transaction, snapshot: Snapshot, metadata: Metadata, properties: Mapping[str, str]
) -> None:
    protocol = with_features(snapshot.protocol, protocol_for(metadata).writer_features or ())
    if generated_columns(TableSchema.parse(metadata.schema_string)):
        protocol = with_features(protocol, ["generatedColumns"])
    if mapping_of(metadata) == "name":
        protocol = with_features(protocol, ["columnMapping"])
    protocol = with_versions(protocol, properties)
    if protocol != snapshot.protocol:
        transaction.set_protocol(protocol)
    transaction.set_metadata(msgspec.structs.replace(metadata, id=snapshot.metadata.id))
    transaction.remove_all()


def new_metadata(
    schema: pa.Schema | Schema,
    *,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    description: str | None = None,
    is_mapped: bool = False,
) -> Metadata:
    """Return the metadata of a new table. Raise for invalid or unsupported settings.

    ``is_mapped`` says that its columns will be mapped, so that they may have any name.
    """
    if isinstance(partition_by, str):
        partition_by = [partition_by]
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
    if mapping_of(metadata) == "name":
        metadata = with_own_names(metadata, is_new=True)
    elif not is_mapped:
        check_names(metadata)
    ComputedColumns(TableSchema.parse(schema_string))  # raises for expressions that are not evaluated
    check_writable(protocol_for(metadata), metadata)
    return metadata


def _schema_string(schema: pa.Schema | Schema) -> str:
    if not isinstance(schema, Schema):
        return to_schema_string(schema)
    to_schema_string(schema.to_arrow())  # raises for names that are there twice
    written = schema.to_json()
    if any(isinstance(each.type, Variant) for each in TableSchema.parse(written).leaves()):
        message = "lazydelta does not write tables with variants"
        raise UnsupportedFeatureError(message, features=("variantType",), hint="create the table with deltalake")
    return with_typed_identities(written)


def protocol_for(metadata: Metadata) -> Protocol:
    """Return the lowest protocol that supports the metadata of a new table."""
    features: set[str] = set()
    schema = TableSchema.parse(metadata.schema_string, partition_columns=metadata.partition_columns)
    if "timestamp_ntz" in metadata.schema_string and has_timestamp_ntz(schema.to_arrow()):
        features.add("timestampNtz")
    properties = TableProperties.of(metadata)
    if properties.in_commit_timestamps:
        features.add("inCommitTimestamp")
    if is_true(metadata, Key.CHANGE_DATA_FEED):
        features.add("changeDataFeed")
    if properties.deletion_vectors:
        features.add("deletionVectors")
    keys = {key for field in schema.fields for key in field.metadata}
    features |= {name for key, name in _BY_COLUMN.items() if any(each.startswith(key) for each in keys)}
    features |= _asked_for(metadata.configuration or {})
    if features <= {"generatedColumns"}:
        lowest = Protocol(min_reader_version=1, min_writer_version=4 if features else _WRITER_VERSION)
        return with_features(lowest, ["columnMapping"] if mapping_of(metadata) == "name" else [])
    if mapping_of(metadata) == "name":
        features.add("columnMapping")
    readers = sorted(features & READER_FEATURES)
    return Protocol(
        min_reader_version=3 if readers else 1,
        min_writer_version=7,
        reader_features=tuple(readers) if readers else None,
        writer_features=tuple(sorted(features | _used(metadata, schema))),
    )


def _used(metadata: Metadata, schema: TableSchema) -> set[str]:
    """Return the features of the lowest writer version that the table uses, which a list has to name."""
    used = {"appendOnly"} if is_true(metadata, Key.APPEND_ONLY) else set()
    # The string of the schema has those of nested fields, too.
    has_invariants = Key.INVARIANTS in metadata.schema_string or not all(each.nullable for each in schema.fields)
    return used | {"invariants"} if has_invariants else used


def with_features(protocol: Protocol, features: Iterable[str]) -> Protocol:
    """Return the lowest protocol that has further features."""
    lacking = [name for name in dict.fromkeys(features) if not _has(protocol, name)]
    for name in lacking:
        if name not in WRITER_FEATURES:
            message = f"lazydelta does not write tables with the feature {name}"
            known = ", ".join(sorted(WRITER_FEATURES))
            raise UnsupportedFeatureError(message, features=(name,), hint=f"it writes: {known}")
        protocol = _with(protocol, name)
    return protocol


def is_version_property(name: str) -> bool:
    """Return whether a property asks for a version of the protocol. Such a property is not kept in the metadata."""
    return name.lower() in _VERSION_PROPERTIES


def with_versions(protocol: Protocol, properties: Mapping[str, str | None]) -> Protocol:
    """Return the protocol with at least the versions that the properties ask for. Versions never go down."""
    asked = {"reader": protocol.min_reader_version, "writer": protocol.min_writer_version}
    for key, value in properties.items():
        side = _VERSION_PROPERTIES.get(key.lower())
        if side is None:
            continue
        if value is None or not value.isdecimal() or not 1 <= int(value) <= LISTS_SINCE[side]:
            message = f"The property {key} is {value!r}, which is not a protocol version for {side}s"
            raise WriteError(message, hint=f"pass a number from 1 to {LISTS_SINCE[side]}")
        asked[side] = max(asked[side], int(value))
    reader, writer = asked["reader"], asked["writer"]
    if reader >= LISTS_SINCE["reader"]:
        writer = LISTS_SINCE["writer"]
    lists_writers = writer >= LISTS_SINCE["writer"] and protocol.writer_features is None
    lists_readers = reader >= LISTS_SINCE["reader"] and protocol.reader_features is None
    reads_mapped = lists_readers and protocol.min_reader_version == 2  # noqa: PLR2004 - the version of column mapping
    return msgspec.structs.replace(
        protocol,
        min_reader_version=reader,
        min_writer_version=writer,
        writer_features=tuple(sorted(_implied(protocol.min_writer_version)))
        if lists_writers
        else protocol.writer_features,
        reader_features=(("columnMapping",) if reads_mapped else ()) if lists_readers else protocol.reader_features,
    )


def _has(protocol: Protocol, name: str) -> bool:
    if protocol.min_writer_version >= LISTS_SINCE["writer"]:
        return name in (protocol.writer_features or ())
    return name in _implied(protocol.min_writer_version)


def _implied(version: int) -> set[str]:
    return {each.name for each in FEATURES if each.writer_version is not None and each.writer_version <= version}


def _with(protocol: Protocol, name: str) -> Protocol:
    since = next(each.writer_version for each in FEATURES if each.name == name)
    if since is not None and protocol.min_writer_version < LISTS_SINCE["writer"]:
        # Older versions of the protocol have it, so older readers and writers go on working.
        reads = max(protocol.min_reader_version, 2 if name in READER_FEATURES else 1)
        return msgspec.structs.replace(protocol, min_writer_version=since, min_reader_version=reads)
    listed = set(protocol.writer_features or _implied(protocol.min_writer_version)) | {name}
    changed = msgspec.structs.replace(
        protocol, min_writer_version=LISTS_SINCE["writer"], writer_features=tuple(sorted(listed))
    )
    if name not in READER_FEATURES:
        return changed
    readers = set(protocol.reader_features or ()) | {name}
    if protocol.min_reader_version == 2:  # noqa: PLR2004 - the version of column mapping
        readers.add("columnMapping")
    return msgspec.structs.replace(
        changed, min_reader_version=LISTS_SINCE["reader"], reader_features=tuple(sorted(readers))
    )


def _asked_for(configuration: Mapping[str, Any]) -> set[str]:
    asked = {
        key[len(Key.FEATURE) :] for key in configuration if key.lower().startswith(Key.FEATURE) and configuration[key]
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
            message = f"The table property {key!r} is {value!r}, and properties are strings"
            raise WriteError(message, hint=f"write {str(key)!r}: {str(value).lower()!r}")
    return {key: value for key, value in properties.items() if not is_version_property(key)}


def _partition_columns(schema: TableSchema, partition_by: Sequence[str]) -> tuple[str, ...]:
    columns: list[str] = []
    for name in partition_by:
        field = next((each for each in schema.fields if each.name == name), None)
        if field is None:
            known = ", ".join(each.name for each in schema.fields)
            raise SchemaMismatchError(f"There is no column {name!r} to partition by", hint=f"the columns are: {known}")
        if isinstance(field.type, Struct | Array | Map):
            raise SchemaMismatchError(f"The column {name!r} is a {field.type}, by which tables cannot be partitioned")
        if name in columns:
            raise SchemaMismatchError(f"The column {name!r} is named twice in partition_by")
        columns.append(name)
    if not schema.fields:
        raise SchemaMismatchError("A table needs columns", hint="pass a schema with at least one field")
    if len(columns) == len(schema.fields):
        message = "Every column is a partition column, so data files would have no columns"
        raise SchemaMismatchError(message, hint="partition by fewer columns")
    return tuple(columns)


def _exists(store: Store) -> TableExistsError:
    message = f"There is already a Delta table at {store.uri}"
    return TableExistsError(message, path=store.uri, hint="use mode='ignore', or another location")

"""ALTER TABLE: changes of columns, constraints, properties and features, each in one commit without data.

A change is a function of the current protocol and metadata. Another change of them in the meantime is a conflict, and
the change then starts again from the new version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from lazydelta.data_files.reader import RowReader
from lazydelta.errors import (
    CommitConflictError,
    OptionError,
    SchemaMismatchError,
    TableNotFoundError,
    UnknownColumnError,
    UnsupportedFeatureError,
    WriteError,
)
from lazydelta.protocol.actions import Metadata, Protocol
from lazydelta.protocol.arrow_types import has_timestamp_ntz, to_field
from lazydelta.protocol.delta_types import Field
from lazydelta.protocol.properties import Key
from lazydelta.protocol.schema import NameIndex
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.write.column_mapping import mapped_metadata, mapping_of, with_own_names
from lazydelta.write.commit import CommitNote
from lazydelta.write.create import is_version_property, with_features, with_versions
from lazydelta.write.evolution import grown_schema
from lazydelta.write.plan import RowConstraints, schema_of
from lazydelta.write.row_changes.choice import RowChoice, candidate_files
from lazydelta.write.transaction import CommitResult, Transaction

__all__ = ["Change", "TableChange", "alter_table"]

State: TypeAlias = tuple[Protocol, Metadata]
Change: TypeAlias = Callable[[Snapshot], State]
"""Computes the protocol and metadata that a table gets."""

_ATTEMPTS = 5
_LONGEST_NAME, _LONGEST_DESCRIPTION = 255, 4000
_SWITCHES = {
    Key.CHANGE_DATA_FEED.lower(): "changeDataFeed",
    Key.DELETION_VECTORS.lower(): "deletionVectors",
    Key.APPEND_ONLY.lower(): "appendOnly",
}
# What only writers set, and what a table cannot take back.
_KEPT = frozenset({Key.MAX_COLUMN_ID.lower(), Key.IN_COMMIT_TIMESTAMPS.lower()})


def alter_table(
    handle: TableHandle,
    change: TableChange,
    *,
    note: CommitNote | None = None,
) -> CommitResult | None:
    """Commit a change of the table. Return None if the table already is as it asks."""
    for remaining in reversed(range(_ATTEMPTS)):
        try:
            return _attempt(handle, change, note or CommitNote())
        except CommitConflictError:
            if not remaining or (note is not None and note.transactions):
                raise
    raise AssertionError("the last attempt returns or raises")  # pragma: no cover


def _attempt(handle: TableHandle, change: TableChange, note: CommitNote) -> CommitResult | None:
    with Transaction.begin(handle, operation=change.operation, parameters=change.parameters) as transaction:
        snapshot = transaction.snapshot
        if snapshot is None:
            message = f"There is no Delta table at {handle.uri} to alter"
            raise TableNotFoundError(message, path=handle.uri, hint="check the path")
        transaction.note = note
        note.check_seen(snapshot.transaction_version, handle.uri)
        protocol, metadata = change.of(snapshot)
        if (protocol, metadata) == (snapshot.protocol, snapshot.metadata) and not change.is_noted:
            return None
        if protocol != snapshot.protocol or change.is_noted:
            transaction.set_protocol(protocol)
        if metadata != snapshot.metadata:
            transaction.set_metadata(metadata)
            RowConstraints(metadata, schema_of(metadata))  # refuses what later writes could not check
        if change.rests_on_rows:
            # A row that another writer adds meanwhile was not checked.
            choice = RowChoice(snapshot.schema, None, None)
            transaction.rest_on_rows(choice, any_append=True, removes=False)
            _check_rows(snapshot, metadata)
        return transaction.commit()


def _check_rows(snapshot: Snapshot, metadata: Metadata) -> None:
    """Raise if a row of the table breaks a constraint."""
    checked = RowConstraints(metadata, schema_of(metadata))
    reader = RowReader(snapshot.store, snapshot.schema)
    for file in candidate_files(snapshot, RowChoice(snapshot.schema, None, None)):
        for rows in reader.read(file.add):
            checked.check(rows)


class TableChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a table, with its entry in the log. With ``is_noted`` that is made even if nothing changes."""

    operation: str
    parameters: dict[str, Any]
    of: Change
    rests_on_rows: bool = False
    is_noted: bool = False

    # --- columns

    @classmethod
    def add_columns(cls, fields: Sequence[Field | pa.Field]) -> TableChange:
        """Add nullable columns, or fields of structs that the table has."""
        foreign = [each for each in fields if not isinstance(each, Field | pa.Field)]
        if foreign:
            message = f"{foreign[0]!r} is not a field"
            raise OptionError(message, hint="write [Field('name', 'long')] or [pyarrow.field('name', pyarrow.int64())]")
        given = [to_field(each, "") if isinstance(each, pa.Field) else each.raw() for each in fields]
        if not given:
            raise OptionError("There is no column to add", hint="pass at least one field")

        def change(snapshot: Snapshot) -> State:
            schema = msgspec.json.decode(snapshot.metadata.schema_string)
            names = NameIndex(each["name"] for each in schema["fields"])
            for each, field in zip(given, fields, strict=True):
                if Key.GENERATION in (each.get("metadata") or {}):
                    # deltalake's sentence: programs look for it.
                    message = f"New columns cannot be a generated column, as {each['name']!r} is"
                    raise SchemaMismatchError(message, hint="recreate the table with this feature")
                if names.positions(each["name"]):
                    arrow = field if isinstance(field, pa.Field) else pa.schema([field.to_arrow()]).field(0)
                    grown = grown_schema(msgspec.json.encode(schema).decode(), pa.schema([arrow]))
                    if grown is None:
                        message = f"The table already has the column {each['name']!r}"
                        raise SchemaMismatchError(message, hint="omit it")
                    schema = msgspec.json.decode(grown)
                    continue
                if not each["nullable"]:
                    message = f"The new column {each['name']!r} is not nullable, and existing rows have no value"
                    raise SchemaMismatchError(message, hint="make it nullable")
                schema["fields"].append(each)
                names.append(each["name"])
            metadata = mapped_metadata(_with_schema(snapshot.metadata, schema), snapshot)
            features = ["timestampNtz"] if has_timestamp_ntz(schema_of(metadata).to_arrow()) else []
            return with_features(snapshot.protocol, features), metadata

        told = [{"column": {key: each[key] for key in ("name", "type", "nullable")}} for each in given]
        return cls(operation="ADD COLUMNS", parameters={"columns": told}, of=change)

    @classmethod
    def rename_column(cls, column: str, name: str) -> TableChange:
        """Rename a column of a table with mapped columns; files keep its physical name."""

        def change(snapshot: Snapshot) -> State:
            _check_mapped(snapshot, "renamed")
            schema = msgspec.json.decode(snapshot.metadata.schema_string)
            field = _field(schema, column)
            others = [each["name"] for each in schema["fields"] if each is not field]
            if not name or NameIndex(others).positions(name):
                raise SchemaMismatchError(f"The table cannot have a second column {name!r}", hint="choose another name")
            _check_unused(snapshot, field["name"])
            old, field["name"] = field["name"], name
            kept = tuple(name if each == old else each for each in snapshot.metadata.partition_columns)
            metadata = msgspec.structs.replace(_with_schema(snapshot.metadata, schema), partition_columns=kept)
            return snapshot.protocol, metadata

        return cls(operation="RENAME COLUMN", parameters={"oldColumnPath": column, "newColumnPath": name}, of=change)

    @classmethod
    def drop_columns(cls, columns: Sequence[str]) -> TableChange:
        """Drop columns of a table with mapped columns; files keep the values."""

        def change(snapshot: Snapshot) -> State:
            _check_mapped(snapshot, "dropped")
            schema = msgspec.json.decode(snapshot.metadata.schema_string)
            for column in columns:
                field = _field(schema, column)
                if field["name"] in snapshot.metadata.partition_columns:
                    message = f"The column {field['name']!r} is a partition column"
                    raise SchemaMismatchError(message, hint="keep the column")
                _check_unused(snapshot, field["name"])
                schema["fields"].remove(field)
            if len(schema["fields"]) <= len(snapshot.metadata.partition_columns):
                raise SchemaMismatchError("The table would have no column left", hint="keep at least one column")
            return snapshot.protocol, _with_schema(snapshot.metadata, schema)

        return cls(operation="DROP COLUMNS", parameters={"columns": list(columns)}, of=change)

    @classmethod
    def drop_not_null(cls, column: str) -> TableChange:
        """Let a column hold nulls."""

        def change(snapshot: Snapshot) -> State:
            schema = msgspec.json.decode(snapshot.metadata.schema_string)
            field = _field(schema, column)
            if field["nullable"]:
                raise WriteError(f"The column {field['name']!r} is already nullable", hint="no change is needed")
            field["nullable"] = True
            return snapshot.protocol, _with_schema(snapshot.metadata, schema)

        return cls(operation="CHANGE COLUMN", parameters={"column": column, "nullable": True}, of=change)

    @classmethod
    def set_column_metadata(cls, column: str, metadata: Mapping[str, Any]) -> TableChange:
        """Set metadata of a column, such as its ``comment``. What Delta itself keeps there is refused."""
        owned = [key for key in metadata if key.lower().startswith(("delta.", "current_default", "__char_"))]
        if owned:
            raise OptionError(f"The metadata {owned[0]!r} of a column is Delta's own", hint="omit it")

        def change(snapshot: Snapshot) -> State:
            schema = msgspec.json.decode(snapshot.metadata.schema_string)
            field = _field(schema, column)
            field["metadata"] = (field.get("metadata") or {}) | dict(metadata)
            return snapshot.protocol, _with_schema(snapshot.metadata, schema)

        return cls(operation="CHANGE COLUMN", parameters={"column": column, "metadata": dict(metadata)}, of=change)

    # --- constraints

    @classmethod
    def add_constraints(cls, constraints: Mapping[str, str]) -> TableChange:
        """Add CHECK constraints. Every row of the table must satisfy them."""
        if len(constraints) != 1:
            raise OptionError(
                f"One constraint is added at a time, not {len(constraints)}", hint="add one constraint at a time"
            )
        name, text = next(iter(constraints.items()))

        def change(snapshot: Snapshot) -> State:
            configuration = dict(snapshot.metadata.configuration or {})
            if _key_of(configuration, Key.CONSTRAINT + name) is not None:
                message = f"The table already has a constraint {name!r}"
                raise WriteError(message, path=snapshot.store.uri, hint="drop it first, or choose another name")
            configuration[Key.CONSTRAINT + name] = text
            metadata = msgspec.structs.replace(snapshot.metadata, configuration=configuration)
            return with_features(snapshot.protocol, ["checkConstraints"]), metadata

        return cls(operation="ADD CONSTRAINT", parameters={"name": name, "expr": text}, of=change, rests_on_rows=True)

    @classmethod
    def drop_constraint(cls, name: str, *, must_exist: bool = True) -> TableChange:
        """Drop a CHECK constraint."""

        def change(snapshot: Snapshot) -> State:
            configuration = dict(snapshot.metadata.configuration or {})
            key = _key_of(configuration, Key.CONSTRAINT + name)
            if key is None:
                if must_exist:
                    message = f"Constraint with name doesn't exist: {name}"
                    raise WriteError(message, path=snapshot.store.uri, hint="check the table's properties")
                return snapshot.protocol, snapshot.metadata
            del configuration[key]
            return snapshot.protocol, msgspec.structs.replace(snapshot.metadata, configuration=configuration)

        return cls(operation="DROP CONSTRAINT", parameters={"name": name}, of=change)

    # --- properties, name and features

    @classmethod
    def set_properties(cls, properties: Mapping[str, str | None]) -> TableChange:
        """Set properties, or unset those that are None. Features that they need are added to the protocol."""
        for key, value in properties.items():
            low = key.lower()
            if low in _KEPT or low.startswith(Key.CONSTRAINT):
                message = f"The property {key} cannot be set"
                hint = "it cannot be changed here; use the methods for constraints"
                raise WriteError(message, hint=hint)
            if low in _SWITCHES and value is not None and value.strip().lower() not in {"true", "false"}:
                raise WriteError(f"The property {key} is {value!r}", hint="use true or false")

        def change(snapshot: Snapshot) -> State:
            protocol, metadata = with_versions(snapshot.protocol, properties), snapshot.metadata
            configuration = dict(metadata.configuration or {})
            for key, value in properties.items():
                known = _key_of(configuration, key)
                if is_version_property(key):
                    continue
                if key.lower().startswith(Key.FEATURE):
                    protocol = with_features(protocol, [key[len(Key.FEATURE) :]])
                    continue
                if value is None:
                    configuration.pop(known or key, None)
                    continue
                configuration[known or key] = value
                feature = _SWITCHES.get(key.lower())
                if feature is not None and value.strip().lower() == "true":
                    protocol = with_features(protocol, [feature])
            changed = msgspec.structs.replace(metadata, configuration=configuration)
            before, after = mapping_of(metadata), mapping_of(changed)
            if after != before:
                if (before, after) != ("none", "name"):
                    message = f"The columns of a table are mapped by {before!r}, and cannot be by {after!r}"
                    raise WriteError(message, hint=f"{Key.COLUMN_MAPPING_MODE} can be set to 'name' where it is 'none'")
                protocol, changed = with_features(protocol, ["columnMapping"]), with_own_names(changed)
            return protocol, changed

        is_unset = all(value is None for value in properties.values())
        told = {"properties": list(properties) if is_unset else dict(properties)}
        return cls(operation=f"{'UNSET' if is_unset else 'SET'} TBLPROPERTIES", parameters=told, of=change)

    @classmethod
    def describe(cls, *, name: str | None = None, description: str | None = None) -> TableChange:
        """Set the name or the description of the table."""
        # The wording that users of deltalake search for.
        if name is not None and not 1 <= len(name) <= _LONGEST_NAME:
            message = "Table metadata is invalid: name: Table name cannot be empty and cannot exceed 255 characters"
            raise OptionError(message, hint=f"this one has {len(name)}")
        if description is not None and len(description) > _LONGEST_DESCRIPTION:
            message = "Table metadata is invalid: description: Table description cannot exceed 4000 characters"
            raise OptionError(message, hint=f"this one has {len(description)}")
        given = {key: value for key, value in (("name", name), ("description", description)) if value is not None}

        def change(snapshot: Snapshot) -> State:
            return snapshot.protocol, msgspec.structs.replace(snapshot.metadata, **given)

        return cls(operation="UPDATE TABLE METADATA", parameters=given, of=change)

    @classmethod
    def add_features(cls, features: Sequence[str], *, may_raise_versions: bool) -> TableChange:
        """Add features to the protocol. They are switched on by properties."""

        def change(snapshot: Snapshot) -> State:
            protocol = with_features(snapshot.protocol, features)
            ours, theirs = protocol, snapshot.protocol
            if not may_raise_versions and (
                (ours.min_reader_version, ours.min_writer_version)
                != (theirs.min_reader_version, theirs.min_writer_version)
            ):
                message = (
                    f"The features {', '.join(features)} need versions {ours.min_reader_version} (of readers) and "
                    f"{ours.min_writer_version} (of writers); the table has {theirs.min_reader_version} and "
                    f"{theirs.min_writer_version}"
                )
                raise WriteError(message, hint="pass allow_protocol_versions_increase=True")
            return protocol, snapshot.metadata

        # As in deltalake: the history says that the feature was asked for.
        return cls(operation="ADD FEATURE", parameters={"name": list(features)}, of=change, is_noted=True)


def _with_schema(metadata: Metadata, schema: Mapping[str, Any]) -> Metadata:
    return msgspec.structs.replace(metadata, schema_string=msgspec.json.encode(schema).decode())


def _field(schema: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Return a column, or a field of a struct by its dotted path."""
    fields = schema["fields"]
    for place in ([column], column.split(".")):
        found: dict[str, Any] | None = None
        inner = fields
        for part in place:
            found = next((each for each in inner if each["name"].lower() == part.lower()), None)
            if found is None:
                break
            inner = found["type"].get("fields", []) if isinstance(found["type"], dict) else []
        if found is not None:
            return found
    known = ", ".join(each["name"] for each in fields[:20])
    raise UnknownColumnError(f"The table has no column {column!r}", hint=f"the columns are: {known}")


def _check_mapped(snapshot: Snapshot, deed: str) -> None:
    if mapping_of(snapshot.metadata) == "none":
        message = f"Columns can be {deed} in tables with column mapping, because files contain the names"
        raise UnsupportedFeatureError(
            message,
            features=("columnMapping",),
            path=snapshot.store.uri,
            hint=f"set the property {Key.COLUMN_MAPPING_MODE} to 'name'",
        )


def _check_unused(snapshot: Snapshot, column: str) -> None:
    """Raise if a constraint, or a property of ours, names the column."""
    pattern = re.compile(rf"(?<![\w]){re.escape(column)}(?![\w])", re.IGNORECASE)
    for key, value in _naming(snapshot.metadata):
        if pattern.search(value):
            message = f"The column {column!r} is named by {key}: {value}"
            raise SchemaMismatchError(message, path=snapshot.store.uri, hint="drop it first")


def _naming(metadata: Metadata) -> Iterator[tuple[str, str]]:
    named = ("lazydelta.", Key.STATS_COLUMNS.lower(), Key.CONSTRAINT)
    for key, value in (metadata.configuration or {}).items():
        if value and key.lower().startswith(named):
            yield key, value
    for field in schema_of(metadata).fields:
        text = field.metadata.get(Key.GENERATION)
        if isinstance(text, str):
            yield f"the generated column {field.name!r}", text


def _key_of(configuration: Mapping[str, Any], name: str) -> str | None:
    return next((key for key in configuration if key.lower() == name.lower()), None)

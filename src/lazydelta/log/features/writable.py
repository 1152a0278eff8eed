"""What a table asks of its writers, and whether we can give it.

A writer that overlooks a constraint or a generated column damages the table for everybody, so what is not implemented
is refused by name before anything is written. Features that came with a protocol version (2 to 6) are no obstacle as
long as the table does not use them, and neither are the same features in the list of version 7.
"""

from __future__ import annotations

from collections.abc import Iterator

from lazydelta.errors import UnsupportedFeatureError, WriteError
from lazydelta.log.actions import Metadata, Protocol
from lazydelta.log.features.feature_lists import LISTS_SINCE, listed_features
from lazydelta.log.features.feature_table import CHECKPOINT_FEATURES, FEATURES, LISTED_FEATURES
from lazydelta.log.features.readable import column_mapping_mode
from lazydelta.log.properties import is_true
from lazydelta.types.schema import Array, DataType, Field, Map, Struct, TableSchema, Variant

__all__ = [
    "check_copyable",
    "check_removable",
    "check_writable",
    "is_append_only",
    "uses_in_commit_timestamps",
]

_CONSTRAINT = "delta.constraints."
_MAPPING = "delta.columnMapping.mode"
# What readers of change data add to the columns of the table.
_OF_CHANGES = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})


def check_writable(protocol: Protocol, metadata: Metadata, *, path: str | None = None) -> None:
    """Raise unless we can write to the table without breaking a promise that it makes."""
    found: dict[str, str] = {}
    for feature, where in (*_listed(protocol, path), *_used(protocol, metadata)):
        found.setdefault(feature, where)
    if not found:
        return
    features = tuple(sorted(found))
    named = ", ".join(f"{feature} ({found[feature]})" if found[feature] else feature for feature in features)
    message = f"The table uses features that lazydelta does not write: {named}"
    raise UnsupportedFeatureError(
        message, features=features, path=path, hint="write it with a writer that implements them, or drop the features"
    )


def check_copyable(protocol: Protocol, *, path: str) -> None:
    """Raise unless a checkpoint that we write holds all that features of the table put into one."""
    unknown = tuple(feature for feature in protocol.writer_features or () if feature not in CHECKPOINT_FEATURES)
    if protocol.min_writer_version > LISTS_SINCE["writer"]:
        unknown = (f"minWriterVersion {protocol.min_writer_version}",)
    if unknown:
        message = f"A checkpoint of {path} could lose what these features write: {', '.join(unknown)}"
        hint = "let a writer that implements them write it"
        raise UnsupportedFeatureError(message, features=unknown, path=path, hint=hint)


def is_append_only(protocol: Protocol, metadata: Metadata) -> bool:
    """Tell whether no row may ever be deleted."""
    return _supports(protocol, "appendOnly") and is_true(metadata, "delta.appendOnly")


def uses_in_commit_timestamps(protocol: Protocol, metadata: Metadata) -> bool:
    """Tell whether each commit must carry its own, monotonic timestamp."""
    return _supports(protocol, "inCommitTimestamp") and is_true(metadata, "delta.enableInCommitTimestamps")


def check_removable(protocol: Protocol, metadata: Metadata, *, path: str | None = None) -> None:
    """Raise if the table is append-only."""
    if is_append_only(protocol, metadata):
        message = "The transaction includes Remove action with data change but Delta table is append-only"
        message += " (delta.appendOnly is true)"
        raise WriteError(message, path=path, hint="append only, or set the property to false first")


def _supports(protocol: Protocol, name: str) -> bool:
    if protocol.min_writer_version >= LISTS_SINCE["writer"]:
        return name in (protocol.writer_features or ())
    since = next(each.writer_version for each in FEATURES if each.name == name)
    return since is not None and since <= protocol.min_writer_version


def _listed(protocol: Protocol, path: str | None) -> Iterator[tuple[str, str]]:
    features, version = listed_features(protocol, "writer", path), protocol.min_writer_version
    if version > LISTS_SINCE["writer"]:
        yield f"minWriterVersion {version}", ""
        return
    for feature in features:
        if feature not in LISTED_FEATURES:
            yield feature, ""


def _used(protocol: Protocol, metadata: Metadata) -> Iterator[tuple[str, str]]:
    for feature in FEATURES:
        if feature.switch is not None and is_true(metadata, feature.switch):
            yield feature.name, f"the property {feature.switch}"
    for key in metadata.configuration or {}:
        if key.lower().startswith(_CONSTRAINT) and not _supports(protocol, "checkConstraints"):
            # Writers that go by the protocol would let any row in.
            yield "checkConstraints", f"the property {key}, and the protocol does not have the feature"
    asked = (metadata.property(_MAPPING) or "none").lower()
    if asked != column_mapping_mode(metadata, protocol):
        # Readers take the columns for unmapped, and other writers may not.
        yield "columnMapping", f"the property {_MAPPING}, and the protocol does not have the feature"
    if (metadata.property("delta.checkpointPolicy") or "").lower() == "v2":
        yield "v2Checkpoint", "the property delta.checkpointPolicy"
    schema = TableSchema.parse(metadata.schema_string, partition_columns=metadata.partition_columns)
    clashing = [each.name for each in schema.fields if each.name.lower() in _OF_CHANGES]
    if clashing and is_true(metadata, "delta.enableChangeDataFeed"):
        yield "changeDataFeed", f"change data has a column {clashing[0]!r} of its own"
    for column, field in _fields(schema.fields, ""):
        if _holds_variants(field.type):
            yield "variantType", f"the column {column!r}"
        for feature in FEATURES:
            mark = feature.column_mark
            if mark is not None and any(key.startswith(mark) for key in field.metadata):
                yield feature.name, f"the column {column!r}"


def _fields(fields: tuple[Field, ...], parent: str) -> Iterator[tuple[str, Field]]:
    for each in fields:
        name = f"{parent}.{each.name}" if parent else each.name
        yield name, each
        yield from _inside(each.type, name)


def _holds_variants(kind: DataType) -> bool:
    match kind:
        case Array(element):
            return _holds_variants(element)
        case Map(key, value):
            return _holds_variants(key) or _holds_variants(value)
        case _:
            return isinstance(kind, Variant)


def _inside(kind: DataType, name: str) -> Iterator[tuple[str, Field]]:
    match kind:
        case Struct(fields):
            yield from _fields(fields, name)
        case Array(element):
            yield from _inside(element, f"{name}.element")
        case Map(key, value):
            yield from _inside(key, f"{name}.key")
            yield from _inside(value, f"{name}.value")
        case _:
            return

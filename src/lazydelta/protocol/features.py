"""Table features: the lists in a protocol, the features that lazydelta supports, and the checks for both."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Literal, TypeAlias

import msgspec

from lazydelta.errors import CorruptLogError, UnsupportedFeatureError, WriteError
from lazydelta.protocol.actions import Metadata, Protocol
from lazydelta.protocol.arrow_types import check_type_changes
from lazydelta.protocol.properties import Key, TableProperties, is_true
from lazydelta.protocol.schema import TYPE_CHANGES, Array, DataType, Field, Map, Primitive, Struct, TableSchema, Variant

__all__ = [
    "CATALOG_FEATURES",
    "COPIED_FEATURES",
    "FEATURES",
    "READER_FEATURES",
    "WRITER_FEATURES",
    "ColumnMappingMode",
    "Feature",
    "ReadSupport",
    "Writing",
    "check_copyable",
    "check_readable",
    "check_removable",
    "check_writable",
    "column_mapping_mode",
    "uses_in_commit_timestamps",
]


LISTS_SINCE = {"reader": 3, "writer": 7}
"""The versions from which on a protocol lists its features explicitly."""


def listed_features(protocol: Protocol, who: Literal["reader", "writer"], path: str | None) -> tuple[str, ...]:
    """Return the features listed for readers or writers; raise if the protocol contradicts itself."""
    is_reader, since = who == "reader", LISTS_SINCE[who]
    version = protocol.min_reader_version if is_reader else protocol.min_writer_version
    features = protocol.reader_features if is_reader else protocol.writer_features
    if version < 1:
        raise CorruptLogError(f"The table's protocol has the impossible {who} version {version}", path=path)
    if version < since and features:
        # Lower versions do not read feature lists, so a list contradicts the version.
        message = f"The table's protocol lists {who} features but has {who} version {version} instead of {since}"
        raise CorruptLogError(message, path=path)
    if version == since and features is None:
        message = f"The table's protocol has {who} version {since} but no list of {who} features"
        raise CorruptLogError(message, path=path)
    return features or ()


# ``FEATURES``: every known table feature, and how lazydelta supports it.
#
# Refusals, the table in the documentation and the tests are derived from it. A feature that is not listed is refused by
# name if it applies.


class ReadSupport(Enum):
    """What reading a table with the feature requires."""

    FREE = "yes, it concerns writers only"
    DONE = "yes"
    WITH_LOG_TAIL = "with the catalog's `log_tail`"


class Writing(Enum):
    """Whether lazydelta writes to a table that lists the feature."""

    DONE = "yes"
    UNUSED = "while the table does not use it"
    REFUSED = "no"


class Feature(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One feature.

    ``writer_version`` is the protocol version that included it before feature lists existed. A table uses it in an
    unsupported way if ``switch`` (a property that is true) or ``column_mark`` (a prefix of a key in a column's
    metadata; with ``nested_only``, in that of a field inside a column) is present. ``copied`` says that
    lazydelta copies all actions and fields that the feature needs in a checkpoint, and that VACUUM needs no other
    actions to find the files in use. It does not say whether commits are possible, because neither changes the table.
    """

    name: str
    reading: ReadSupport = ReadSupport.FREE
    writing: Writing = Writing.REFUSED
    copied: bool = True
    writer_version: int | None = None
    switch: str | None = None
    column_mark: str | None = None
    nested_only: bool = False
    note: str = ""


FEATURES = (
    Feature(name="appendOnly", writing=Writing.DONE, writer_version=2),
    Feature(
        name="invariants",
        writing=Writing.DONE,
        writer_version=2,
        column_mark=Key.INVARIANTS,
        nested_only=True,
        note="`NOT NULL` and expressions are checked, the latter like CHECK constraints",
    ),
    Feature(
        name="checkConstraints",
        writing=Writing.DONE,
        writer_version=3,
        note="checked if the row filter can decide it exactly; otherwise refused, with the name of the constraint",
    ),
    # Readers derive changes from whole files that are added or removed; a commit that rewrites some writes `cdc` files.
    Feature(
        name="changeDataFeed",
        writing=Writing.DONE,
        writer_version=4,
        note="columns with the names of change data columns are refused",
    ),
    Feature(
        name="generatedColumns",
        writing=Writing.DONE,
        writer_version=4,
        column_mark=Key.GENERATION,
        nested_only=True,
        note="computed or checked; an unsupported expression is refused, with the name of the column",
    ),
    Feature(
        name="columnMapping",
        reading=ReadSupport.DONE,
        writing=Writing.DONE,
        writer_version=5,
        note="switched on by the property `delta.columnMapping.mode`",
    ),
    Feature(
        name="identityColumns",
        writing=Writing.DONE,
        writer_version=6,
        column_mark=Key.IDENTITY,
        nested_only=True,
        note="values come from the table's sequence, or from the rows if the column is `BY DEFAULT`",
    ),
    Feature(
        name="deletionVectors",
        reading=ReadSupport.DONE,
        writing=Writing.DONE,
        note="written by DELETE, UPDATE and MERGE if `delta.enableDeletionVectors` is true",
    ),
    Feature(name="timestampNtz", reading=ReadSupport.DONE, writing=Writing.DONE),
    Feature(name="vacuumProtocolCheck", reading=ReadSupport.DONE, writing=Writing.DONE),
    Feature(name="domainMetadata", writing=Writing.DONE, note="preserved"),
    Feature(name="inCommitTimestamp", writing=Writing.DONE),
    # deltalake lists the feature in tables that have no such column.
    Feature(name="variantType", reading=ReadSupport.DONE, writing=Writing.UNUSED),
    Feature(name="variantType-preview", reading=ReadSupport.DONE, writing=Writing.UNUSED),
    Feature(
        name="variantShredding",
        reading=ReadSupport.DONE,
        copied=False,
        note="files are found; shredded rows are not read",
    ),
    Feature(
        name="variantShredding-preview",
        reading=ReadSupport.DONE,
        copied=False,
        note="files are found; shredded rows are not read",
    ),
    Feature(
        name="typeWidening",
        reading=ReadSupport.DONE,
        switch=Key.TYPE_WIDENING,
        column_mark=Key.TYPE_CHANGES,
    ),
    Feature(name="typeWidening-preview", reading=ReadSupport.DONE),
    Feature(name="v2Checkpoint", reading=ReadSupport.DONE),
    Feature(name="rowTracking", switch=Key.ROW_TRACKING),
    Feature(name="clustering"),
    Feature(
        name="allowColumnDefaults",
        writing=Writing.DONE,
        column_mark="CURRENT_DEFAULT",
        nested_only=True,
        note="a constant, `current_timestamp()` or `current_date()`; other expressions are refused",
    ),
    # It applies to log cleanup.
    Feature(name="checkpointProtection", writing=Writing.DONE, note="protected parts of the log are not cleaned up"),
    Feature(name="icebergCompatV1", switch="delta.enableIcebergCompatV1"),
    Feature(name="icebergCompatV2", switch="delta.enableIcebergCompatV2"),
    Feature(name="icebergCompatV3", copied=False, switch="delta.enableIcebergCompatV3"),
    Feature(name="catalogManaged", reading=ReadSupport.WITH_LOG_TAIL, copied=False),
    Feature(name="catalogOwned-preview", reading=ReadSupport.WITH_LOG_TAIL, copied=False),
)

READER_FEATURES = frozenset(each.name for each in FEATURES if each.reading is ReadSupport.DONE)
CATALOG_FEATURES = frozenset(each.name for each in FEATURES if each.reading is ReadSupport.WITH_LOG_TAIL)
WRITER_FEATURES = frozenset(each.name for each in FEATURES if each.writing is Writing.DONE)
LISTED_FEATURES = frozenset(each.name for each in FEATURES if each.writing is not Writing.REFUSED)
COPIED_FEATURES = frozenset(each.name for each in FEATURES if each.copied)


# Reader support. Only the reader side of the protocol counts: writer-only features (``appendOnly``, ``rowTracking``,
# ``clustering``, ``inCommitTimestamp``, …) are listed in ``writerFeatures`` and never prevent reading. Unknown features
# are refused by name; a table is never read on the assumption that one does not matter.


ColumnMappingMode: TypeAlias = Literal["none", "id", "name"]

_MODES: dict[str, ColumnMappingMode] = {"none": "none", "id": "id", "name": "name"}
_COLUMN_MAPPING_VERSION = 2


def check_readable(
    protocol: Protocol, metadata: Metadata, *, has_log_tail: bool = False, path: str | None = None
) -> None:
    """Raise unless every row of the table can be read correctly.

    ``has_log_tail`` says that a catalog provided its ratified commits; without them a catalog-managed table may look
    older than it is. ``path`` names the table in the error.
    """
    _check_features(protocol, has_log_tail=has_log_tail, path=path)
    column_mapping_mode(metadata, protocol, path=path)
    provider = metadata.format.provider
    if provider.lower() != "parquet":
        message = f"The table stores its data as {provider!r}, and lazydelta reads Parquet only"
        raise UnsupportedFeatureError(message, features=(f"format {provider}",), path=path)
    # Most schemas record no type change: do not parse those twice.
    if TYPE_CHANGES in metadata.schema_string:
        check_type_changes(TableSchema.parse(metadata.schema_string))


def column_mapping_mode(metadata: Metadata, protocol: Protocol, *, path: str | None = None) -> ColumnMappingMode:
    """Return how columns are found in data files.

    The property alone has no effect: the protocol lets readers honour it only if column mapping is supported.
    """
    if not _supports_column_mapping(protocol):
        return "none"
    stored = metadata.property(Key.COLUMN_MAPPING_MODE, "none") or "none"
    mode = _MODES.get(stored.lower())
    if mode is None:
        message = f"The table uses the column mapping mode {stored!r}, which lazydelta does not support"
        raise UnsupportedFeatureError(
            message, features=(f"columnMapping mode {stored}",), path=path, hint="use none, id or name"
        )
    return mode


def _supports_column_mapping(protocol: Protocol) -> bool:
    if protocol.min_reader_version >= LISTS_SINCE["reader"]:
        return "columnMapping" in (protocol.reader_features or ())
    return protocol.min_reader_version == _COLUMN_MAPPING_VERSION


def _check_features(protocol: Protocol, *, has_log_tail: bool, path: str | None) -> None:
    features, version = listed_features(protocol, "reader", path), protocol.min_reader_version
    if version > LISTS_SINCE["reader"]:
        message = (
            f"The table needs reader version {version}, and lazydelta supports versions up to {LISTS_SINCE['reader']}"
        )
        raise UnsupportedFeatureError(
            message, features=(f"minReaderVersion {version}",), path=path, hint="a newer lazydelta may read it"
        )
    _check_names(features, has_log_tail=has_log_tail, path=path)


def _check_names(features: tuple[str, ...], *, has_log_tail: bool, path: str | None) -> None:
    unknown = tuple(sorted(set(features) - READER_FEATURES - CATALOG_FEATURES))
    if unknown:
        message = f"The table needs reader features that lazydelta does not implement: {', '.join(unknown)}"
        raise UnsupportedFeatureError(
            message, features=unknown, path=path, hint="a newer lazydelta may read it, or drop the features"
        )
    managed = tuple(sorted(CATALOG_FEATURES.intersection(features)))
    if managed and not has_log_tail:
        message = (
            f"The table is managed by a catalog ({', '.join(managed)}), and only the catalog knows its latest commits"
        )
        raise UnsupportedFeatureError(
            message, features=managed, path=path, hint="pass the catalog's commits as log_tail"
        )


# Writer support. A writer that ignores a constraint or a generated column damages the table for all users, so
# unsupported features are refused by name before anything is written. Features of a protocol version (2 to 6), or the
# same features in the list of version 7, are no obstacle as long as the table does not use them.


# Columns that the change data feed adds to those of the table.
_OF_CHANGES = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})


def check_writable(protocol: Protocol, metadata: Metadata, *, path: str | None = None) -> None:
    """Raise unless lazydelta can write to the table without violating its guarantees."""
    found: dict[str, str] = {}
    for feature, where in (*_listed(protocol, path), *_active_features(protocol, metadata)):
        found.setdefault(feature, where)
    if not found:
        return
    features = tuple(sorted(found))
    named = ", ".join(f"{feature} ({found[feature]})" if found[feature] else feature for feature in features)
    message = f"The table uses features that lazydelta does not write: {named}"
    raise UnsupportedFeatureError(
        message, features=features, path=path, hint="use a writer that implements them, or drop the features"
    )


def check_copyable(protocol: Protocol, *, path: str) -> None:
    """Raise unless a checkpoint by lazydelta keeps everything that the table's features store in it."""
    unknown = tuple(feature for feature in protocol.writer_features or () if feature not in COPIED_FEATURES)
    if protocol.min_writer_version > LISTS_SINCE["writer"]:
        unknown = (f"minWriterVersion {protocol.min_writer_version}",)
    if unknown:
        message = f"A checkpoint of {path} could lose what these features write: {', '.join(unknown)}"
        hint = "have a writer that implements them write it"
        raise UnsupportedFeatureError(message, features=unknown, path=path, hint=hint)


def is_append_only(protocol: Protocol, metadata: Metadata) -> bool:
    """Return whether rows may never be deleted."""
    return _supports(protocol, "appendOnly") and TableProperties.of(metadata, strict=False).append_only


def uses_in_commit_timestamps(protocol: Protocol, metadata: Metadata) -> bool:
    """Return whether each commit must carry its own monotonic timestamp."""
    return _supports(protocol, "inCommitTimestamp") and is_true(metadata, Key.IN_COMMIT_TIMESTAMPS)


def check_removable(protocol: Protocol, metadata: Metadata, *, path: str | None = None) -> None:
    """Raise if the table is append-only."""
    if is_append_only(protocol, metadata):
        message = "The transaction includes Remove action with data change but Delta table is append-only"
        message += " (delta.appendOnly is true)"
        raise WriteError(message, path=path, hint="append only, or first set the property to false")


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


def _active_features(protocol: Protocol, metadata: Metadata) -> Iterator[tuple[str, str]]:
    for feature in FEATURES:
        if feature.switch is not None and is_true(metadata, feature.switch):
            yield feature.name, f"the property {feature.switch}"
    for key in metadata.configuration or {}:
        if key.lower().startswith(Key.CONSTRAINT) and not _supports(protocol, "checkConstraints"):
            # Writers that follow the protocol would accept any row.
            yield "checkConstraints", f"the property {key}, and the protocol does not have the feature"
    asked = (metadata.property(Key.COLUMN_MAPPING_MODE) or "none").lower()
    if asked != column_mapping_mode(metadata, protocol):
        # Readers treat the columns as unmapped, and other writers may not.
        yield "columnMapping", f"the property {Key.COLUMN_MAPPING_MODE}, and the protocol does not have the feature"
    if (metadata.property(Key.CHECKPOINT_POLICY) or "").lower() == "v2":
        yield "v2Checkpoint", "the property delta.checkpointPolicy"
    schema = TableSchema.parse(metadata.schema_string, partition_columns=metadata.partition_columns)
    if is_true(metadata, Key.CHANGE_DATA_FEED):
        clashing = [each.name for each in schema.fields if each.name.lower() in _OF_CHANGES]
        if clashing:
            yield "changeDataFeed", f"change data has a column {clashing[0]!r} of its own"
    # There may be thousands of columns, and most are plain.
    telling = tuple(each for each in schema.fields if each.metadata or not isinstance(each.type, Primitive))
    columns = {id(each) for each in telling}
    for column, field in _fields(telling, ""):
        if _holds_variants(field.type):
            yield "variantType", f"the column {column!r}"
        for feature in FEATURES if field.metadata else ():
            mark = None if feature.nested_only and id(field) in columns else feature.column_mark
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

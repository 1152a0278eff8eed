"""``FEATURES``: every table feature that we know, and what we do about it.

Refusals, the table in the documentation and the tests follow from this one. A feature that is not in it is refused by
name wherever it binds us.
"""

from __future__ import annotations

from enum import Enum

import msgspec

__all__ = [
    "CATALOG_FEATURES",
    "CHECKPOINT_FEATURES",
    "FEATURES",
    "LISTED_FEATURES",
    "READER_FEATURES",
    "WRITER_FEATURES",
    "Feature",
    "Reading",
    "Writing",
]


class Reading(Enum):
    """What reading a table with the feature takes."""

    FREE = "yes, it binds writers only"
    DONE = "yes"
    WITH_LOG_TAIL = "with the catalog's `log_tail`"


class Writing(Enum):
    """What we do when asked to write to a table that lists the feature."""

    DONE = "yes"
    UNUSED = "while the table does not use it"
    REFUSED = "no"


class Feature(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One feature.

    ``writer_version`` is the protocol version that had it before there were lists of features. A table uses it in a way
    that we do not write where ``switch`` (a property that is true) or ``column_mark`` (the beginning of a key in the
    metadata of a column) is found. ``copied`` says that a checkpoint holds no action and no field for it but those that
    we copy; whether we may commit to such tables is another question, as a checkpoint changes nothing that they say.
    """

    name: str
    reading: Reading = Reading.FREE
    writing: Writing = Writing.REFUSED
    copied: bool = True
    writer_version: int | None = None
    switch: str | None = None
    column_mark: str | None = None
    note: str = ""


FEATURES = (
    Feature(name="appendOnly", writing=Writing.DONE, writer_version=2),
    Feature(
        name="invariants",
        writing=Writing.DONE,
        writer_version=2,
        column_mark="delta.invariants",
        note="`NOT NULL` is kept; a column with an expression is refused",
    ),
    Feature(
        name="checkConstraints",
        writing=Writing.DONE,
        writer_version=3,
        note="checked where our filter of rows decides it exactly; else refused, and the constraint is named",
    ),
    # Readers tell the changes by files that come and go whole; a commit that rewrites some writes `cdc` files.
    Feature(
        name="changeDataFeed",
        writing=Writing.DONE,
        writer_version=4,
        note="columns that are named as those of change data are refused",
    ),
    Feature(
        name="generatedColumns", writing=Writing.UNUSED, writer_version=4, column_mark="delta.generationExpression"
    ),
    Feature(
        name="columnMapping",
        reading=Reading.DONE,
        writing=Writing.DONE,
        writer_version=5,
        note="never switched on by us",
    ),
    Feature(name="identityColumns", writing=Writing.UNUSED, writer_version=6, column_mark="delta.identity."),
    Feature(
        name="deletionVectors",
        reading=Reading.DONE,
        writing=Writing.DONE,
        note="never written; files that have one may be removed",
    ),
    Feature(name="timestampNtz", reading=Reading.DONE, writing=Writing.DONE),
    Feature(name="vacuumProtocolCheck", reading=Reading.DONE, writing=Writing.DONE),
    Feature(name="domainMetadata", writing=Writing.DONE, note="carried along"),
    Feature(name="inCommitTimestamp", writing=Writing.DONE),
    # deltalake lists the feature in tables that have no such column.
    Feature(name="variantType", reading=Reading.DONE, writing=Writing.UNUSED),
    Feature(name="variantType-preview", reading=Reading.DONE, writing=Writing.UNUSED),
    Feature(
        name="variantShredding", reading=Reading.DONE, copied=False, note="files are found; shredded rows are not read"
    ),
    Feature(
        name="variantShredding-preview",
        reading=Reading.DONE,
        copied=False,
        note="files are found; shredded rows are not read",
    ),
    Feature(
        name="typeWidening", reading=Reading.DONE, switch="delta.enableTypeWidening", column_mark="delta.typeChanges"
    ),
    Feature(name="typeWidening-preview", reading=Reading.DONE),
    Feature(name="v2Checkpoint", reading=Reading.DONE),
    Feature(name="rowTracking", switch="delta.enableRowTracking"),
    Feature(name="clustering"),
    Feature(name="allowColumnDefaults", column_mark="CURRENT_DEFAULT"),
    # It binds who cleans up the log.
    Feature(name="checkpointProtection", writing=Writing.DONE, note="the log is not cleaned up below what it protects"),
    Feature(name="icebergCompatV1", switch="delta.enableIcebergCompatV1"),
    Feature(name="icebergCompatV2", switch="delta.enableIcebergCompatV2"),
    Feature(name="icebergCompatV3", copied=False, switch="delta.enableIcebergCompatV3"),
    Feature(name="catalogManaged", reading=Reading.WITH_LOG_TAIL, copied=False),
    Feature(name="catalogOwned-preview", reading=Reading.WITH_LOG_TAIL, copied=False),
)

READER_FEATURES = frozenset(each.name for each in FEATURES if each.reading is Reading.DONE)
CATALOG_FEATURES = frozenset(each.name for each in FEATURES if each.reading is Reading.WITH_LOG_TAIL)
WRITER_FEATURES = frozenset(each.name for each in FEATURES if each.writing is Writing.DONE)
LISTED_FEATURES = frozenset(each.name for each in FEATURES if each.writing is not Writing.REFUSED)
CHECKPOINT_FEATURES = frozenset(each.name for each in FEATURES if each.copied)

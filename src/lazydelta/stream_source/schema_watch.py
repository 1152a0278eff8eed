"""Whether rows of a commit can still be read under the columns that a stream began with."""

from __future__ import annotations

from lazydelta.errors import StreamStoppedError
from lazydelta.log.actions import Metadata, Protocol
from lazydelta.log.features import column_mapping_mode
from lazydelta.log.snapshot import Snapshot
from lazydelta.types.schema import Array, DataType, Field, Map, Struct, TableSchema
from lazydelta.types.widening import is_widening

__all__ = ["check_metadata", "reads"]


def check_metadata(pinned: Snapshot, metadata: Metadata, protocol: Protocol, version: int) -> None:
    """Refuse a version whose metadata is not that of the stream, and say how to go on.

    The columns of a stream are those of the version that it was started at. What an older commit brought has to be
    readable under them; a newer one that changes them ends the stream, because a DataFrame's columns cannot change.
    """
    uri = pinned.store.uri
    if metadata.id != pinned.metadata.id:
        message = f"Version {version} of {uri} belongs to another table ({metadata.id}, not {pinned.metadata.id})"
        hint = "the table was replaced; start a new query with a fresh checkpoint location"
        raise StreamStoppedError(message, path=uri, version=version, hint=hint)
    ours = pinned.schema
    theirs = TableSchema.parse(
        metadata.schema_string,
        partition_columns=metadata.partition_columns,
        column_mapping=column_mapping_mode(metadata, protocol),
        origin=f"version {version}",
    )
    if version > pinned.version:
        if theirs != ours:
            message = f"Version {version} of {uri} changes the table's columns: {_difference(ours, theirs)}"
            hint = "start the query again, with its checkpoint location: it goes on here, with the new columns"
            raise StreamStoppedError(message, path=uri, version=version, hint=hint)
        return
    why = _partitions(ours, theirs) or reads(ours.fields, theirs.fields)
    if why is not None:
        message = f"Rows of version {version} of {uri} cannot be read under the table's present columns: {why}"
        hint = (
            f"the columns were changed between versions {version} and {pinned.version}; start a new query with a fresh "
            "checkpoint location, whose snapshot has all rows, or with a later startingVersion"
        )
        raise StreamStoppedError(message, path=uri, version=version, hint=hint)


def reads(ours: tuple[Field, ...], theirs: tuple[Field, ...], within: str = "") -> str | None:
    """Return why files with the fields ``theirs`` cannot be read as ``ours``, None if they can."""
    known = {each.physical_name: each for each in ours}
    for field in theirs:
        mine = known.pop(field.physical_name, None)
        name = f"{within}{field.name}"
        if mine is None:
            return f"the column {name!r} is gone"
        why = _reads_type(mine.type, field.type, name)
        if why is not None:
            return why
    lacking = next((each for each in known.values() if not each.nullable), None)
    return None if lacking is None else f"the column {within + lacking.name!r} may not be null, and did not exist"


def _reads_type(mine: DataType, theirs: DataType, name: str) -> str | None:
    if isinstance(mine, Struct) and isinstance(theirs, Struct):
        return reads(mine.fields, theirs.fields, f"{name}.")
    if isinstance(mine, Array) and isinstance(theirs, Array):
        return _reads_type(mine.element, theirs.element, name)
    if isinstance(mine, Map) and isinstance(theirs, Map):
        return _reads_type(mine.key, theirs.key, name) or _reads_type(mine.value, theirs.value, name)
    if mine == theirs or is_widening(theirs, mine):
        return None
    return f"the column {name!r} was {theirs} and is {mine}"


def _partitions(ours: TableSchema, theirs: TableSchema) -> str | None:
    if ours.physical_partition_columns == theirs.physical_partition_columns:
        return None
    return f"it was partitioned by {list(theirs.partition_columns)} and is by {list(ours.partition_columns)}"


def _difference(ours: TableSchema, theirs: TableSchema) -> str:
    mine = {each.name: each for each in ours.fields}
    told = [f"{each.name!r} is new" for each in theirs.fields if each.name not in mine]
    for each in theirs.fields:
        known = mine.pop(each.name, None)
        if known is not None and known != each:
            changed = f" ({known.type} to {each.type})" if known.type != each.type else ""
            told.append(f"{each.name!r} is another{changed}")
    told += [f"{name!r} is gone" for name in mine]
    return "; ".join(told) or _partitions(ours, theirs) or "their order or their mapping is another"

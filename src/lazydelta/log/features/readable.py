"""What a table asks of its readers, and whether we can give it.

Only the reader's side of the protocol counts here: features that bind writers alone (``appendOnly``, ``rowTracking``,
``clustering``, ``inCommitTimestamp``, …) are listed in ``writerFeatures`` and never keep us from reading. What we do
not know by name is refused by name; a table is never read on the guess that an unknown feature does not matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from lazydelta.errors import UnsupportedFeatureError
from lazydelta.log.features.feature_lists import LISTS_SINCE, listed_features
from lazydelta.log.features.feature_table import CATALOG_FEATURES, READER_FEATURES
from lazydelta.types.schema import TYPE_CHANGES, TableSchema
from lazydelta.types.widening import check_type_changes

if TYPE_CHECKING:
    from lazydelta.log.actions import Metadata, Protocol

__all__ = ["ColumnMappingMode", "check_readable", "column_mapping_mode"]

ColumnMappingMode: TypeAlias = Literal["none", "id", "name"]

_MODES: dict[str, ColumnMappingMode] = {"none": "none", "id": "id", "name": "name"}
_COLUMN_MAPPING_VERSION = 2


def check_readable(
    protocol: Protocol, metadata: Metadata, *, has_log_tail: bool = False, path: str | None = None
) -> None:
    """Raise unless every row of the table can be read right.

    ``has_log_tail`` says that a catalog gave us the commits it has ratified; without them a catalog-managed table
    may look older than it is. ``path`` names the table in the error.
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

    The property alone means nothing: the protocol lets readers honour it only where column mapping is supported.
    """
    if not _supports_column_mapping(protocol):
        return "none"
    stored = metadata.property("delta.columnMapping.mode", "none") or "none"
    mode = _MODES.get(stored.lower())
    if mode is None:
        message = f"The table uses the column mapping mode {stored!r}, which lazydelta does not know"
        raise UnsupportedFeatureError(
            message, features=(f"columnMapping mode {stored}",), path=path, hint="known modes are none, id and name"
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
            f"The table needs reader version {version}, and lazydelta knows versions up to {LISTS_SINCE['reader']}"
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
        message = f"The table is managed by a catalog ({', '.join(managed)}), which alone knows its latest commits"
        raise UnsupportedFeatureError(
            message, features=managed, path=path, hint="ask the catalog for its commits and pass them as log_tail"
        )

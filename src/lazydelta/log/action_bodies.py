"""Actions on their way into the log: the fields that commits and checksums write, under the protocol's names.

What is not known is left out rather than null: older readers take a null for a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lazydelta.log.actions import Add, DeletionVector, DomainMetadata, Metadata, Protocol, Remove, Txn

__all__ = ["add_body", "cdc_body", "domain_body", "metadata_body", "protocol_body", "remove_body", "txn_body"]


def protocol_body(protocol: Protocol) -> dict[str, Any]:
    """Return the fields of a ``protocol`` action."""
    return _present(msgspec.to_builtins(protocol))


def metadata_body(metadata: Metadata) -> dict[str, Any]:
    """Return the fields of a ``metaData`` action; maps are written even where they are empty, as the protocol asks."""
    body = _present(msgspec.to_builtins(metadata))
    body["format"] = {"provider": metadata.format.provider, "options": metadata.format.options or {}}
    body["configuration"] = metadata.configuration or {}
    return body


def txn_body(txn: Txn) -> dict[str, Any]:
    """Return the fields of a ``txn`` action."""
    return _present(msgspec.to_builtins(txn))


def domain_body(domain: DomainMetadata) -> dict[str, Any]:
    """Return the fields of a ``domainMetadata`` action."""
    return _present(msgspec.to_builtins(domain))


def add_body(add: Add) -> dict[str, Any]:
    """Return the fields of an ``add`` action."""
    body: dict[str, Any] = {
        "path": add.path,
        "partitionValues": add.partition_values,
        "size": add.size,
        "modificationTime": add.modification_time,
        "dataChange": add.data_change,
    }
    return body | _optional(
        stats=add.stats,
        tags=add.tags,
        deletionVector=_vector(add.deletion_vector),
        baseRowId=add.base_row_id,
        defaultRowCommitVersion=add.default_row_commit_version,
        clusteringProvider=add.clustering_provider,
    )


def cdc_body(file: Add) -> dict[str, Any]:
    """Return the fields of a ``cdc`` action, which names a file with changed rows."""
    return {"path": file.path, "partitionValues": file.partition_values, "size": file.size, "dataChange": False}


def remove_body(remove: Remove) -> dict[str, Any]:
    """Return the fields of a ``remove`` action."""
    body: dict[str, Any] = {"path": remove.path, "dataChange": remove.data_change}
    return body | _optional(
        deletionTimestamp=remove.deletion_timestamp,
        extendedFileMetadata=remove.extended_file_metadata,
        partitionValues=remove.partition_values,
        size=remove.size,
        stats=remove.stats,
        tags=remove.tags,
        deletionVector=_vector(remove.deletion_vector),
        baseRowId=remove.base_row_id,
        defaultRowCommitVersion=remove.default_row_commit_version,
    )


def _vector(vector: DeletionVector | None) -> dict[str, Any] | None:
    return None if vector is None else _present(msgspec.to_builtins(vector))


def _optional(**fields: Any) -> dict[str, Any]:
    return _present(fields)


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}

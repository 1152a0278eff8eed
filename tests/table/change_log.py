"""Logs of tables with change data, written by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from tests.rows.files import inline_vector

if TYPE_CHECKING:
    from pathlib import Path

ENABLED = {"delta.enableChangeDataFeed": "true"}


def handmade(root: Path, *commits: list[dict[str, Any]]) -> None:
    """Write a log of one column ``id`` with change data, by hand."""
    log = root / "_delta_log"
    log.mkdir(parents=True)
    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    metadata = {
        "id": "0",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": {**ENABLED, "delta.enableDeletionVectors": "true"},
    }
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "changeDataFeed"],
    }
    history: list[list[dict[str, Any]]] = [[{"protocol": protocol}, {"metaData": metadata}], *commits]
    for version, actions in enumerate(history):
        lines = [{"commitInfo": {"timestamp": version}}, *actions]
        (log / f"{version:020}.json").write_text("".join(json.dumps(each) + "\n" for each in lines))


def action(kind: str, path: str, root: Path, gone: list[int] | None = None) -> dict[str, Any]:
    """Return an add or remove of a file, with a deletion vector of these rows."""
    body: dict[str, Any] = {"path": path, "dataChange": True, "partitionValues": {}}
    body |= {"size": (root / path).stat().st_size, "modificationTime": 0} if kind == "add" else {"deletionTimestamp": 0}
    if gone is not None:
        vector = msgspec.to_builtins(inline_vector(gone))
        body["deletionVector"] = {key: value for key, value in vector.items() if value is not None}
    return {kind: body}

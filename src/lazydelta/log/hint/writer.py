"""Advance ``_last_checkpoint``, and never move it back.

The hint is a single object that every writer replaces. A slow writer with an older checkpoint would move readers back
and make them read more commits than needed. It therefore reads the hint first and replaces only the version it has
read.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from lazydelta.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError
from lazydelta.log.checkpoint.units import CheckpointResult
from lazydelta.log.hint.reader import HINT_PATH, CheckpointHint, hint_checksum, parse_hint
from lazydelta.log.segment import list_from
from lazydelta.protocol.file_names import FileKind
from lazydelta.storage import Store

__all__ = ["write_last_checkpoint"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 5


def write_last_checkpoint(store: Store, checkpoint: CheckpointResult) -> bool:
    """Point the hint at a checkpoint; return False if it already points at that one or a newer one.

    For a checkpoint that is not V1, the hint is left to its writer. A hint that does not parse, or names a newer
    checkpoint that does not exist, is replaced. Losing a race to a newer hint counts as success.
    """
    if not checkpoint.is_v1 or checkpoint.size is None:
        return False
    data = _encode_hint(checkpoint)
    for _ in range(_ATTEMPTS):
        try:
            current = _read(store)
            if current is not None and _is_ahead(store, current[1], checkpoint.version):
                return False
            if current is None:
                store.put_if_absent(HINT_PATH, data)
            else:
                store.put(HINT_PATH, data, if_match=current[0])
        except (ObjectExistsError, ObjectChangedError, ObjectNotFoundError):
            continue  # another writer replaced it meanwhile: read it again
        return True
    logger.warning("%s of %s is being written by too many at once; it stays as it is", HINT_PATH, store.uri)
    return False


def _encode_hint(checkpoint: CheckpointResult) -> bytes:
    content: dict[str, Any] = {
        "version": checkpoint.version,
        "size": checkpoint.size,
        "parts": checkpoint.parts,
        "sizeInBytes": checkpoint.size_in_bytes,
        "numOfAddFiles": checkpoint.num_of_add_files,
    }
    content = {name: value for name, value in content.items() if value is not None}
    content["checksum"] = hint_checksum(content)
    return json.dumps(content, separators=(",", ":")).encode()


def _read(store: Store) -> tuple[str | None, CheckpointHint | None] | None:
    """Return the etag and content of the current hint (content None if invalid), or None if there is no hint."""
    try:
        info = store.head(HINT_PATH)
        data = store.get(HINT_PATH, if_match=info.etag) if info.size else b""
    except ObjectNotFoundError:
        return None
    try:
        return info.etag, parse_hint(bytes(data))
    except ValueError:
        return info.etag, None


def _is_ahead(store: Store, hint: CheckpointHint | None, version: int) -> bool:
    if hint is None or hint.version < version:
        return False
    # The log may have been rewound or copied in part: a hint to a missing checkpoint must not stay forever.
    found = list_from(store, hint.version, hint.version)
    return hint.version == version or any(file.kind is FileKind.CHECKPOINT and file.info.size for file in found)

"""Moving ``_last_checkpoint`` forward, and never back.

The hint is one object that every writer replaces. A slow writer that comes with an older checkpoint would send readers
back and make them read more commits than they need, so it looks first and writes only over what it has seen.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from lazydelta.errors import ObjectChangedError, ObjectExistsError, ObjectNotFoundError
from lazydelta.log.checkpoint.checkpoint_result import CheckpointResult
from lazydelta.log.hint.checkpoint_hint import HINT_PATH, CheckpointHint, hint_checksum, parse_hint
from lazydelta.log.names import FileKind
from lazydelta.log.segment import list_from
from lazydelta.storage import Store

__all__ = ["write_last_checkpoint"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 5


def write_last_checkpoint(store: Store, checkpoint: CheckpointResult) -> bool:
    """Point the hint at a checkpoint; False if it points at that one or a newer one already.

    The hint for a checkpoint that is not V1 is left to whoever wrote that. A hint that does not parse, or names a newer
    checkpoint which is not there, is replaced. Losing a race to a newer hint is as good as winning it.
    """
    if not checkpoint.is_v1 or checkpoint.size is None:
        return False
    data = _encode(checkpoint)
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
            continue  # somebody else wrote it meanwhile: look again
        return True
    logger.warning("%s of %s is being written by too many at once; it stays as it is", HINT_PATH, store.uri)
    return False


def _encode(checkpoint: CheckpointResult) -> bytes:
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
    """Return the etag of the hint that is there and what it says, if it makes sense; None if there is no hint."""
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
    # The log may have been rewound or copied in part: a hint that leads nowhere must not stay for ever.
    found = list_from(store, hint.version, hint.version)
    return hint.version == version or any(file.kind is FileKind.CHECKPOINT and file.info.size for file in found)

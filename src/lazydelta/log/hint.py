"""``_last_checkpoint``: a hint to the newest checkpoint, not a guarantee."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec

from lazydelta.errors import ObjectNotFoundError
from lazydelta.protocol.actions import Count
from lazydelta.protocol.file_names import LOG
from lazydelta.storage import Store

__all__ = ["HINT_PATH", "CheckpointHint", "hint_checksum", "parse_hint", "read_hint"]

logger = logging.getLogger(__name__)

HINT_PATH = f"{LOG}/_last_checkpoint"


class CheckpointHint(msgspec.Struct, rename="camel", frozen=True):
    """The fields of ``_last_checkpoint`` that lazydelta uses."""

    version: Count
    size: int | None = None
    parts: int | None = None
    size_in_bytes: int | None = None
    num_of_add_files: int | None = None
    checksum: str | None = None


def read_hint(store: Store) -> CheckpointHint | None:
    """Read the hint; None if it is missing, unparsable or fails its checksum: the listing finds the checkpoint."""
    try:
        data = bytes(store.get(HINT_PATH))
    except ObjectNotFoundError:
        return None
    try:
        return parse_hint(data)
    except ValueError as error:
        logger.warning("%s is ignored: %s", HINT_PATH, error)
        return None


def parse_hint(data: bytes) -> CheckpointHint:
    """Parse a hint; raise ValueError with the reason if it is invalid."""
    try:
        hint = msgspec.json.decode(data, type=CheckpointHint)
        is_whole = hint.checksum is None or hint.checksum == hint_checksum(json.loads(data))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        message = f"it is unreadable: {error}"
        raise ValueError(message) from error
    if not is_whole:
        message = "it fails its checksum"
        raise ValueError(message)
    return hint


def hint_checksum(content: dict[str, Any]) -> str:
    """Return the protocol's checksum of a hint: MD5 over the flattened, sorted, percent-encoded pairs."""
    pairs = _flatten({key: value for key, value in content.items() if key != "checksum"}, "")
    canonical = ",".join(f"{key}={value}" for key, value in sorted(pairs))
    return hashlib.md5(canonical.encode(), usedforsecurity=False).hexdigest()


def _flatten(value: object, prefix: str) -> Iterator[tuple[str, str]]:
    join = f"{prefix}+" if prefix else ""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(inner, join + _encode(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _flatten(inner, f"{join}{index}")
    else:
        yield prefix, _encode(value) if isinstance(value, str) else json.dumps(value)


def _encode(text: str) -> str:
    return f'"{quote(text, safe="-._~")}"'

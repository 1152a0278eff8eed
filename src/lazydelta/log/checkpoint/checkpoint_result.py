"""``CheckpointResult``: a checkpoint as its writer leaves or finds it, which is what the hint says of it."""

from __future__ import annotations

import msgspec

__all__ = ["CheckpointResult"]


class CheckpointResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was done; ``action`` is written or already-there.

    ``size`` counts actions and ``num_of_add_files`` files, None where an existing checkpoint does not tell without
    being read. ``parts`` is set for an existing checkpoint of several parts, ``is_v1`` false for one of another kind.
    """

    action: str
    version: int
    path: str
    size_in_bytes: int
    size: int | None = None
    num_of_add_files: int | None = None
    parts: int | None = None
    is_v1: bool = True

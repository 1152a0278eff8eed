"""The digest that manifests and the footers of parts carry within themselves.

It is that of the same bytes with zeros in its place, so that one object needs no other to be checked.
"""

from __future__ import annotations

import hashlib

__all__ = ["UNSEALED", "is_sealed", "sealed"]

UNSEALED = "0" * 64
"""What stands in the place of the digest until it is known."""


def sealed(data: bytes, place: int) -> bytes:
    """Put the digest of the bytes at ``place``, where they hold ``UNSEALED``."""
    return _with(data, place, hashlib.sha256(data).hexdigest())


def is_sealed(data: bytes, place: int) -> bool:
    """Tell whether the digest at ``place`` is that of the bytes."""
    digest = hashlib.sha256(_with(data, place, UNSEALED)).hexdigest()
    return data[place : place + len(digest)] == digest.encode()


def _with(data: bytes, place: int, mark: str) -> bytes:
    return data[:place] + mark.encode() + data[place + len(mark) :]

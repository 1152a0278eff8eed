"""Errors on their way from server to client: class, message and hint as JSON, and back to the same class."""

from __future__ import annotations

from typing import Any

import msgspec

from lazydelta import errors
from lazydelta.errors import LazyDeltaError, ServeError

__all__ = ["error_from", "error_in_json"]


class _Details(msgspec.Struct, omit_defaults=True):
    error: str
    message: str
    hint: str | None = None
    version: int | None = None


def error_in_json(error: LazyDeltaError, message: str) -> bytes:
    """Return an error as JSON, with a message that may be told to clients."""
    return msgspec.json.encode(_Details(type(error).__name__, message, error.hint, error.version))


def error_from(data: bytes) -> LazyDeltaError | None:
    """Return the error that a server described; None where it described none."""
    try:
        found = msgspec.json.decode(data, type=_Details)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    kind: Any = getattr(errors, found.error, None) if found.error in errors.__all__ else None
    return (kind or ServeError)(found.message, hint=found.hint, version=found.version)

"""What a caller has to say of a commit beside its rows: provenance, and how far its applications have come."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from lazydelta.errors import CommitConflictError, OptionError
from lazydelta.log.actions import Txn

__all__ = ["CommitNote"]

_PARAMETERS = "operationParameters"
# We write these ourselves, and others go by them.
_GENERATED = frozenset({"timestamp", "operation", "engineInfo", "txnId", "inCommitTimestamp", "operationMetrics"})
_TEXTS = ("userId", "userName", "userMetadata")
_LEVELS = ("Serializable", "WriteSerializable", "SnapshotIsolation")


@dataclass(frozen=True, slots=True)
class CommitNote:
    """``info`` joins the commit's ``commitInfo``; ``transactions`` are recorded whatever the table has of them.

    Those are not what makes a write happen once: that is ``app_id`` and ``app_version`` of `WriteOptions`. ``seen`` is
    how far applications had come in the version that the caller looked at, by their id: whoever finds one of them
    further on works side by side with it, and its own note would hide what the other has done.
    """

    info: Mapping[str, Any] = field(default_factory=dict)
    transactions: tuple[Txn, ...] = ()
    seen: Mapping[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot be written, or what would make the log say something wrong."""
        info: Any = self.info
        if not isinstance(info, Mapping):
            raise OptionError("custom_metadata is no mapping", hint="give a dictionary of what the commit shall say")
        if not all(isinstance(key, str) for key in info):
            raise OptionError("custom_metadata keys must be strings")
        try:
            json.dumps(dict(info), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise OptionError(f"custom_metadata cannot be written as JSON: {error}") from error
        for key in sorted(_GENERATED.intersection(info)):
            raise OptionError(f"custom_metadata cannot set {key}", hint="lazydelta writes it; choose another name")
        for key, is_right, hint in _RULES:
            if key in info and not is_right(info[key]):
                raise OptionError(f"custom_metadata cannot set {key} to {info[key]!r}", hint=hint)

    def check_seen(self, found: Callable[[str], int | None], place: str) -> None:
        """Raise if an application is not where the caller saw it; ``found`` tells where it is."""
        for app_id, seen in self.seen.items():
            if found(app_id) != seen:
                raise _side_by_side(app_id, place)

    def check_winners(self, app_ids: Container[str], place: str) -> None:
        """Raise if one of the applications was committed by another writer meanwhile."""
        for each in self.transactions:
            if each.app_id in app_ids:
                raise _side_by_side(each.app_id, place)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Return the operation's parameters as far as the caller named any."""
        return dict(self.info.get(_PARAMETERS) or {})

    @property
    def more(self) -> dict[str, Any]:
        """Return what ``commitInfo`` says beside the parameters."""
        return {key: value for key, value in self.info.items() if key != _PARAMETERS}


def _side_by_side(app_id: str, place: str) -> CommitConflictError:
    message = f"The application {app_id!r} has committed to {place} meanwhile, in another writer"
    return CommitConflictError(message, path=place, hint="read the table again and see what is left to be written")


_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (_PARAMETERS, lambda value: isinstance(value, Mapping), "give an object"),
    ("readVersion", lambda value: isinstance(value, int) and value >= 0, "give a version"),
    ("isBlindAppend", lambda value: isinstance(value, bool), "give true or false"),
    ("isolationLevel", lambda value: value in _LEVELS, f"give one of {', '.join(_LEVELS)}"),
    *((key, lambda value: isinstance(value, str), "give a text") for key in _TEXTS),
)

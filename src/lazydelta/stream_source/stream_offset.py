"""``StreamOffset``: how far a stream has come, as it is noted in a checkpoint location.

It counts files in an order that depends on nothing but the log: those of the snapshot by modification time and path,
those of a commit as logged. A sidecar that is built or dropped, another strategy, another tier change nothing in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from lazydelta.errors import OptionError

__all__ = ["FileKey", "StreamOffset"]

FileKey = tuple[int, str]
"""Modification time and path: the order of a snapshot's files."""

_FORMAT = 1


class StreamOffset(msgspec.Struct, rename="camel", frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything before the file ``index`` of ``version`` was read.

    With ``is_initial_snapshot`` it is the index among all files of that version, else among those that its commit
    added. ``last_file`` is the snapshot's file just before: the index says the same, but who has to count to it reads
    the list from its beginning.
    """

    source_version: int = _FORMAT
    table_id: str
    version: int
    index: int = 0
    is_initial_snapshot: bool = False
    last_file: FileKey | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as values that JSON has, always the same for the same offset."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        if self.last_file is None:
            del found["lastFile"]
        return found

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> StreamOffset:
        """Read what was noted; what is no offset of ours is an error."""
        try:
            found = msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            message = f"The checkpoint location holds an offset that lazydelta did not write: {dict(given)!r} ({error})"
            hint = "a stream of another source cannot be gone on with; take a fresh checkpoint location"
            raise OptionError(message, hint=hint) from error
        if found.source_version != _FORMAT or found.version < 0 or found.index < 0:
            message = f"The offset {dict(given)!r} was written by another version of lazydelta, or by hand"
            raise OptionError(message, hint="go on with the version that wrote it, or take a fresh checkpoint location")
        return found

    @property
    def place(self) -> tuple[int, int]:
        """Return what offsets of one stream are ordered by: a snapshot goes before the commits after it."""
        return self.version, self.index

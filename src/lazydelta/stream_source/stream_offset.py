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

    Spark notes where a micro-batch ends and not where the first one began: killed before that was done, it asks for the
    beginning again, when the table may be at another version. So the beginning is marked as one (``is_beginning``), and
    the end of the first micro-batch has it (``begun_at``: the version, and whether it was the snapshot).
    """

    source_version: int = _FORMAT
    table_id: str
    version: int
    index: int = 0
    is_initial_snapshot: bool = False
    last_file: FileKey | None = None
    is_beginning: bool = False
    begun_at: tuple[int, bool] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as values that JSON has, always the same for the same offset."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        for name, absent in (("lastFile", None), ("isBeginning", False), ("begunAt", None)):
            if found[name] == absent:
                del found[name]
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

    def really_from(self, start: StreamOffset) -> StreamOffset:
        """Return where what ends here began: not at a beginning that was asked for again meanwhile."""
        if not start.is_beginning or self.begun_at is None:
            return start
        version, is_snapshot = self.begun_at
        return StreamOffset(table_id=self.table_id, version=version, is_initial_snapshot=is_snapshot)

    @property
    def place(self) -> tuple[int, int]:
        """Return what offsets of one stream are ordered by: a snapshot goes before the commits after it."""
        return self.version, self.index

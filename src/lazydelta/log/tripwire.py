"""``FeatureTripwire``: notices when the tail changes what its files mean.

Without a checksum at V, only the tail can tell whether protocol and metadata are still those of the base. The tripwire
watches the tail newest first, before any file leaves, and keeps the newest of each. ``commitInfo``, ``txn``, ``cdc``
and ``domainMetadata`` change no file and do not trip it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from lazydelta.errors import CorruptLogError
from lazydelta.log.actions import LogLine, Metadata, Protocol
from lazydelta.log.names import LogFile

__all__ = ["FeatureTripwire", "TailChange"]

T = TypeVar("T")


class TailChange(msgspec.Struct, frozen=True):
    """A ``protocol`` or ``metaData`` action found in the tail."""

    action: str
    version: int


class FeatureTripwire(msgspec.Struct):
    """The newest protocol and metadata seen so far, where each was found, and the changes met on the way."""

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    origin: str = ""
    changes: list[TailChange] = msgspec.field(default_factory=list)

    def settled(self) -> bool:
        """Tell whether both are known, so that older commits have nothing to add."""
        return self.protocol is not None and self.metadata is not None

    def watch(self, lines: Iterable[LogLine], file: LogFile) -> None:
        """Look at the actions of one commit (all of them, in order): in a commit the last action counts."""
        protocol: msgspec.Raw | None = None
        metadata: msgspec.Raw | None = None
        for line in lines:
            # Copies: a line keeps the whole chunk that it was read in.
            protocol = line.protocol.copy() if line.has("protocol") else protocol
            metadata = line.meta_data.copy() if line.has("meta_data") else metadata
        # What version 0 says creates the table; it changes nothing.
        if protocol is not None and file.version > 0:
            self.changes.append(TailChange("protocol", file.end))
        if metadata is not None and file.version > 0:
            self.changes.append(TailChange("metaData", file.end))
        self.fill_from(protocol, metadata, file)

    def fill_from(self, protocol: msgspec.Raw | None, metadata: msgspec.Raw | None, file: LogFile) -> None:
        """Take over what is still unknown from actions of a file, and look at nothing else."""
        self.fill(
            None if protocol is None or self.protocol is not None else _decoded(protocol, Protocol, "protocol", file),
            None if metadata is None or self.metadata is not None else _decoded(metadata, Metadata, "metaData", file),
            file.path,
        )

    def fill(self, protocol: Protocol | None, metadata: Metadata | None, origin: str) -> None:
        """Take over what is still unknown."""
        self.protocol = self.protocol or protocol
        if self.metadata is None and metadata is not None:
            self.metadata, self.origin = metadata, origin


def _decoded(raw: msgspec.Raw, kind: type[T], name: str, file: LogFile) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        message = f"{file.path} holds a {name} action that cannot be decoded: {error}"
        hint = "the file is damaged or was not written by a Delta writer"
        raise CorruptLogError(message, path=file.path, version=file.version, hint=hint) from error

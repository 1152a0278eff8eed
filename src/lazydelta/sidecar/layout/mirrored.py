"""Which checkpoint a sidecar mirrors: told by names and sizes, and from one of the same size by its last bytes.

A log may be rewound and written again until it has a checkpoint of the same version, and by chance of the same size.
Where the store says that the checkpoint is the very object that the builder saw (etag and time), nothing needs to be
read. Else it was rewritten, or the table was copied: its last bytes decide, with the Parquet footer and its statistics
among them, read beside the first row groups of the sidecar. So a copy of a table keeps its sidecar.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from lazydelta.sidecar.layout.manifest import CheckpointFile, SidecarError
from lazydelta.storage import ObjectInfo, Pending, Store

__all__ = ["Proof", "prove", "record", "start_proof"]

_BYTES_OF_ALL_ENDS = 64 << 10
_BYTES_OF_ONE_END = 4 << 10


def record(store: Store, files: Sequence[ObjectInfo]) -> tuple[CheckpointFile, ...]:
    """Describe the files of a checkpoint, for a manifest; the end of each is read."""
    # All files together must stay a small read: a reader may have to repeat it.
    most = max(_BYTES_OF_ONE_END, _BYTES_OF_ALL_ENDS // max(1, len(files)))
    lengths = [min(each.size, most) for each in files]
    fetched = [
        store.fetch(each.path, start=each.size - length, length=length, if_match=each.etag)
        for each, length in zip(files, lengths, strict=True)
    ]
    return tuple(
        CheckpointFile(
            name=each.path.rpartition("/")[2],
            size=each.size,
            tail_length=length,
            tail_sha256=hashlib.sha256(pending.result()).hexdigest(),
            last_modified=each.last_modified,
            etag=each.etag,
        )
        for each, length, pending in zip(files, lengths, fetched, strict=True)
    )


class Proof:
    """The ends of a checkpoint's files, under way; ``check`` waits for them and raises unless they are as recorded."""

    def __init__(self, recorded: Sequence[CheckpointFile], ends: Sequence[Pending[bytes]]) -> None:
        self._recorded = recorded
        self._ends = ends
        self._done = False
        self.when_proven: Callable[[], None] | None = None

    def check(self) -> None:
        """Raise unless the checkpoint is the one that was recorded; once is enough."""
        if self._done:
            return
        for recorded, pending in zip(self._recorded, self._ends, strict=True):
            if hashlib.sha256(pending.result()).hexdigest() != recorded.tail_sha256:
                message = f"it mirrors another {recorded.name}, of the same size"
                raise SidecarError(message)
        self._done = True
        if self.when_proven is not None:
            self.when_proven()

    def cancel(self) -> None:
        """Stop the reads."""
        for pending in self._ends:
            pending.cancel()


def start_proof(store: Store, recorded: Sequence[CheckpointFile], files: Sequence[ObjectInfo]) -> Proof | None:
    """Begin to compare a checkpoint with a record of the same names and sizes; None where there is nothing to read."""
    if all(each.is_untouched(info) for each, info in zip(recorded, files, strict=True)):
        return None
    for each in recorded:
        if not min(each.size, _BYTES_OF_ONE_END) <= each.tail_length <= each.size:
            message = f"it does not tell {each.name} from others"
            raise SidecarError(message)
    ends = [
        store.fetch(info.path, start=info.size - each.tail_length, length=each.tail_length)
        for each, info in zip(recorded, files, strict=True)
    ]
    return Proof(recorded, ends)


def prove(store: Store, recorded: Sequence[CheckpointFile], files: Sequence[ObjectInfo]) -> None:
    """Raise unless a checkpoint of the same names and sizes is the one that was recorded."""
    proof = start_proof(store, recorded, files)
    if proof is not None:
        proof.check()

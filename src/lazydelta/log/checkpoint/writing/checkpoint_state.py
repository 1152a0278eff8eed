"""What a checkpoint of a version holds, streamed: active files, and the tombstones that VACUUM still needs.

The tail is read newest first, then the base. Every key met in the tail is recorded before an older action is looked at,
so the first action with a key is the one that counts. Memory grows with the keys of the tail and of the tombstones,
sixteen bytes each up to a limit, and not with the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lazydelta.log.actions import Remove
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader
from lazydelta.log.checkpoint.writing.checkpoint_rows import remove_array
from lazydelta.log.checkpoint.writing.reconciled_rows import ReconciledRows, fresh
from lazydelta.log.commits import CHUNK_SIZE, read_actions
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.remove_set import RemoveSet
from lazydelta.log.reverse_commits import TailCommit
from lazydelta.log.snapshot import Snapshot
from lazydelta.scan.timestamp_check import false_timestamps

__all__ = ["CheckpointState"]


@dataclass(slots=True)
class CheckpointState:
    """The reconciled actions of one version, as rows of its checkpoint.

    Applications count while they have been seen after ``seen_after`` (epoch milliseconds; None keeps all). One that
    never said when it wrote is kept: to forget it would let its next replay write twice.
    """

    snapshot: Snapshot
    rows: ReconciledRows
    seen_after: int | None = None
    batch_rows: int = 16_384
    key_memory: int = 64 << 20
    memory_budget: int = 256 << 20

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows."""
        yield from self.of_table()
        seen = RemoveSet(self.key_memory)
        try:
            yield from self.of_tail(seen)
            reader = self.base()
            if reader is not None:
                yield from self.rows.of_base(reader, seen, false_timestamps(self.snapshot))
        finally:
            seen.close()

    def base(self) -> CheckpointReader | None:
        """Return what reads the previous checkpoint, None if there is none."""
        checkpoint = self.snapshot.segment.checkpoint
        if checkpoint is None:
            return None
        return CheckpointReader(
            self.snapshot.store,
            checkpoint,
            batch_size=self.batch_rows,
            memory_budget=self.memory_budget,
            needs_stats=True,
        )

    def of_tail(self, seen: RemoveSet) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the tail, newest first, and note all of its keys."""
        for commit in self.snapshot.tail():
            yield from self._tail_rows(commit, seen)

    def of_table(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are no files."""
        transactions = [
            txn
            for txn in self.snapshot.transactions()
            if self.seen_after is None or txn.last_updated is None or txn.last_updated > self.seen_after
        ]
        layout = self.rows.layout
        yield layout.actions("protocol", [self.snapshot.protocol])
        yield layout.actions("metaData", [self.snapshot.metadata])
        yield layout.actions("txn", transactions)
        yield layout.actions("domainMetadata", self.snapshot.domains())

    def _tail_rows(self, commit: TailCommit, seen: RemoveSet) -> Iterator[pa.RecordBatch]:
        """Yield what a commit adds, then what it removes: within a commit an add wins, wherever it stands."""
        is_small = 0 <= commit.file.info.size <= CHUNK_SIZE
        removes: list[Remove] = []
        for lines in commit.actions:
            adds = [line.add for line in lines if line.add is not None]
            if is_small:
                removes += [line.remove for line in lines if line.remove is not None]
            if adds:
                files = FileBatch.from_adds(adds, extra=True)
                yield from self.rows.adds(files.filter(fresh(files.path, files.deletion_vector, seen)))
        if is_small:
            yield from self._remove_actions(removes, seen)
            return
        # A commit that empties a large table is not held: its removes are read again once its adds are known.
        for lines in read_actions(self.snapshot.store, commit.file):
            yield from self._remove_actions([line.remove for line in lines if line.remove is not None], seen)

    def _remove_actions(self, removes: Sequence[Remove], seen: RemoveSet) -> Iterator[pa.RecordBatch]:
        if removes:
            yield from self.rows.removes(remove_array(removes), seen)

"""Where the files at the checkpoint are read from: the contract, and the checkpoint itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lazydelta.log.checkpoint.bounded_batches import MEMORY_BUDGET
from lazydelta.log.checkpoint.checkpoint_columns import StatsWanted
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.snapshot import Snapshot
from lazydelta.metrics import ScanMetrics
from lazydelta.pruning import Predicate, partition_columns
from lazydelta.storage import Store

__all__ = ["BaseScan", "OpenBase", "checkpoint_files"]


@dataclass(frozen=True, slots=True)
class BaseScan:
    """What a base needs to know of the scan: what to read, in which order, through which store.

    ``store`` counts and ends with the scan; ``snapshot.store`` outlives it.
    """

    snapshot: Snapshot
    store: Store
    predicate: Predicate | None
    wanted: StatsWanted | None
    newest_first: bool
    batch_size: int
    metrics: ScanMetrics
    limited: bool = False
    memory_budget: int = MEMORY_BUDGET


_LISTING_BATCH_FACTOR = 2

OpenBase = Callable[[BaseScan], Iterator[FileBatch]]
"""Yields the files at the checkpoint, with the statistics wanted; files that cannot match may be left out."""


def checkpoint_files(scan: BaseScan) -> Iterator[FileBatch]:
    """Yield the files of the checkpoint in storage order."""
    checkpoint = scan.snapshot.segment.checkpoint
    if checkpoint is None:
        return
    scan.metrics.tier = 3
    # Listing without statistics is cheap enough a row that the cost of a batch shows: larger ones then, in forward.
    factor = 1 if scan.newest_first or scan.wanted is not None else _LISTING_BATCH_FACTOR
    reader = CheckpointReader(
        scan.store,
        checkpoint,
        batch_size=scan.batch_size * factor,
        stats_store=scan.snapshot.store,
        row_groups=scan.metrics.count_row_groups,
        parallel=not scan.newest_first,
        coded=bool(partition_columns(scan.predicate)),
        memory_budget=scan.memory_budget,
    )
    yield from reader.files(scan.wanted)

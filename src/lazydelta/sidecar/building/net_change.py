"""``NetChange``: what the commits between two checkpoints did to the files, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.log.actions import Add, DomainMetadata, LogLine, Remove, Txn
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.reconcile import active_tail_files
from lazydelta.log.remove_set import RemoveSet
from lazydelta.log.reverse_commits import TailCommit
from lazydelta.metrics import ScanMetrics
from lazydelta.sidecar.building.external_sort import ExternalSort
from lazydelta.sidecar.building.key_sample import KeySample
from lazydelta.sidecar.building.part_order import PartOrder, key_layout
from lazydelta.sidecar.building.planning import SidecarPlan
from lazydelta.sidecar.building.spill import SpillFile
from lazydelta.sidecar.layout.order import sortable
from lazydelta.sidecar.layout.sidecar_columns import ColumnRole, SidecarLayout
from lazydelta.sidecar.layout.sidecar_rows import to_rows

__all__ = ["NetChange", "RowSpool", "read_change"]

_SAMPLED_KEYS = 100_000


@dataclass(slots=True)
class NetChange:
    """The files that came and the keys that base rows lose by it.

    ``seen`` has every key of the commits: a base row with one of them was removed or replaced. ``touched`` are the
    parts in which such rows are to be expected, as far as the log tells. It may tell too little: a path may be spelled
    in another way, a remove may lack partition values, new statistics may move a file. ``arrivals`` counts the new
    files by the part that they belong to.
    """

    seen: RemoveSet
    rows: RowSpool
    touched: set[int]
    arrivals: npt.NDArray[np.int64]
    transactions: dict[str, Txn] = field(default_factory=dict)
    domains: dict[str, DomainMetadata] = field(default_factory=dict)

    def close(self) -> None:
        """Give back memory and temporary files."""
        self.seen.close()
        self.rows.close()


def read_change(
    commits: Iterable[TailCommit],
    plan: SidecarPlan,
    order: PartOrder,
    num_parts: int,
    *,
    memory_rows: int,
    check: Callable[[int], None],
) -> NetChange:
    """Read commits, newest first; ``check`` is told how many keys there are so far and may raise to stop."""
    change = NetChange(RemoveSet(), RowSpool(plan, memory_rows), set(), np.zeros(num_parts + 1, np.int64))
    try:
        watched = _Watch(change, plan, order).over(commits)
        for batch in active_tail_files(watched, change.seen, ScanMetrics(), extra=True):
            rows = to_rows(batch, plan.layout, plan.schema)
            places = order.places(change.rows.add(rows))
            change.arrivals += np.bincount(places, minlength=num_parts + 1)
            change.touched.update(np.unique(places).tolist())
            check(len(change.seen))
    except BaseException:
        change.close()
        raise
    check(len(change.seen))
    change.touched.discard(num_parts)
    return change


class _Watch:
    """Passes commits on and notes what active files do not show: where removes strike, what applications did."""

    def __init__(self, change: NetChange, plan: SidecarPlan, order: PartOrder) -> None:
        self._change = change
        self._order = order
        self._schema = plan.schema
        self._layout = key_layout(plan.layout)
        self._by_minimum = any(each.role == ColumnRole.MIN for each in plan.layout.sort)

    def over(self, commits: Iterable[TailCommit]) -> Iterator[TailCommit]:
        change = self._change
        for commit in commits:
            transactions: dict[str, Txn] = {}
            domains: dict[str, DomainMetadata] = {}
            yield TailCommit(commit.file, self._noted(commit.actions, transactions, domains))
            # Commits come newest first, and the newest word counts.
            change.transactions = transactions | change.transactions
            change.domains = domains | change.domains

    def _noted(
        self, actions: Iterator[list[LogLine]], transactions: dict[str, Txn], domains: dict[str, DomainMetadata]
    ) -> Iterator[list[LogLine]]:
        for lines in actions:
            self._locate([line.remove for line in lines if line.remove is not None])
            transactions.update({line.txn.app_id: line.txn for line in lines if line.txn is not None})
            domains.update({each.domain: each for line in lines if (each := line.domain_metadata) is not None})
            yield lines

    def _locate(self, removes: list[Remove]) -> None:
        known = [each for each in removes if _tells_its_place(each, by_minimum=self._by_minimum)]
        if known:
            batch = FileBatch.from_adds([_as_add(each, with_stats=self._by_minimum) for each in known])
            keys = sortable(to_rows(batch, self._layout, self._schema), self._layout)
            self._change.touched.update(np.unique(self._order.places(keys)).tolist())


def _tells_its_place(remove: Remove, *, by_minimum: bool) -> bool:
    return remove.partition_values is not None and (not by_minimum or remove.stats is not None)


def _as_add(remove: Remove, *, with_stats: bool) -> Add:
    return Add(
        path=remove.path,
        size=0,
        modification_time=0,
        partition_values=remove.partition_values or {},
        stats=remove.stats if with_stats else None,
    )


class RowSpool:
    """Rows in any order, held in memory up to a bound and on disk beyond it, given back sorted."""

    def __init__(self, plan: SidecarPlan, memory_rows: int) -> None:
        self._layout: SidecarLayout = plan.layout
        self._schema = plan.layout.arrow_schema(plan.schema)
        self._memory_rows = memory_rows
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._count = 0
        self._sample = KeySample(_SAMPLED_KEYS)
        self._spilled: SpillFile | None = None
        self._places: list[int] = []

    def __len__(self) -> int:
        return self._count

    def add(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """Take rows, and return their keys."""
        keys = sortable(rows, self._layout)
        self._held.append(rows)
        self._held_rows += rows.num_rows
        self._count += rows.num_rows
        chosen = self._sample.chosen(len(keys))
        self._sample.add(keys if chosen is None else keys.filter(chosen))
        if self._held_rows > self._memory_rows:
            self._spill()
        return keys

    def sorted_tables(self) -> Iterator[pa.Table]:
        """Yield all rows in order; may be called once."""
        sort = ExternalSort(self._layout, self._splitters(), self._schema, most_waiting=self._memory_rows)
        try:
            if self._spilled is not None:
                for batch in self._spilled.pieces(self._places):
                    sort.add(batch)
            for batch in self._held:
                sort.add(batch)
            self._held = []
            yield from sort.sorted_tables()
        finally:
            sort.close()

    def close(self) -> None:
        """Remove what lies on disk."""
        self._held = []
        self._sample.clear()
        if self._spilled is not None:
            self._spilled.close()
            self._spilled = None

    def _spill(self) -> None:
        if self._spilled is None:
            self._spilled = SpillFile(self._schema)
        self._places += [self._spilled.add(batch) for batch in self._held]
        self._held, self._held_rows = [], 0

    def _splitters(self) -> pa.BinaryArray:
        buckets = -(-self._count // max(1, self._memory_rows)) if self._spilled is not None else 1
        return self._sample.splitters(buckets)

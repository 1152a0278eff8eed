"""Statistics of files from a sidecar, of which a scan needed none: read by row group, or from the checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.arrays import boolean_array, from_numpy
from lazydelta.errors import StorageError
from lazydelta.log.checkpoint.checkpoint_columns import StatsWanted
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.later_stats import StatsColumns
from lazydelta.log.segment import Checkpoint
from lazydelta.sidecar.layout.group_decoding import read_groups
from lazydelta.sidecar.layout.manifest import ManifestPart, ManifestRowGroup, SidecarError, StatsFile
from lazydelta.sidecar.layout.part_file import PartFooter, part_footer
from lazydelta.sidecar.layout.sidecar_columns import STATS_OF_COLUMNS, SidecarLayout
from lazydelta.sidecar.layout.sidecar_rows import from_rows
from lazydelta.sidecar.layout.tiers import check_aligned, joined_rows, joined_tiers
from lazydelta.storage import Store

__all__ = ["GroupStats", "stats_column_names", "wants_second_tier"]

logger = logging.getLogger(__name__)


class GroupStats(msgspec.Struct, frozen=True):
    """Row groups of a part, and where to look for their statistics; ``store`` outlives the scan."""

    store: Store
    layout: SidecarLayout
    part: ManifestPart
    groups: Sequence[ManifestRowGroup]
    footer: PartFooter
    checkpoint: Checkpoint | None

    def read(self, files: FileBatch) -> StatsColumns:
        """Return the statistics of the files of these row groups."""
        try:
            return {"parsed_stats": self._from_sidecar(files.tier)}
        except (SidecarError, StorageError) as error:
            logger.warning("%s fails, statistics come from the checkpoint: %s", self.part.file, error)
            return {} if self.checkpoint is None else _from_checkpoint(files, self.store, self.checkpoint)

    def _from_sidecar(self, tier: int) -> pa.Array | None:
        rows, layout = self._first_tier(), self.layout
        if self.part.stats is not None:
            others = self._second_tier(self.part.stats)
            layout = joined_tiers(layout, others.state.layout)
            rows = joined_rows([rows, self._rest(self.part.stats, others)])
        return from_rows(rows, layout, tier=tier).parsed_stats

    def _second_tier(self, stats: StatsFile) -> PartFooter:
        footer = part_footer(self.store, stats)
        check_aligned(self.footer, footer)
        return footer

    def _rest(self, stats: StatsFile, footer: PartFooter) -> pa.RecordBatch:
        names = [column.name for column in footer.state.columns]
        indices = [group.index for group in self.groups]
        spans = [span for index in indices for span in footer.spans(index, names)]
        found = self.store.fetch_ranges(stats.file, spans).result()
        blocks = [(start, data) for (start, _), data in zip(spans, found, strict=True)]
        return read_groups(footer, indices, names, blocks, stats.size)

    def _first_tier(self) -> pa.RecordBatch:
        names, file = stats_column_names(self.layout, StatsWanted()), self.part.file
        cores = [
            self.store.fetch(file, start=group.byte_offset, length=group.core_byte_length) for group in self.groups
        ]
        spans = [self.footer.spans(group.index, names) for group in self.groups]
        named = [self.store.fetch_ranges(file, each) for each in spans]
        blocks = [(group.byte_offset, core.result()) for group, core in zip(self.groups, cores, strict=True)]
        for some, pending in zip(spans, named, strict=True):
            blocks += [(start, data) for (start, _), data in zip(some, pending.result(), strict=True)]
        columns = [*self.layout.names(core=True), *names]
        return read_groups(self.footer, [group.index for group in self.groups], columns, blocks, self.part.size)


def stats_column_names(layout: SidecarLayout, wanted: StatsWanted | None) -> list[str]:
    """Return the sidecar's columns with the statistics that are wanted, but for those that are read anyway."""
    if wanted is None or wanted.columns == ():
        return []
    return [
        column.name
        for column in layout.columns
        if column.role in STATS_OF_COLUMNS
        and (wanted.columns is None or column.path in wanted.columns)
        and not layout.is_core(column)
    ]


def wants_second_tier(first: SidecarLayout, wanted: StatsWanted | None) -> bool:
    """Tell whether statistics are wanted that the first of two tiers does not have."""
    if wanted is None or wanted.columns is None:
        return wanted is not None
    known = {column.path for column in first.columns if column.role in STATS_OF_COLUMNS}
    return not known.issuperset(wanted.columns)


def _from_checkpoint(files: FileBatch, store: Store, checkpoint: Checkpoint) -> StatsColumns:
    """Look the files of a batch up in the checkpoint, for somebody who asks for statistics of a lost sidecar."""
    places = {path: row for row, path in enumerate(files.path.to_pylist())}
    order: list[int] = []
    found: list[FileBatch] = []
    for batch in CheckpointReader(store, checkpoint).files(StatsWanted()):
        rows = [places.get(path, -1) for path in batch.path.to_pylist()]
        keep = np.array(rows) >= 0
        if keep.any():
            order += [row for row in rows if row >= 0]
            found.append(batch.filter(boolean_array(keep)))
    if len(order) != len(files):
        return {}
    take = from_numpy(np.argsort(np.array(order), kind="stable").astype(np.int64))
    columns: dict[str, pa.Array | None] = {"parsed_stats": None}
    for name in ("json_stats", "parsed_stats"):
        if all(getattr(each, name) is not None for each in found):
            columns[name] = pa.concat_arrays([getattr(each, name) for each in found]).take(take)
    return columns

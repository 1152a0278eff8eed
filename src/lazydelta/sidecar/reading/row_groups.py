"""``RowGroups``: the row groups of a sidecar that may hold a matching file, read in order and ahead of the consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from weakref import WeakSet

import msgspec
import pyarrow as pa

from lazydelta.execution import in_parallel, release_memory
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.later_stats import with_later_stats
from lazydelta.scan.base import BaseScan
from lazydelta.sidecar.layout.group_decoding import decode_groups, read_groups
from lazydelta.sidecar.layout.manifest import ManifestPart, ManifestRowGroup, SidecarError, StatsFile
from lazydelta.sidecar.layout.part_file import PartFooter
from lazydelta.sidecar.layout.range_texts import key_at
from lazydelta.sidecar.layout.sidecar_columns import ROWS_PER_GROUP, ColumnRole, SidecarLayout
from lazydelta.sidecar.layout.sidecar_rows import PlainPartitions, from_rows
from lazydelta.sidecar.layout.tiers import TIERED_ABOVE, check_aligned, joined_rows, joined_tiers
from lazydelta.sidecar.reading.discovery import Sidecar
from lazydelta.sidecar.reading.group_choice import ChosenGroup, GroupChoice
from lazydelta.sidecar.reading.group_stats import GroupStats, stats_column_names, wants_second_tier
from lazydelta.sidecar.reading.newest_first import dated_rows
from lazydelta.sidecar.reading.part_footers import PartFooters
from lazydelta.sidecar.reading.sidecar_cache import SidecarCache
from lazydelta.sidecar.reading.used import Used
from lazydelta.storage import Pending, Store

__all__ = ["RowGroups"]

_FEW_GROUPS = 4  # so few are read in little memory, more in little time
_TOGETHER = 2  # decoded as one, where there are many: what a batch costs beside its rows is paid less often
_TOGETHER_PRUNED = 4  # … and what it costs to prune it as well
_DECODERS = 2  # at work side by side, where there are many
_CORE_BYTES, _STATISTIC_BYTES = 200, 12  # of a file: path, size and the like; a bound or a count
_LARGEST_GROUP = 96 << 20  # the builder cuts parts of wide tables to this
_COPIES = 12


class _Named(msgspec.Struct, frozen=True):
    """Columns of a row group under way."""

    spans: Sequence[tuple[int, int]]
    pending: Pending[list[bytes]]

    def blocks(self) -> list[tuple[int, bytes]]:
        """Wait for the bytes, and return them with where they begin."""
        return [(start, data) for (start, _), data in zip(self.spans, self.pending.result(), strict=True)]


class _Reading(msgspec.Struct, eq=False, weakref=True):
    """A row group under way: its core, and the statistics asked for as soon as the footer tells where they are.

    ``rest`` are statistics in its second tier. ``core`` is None where Arrow reads the file by itself.
    """

    part: ManifestPart
    group: ManifestRowGroup
    core: Pending[bytes] | None
    named: _Named | None = None
    rest: _Named | None = None

    def blocks(self) -> list[tuple[int, bytes]]:
        """Wait for the bytes of the first tier, and return them with where they begin."""
        core = [] if self.core is None else [(self.group.byte_offset, self.core.result())]
        return core if self.named is None else [*core, *self.named.blocks()]

    def cancel(self) -> None:
        """Stop the reads."""
        if self.core is not None:
            self.core.cancel()
        for each in (self.named, self.rest):
            if each is not None:
                each.pending.cancel()


class _Decoded(msgspec.Struct, frozen=True):
    """Row groups of a part, and their rows; ``layout`` is that of both tiers, where there are two."""

    part: ManifestPart
    groups: tuple[ManifestRowGroup, ...]
    footer: PartFooter
    rows: pa.RecordBatch
    layout: SidecarLayout | None


class _Fetched(msgspec.Struct, frozen=True):
    """Row groups of a part under way, with all that it takes to decode them."""

    together: Sequence[_Reading]
    footer: PartFooter
    names: Sequence[str]
    frugal: bool
    second: tuple[PartFooter, Sequence[str]] | None = None
    direct: Store | None = None
    statistics: Sequence[str] = ()

    def decode(self) -> _Decoded:
        """Wait for the bytes and decode them."""
        part = self.together[0].part
        indices = [each.group.index for each in self.together]
        layout = None
        if self.direct is not None:
            cores = [(each.group.byte_offset, each.group.core_byte_length) for each in self.together]
            spans = [*cores, *self._spans(self.footer, self.statistics)]
            rows = self._directly(self.direct, part.file, self.footer, self.names, spans)
        else:
            blocks = [block for each in self.together for block in each.blocks()]
            rows = read_groups(self.footer, indices, self.names, blocks, part.size, frugal=self.frugal)
        if self.second is not None and part.stats is not None:
            footer, names = self.second
            layout = joined_tiers(self.footer.state.layout, footer.state.layout)
            if self.direct is not None:
                others = self._directly(self.direct, part.stats.file, footer, names, self._spans(footer, names))
            else:
                rest = [block for each in self.together if each.rest is not None for block in each.rest.blocks()]
                others = read_groups(footer, indices, names, rest, part.stats.size, frugal=self.frugal)
            rows = joined_rows([rows, others])
        if self.frugal:
            release_memory()  # a short scan takes little else
        return _Decoded(part, tuple(each.group for each in self.together), self.footer, rows, layout)

    def _spans(self, footer: PartFooter, names: Sequence[str]) -> list[tuple[int, int]]:
        return [span for each in self.together for span in footer.spans(each.group.index, names)] if names else []

    def _directly(
        self, store: Store, file: str, footer: PartFooter, names: Sequence[str], spans: Sequence[tuple[int, int]]
    ) -> pa.RecordBatch:
        """Let Arrow read a file, without the interpreter between two columns; what it reads is announced before."""
        (start, length), *others = spans
        source = store.open_direct(file, start=start, length=length)
        if source is None:
            message = f"{file} cannot be opened as a file"
            raise SidecarError(message)
        with source:
            for start, length in others:
                store.note_read(file, start, length)
            return decode_groups(
                footer, [each.group.index for each in self.together], names, source, frugal=self.frugal
            )


class RowGroups:
    """Reads the surviving row groups in order, a few ahead of the consumer."""

    def __init__(self, scan: BaseScan, sidecar: Sidecar, cache: SidecarCache, ahead: int) -> None:
        self._scan = scan
        self._sidecar = sidecar
        self._ahead = ahead
        self._footers = PartFooters(scan, sidecar.layout, cache)
        self._choice = GroupChoice(scan, sidecar, cache, self._footers, ahead=ahead)
        self._started: deque[_Reading] = deque()
        self._under_way: WeakSet[_Reading] = WeakSet()  # those too that are being decoded
        self._frugal = True
        self._file = self._stats_file = ""
        self._names = stats_column_names(sidecar.layout, scan.wanted)
        self._all_names = [*sidecar.layout.names(core=True), *self._names]
        self._wants_rest = wants_second_tier(sidecar.layout, scan.wanted)
        self._aside: Generator[_Decoded] | None = None
        self._plain = PlainPartitions()
        self._maps = sidecar.layout.name_of(ColumnRole.PARTITION_VALUES)

    def __iter__(self) -> Iterator[tuple[FileBatch, Used]]:
        groups = self.surviving()
        few = list(islice(groups, _FEW_GROUPS + 1))
        self._frugal = self._scan.limited or len(few) <= _FEW_GROUPS
        if few:
            self._ahead = min(self._ahead, self._that_fit(has_tiers=few[0].part.stats is not None))
        fetched = self._fetched(chain(few, groups))
        decoded: Iterator[_Decoded] = map(_Fetched.decode, fetched)
        if not self._frugal and self._ahead >= _DECODERS:
            # Some row groups are decoded while others are checked here and yet others are pruned by the consumer.
            self._aside = decoded = in_parallel(_Fetched.decode, fetched, threads=_DECODERS, stop=self._cancel)
        held: list[tuple[FileBatch, Used]] = []
        for found in decoded:
            first, *undated = self._described(found)
            yield first
            held += undated
        yield from held
        self._prove()  # to leave everything out is an answer too

    def _that_fit(self, *, has_tiers: bool) -> int:
        """Return how many row groups may be under way within the budget, which is at least one.

        Of ten thousand files the core is two megabytes, and five times that with statistics of a hundred columns. It is
        there several times over: as bytes, as rows, decoded together with others, in the hands of the consumer, and as
        what the allocator keeps of the one before. A row group is read whole, because it is verified whole.
        """
        statistics, wanted = len(self._names), self._scan.wanted
        if has_tiers and self._wants_rest and wanted is not None:
            statistics += 3 * (TIERED_ABOVE if wanted.columns is None else len(wanted.columns))
        size = min(_LARGEST_GROUP, ROWS_PER_GROUP * (_CORE_BYTES + _STATISTIC_BYTES * statistics))
        return max(1, self._scan.memory_budget // (_COPIES * size))

    def _fetched(self, waiting: Iterator[ChosenGroup]) -> Iterator[_Fetched]:
        done = 0
        # A limit is often reached within one row group: more are read ahead only once that was not so.
        ahead = 1 if self._scan.limited else self._ahead
        self._start(waiting, ahead)
        while self._started:
            together = self._next()
            self._start(waiting, ahead - 1)
            self._prove()
            yield self._with_footer(together)
            ahead = min(2 * ahead, self._ahead)
            done += 1
            self._frugal &= done < _FEW_GROUPS
            self._start(waiting, ahead)

    def _next(self) -> list[_Reading]:
        """Return the next row group, and with it those that follow it in the same file where there are many to read."""
        found = [self._started.popleft()]
        most = min(_TOGETHER if self._scan.predicate is None else _TOGETHER_PRUNED, self._ahead)
        most = 1 if self._frugal or self._scan.newest_first else most
        while self._started and len(found) < most:
            group, last = self._started[0].group, found[-1].group
            alike = (self._started[0].core is None) is (found[-1].core is None)
            if not alike or (group.part, group.index) != (last.part, last.index + 1):
                break
            found.append(self._started.popleft())
        return found

    def _prove(self) -> None:
        if self._sidecar.proof is not None:
            self._sidecar.proof.check()

    def close(self) -> None:
        """Stop all reads."""
        self._cancel()
        if self._aside is not None:
            self._aside.close()

    def _cancel(self) -> None:
        if self._sidecar.proof is not None:
            self._sidecar.proof.cancel()
        for reading in list(self._under_way):
            reading.cancel()
        self._choice.cancel()
        self._footers.cancel()

    def surviving(self) -> Iterator[ChosenGroup]:
        """Yield the row groups that may hold a matching file, in the order of the scan."""
        return iter(self._choice)

    def _start(self, waiting: Iterator[ChosenGroup], ahead: int) -> None:
        """Ask for as many row groups as may be under way."""
        while len(self._started) < ahead and (chosen := next(waiting, None)) is not None:
            part, group = chosen.part, chosen.group
            self._fetch_footers(part)
            if self._frugal or not self._scan.store.reads_directly:
                core = self._scan.store.fetch(part.file, start=group.byte_offset, length=group.core_byte_length)
                reading = _Reading(part, group, core)
                self._under_way.add(reading)
                self._fetch_named(reading)
            else:
                reading = _Reading(part, group, None)
            self._started.append(reading)

    def _fetch_named(self, reading: _Reading) -> None:
        """Ask for the statistics of a row group, once its part's footer is there."""
        part = reading.part
        if self._names and reading.named is None:
            reading.named = self._fetch_columns(part, reading.group, self._names)
        if self._wants_rest and part.stats is not None and reading.rest is None:
            second = self._footers.at_hand(part.stats)
            names = () if second is None else stats_column_names(second.state.layout, self._scan.wanted)
            reading.rest = self._fetch_columns(part.stats, reading.group, names) if names else None

    def _fetch_columns(
        self, file: ManifestPart | StatsFile, group: ManifestRowGroup, names: Sequence[str]
    ) -> _Named | None:
        footer = self._footers.at_hand(file)
        if footer is None:
            return None
        spans = footer.spans(group.index, names)
        return _Named(spans, self._scan.store.fetch_ranges(file.file, spans))

    def _fetch_footers(self, part: ManifestPart) -> None:
        self._footers.fetch(part)
        if self._wants_rest and part.stats is not None:
            self._footers.fetch(part.stats)

    def _second_tier(self, part: ManifestPart) -> tuple[PartFooter, Sequence[str]] | None:
        """Return the footer of the second tier and the columns that are wanted of it, if there are some."""
        if not self._wants_rest or part.stats is None:
            return None
        footer = self._footers.of(part.stats)
        check_aligned(self._footers.of(part), footer)
        names = stats_column_names(footer.state.layout, self._scan.wanted)
        return (footer, names) if names else None

    def _with_footer(self, together: Sequence[_Reading]) -> _Fetched:
        part = together[0].part
        if part.file != self._file:
            # Row groups come part by part: the one before is done with, and so is its footer, but for undated files.
            if all(each.part.file != self._file for each in self._started):
                self._footers.forget(self._file)
                self._footers.forget(self._stats_file)
            self._file = part.file
            self._stats_file = "" if part.stats is None else part.stats.file
        self._fetch_footers(part)
        footer, second = self._footers.of(part), self._second_tier(part)
        for each in (*together, *self._started):
            if each.core is not None:
                self._fetch_named(each)
        left_out: set[str | None] = {*footer.absent([each.group.index for each in together])}
        if footer.plain_partitions:
            left_out.add(self._maps)
        names = [name for name in self._all_names if name not in left_out]
        direct = self._scan.store if together[0].core is None else None
        return _Fetched(together, footer, names, self._frugal, second, direct, self._names)

    def _described(self, found: _Decoded) -> list[tuple[FileBatch, Used]]:
        """Check row groups that were read, and return their files; those without a sort key apart, where they wait."""
        part, groups, rows = found.part, found.groups, found.rows
        layout = self._sidecar.layout
        try:
            start = 0
            for group in groups:
                last = start + group.num_rows - 1
                if (key_at(rows, start, layout), key_at(rows, last, layout)) != (group.first, group.last):
                    message = f"row group {group.index} of {part.file} is not the one that the manifest describes"
                    raise SidecarError(message)
                start += group.num_rows
            if start != rows.num_rows or not start:
                message = f"{part.file} has {rows.num_rows} rows where the manifest has {start or 'none'}"
                raise SidecarError(message)
            files = from_rows(rows, found.layout or layout, tier=self._sidecar.tier, plain=self._plain)
            dated = dated_rows(rows, layout) if self._scan.newest_first else rows.num_rows
            spans = [span for span in ((0, dated), (dated, rows.num_rows - dated)) if span[1]]
            used = [Used.of(rows.slice(*span), layout) for span in spans]
        except (pa.ArrowException, KeyError, ValueError, IndexError, StopIteration) as error:
            message = f"row group {groups[0].index} of {part.file} does not have the rows it should: {error!r}"
            raise SidecarError(message) from error
        self._scan.metrics.row_groups_read += len(groups)
        if self._scan.wanted is None:
            snapshot = self._scan.snapshot
            stats = GroupStats(snapshot.store, layout, part, groups, found.footer, snapshot.segment.checkpoint)
            files = with_later_stats(files, partial(stats.read, files))
        if not self._scan.newest_first:
            return [(files, used[0])]
        # As with decoding: Arrow's allocator would take more for the copy than a short scan takes otherwise.
        pool = pa.system_memory_pool() if self._frugal else None
        return [(files.slice(*span).reversed(pool), ends) for span, ends in zip(spans, used, strict=True)]

"""Verifying that a sidecar equals the log: every file, every statistic, every range, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lazydelta.errors import ObjectNotFoundError, OptionError, StorageError
from lazydelta.log.checkpoint.columns import add_fields, has_column
from lazydelta.log.checkpoint.reader import CheckpointReader, StatsWanted
from lazydelta.log.checksum.check import ChecksumCheck
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.keys import Hashes, hash_bytes
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.predicates import Predicate, may_match, referenced_columns
from lazydelta.predicates.binding import compare, is_null, membership
from lazydelta.protocol.schema import Column, TableSchema
from lazydelta.protocol.values import from_text
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import flags, numpy_of, string_array
from lazydelta.runtime.metrics import ScanMetrics
from lazydelta.scan.base import BaseScan
from lazydelta.scan.timestamp_check import TimestampCheck
from lazydelta.sidecar.building.build import Progress
from lazydelta.sidecar.building.plan import MEMORY_BUDGET, snapshot_at_checkpoint
from lazydelta.sidecar.building.publish import schema_hash
from lazydelta.sidecar.delta_verification import DeltaReport, verify_deltas
from lazydelta.sidecar.format.columns import (
    EXTRA_NAMES,
    STATS_NAMES,
    ColumnRole,
    SidecarColumn,
    SidecarLayout,
    manifest_path,
    sidecar_path,
)
from lazydelta.sidecar.format.leaves import EveryPart, every_part, range_types, ranges_over
from lazydelta.sidecar.format.manifest import (
    CheckpointFile,
    ManifestIndex,
    ManifestPart,
    ManifestRowGroup,
    RangeText,
    SidecarError,
    UnsealedError,
    prove,
    range_key,
)
from lazydelta.sidecar.format.part_file import OpenedPart, open_part, typed, whole_layout, whole_layout_of
from lazydelta.sidecar.format.rows import from_rows, key_at, ranges_of, sortable, to_rows
from lazydelta.sidecar.handle import TableHandle
from lazydelta.sidecar.reading.discovery import check_single, read_single
from lazydelta.sidecar.reading.foreign import ForeignGroup, ForeignSidecar, open_foreign
from lazydelta.sidecar.reading.group_choice import matching_groups
from lazydelta.sidecar.row_digest import RowDigest, difference, picked, short
from lazydelta.stats import combine, file_partition_ranges, partition_ranges, stats_ranges
from lazydelta.storage import Store

__all__ = ["VerifyReport", "verify"]


# ``PredicateCheck``: evaluates the same predicates on the sidecar and on the log, which must select the same files.
# Comparing values misses what both sides lose: a value that does not fit the sidecar's type is null on both. Predicate
# results show it, because the log side uses logged strings, and the sidecar side its columns and ranges.


_ASKED_COLUMNS = 16
SMALL_GROUPS_TOGETHER = 8192
"""Row groups are evaluated together until they have this many rows."""
_OPERATORS = ("=", "!=", "<", ">=")


class PredicateCheck:
    """Count and checksum of the files that each predicate selects, on both sides."""

    def __init__(self, layout: SidecarLayout, schema: TableSchema, sample: pa.Table) -> None:
        """Choose predicates with values from ``sample``, some rows of the sidecar."""
        self._layout = layout
        self._predicates = list(_predicates(layout, schema, sample))
        columns = dict.fromkeys(column for each in self._predicates for column in referenced_columns(each))
        self._partitions = tuple(column for column in columns if column.is_partition)
        self._stats = tuple(column for column in columns if not column.is_partition)
        # For each side and predicate: the number of files, and two sums of their hashed paths.
        self._found = np.zeros((2, len(self._predicates), 3), np.uint64)
        self._waiting: list[_Group] = []

    def ask_log(self, batch: FileBatch) -> None:
        """Add files of the checkpoint, read with their statistics."""
        if not len(batch):
            return
        ranges = stats_ranges(batch, self._stats)
        ranges = combine([partition_ranges(batch.partition_values, self._partitions), ranges])
        hashes = hash_bytes(batch.path)
        for number, predicate in enumerate(self._predicates):
            self._take(0, number, hashes, flags(may_match(predicate, ranges)))

    def ask_sidecar(
        self, rows: pa.Table, part: Mapping[str, RangeText] | None, group: Mapping[str, RangeText] | None
    ) -> None:
        """Add the rows of a row group, with the ranges that can make a reader skip it."""
        # Evaluate small row groups together: a predicate costs about the same for one group as for a thousand.
        self._waiting.append(_Group(rows, part, group))
        if sum(each.rows.num_rows for each in self._waiting) >= SMALL_GROUPS_TOGETHER:
            self._ask_waiting()

    def problems(self) -> Iterator[str]:
        """Yield the predicates that select different files in the sidecar and in the log."""
        self._ask_waiting()
        for predicate, logged, ours in zip(self._predicates, *self._found, strict=True):
            if (logged != ours).any():
                yield f"{predicate} finds {int(ours[0])} files by the sidecar and {int(logged[0])} by the log"

    def _ask_waiting(self) -> None:
        groups, self._waiting = self._waiting, []
        if not groups:
            return
        looked_at = [self._looked_at(predicate, groups) for predicate in self._predicates]
        group_of = np.repeat(np.arange(len(groups)), [each.rows.num_rows for each in groups])
        for batch in pa.concat_tables(each.rows for each in groups).combine_chunks().to_batches():
            files = from_rows(batch, self._layout, tier=1)
            ranges = combine([file_partition_ranges(files, self._partitions), stats_ranges(files, self._stats)])
            hashes, here = hash_bytes(files.path), group_of[: len(files)]
            group_of = group_of[len(files) :]
            for number, predicate in enumerate(self._predicates):
                if looked_at[number].any():
                    self._take(1, number, hashes, flags(may_match(predicate, ranges)) & looked_at[number][here])

    def _looked_at(self, predicate: Predicate, groups: Sequence[_Group]) -> npt.NDArray[np.bool_]:
        """Return which row groups a reader would read: those that their own and their part's ranges do not exclude."""
        kept = np.ones(len(groups), np.bool_)
        for above in ([each.by_part for each in groups], [each.by_group for each in groups]):
            known = [(place, ranges) for place, ranges in enumerate(above) if ranges is not None]
            alive = {known[place][0] for place in matching_groups(predicate, [ranges for _, ranges in known])}
            kept[[place for place, _ in known if place not in alive]] = False
        return kept

    def _take(self, side: int, number: int, hashes: Hashes, found: npt.NDArray[np.bool_]) -> None:
        chosen = hashes[:, found]
        self._found[side, number] += np.array([chosen.shape[1], *chosen.sum(axis=1, dtype=np.uint64)], np.uint64)


class _Group(msgspec.Struct, frozen=True):
    """The rows of a row group, with the recorded ranges of its part and its own."""

    rows: pa.Table
    by_part: Mapping[str, RangeText] | None
    by_group: Mapping[str, RangeText] | None


def _predicates(layout: SidecarLayout, schema: TableSchema, sample: pa.Table) -> Iterator[Predicate]:
    """Yield typical predicates and their negations, for the columns that prune most often."""
    by_path = {(column.is_partition, column.physical_path): column for column in schema.leaves()}
    ranged = [each for each in layout.columns if each.role in {ColumnRole.PARTITION, ColumnRole.MIN}][:_ASKED_COLUMNS]
    for stored in ranged:
        column = by_path[stored.role == ColumnRole.PARTITION, stored.path]
        yield is_null(column)
        yield is_null(column, negated=True)
        values = _values(sample.column(stored.name), column)
        for value in values:
            for op in _OPERATORS:
                yield compare(column, op, value)
            yield compare(column, ">=", value, negated=True)
        if values:
            yield membership(column, values, negated=True)


def _values(stored: pa.ChunkedArray, column: Column) -> Sequence[object]:
    """Return two values from the middle, where neither side of a comparison is empty."""
    known = stored.filter(stored.is_valid())
    if column.type.to_arrow() in (pa.float32(), pa.float64()):
        known = known.filter(pc.invert(pc.is_nan(known)))
    if pa.types.is_nested(known.type) or not len(known):
        return []
    ordered = known.take(pc.sort_indices(known))
    return list(dict.fromkeys(ordered[len(ordered) * share // 3].as_py() for share in (1, 2)))


_ROWS_PER_BATCH = 32_768
_NAMED_DIFFERENCES = 5
_SEARCHED_BUCKETS = 8


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification: what was compared, and the problems; ``ok`` if there are none.

    ``tier`` is how a reader would use the sidecar: 1 by its manifest, 2 without, None if no usable one exists.
    ``not_compared`` are columns that the checkpoint does not have, so they cannot be compared. ``checksum`` says
    whether the version checksum agrees with the log: matches, differs, or None if there is none. ``deltas`` reports on
    delta sidecars, None if there are none. ``version`` is None if the table has no checkpoint, only delta sidecars.
    """

    ok: bool
    version: int | None
    tier: int | None = None
    num_files: int = 0
    num_parts: int = 0
    num_row_groups: int = 0
    problems: list[str] = []
    compared_columns: int = 0
    not_compared: list[str] = []
    checksum: str | None = None
    deltas: DeltaReport | None = None


def verify(
    table_uri: str | os.PathLike[str],
    version: int | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
) -> VerifyReport:
    """Compare the sidecar of the newest checkpoint, or of the checkpoint of ``version``, with the checkpoint.

    Delta sidecars are compared with their commits. ``memory_budget`` is the same as for `build`: if the statistics
    pages of a checkpoint exceed it, `MemoryLimitError` says how much memory they need.
    """
    store = TableHandle.open(table_uri, storage_options, options).store
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, None)

    deltas, problems = verify_deltas(store, tell)
    try:
        snapshot, checkpoint = snapshot_at_checkpoint(store, version)
    except OptionError:
        if deltas is None or version is not None:
            raise
        return VerifyReport(ok=not problems, version=None, problems=problems, deltas=deltas)
    report = _Verification(store, snapshot, checkpoint, tell, memory_budget).run()
    problems = [*report.problems, *problems]
    return msgspec.structs.replace(report, ok=not problems, problems=problems, deltas=deltas)


class _Verification:
    def __init__(
        self,
        store: Store,
        snapshot: LogSnapshot,
        checkpoint: Checkpoint,
        tell: Callable[[int], None],
        memory_budget: int,
    ) -> None:
        self._store = store
        self._snapshot = snapshot
        self._checkpoint = checkpoint
        self._tell = tell
        self._memory_budget = memory_budget
        self._problems: list[str] = []
        self._timestamps = TimestampCheck(snapshot)
        self._asked: PredicateCheck | None = None

    def run(self) -> VerifyReport:
        try:
            foreign = self._foreign()
        except (SidecarError, StorageError) as error:
            self._problems.append(f"{manifest_path(self._checkpoint.version)} is not valid: {error}")
            return VerifyReport(ok=False, version=self._checkpoint.version, problems=self._problems)
        if foreign is not None:
            return self._run_foreign(foreign)
        found = self._find()
        if found is None:
            return VerifyReport(ok=False, version=self._checkpoint.version, problems=self._problems)
        tier, manifest, layout, parts = found
        compared, left_out = self._comparable(layout)
        ours = RowDigest(layout.name_of(ColumnRole.PATH) or "", compared)
        logged = RowDigest(layout.name_of(ColumnRole.PATH) or "", compared)
        groups = 0
        readable = True
        try:
            groups = self._check_parts(manifest, layout, parts, ours)
        except (SidecarError, StorageError) as error:
            self._problems.append(str(error))
            readable = False
        size = 0
        for batch in self._batches():
            self._timestamps.look(batch)
            if self._asked is not None and readable:
                self._asked.ask_log(batch)
            logged.add(to_rows(batch, layout, self._snapshot.schema))
            size += int(numpy_of(batch.size).sum())
        if readable:
            self._compare(layout, lambda: self._rows(layout, parts), compared, ours, logged)
            self._problems += [] if self._asked is None else list(self._asked.problems())[:_NAMED_DIFFERENCES]
        self._problems += [
            f"the checkpoint has false statistics: {reason}; write a new one, then build the sidecar again"
            for reason in self._timestamps.wrong.values()
        ]
        checksum = self._checksum(logged.rows, size)
        return VerifyReport(
            ok=not self._problems,
            version=self._checkpoint.version,
            tier=tier,
            num_files=ours.rows,
            num_parts=len(parts),
            num_row_groups=groups,
            problems=self._problems,
            compared_columns=len(compared),
            not_compared=left_out,
            checksum=checksum,
        )

    # --- a sidecar of the minimal profile

    def _foreign(self) -> ForeignSidecar | None:
        try:
            data = self._store.get(manifest_path(self._checkpoint.version))
            ManifestIndex.decode(data)
        except UnsealedError:
            return open_foreign(self._store, data, self._snapshot, self._checkpoint)
        except (ObjectNotFoundError, SidecarError):
            return None  # reported with the inventory
        return None

    def _run_foreign(self, foreign: ForeignSidecar) -> VerifyReport:
        layout, path = foreign.layout, foreign.layout.name_of(ColumnRole.PATH) or ""
        compared, left_out = self._comparable(layout)
        ours, logged = RowDigest(path, compared), RowDigest(path, compared)

        def rows() -> Iterator[pa.RecordBatch]:
            scan = BaseScan(
                snapshot=self._snapshot,
                store=self._store,
                predicate=None,
                wanted=StatsWanted(),
                newest_first=False,
                batch_size=_ROWS_PER_BATCH,
                metrics=ScanMetrics(),
            )
            found = foreign.files(scan, ahead=1, prune=False)
            return (to_rows(batch, layout, self._snapshot.schema) for batch in found)

        try:
            for group, batch in zip(foreign.manifest.row_groups, rows(), strict=True):
                ours.add(batch)
                self._check_foreign_range(foreign, group, batch)
        except (SidecarError, StorageError) as error:
            self._problems.append(str(error))
        else:
            for batch in self._logged(layout):
                logged.add(batch)
            self._compare(layout, rows, compared, ours, logged)
        return VerifyReport(
            ok=not self._problems,
            version=self._checkpoint.version,
            tier=1,
            num_files=ours.rows,
            num_parts=1,
            num_row_groups=foreign.manifest.num_row_groups,
            problems=self._problems,
            compared_columns=len(compared),
            not_compared=left_out,
        )

    def _check_foreign_range(self, foreign: ForeignSidecar, group: ForeignGroup, rows: pa.RecordBatch) -> None:
        low, high = group.event_hour_min, group.event_hour_max
        if foreign.ranged is None or low is None or high is None:
            return
        values = rows.column(foreign.ranged.name)
        column = next(e for e in self._snapshot.schema.leaves() if e.physical_path == foreign.ranged.path)
        said = from_text(string_array([low, high]), column.type)
        inside = [pc.greater_equal(values, said[0]), pc.less_equal(values, said[1])]
        if said.null_count or any(pc.any(pc.invert(each)).as_py() for each in inside):
            self._problems.append(
                f"row group {group.index} has values of {foreign.ranged.name} outside of {low!r} to {high!r}"
            )

    # --- inventory

    def _find(self) -> tuple[int, EveryPart | None, SidecarLayout, tuple[ManifestPart, ...]] | None:
        path = manifest_path(self._checkpoint.version)
        try:
            manifest = ManifestIndex.decode(self._store.get(path))
            manifest.check(table_id=self._snapshot.metadata.id, checkpoint=self._checkpoint)
            self._prove(manifest.checkpoint)
            every = every_part(self._store, manifest)
            layout = whole_layout(self._store, every)
        except ObjectNotFoundError as error:
            if error.path != path:
                self._problems.append(f"{path} is not valid: {error}")
        except SidecarError as error:
            self._problems.append(f"{path} is not valid: {error}")
        else:
            self._check_totals(every)
            self._check_leaves(every)
            return 1, every, layout, every.parts
        path = sidecar_path(self._checkpoint.version)
        try:
            part, footer = read_single(self._store, path)
            self._prove(check_single(footer, part, self._snapshot, self._checkpoint))
            parts = footer.state.parts or (part,)
            layout = whole_layout_of(self._store, parts, footer.state.layout)
        except ObjectNotFoundError:
            if not self._problems:
                self._problems.append(f"there is no sidecar of version {self._checkpoint.version}")
        except SidecarError as error:
            self._problems.append(f"{path} is not valid: {error}")
        else:
            return 2, None, layout, parts
        return None

    def _prove(self, recorded: Sequence[CheckpointFile]) -> None:
        prove(self._store, recorded, [each.info for each in self._checkpoint.files])

    def _check_leaves(self, every: EveryPart) -> None:
        """Compare the root's description of leaves with their parts; the parts are compared with their rows later."""
        leaves = () if every.index.leaves is None else every.index.leaves.leaves
        for number, leaf in enumerate(leaves):
            parts = every.parts[leaf.first_part : leaf.first_part + leaf.num_parts]
            ranges = ranges_over([part.ranges for part in parts if part.num_rows], range_types(self._snapshot.schema))
            if leaf.ranges != ranges:
                self._problems.append(f"leaf {number} of the manifest has other ranges than its parts")

    def _check_totals(self, every: EveryPart) -> None:
        manifest, parts = every.index, every.parts
        for name, said, is_so in (
            ("schema_hash", manifest.schema_hash, schema_hash(self._snapshot)),
            ("num_files", manifest.num_files, sum(part.num_rows for part in parts)),
            ("num_row_groups", manifest.num_row_groups, sum(part.num_row_groups for part in parts)),
            (
                "sidecar_size_bytes",
                manifest.sidecar_size_bytes,
                sum(size for part in parts for size in part.files.values()),
            ),
            ("metaData", manifest.meta_data, self._snapshot.metadata),
            ("protocol", manifest.protocol, self._snapshot.protocol),
            ("txn", set(manifest.txn), set(self._snapshot.transactions())),
            ("domainMetadata", set(manifest.domain_metadata), set(self._snapshot.domains())),
        ):
            if said != is_so:
                self._problems.append(f"the manifest's {name} is {short(said)} and should be {short(is_so)}")

    def _comparable(self, layout: SidecarLayout) -> tuple[list[str], list[str]]:
        """Return the columns that can be compared with the checkpoint, and those that it does not have."""
        fields = _logged_fields(self._store, self._checkpoint)
        kept = [column.name for column in layout.columns if fields is None or _is_there(column, fields)]
        return kept, [column.name for column in layout.columns if column.name not in set(kept)]

    def _batches(self) -> Iterator[FileBatch]:
        """Yield the files in the log."""
        reader = CheckpointReader(
            self._store,
            self._checkpoint,
            batch_size=_ROWS_PER_BATCH,
            memory_budget=self._memory_budget,
            needs_stats=True,
        )
        for batch in reader.files(StatsWanted(extra=True)):
            yield batch
            self._tell(len(batch))

    def _logged(self, layout: SidecarLayout) -> Iterator[pa.RecordBatch]:
        return (to_rows(batch, layout, self._snapshot.schema) for batch in self._batches())

    # --- internal consistency of the sidecar

    def _check_parts(
        self, manifest: EveryPart | None, layout: SidecarLayout, parts: Sequence[ManifestPart], digest: RowDigest
    ) -> int:
        """Check order, keys, ranges and descriptions of all parts, and add their rows to the digest."""
        last: bytes | None = None
        count = 0
        for number, part in enumerate(parts):
            opened = open_part(self._store, part, layout)
            footer = opened.footer
            if footer.state.table_id != self._snapshot.metadata.id:
                self._problems.append(f"{part.file} belongs to table {footer.state.table_id}")
            if footer.state.schema_hash != schema_hash(self._snapshot):
                self._problems.append(f"{part.file} was written for another schema")
            written = footer.row_groups()
            self._check_descriptions(manifest, number, part, written)
            groups = []
            for index, described in enumerate(written):
                rows = self._read_group(opened, index, layout)
                last = self._check_group(rows, described, layout, f"row group {index} of {part.file}", last)
                if self._asked is None:
                    self._asked = PredicateCheck(layout, self._snapshot.schema, rows)
                by_part = part.ranges if manifest is not None and len(parts) > 1 else None
                by_group = None if manifest is None else described.ranges
                self._asked.ask_sidecar(rows, by_part, by_group)
                self._tell(rows.num_rows)
                groups.append(rows)
            count += len(groups)
            if groups:
                self._check_bounds(pa.concat_tables(groups), layout, part, part.file)
                for batch in _joined(groups):
                    digest.add(batch)
        return count

    def _read_group(self, opened: OpenedPart, index: int, layout: SidecarLayout) -> pa.Table:
        rows = opened.read(index)
        return typed(pa.Table.from_batches([rows]), layout.arrow_schema(self._snapshot.schema)).combine_chunks()

    def _check_descriptions(
        self, manifest: EveryPart | None, number: int, part: ManifestPart, written: Sequence[ManifestRowGroup]
    ) -> None:
        if manifest is None:
            return
        try:
            described = manifest.groups_of(number)
        except SidecarError:
            described = []  # they contradict their parts
        actual = [msgspec.structs.replace(group, part=number) for group in written]
        if described is not None and described != actual:
            self._problems.append(f"the manifest describes the row groups of {part.file} wrongly")
        if part.num_row_groups != len(actual):
            self._problems.append(f"{part.file} has {len(actual)} row groups, the manifest says {part.num_row_groups}")

    def _check_group(
        self, rows: pa.Table, described: ManifestRowGroup, layout: SidecarLayout, place: str, last: bytes | None
    ) -> bytes | None:
        keys = sortable(rows, layout)
        if len(keys) == 0:
            return last
        first: bytes = keys[0].as_py()
        if pc.any(pc.less(keys.slice(1), keys.slice(0, len(keys) - 1))).as_py():
            self._problems.append(f"{place} is not sorted")
        if last is not None and first < last:
            self._problems.append(f"{place} begins before the rows in front of it end")
        self._check_bounds(rows, layout, described, place)
        end: bytes = keys[len(keys) - 1].as_py()
        return end

    def _check_bounds(
        self, rows: pa.Table, layout: SidecarLayout, said: ManifestPart | ManifestRowGroup, place: str
    ) -> None:
        if (said.first, said.last) != (key_at(rows, 0, layout), key_at(rows, rows.num_rows - 1, layout)):
            self._problems.append(f"{place} has other first and last keys than are written")
        indexed = [
            column.path
            for column in layout.columns
            if column.role == ColumnRole.MIN and range_key(column.path) in said.ranges
        ]
        actual = ranges_of(rows, layout, indexed)
        for name, written in said.ranges.items():
            is_so = actual.get(name, RangeText(has_missing=True, has_null=True))
            if written != is_so:
                self._problems.append(f"{place} has the range {short(written)} of {name}, and it is {short(is_so)}")

    # --- comparison with the log

    def _compare(
        self,
        layout: SidecarLayout,
        rows: Callable[[], Iterator[pa.RecordBatch]],
        compared: Sequence[str],
        ours: RowDigest,
        logged: RowDigest,
    ) -> None:
        if ours.rows != logged.rows:
            self._problems.append(f"the sidecar has {ours.rows} files and the log has {logged.rows}")
        buckets = ours.differing(logged)
        if not buckets:
            return
        some = buckets[:_SEARCHED_BUCKETS]
        path = layout.name_of(ColumnRole.PATH) or ""
        mine = picked(rows(), path, compared, some)
        theirs = picked(self._logged(layout), path, compared, some)
        found = 0
        for name in sorted({*mine, *theirs}):
            text = difference(name, mine.get(name, []), theirs.get(name, []))
            if text is not None:
                self._problems.append(text)
                found += 1
                if found == _NAMED_DIFFERENCES:
                    break
        if len(buckets) > len(some) or found == _NAMED_DIFFERENCES or not found:
            self._problems.append(f"files differ in at least {len(buckets)} places; these are the first")

    def _rows(self, layout: SidecarLayout, parts: Sequence[ManifestPart]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            opened = open_part(self._store, part, layout)
            for index in range(len(opened.footer.groups)):
                yield from self._read_group(opened, index, layout).to_batches()

    def _checksum(self, files: int, size: int) -> str | None:
        check = ChecksumCheck.of(self._snapshot)
        if check is None:
            return None
        error = check.mismatch(self._store, num_files=files, size=size)
        if error is None:
            return "matches"
        self._problems.append(str(error.args[0]))
        return "differs"


def _joined(groups: Sequence[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of row groups, small ones combined: a batch of one row costs about as much as one of thousands."""
    waiting: list[pa.Table] = []
    for number, group in enumerate(groups, 1):
        waiting.append(group)
        if number == len(groups) or sum(each.num_rows for each in waiting) >= SMALL_GROUPS_TOGETHER:
            yield from pa.concat_tables(waiting).combine_chunks().to_batches()
            waiting = []


def _logged_fields(store: Store, checkpoint: Checkpoint) -> dict[str, pa.DataType] | None:
    """Return the file fields common to all checkpoint parts; None for JSON parts, which can have any field."""
    common: dict[str, pa.DataType] | None = None
    reader = CheckpointReader(store, checkpoint)
    for part in reader.parts():
        if part.is_json:
            continue
        with reader.open(part) as parquet:
            if has_column(parquet, "add"):
                fields = add_fields(parquet, part)
                known = fields if common is None else common
                common = {name: kind for name, kind in known.items() if name in fields}
    return common


def _is_there(column: SidecarColumn, fields: Mapping[str, pa.DataType]) -> bool:
    if column.role in EXTRA_NAMES:
        return EXTRA_NAMES[column.role] in fields
    if column.role not in STATS_NAMES or "stats" in fields:
        return True
    stats = fields.get("stats_parsed")
    for name in (STATS_NAMES[column.role], *column.path):
        if stats is None or not pa.types.is_struct(stats) or stats.get_field_index(name) < 0:
            return False
        stats = stats.field(name).type
    return True

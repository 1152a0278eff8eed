"""Proving that a sidecar equals the log: every file, every statistic, every range, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import numpy_of
from lazydelta.errors import ObjectNotFoundError, OptionError, StorageError
from lazydelta.handle import TableHandle
from lazydelta.log.checkpoint.checkpoint_columns import add_fields, has_column
from lazydelta.log.checkpoint.checkpoint_reader import CheckpointReader, StatsWanted
from lazydelta.log.checksum.checksum_check import ChecksumCheck
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.segment import Checkpoint
from lazydelta.log.snapshot import Snapshot
from lazydelta.scan.timestamp_check import TimestampCheck
from lazydelta.sidecar.building.builder import Progress
from lazydelta.sidecar.building.leaf_writer import range_types, ranges_over
from lazydelta.sidecar.building.planning import MEMORY_BUDGET, snapshot_at_checkpoint
from lazydelta.sidecar.building.publication import schema_hash
from lazydelta.sidecar.inspection.delta_verification import DeltaReport, verify_deltas
from lazydelta.sidecar.inspection.predicate_check import SMALL_GROUPS_TOGETHER, PredicateCheck
from lazydelta.sidecar.inspection.row_differences import difference, picked, short
from lazydelta.sidecar.inspection.row_digest import RowDigest
from lazydelta.sidecar.layout.leaves import EveryPart, every_part
from lazydelta.sidecar.layout.manifest import (
    CheckpointFile,
    ManifestIndex,
    ManifestPart,
    ManifestRowGroup,
    RangeText,
    SidecarError,
    range_key,
)
from lazydelta.sidecar.layout.mirrored import prove
from lazydelta.sidecar.layout.order import sortable
from lazydelta.sidecar.layout.part_reader import OpenedPart, open_part, typed, whole_layout
from lazydelta.sidecar.layout.range_texts import key_at, ranges_of
from lazydelta.sidecar.layout.sidecar_columns import (
    EXTRA_NAMES,
    STATS_NAMES,
    ColumnRole,
    SidecarColumn,
    SidecarLayout,
    manifest_path,
    sidecar_path,
)
from lazydelta.sidecar.layout.sidecar_rows import to_rows
from lazydelta.sidecar.reading.discovery import check_single, read_single
from lazydelta.storage import Store

__all__ = ["VerifyReport", "verify"]

_ROWS_PER_BATCH = 32_768
_NAMED_DIFFERENCES = 5
_SEARCHED_BUCKETS = 8


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared and what is wrong; ``ok`` if nothing is.

    ``tier`` is how a reader would use the sidecar: 1 by its manifest, 2 without, None if there is none that it could
    use. ``not_compared`` are columns that the checkpoint does not have, so that there is nothing to compare them with.
    ``checksum`` tells whether the version checksum agrees with the log: matches, differs, or None where there is none.
    ``deltas`` tells of delta sidecars, None where there are none. ``version`` is None where these are all there is: the
    table has no checkpoint.
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
    """Compare the sidecar of the newest checkpoint, or of the checkpoint of ``version``, with the checkpoint itself.

    Delta sidecars are compared with the commits that they stand for. ``memory_budget`` is that of `build`: where a
    checkpoint has statistics in larger pages than that allows, `MemoryLimitError` says how much they take.
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
        snapshot: Snapshot,
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
            self._compare(layout, parts, compared, ours, logged)
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

    # --- what there is

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
        except ObjectNotFoundError:
            if not self._problems:
                self._problems.append(f"there is no sidecar of version {self._checkpoint.version}")
        except SidecarError as error:
            self._problems.append(f"{path} is not valid: {error}")
        else:
            return 2, None, footer.state.layout, (part,)
        return None

    def _prove(self, recorded: Sequence[CheckpointFile]) -> None:
        prove(self._store, recorded, [each.info for each in self._checkpoint.files])

    def _check_leaves(self, every: EveryPart) -> None:
        """Compare what the root says of leaves with their parts, which are compared with their rows later."""
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
        """Return the columns that the checkpoint can be compared in, and those that it does not have."""
        fields = _logged_fields(self._store, self._checkpoint)
        kept = [column.name for column in layout.columns if fields is None or _is_there(column, fields)]
        return kept, [column.name for column in layout.columns if column.name not in set(kept)]

    def _batches(self) -> Iterator[FileBatch]:
        """Yield the files of the log."""
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

    # --- the sidecar in itself

    def _check_parts(
        self, manifest: EveryPart | None, layout: SidecarLayout, parts: Sequence[ManifestPart], digest: RowDigest
    ) -> int:
        """Check order, keys, ranges and descriptions of all parts, and take their rows into the digest."""
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

    # --- the sidecar and the log

    def _compare(
        self,
        layout: SidecarLayout,
        parts: Sequence[ManifestPart],
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
        mine = picked(self._rows(layout, parts), path, compared, some)
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
    """Yield the rows of row groups, small ones together: a batch costs about the same for one row and for thousands."""
    waiting: list[pa.Table] = []
    for number, group in enumerate(groups, 1):
        waiting.append(group)
        if number == len(groups) or sum(each.num_rows for each in waiting) >= SMALL_GROUPS_TOGETHER:
            yield from pa.concat_tables(waiting).combine_chunks().to_batches()
            waiting = []


def _logged_fields(store: Store, checkpoint: Checkpoint) -> dict[str, pa.DataType] | None:
    """Return the fields that every part of the checkpoint has for a file; None where they are JSON and have any."""
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

"""The doctor: what makes a table slow or endangers its readers, with the cost of each finding and its remedy.

It reads the listing of the log, the manifest and the newest files only, so its cost does not grow with the table. The
search for data files that nothing refers to has to list the whole table, and is done only if asked for.
"""

from __future__ import annotations

import shlex
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Literal

import msgspec

from lazydelta.errors import LazyDeltaError, OptionError, UnsupportedFeatureError
from lazydelta.log.hint import read_hint
from lazydelta.log.segment import checkpoints_from
from lazydelta.maintenance.after_commit import clean_log
from lazydelta.maintenance.vacuum import VacuumProgress, vacuum
from lazydelta.protocol.features import check_writable
from lazydelta.protocol.properties import TableProperties
from lazydelta.protocol.schema import Primitive
from lazydelta.protocol.values import parse_instant
from lazydelta.scan.request import ScanRequest, ScanStrategy, time_column
from lazydelta.scan.stream import FileStream
from lazydelta.sidecar.format.leaves import every_part
from lazydelta.sidecar.format.manifest import ManifestIndex, SidecarError, list_folder
from lazydelta.sidecar.handle import Snapshot, TableHandle
from lazydelta.sidecar.lifecycle import clean

__all__ = ["Diagnosis", "Finding", "diagnose"]

# The newest files stand for the table: writers of today make the files of today.
_LOOKED_AT = 20_000
# Decoding the first pages of a checkpoint of ten million files takes 44 MB within this budget, 63 MB by default.
_MEMORY = 32 << 20
_BATCH = 4_096
_LONG_TAIL = 20
_SIDECAR_FILES = 1_000
_SMALL_BYTES = 16 << 20
_MANY_SMALL = 8
_SKEW = 10
_FEW_PARTITIONS = 5
_DELETED_SHARE = 0.2
_SHORT_RETENTION = timedelta(days=1)
_TIME_WORDS = ("time", "date", "stamp", "ts", "_at", "day", "hour")
_MANY_EXPIRED = 20


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a table.

    ``cost`` says what it costs readers, in words, and ``measured`` has the numbers behind it. ``command`` mends it:
    a command line of lazydelta, or if ``by_hand``, a statement for the engine that it names.
    """

    code: str
    severity: Literal["warning", "danger"]
    what: str
    cost: str
    measured: dict[str, float]
    command: str
    by_hand: bool = False


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a table, dangers first. A healthy table has none."""

    uri: str
    version: int
    files_looked_at: int
    tier: int | None
    findings: list[Finding]

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        head = f"{self.uri}, version {self.version}"
        if self.healthy:
            return f"{head}: nothing wrong (looked at {self.files_looked_at:,} files)"
        lines = [f"{head}: {len(self.findings)} findings"]
        for each in self.findings:
            lines += [f"{each.severity}: {each.what}", f"  cost     {each.cost}", f"  mend it  {each.command}"]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from lazydelta.runtime.results import preformatted  # noqa: PLC0415 - for notebooks only

        return preformatted(str(self))


def diagnose(handle: TableHandle, *, deep: bool = False, progress: VacuumProgress | None = None) -> Diagnosis:
    """Examine the newest version of a table. ``deep`` also lists its folder for files that nothing refers to.

    ``progress`` is called with a verb, the number of files so far, and their total if it is known.
    """
    options = handle.options
    frugal = {"memory_budget": min(options.memory_budget, _MEMORY), "batch_size": min(options.batch_size, _BATCH)}
    doctor = _Doctor(handle.with_options(frugal), progress)
    files = list(doctor.files())  # first: how many files there are decides whether a sidecar is worth it
    findings = [*doctor.log(), *doctor.sidecar(), *files, *doctor.settings(), *(doctor.orphans() if deep else ())]
    findings.sort(key=lambda each: each.severity != "danger")
    return Diagnosis(
        uri=handle.uri,
        version=doctor.snapshot.version,
        files_looked_at=doctor.looked_at,
        tier=doctor.tier,
        findings=findings,
    )


class _Doctor:
    def __init__(self, handle: TableHandle, progress: VacuumProgress | None) -> None:
        self._handle = handle
        self._progress = progress or (lambda _what, _done, _total: None)
        self.snapshot: Snapshot = handle.newest()
        self._properties = TableProperties.of(self.snapshot.metadata, strict=False)
        self.looked_at = 0
        self.tier: int | None = None

    def _command(self, *words: str) -> str:
        verb, *options = words
        uri = self._handle.uri
        return shlex.join(["lazydelta", *verb.split(), uri.removeprefix("file://"), *options])

    # --- the log

    def log(self) -> Iterator[Finding]:
        """Examine checkpoint, tail, hint, checksum, and what the log keeps beyond its retention."""
        segment, store = self.snapshot.segment, self._handle.store
        tail = segment.version - segment.base_version
        size = sum(commit.info.size for commit in segment.commits)
        mend = self._command("checkpoint")
        cost = f"every reader fetches {tail:,} commits ({size:,} bytes) before it sees the first file"
        measured: dict[str, float] = {"tail_commits": tail, "tail_bytes": size}
        if tail > max(_LONG_TAIL, 2 * self._properties.checkpoint_interval):
            if segment.checkpoint is None:
                what, code = "The table has no checkpoint", "no_checkpoint"
            else:
                what, code = (
                    f"The newest checkpoint, {segment.base_version}, is {tail:,} versions old",
                    "old_checkpoint",
                )
            yield _finding(code, what, cost, measured, mend)
        if segment.checkpoint is not None:
            hint = read_hint(store)
            if hint is None or hint.version < segment.base_version:
                there = "is missing or damaged" if hint is None else f"points at the older checkpoint {hint.version}"
                versions, _ = checkpoints_from(store, 0, segment.base_version)
                cost = f"every reader lists the whole log, {len(versions):,} commits before the checkpoint"
                found = {"listed": float(len(versions))}
                yield _finding("wrong_hint", f"_last_checkpoint {there}", cost, found, mend)
        if self.snapshot.checksum is None and segment.checkpoint is not None and tail:
            what = f"Version {segment.version} has no checksum"
            cost = f"readers search {tail:,} commits for protocol and metadata, and counts cannot be verified"
            yield _finding("no_checksum", what, cost, {"commits": tail}, mend)
        yield from self._expired()

    def _expired(self) -> Iterator[Finding]:
        try:
            expired = clean_log(self._handle, dry_run=True)
        except UnsupportedFeatureError:
            return  # another writer cleans up, see `settings`
        if len(expired.paths) >= _MANY_EXPIRED:
            kept = _days(self._properties.log_retention)
            what = f"The log keeps {len(expired.paths):,} files longer than its retention of {kept}"
            cost = f"listings of the log return {len(expired.paths):,} names that no reader needs"
            found = {"files": float(len(expired.paths)), "bytes": float(expired.size)}
            yield _finding("expired_log", what, cost, found, self._command("log clean"))

    # --- the sidecar

    def sidecar(self) -> Iterator[Finding]:
        """Examine which tier a scan gets, and why it is not the best."""
        store, segment = self._handle.store, self.snapshot.segment
        self.tier = 3 if segment.checkpoint is not None else None
        files = list_folder(store)
        build, size = self._command("sidecar build"), segment.base_bytes
        cost = f"every scan reads the checkpoint of {size:,} bytes instead of the row groups that a query needs"
        measured = {"checkpoint_bytes": float(size)}
        manifests = [each for each in files if each.kind == "manifest"]
        newest = max(manifests, key=lambda each: each.version, default=None)
        if newest is None:
            single = [each for each in files if each.kind == "single" and each.version == segment.base_version]
            if single:
                self.tier = 2
                what = f"The sidecar of version {segment.base_version} has no manifest"
                cost = "every scan looks into the footers of its files for the row groups that it needs"
                yield _finding("no_manifest", what, cost, {"sidecar_bytes": float(single[0].info.size)}, build)
            elif segment.checkpoint is not None and self.looked_at >= _SIDECAR_FILES:
                checksum = self.snapshot.checksum
                if checksum is not None:
                    count = f"{checksum.num_files:,}"
                else:
                    count = f"{'at least ' if self.looked_at >= _LOOKED_AT else ''}{self.looked_at:,}"
                what = f"A table of {count} files has no sidecar"
                yield _finding("no_sidecar", what, cost, measured, build)
            return
        try:
            manifest = ManifestIndex.decode(store.get(newest.path))
            wanted = every_part(store, manifest).files
        except (SidecarError, LazyDeltaError) as error:
            what = f"The manifest {newest.path} is damaged: {error}"
            yield _finding("damaged_manifest", what, cost, measured, self._command("sidecar build", "--force"))
            return
        there = {each.path for each in files}
        missing = sorted(set(wanted) - there)
        if missing:
            what = f"The sidecar lacks {len(missing):,} of its files, among them {missing[0]}"
            yield _finding("sidecar_part_missing", what, cost, measured, self._command("sidecar build", "--force"))
        elif newest.version < segment.base_version:
            what = f"The sidecar is of version {newest.version}, the newest checkpoint of {segment.base_version}"
            yield _finding("stale_sidecar", what, cost, measured, self._command("sidecar refresh"))
        else:
            self.tier = 1
        yield from self._leftovers()

    def _leftovers(self) -> Iterator[Finding]:
        doomed = clean(self._handle, dry_run=True)  # type: ignore[arg-type]  # opened already
        if doomed.deleted:
            what = f"{len(doomed.deleted):,} sidecar files are no longer needed or were left by a build that died"
            cost = f"they take {doomed.size_bytes:,} bytes of storage"
            found = {"files": float(len(doomed.deleted)), "bytes": float(doomed.size_bytes)}
            yield _finding("sidecar_leftovers", what, cost, found, self._command("sidecar clean"))

    # --- files

    def files(self) -> Iterator[Finding]:
        """Examine the newest files: sizes, distribution over partitions, statistics, deleted rows."""
        try:
            timed = time_column(self.snapshot.metadata, self.snapshot.schema)
        except OptionError:
            timed = None
        names = self.snapshot.schema.partition_columns
        request = ScanRequest(
            limit=_LOOKED_AT, strategy=ScanStrategy.REVERSE, stats_columns=() if timed is None else (timed,)
        )
        small: Counter[tuple[str | None, ...]] = Counter()
        each_partition: Counter[tuple[str | None, ...]] = Counter()
        nulls: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        rows = deleted = without = 0
        checksum = self.snapshot.checksum
        total = None if checksum is None else min(_LOOKED_AT, checksum.num_files)
        with FileStream(self.snapshot.scan(request)) as files:
            for batch in files.batches():
                bound = None if timed is None or timed.is_partition else batch.column(f"min.{timed.name}")
                empty = None if bound is None or timed is None else batch.column(f"null_count.{timed.name}")
                vectors = batch.column("deletion_vector")
                for index, (size, count, values) in enumerate(
                    zip(
                        batch.column("size").to_pylist(),
                        batch.column("num_records").to_pylist(),
                        batch.column("partition_values").to_pylist(),
                        strict=True,
                    )
                ):
                    self.looked_at += 1
                    known = dict(values or ())
                    place = tuple(known.get(name) or None for name in names)
                    each_partition[place] += 1
                    small[place] += size < _SMALL_BYTES
                    rows += count or 0
                    for name, value in zip(names, place, strict=True):
                        if value is None:
                            nulls[name][0] += 1
                            nulls[name][1] += count or 0
                    if vectors[index].is_valid:
                        deleted += vectors[index].as_py()["cardinality"] or 0
                    if count is None or (
                        bound is not None
                        and empty is not None
                        and not bound[index].is_valid
                        and empty[index].as_py() != count
                    ):
                        without += 1
                self._progress("examined", self.looked_at, total)
        yield from self._sizes(small, each_partition)
        optimize = self._command("optimize")
        for name, (number, held) in nulls.items():
            what = f"{number:,} files hold {held:,} rows whose {name} is null"
            cost = f"no condition on {name} finds these rows, and scans without one read them last"
            mend = self._command("delete", "--where", f"{name} IS NULL")
            yield _finding("null_partition", what, cost, {"files": number, "rows": held}, mend)
        if without:
            named = "row counts" if timed is None else f"statistics of {timed.name}"
            what = f"{without:,} of {self.looked_at:,} files have no {named}"
            cost = f"every query reads these {without:,} files, whatever it asks for"
            yield _finding("no_statistics", what, cost, {"files": without}, optimize)
        if rows and deleted / rows >= _DELETED_SHARE:
            what = f"{deleted:,} of {rows:,} rows are deleted by deletion vectors"
            cost = f"readers decode and drop {deleted / rows:.0%} of the rows"
            yield _finding("deleted_rows", what, cost, {"deleted": deleted, "rows": rows}, optimize)

    def _sizes(self, small: Counter[Any], each_partition: Counter[Any]) -> Iterator[Finding]:
        names = self.snapshot.schema.partition_columns
        usual = statistics.median(each_partition.values()) if each_partition else 0
        crowded = {
            place: number
            for place, number in each_partition.items()
            if len(each_partition) >= _FEW_PARTITIONS and number >= _SKEW * usual and small[place] >= _MANY_SMALL
        }
        for place, number in sorted(crowded.items(), key=lambda each: -each[1])[:3]:
            where = " AND ".join(
                f"{name} IS NULL" if value is None else f"{name} = '{value}'"
                for name, value in zip(names, place, strict=True)
            )
            what = f"The partition {where} has {number:,} files, others {usual:,.0f}"
            cost = f"a query of this partition opens {number:,} files where few would do"
            mend = self._command("optimize", "--where", where)
            yield _finding("skew", what, cost, {"files": number, "usual": usual}, mend)
        many = {place: number for place, number in small.items() if number >= _MANY_SMALL and place not in crowded}
        if many:
            number = sum(many.values())
            what = (
                f"{number:,} of {self.looked_at:,} files are smaller than {_SMALL_BYTES >> 20} MiB and could be packed"
            )
            cost = f"queries open {number:,} files in {len(many):,} partitions where {len(many):,} could do"
            found = {"files": float(number), "partitions": float(len(many))}
            yield _finding("small_files", what, cost, found, self._command("optimize"))

    def orphans(self) -> Iterator[Finding]:
        """Look for data files that no version within the retention refers to."""
        try:
            found = vacuum(self._handle, dry_run=True, progress=self._progress)
        except UnsupportedFeatureError:
            return  # only a writer that knows the feature can tell, see `settings`
        if found.paths:
            what = (
                f"{len(found.paths):,} data files belong to no version that is kept, or were left by writers that died"
            )
            cost = f"they take {found.size_bytes:,} bytes of storage"
            measured = {"files": float(len(found.paths)), "bytes": float(found.size_bytes)}
            yield _finding("orphans", what, cost, measured, self._command("vacuum"))

    # --- settings and schema

    def settings(self) -> Iterator[Finding]:
        """Examine features, retention, and columns whose type defeats pruning by time."""
        snapshot, uri = self.snapshot, self._handle.uri
        kept = self._properties.deleted_file_retention
        if kept < _SHORT_RETENTION:
            statement = "SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 7 days')"
            what = f"Removed files are kept for {_days(kept)} only (delta.deletedFileRetentionDuration)"
            cost = f"a query or a stream that runs longer than {_days(kept)} fails after a VACUUM"
            found = {"hours": kept / timedelta(hours=1)}
            yield _finding(
                "short_retention",
                what,
                cost,
                found,
                f"ALTER TABLE delta.`{uri}` {statement}",
                danger=True,
                by_hand=True,
            )
        try:
            check_writable(snapshot.protocol, snapshot.metadata, path=uri)
        except LazyDeltaError as error:
            what = f"lazydelta cannot write this table: {error.args[0]}"
            cost = "appends, compaction and checkpoints are left to other writers, and no sidecar follows them"
            command = f"ALTER TABLE delta.`{uri}` DROP FEATURE … (Spark), if the feature is not needed"
            yield _finding("features", what, cost, {}, command, by_hand=True)
        yield from self._time_as_text()

    def _time_as_text(self) -> Iterator[Finding]:
        leaves = list(self.snapshot.schema.leaves())
        if any(each.type in (Primitive("timestamp"), Primitive("timestamp_ntz"), Primitive("date")) for each in leaves):
            return
        with FileStream(self.snapshot.scan(ScanRequest(limit=1))) as files:
            first = next(iter(files), None)
            least = {} if first is None else (first.stats or {}).get("minValues") or {}
        for column in leaves:
            value = least.get(column.physical_path[0]) if len(column.path) == 1 else None
            named = any(word in column.name.lower() for word in _TIME_WORDS)
            if column.is_partition or not named or not isinstance(value, str) or parse_instant(value) is None:
                continue
            what = f"The column {column.name} holds times as text, and the table has no timestamp"
            cost = (
                "queries by time compare texts: other forms of the same timestamp are missed, and `last` cannot be used"
            )
            statement = f"CREATE TABLE … AS SELECT * REPLACE (CAST({column.name} AS TIMESTAMP) AS {column.name})"
            command = f"{statement} FROM delta.`{self._handle.uri}`"
            yield _finding("time_as_text", what, cost, {}, command, by_hand=True)


def _finding(
    code: str,
    what: str,
    cost: str,
    measured: dict[str, float],
    command: str,
    *,
    danger: bool = False,
    by_hand: bool = False,
) -> Finding:
    return Finding(
        code=code,
        severity="danger" if danger else "warning",
        what=what,
        cost=cost,
        measured=measured,
        command=command,
        by_hand=by_hand,
    )


def _days(span: timedelta) -> str:
    hours = span / timedelta(hours=1)
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} hours"  # noqa: PLR2004 - two days

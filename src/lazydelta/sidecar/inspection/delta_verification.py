"""Proving that delta sidecars equal the commits that they stand for: every action, every statistic, in order.

The commits are read by Python's JSON and nothing of ours (``logged_commit``), a line at a time, beside the rows of the
delta sidecar, so that memory holds one file of it and one commit's removes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.arrays import one_array
from lazydelta.errors import LazyDeltaError, ObjectNotFoundError, StorageError
from lazydelta.log.names import LogFile
from lazydelta.log.segment import list_commits
from lazydelta.log.snapshot import Snapshot
from lazydelta.log.snapshot_opening import open_snapshot
from lazydelta.sidecar.inspection.logged_commit import LoggedCommit, OtherAction, PlainRow, expected_row
from lazydelta.sidecar.inspection.plain_values import same
from lazydelta.sidecar.layout.delta_manifest import DeltaEntry, DeltaManifest
from lazydelta.sidecar.layout.delta_part import VersionedLine, other_actions, schema_hash, versions_of
from lazydelta.sidecar.layout.folder import FolderFile
from lazydelta.sidecar.layout.manifest import SidecarError
from lazydelta.sidecar.layout.part_file import PartFooter
from lazydelta.sidecar.layout.part_reader import typed
from lazydelta.sidecar.layout.sidecar_columns import DELTA_MANIFEST, ColumnRole
from lazydelta.sidecar.upkeep.delta_upkeep import list_deltas
from lazydelta.storage import Store

__all__ = ["DeltaReport", "verify_deltas"]

_NAMED_DIFFERENCES = 5
_ROWS_AT_ONCE = 512
_AGAIN = "scans read the commits instead; `lazydelta sidecar delta` writes it anew"

Tell = Callable[[int], None]
"""Called with how many more actions were compared."""


class DeltaReport(msgspec.Struct, frozen=True, kw_only=True):
    """What delta sidecars were compared in; what is wrong with them is among the problems of the whole.

    ``gaps`` are the runs of commits since the checkpoint, by first and last, that are in none which is good; they are
    read as JSON. ``leftovers`` are files that no reader needs: the checkpoint has all that is in them, or the list does
    not name them; `clean` removes them in time.
    """

    files: int = 0
    commits: int = 0
    actions: int = 0
    gaps: list[tuple[int, int]] = []
    leftovers: list[str] = []


class _DifferentError(Exception):
    """Enough of one file was found to differ."""


def verify_deltas(store: Store, tell: Tell) -> tuple[DeltaReport | None, list[str]]:
    """Compare all delta sidecars with the commits, and tell what is wrong; None where the table has none."""
    files = list_deltas(store)
    if not files:
        return None, []
    return _DeltaVerification(store, files, tell).run()


class _DeltaVerification:
    def __init__(self, store: Store, files: Sequence[FolderFile], tell: Tell) -> None:
        self._store = store
        self._files = files
        self._tell = tell
        self._problems: list[str] = []
        self._compared_files = self._compared_commits = self._compared_actions = 0
        # By the log alone: neither the sidecar nor what is verified here has a say in what the table was.
        self._newest = open_snapshot(store)
        self._state_at = functools.cache(lambda version: open_snapshot(store, version=version))

    def run(self) -> tuple[DeltaReport, list[str]]:
        named, leftovers = self._named()
        base = self._newest.segment.base_version
        good = [entry for entry in named if entry.last > base and self._is_good(entry)]
        leftovers += [entry.file for entry in named if entry.last <= base]
        report = DeltaReport(
            files=self._compared_files,
            commits=self._compared_commits,
            actions=self._compared_actions,
            gaps=list(_gaps(good, base, self._newest.version)),
            leftovers=sorted(leftovers),
        )
        return report, self._problems

    def _named(self) -> tuple[Sequence[DeltaEntry], list[str]]:
        """Return what the manifest lists, and which files it does not name."""
        there = {file.path for file in self._files if file.path != DELTA_MANIFEST}
        try:
            spans = DeltaManifest.decode(self._store.get(DELTA_MANIFEST)).spans
        except ObjectNotFoundError:
            spans = ()  # whoever wrote the files was killed before it published them
        except SidecarError as error:
            self._problems.append(f"{DELTA_MANIFEST} is not valid: {error}; {_AGAIN}")
            spans = ()
        return spans, sorted(there - {entry.file for entry in spans})

    def _is_good(self, entry: DeltaEntry) -> bool:
        before = len(self._problems)
        try:
            self._check(entry)
        except _DifferentError:
            self._problems.append(f"{entry.file} differs from the commits in more than these; {_AGAIN}")
        except (SidecarError, StorageError, pa.ArrowException, KeyError, ValueError, IndexError, TypeError) as error:
            self._problems.append(f"{entry.file} cannot be used: {error}; {_AGAIN}")
        except LazyDeltaError as error:
            self._problems.append(f"{entry.file} cannot be compared: {error}")
        return len(self._problems) == before

    def _check(self, entry: DeltaEntry) -> None:
        if entry.last > self._newest.version:
            message = f"it is of commits up to {entry.last}, and the newest one is {self._newest.version}"
            raise SidecarError(message)
        # Commits that the checkpoint has may be gone from the log; no reader takes them from here.
        commits = list(list_commits(self._store, entry.first, entry.last))
        stale = entry.stale_commit(commits)
        if stale is not None:
            message = f"commit {stale} is not the one that it was made of"
            raise SidecarError(message)
        state = self._state_at(entry.last)
        footer, data = self._opened(entry, state)
        _Comparison(self._store, entry, state, footer, data, self._problems).run(commits)
        self._compared_files += 1
        self._compared_commits += len(commits)
        self._compared_actions += entry.num_rows
        self._tell(entry.num_rows)

    def _opened(self, entry: DeltaEntry, state: Snapshot) -> tuple[PartFooter, bytes]:
        data = self._store.get(entry.file)
        if len(data) != entry.size:
            message = f"it has {len(data)} bytes, and the manifest says {entry.size}"
            raise SidecarError(message)
        footer = PartFooter(data[entry.footer_offset :], expected=entry.footer_sha256)
        said = (entry.table_id, entry.schema_hash)
        if said != (footer.state.table_id, footer.state.schema_hash):
            message = "it is of another table or schema than the manifest says"
            raise SidecarError(message)
        if said != (state.metadata.id, schema_hash(state.metadata)):
            message = f"it is of another table or schema than the log has at version {entry.last}"
            raise SidecarError(message)
        return footer, data


class _Comparison:
    """One delta sidecar beside its commits, both from the newest to the oldest."""

    def __init__(
        self,
        store: Store,
        entry: DeltaEntry,
        state: Snapshot,
        footer: PartFooter,
        data: bytes,
        problems: list[str],
    ) -> None:
        self._store = store
        self._entry = entry
        self._footer = footer
        self._data = data
        self._problems = problems
        self._named = 0
        self._layout = footer.state.layout
        self._schema = self._layout.arrow_schema(state.schema)
        self._types = {field.name: field.type for field in self._schema}
        own = (ColumnRole.VERSION, ColumnRole.REMOVED)
        self._columns = [each for each in self._layout.columns if each.role not in own]
        self._removed = self._layout.name_of(ColumnRole.REMOVED) or ""
        self._adds = self._removes = 0

    def run(self, commits: Sequence[LogFile]) -> None:
        entry = self._entry
        by_version = {commit.version: commit for commit in commits}
        others = self._others()
        stored = self._rows()
        held = next(stored, None)
        for version in range(entry.last, entry.first - 1, -1):
            logged = LoggedCommit(self._store, by_version[version]) if version in by_version else None
            beside = iter(()) if logged is None else logged.rows()
            while held is not None and held[0] >= version:
                if held[0] > version:
                    self._differ(f"row of version {held[0]} stands behind those of version {version}")
                if logged is not None:
                    self._compare(version, held[1], next(beside, None))
                held = next(stored, None)
            if logged is None:
                continue
            for missing in beside:
                self._compare(version, None, missing)
            if logged.describes_table:
                self._differ(f"commit {version} has protocol or metadata, and may be in no delta sidecar")
            if logged.others != others.get(version, []):
                self._differ(f"transactions and domains of commit {version} are others: {others.get(version, [])}")
        if held is not None:
            self._differ(f"it has rows of version {held[0]}, which is before its first")
        if (self._adds, self._removes) != (entry.num_adds, entry.num_removes):
            self._differ(
                f"it has {self._adds} files added and {self._removes} removed, and the manifest says "
                f"{entry.num_adds} and {entry.num_removes}"
            )

    def _others(self) -> dict[int, list[OtherAction]]:
        found: dict[int, list[OtherAction]] = {}
        for line in other_actions(self._footer, self._entry.first, self._entry.last):
            found.setdefault(line.version, []).append(_other(line))
        return found

    def _rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield every row with its version, in the file's order; each group is held against its description."""
        names = [column.name for column in self._layout.columns]
        if len(self._footer.groups) != len(self._entry.row_groups):
            message = f"it has {len(self._footer.groups)} row groups, the manifest says {len(self._entry.row_groups)}"
            raise SidecarError(message)
        for number, group in enumerate(self._entry.row_groups):
            batch = self._footer.read(number, names, [(0, self._data)], self._entry.size)
            rows = typed(pa.Table.from_batches([batch]), self._schema)
            versions = versions_of(rows, self._layout)
            ends = (len(versions), int(versions[0]), int(versions[-1])) if len(versions) else (0, 0, 0)
            if ends != (group.num_rows, group.newest, group.oldest):
                self._differ(f"row group {number} is not as the manifest describes it")
            gone = one_array(rows.column(self._removed)).true_count
            self._adds, self._removes = self._adds + rows.num_rows - gone, self._removes + gone
            plain = _as_stored(rows)
            for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
                some = plain.slice(start, _ROWS_AT_ONCE).to_pylist()
                yield from zip(versions[start : start + len(some)].tolist(), some, strict=True)

    def _compare(self, version: int, stored: dict[str, Any] | None, logged: PlainRow | None) -> None:
        if stored is None:
            path = None if logged is None else logged.body.get("path")
            self._differ(f"commit {version} has an action about {path} that is not there")
            return
        removed, path = stored[self._removed], stored[self._layout.name_of(ColumnRole.PATH) or ""]
        if logged is None:
            self._differ(f"it has an action about {path} that commit {version} does not have")
            return
        if removed is not logged.removed:
            self._differ(f"of commit {version}, {path} is {'removed' if removed else 'added'}, and not in the log")
            return
        for name, value in expected_row(logged, self._columns, self._types).items():
            mine = dict(stored[name]) or None if isinstance(stored[name], list) else stored[name]
            if not same(mine, value):
                self._differ(f"of commit {version}, {path}: {name} is {mine!r:.60}, and {value!r:.60} in the log")
                return

    def _differ(self, text: str) -> None:
        if self._named == _NAMED_DIFFERENCES:
            raise _DifferentError
        self._named += 1
        self._problems.append(f"{self._entry.file}: {text}")


def _as_stored(rows: pa.Table) -> pa.Table:
    """Return moments as the numbers that they are stored as: Python's calendar is too short for some."""
    views: Mapping[bool, pa.DataType] = {True: pa.int32(), False: pa.int64()}
    for place, field in enumerate(rows.schema):
        if pa.types.is_temporal(field.type):
            chunks = [chunk.view(views[pa.types.is_date32(field.type)]) for chunk in rows.column(place).chunks]
            rows = rows.set_column(place, field.name, pa.chunked_array(chunks))
    return rows


def _other(line: VersionedLine) -> OtherAction:
    txn, domain = line.action.txn, line.action.domain_metadata
    if txn is not None:
        return ("txn", txn.app_id, txn.version, txn.last_updated)
    if domain is not None:
        return ("domainMetadata", domain.domain, domain.configuration, domain.removed)
    return ("unknown",)


def _gaps(entries: Sequence[DeltaEntry], base: int, version: int) -> Iterator[tuple[int, int]]:
    """Yield the runs of commits above the checkpoint that are in none of these, ascending."""
    following = base + 1
    for entry in entries:
        if entry.first > following:
            yield following, entry.first - 1
        following = entry.last + 1
    if following <= version:
        yield following, version

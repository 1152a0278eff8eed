"""Verifying that delta sidecars equal their commits: every action, every statistic, in order.

The commits are parsed independently with Python's JSON (``logged_commit``), one line at a time, in parallel with the
rows of the delta sidecar. Memory holds one delta sidecar file and the removes of one commit.
"""

from __future__ import annotations

import functools
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import CorruptLogError, LazyDeltaError, ObjectNotFoundError, StorageError
from lazydelta.log.commits import CHUNK_SIZE
from lazydelta.log.segment import list_commits
from lazydelta.log.snapshot import LogSnapshot, open_snapshot
from lazydelta.protocol.file_names import LogFile
from lazydelta.runtime.arrays import one_array
from lazydelta.sidecar.format.columns import (
    DELTA_MANIFEST,
    EXTRA_NAMES,
    STATS_NAMES,
    STATS_OF_COLUMNS,
    ColumnRole,
    SidecarColumn,
)
from lazydelta.sidecar.format.delta_file import (
    DeltaEntry,
    DeltaManifest,
    VersionedLine,
    other_actions,
    schema_hash,
    versions_of,
)
from lazydelta.sidecar.format.manifest import FolderFile, SidecarError
from lazydelta.sidecar.format.part_file import PartFooter, typed
from lazydelta.sidecar.lifecycle import list_deltas
from lazydelta.storage import Store

__all__ = ["DeltaReport", "verify_deltas"]


# Independent parsing of log values, for comparison with the scan readers. It uses nothing of ``stats`` or
# ``protocol.values``, so an error there is not repeated here. Values have Arrow's storage form: timestamps as counts,
# decimals with their scale. A string with more than one valid reading is ``UNJUDGED`` and equals anything; these are
# rare, such as timestamps outside the years of Python's calendar.


_EXACT = Context(prec=500)
_PLAIN_TIMESTAMP = re.compile(
    r"(?a)(?P<day>\d{4}-\d\d-\d\d)"
    r"(?:[ T](?P<time>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:\d\d)?)?"
)
_NUMBER = re.compile(r"(?a)[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_LOST = "\ufffd"
_NANOSECONDS, _MICROSECOND = 9, 1000
_INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "+Infinity": math.inf, "inf": math.inf}


class _Unjudged:
    def __repr__(self) -> str:
        return "a value of an odd form"


UNJUDGED = _Unjudged()


def loaded(text: str | bytes) -> Any:
    """Parse JSON, keeping all digits; reject Python's extensions to JSON (NaN, Infinity)."""
    return json.loads(text, parse_float=Decimal, parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    message = f"{constant} is not JSON"
    raise ValueError(message)


def logged_stats(text: str | None) -> Json:
    """Return the statistics of an action; empty if the string is not a JSON object."""
    try:
        found = loaded(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def logged_bound(value: Any, kind: pa.DataType, *, up: bool) -> Any:
    """Return a bound of a column of this type, or a count; None if it is not a valid value."""
    if value is None:
        return None
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if pa.types.is_integer(kind):
        return _integer(value, kind)
    if pa.types.is_floating(kind):
        return _float(value, kind)
    if pa.types.is_decimal(kind):
        return _decimal(value, kind, up=up)
    return _from_text(value, kind) if isinstance(value, str) else None


def logged_partition(text: str | None, kind: pa.DataType) -> Any:
    """Return a partition value; the log stores them as strings, and an empty string is null."""
    if not text:
        return None
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}.get(text.lower())
    if pa.types.is_integer(kind):
        return _integer(int(text), kind) if re.fullmatch(r"(?a)[+-]?\d{1,40}", text) else None
    if pa.types.is_floating(kind):
        return _float(Decimal(text), kind) if _NUMBER.fullmatch(text) else UNJUDGED
    if pa.types.is_decimal(kind):
        exact = Decimal(text) if _NUMBER.fullmatch(text) else None
        return None if exact is None else _decimal(exact, kind, up=None)
    return _from_text(text, kind)


def same(stored: Any, logged: Any) -> bool:
    """Return whether a stored value equals the logged one."""
    if logged is UNJUDGED:
        return True
    if isinstance(stored, float) and isinstance(logged, float):
        # Zero has a sign, which some readers distinguish. NaN equals nothing, not even itself.
        return struct.pack("<d", stored) == struct.pack("<d", logged) or (math.isnan(stored) and math.isnan(logged))
    return bool(type(stored) is type(logged) and stored == logged)


def _integer(value: Any, kind: pa.DataType) -> int | None:
    limit = 2 ** (kind.bit_width - 1)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and -limit <= value < limit else None


def _float(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, str):
        return _INFINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    try:
        number = float(value)
    except OverflowError:
        return UNJUDGED
    if math.isinf(number):
        return UNJUDGED
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0] if kind.bit_width == 32 else number  # noqa: PLR2004
    except OverflowError:
        return None


def _decimal(value: Any, kind: pa.DataType, *, up: bool | None) -> Any:
    """Return a decimal of this scale; bounds round excess digits outwards, other values must not have any."""
    if isinstance(value, str):
        value = Decimal(value) if _NUMBER.fullmatch(value) else UNJUDGED
    if value is UNJUDGED or isinstance(value, bool) or not isinstance(value, int | Decimal):
        return UNJUDGED if value is UNJUDGED else None
    exact = Decimal(value)
    if abs(exact.adjusted()) > 2 * _EXACT.prec // 5:
        return UNJUDGED
    unit = Decimal(1).scaleb(-kind.scale)
    rounded = exact.quantize(unit, ROUND_CEILING if up else ROUND_FLOOR, _EXACT)
    if (up is None and rounded != exact) or abs(rounded) >= Decimal(10) ** (kind.precision - kind.scale):
        return None
    return rounded


def _from_text(text: str, kind: pa.DataType) -> Any:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return UNJUDGED  # half a surrogate pair is not a valid string
    if pa.types.is_string(kind):
        return text
    if pa.types.is_binary(kind):
        return None if _LOST in text else data
    return _timestamp(text, kind)


def _timestamp(text: str, kind: pa.DataType) -> Any:
    found = _PLAIN_TIMESTAMP.fullmatch(text)
    if found is None:
        return UNJUDGED
    try:
        if pa.types.is_date(kind):
            is_date = found["time"] is None
            return (date.fromisoformat(found["day"]) - date(1970, 1, 1)).days if is_date else UNJUDGED
        zone = found["zone"] or "Z"
        if kind.tz is None and zone != "Z":
            return UNJUDGED
        timestamp = datetime.fromisoformat(f"{found['day']}T{found['time'] or '00:00:00'}{zone.replace('Z', '+00:00')}")
    except ValueError:
        return UNJUDGED
    passed = timestamp - datetime(1970, 1, 1, tzinfo=UTC)
    micros, rest = divmod(int((found["fraction"] or "").ljust(_NANOSECONDS, "0")), _MICROSECOND)
    # A bound must not move, so one finer than a microsecond is dropped.
    return None if rest else (passed.days * 86_400 + passed.seconds) * 1_000_000 + micros


# Parse a commit line by line with Python's JSON into the rows that a delta sidecar must have.


Json = dict[str, Any]
OtherAction = tuple[Any, ...]
"""A transaction, a domain or an unknown action, in comparable form."""

_NAMES = {
    ColumnRole.PATH: "path",
    ColumnRole.SIZE: "size",
    ColumnRole.MODIFICATION_TIME: "modificationTime",
}
_KNOWN = (
    "add",
    "remove",
    "metaData",
    "protocol",
    "txn",
    "domainMetadata",
    "commitInfo",
    "sidecar",
    "cdc",
    "checkpointMetadata",
)


class PlainRow(msgspec.Struct, frozen=True):
    """A file action."""

    removed: bool
    body: Json


class LoggedCommit:
    """One pass over a commit; its non-file actions are known once its rows are consumed."""

    def __init__(self, store: Store, file: LogFile) -> None:
        self._store = store
        self._file = file
        self.others: list[OtherAction] = []
        self.describes_table = False

    def rows(self) -> Iterator[PlainRow]:
        """Yield adds in log order, then removes."""
        removes: list[Json] = []
        for line in self._lines():
            if line.get("add") is not None:
                yield PlainRow(False, line["add"])  # noqa: FBT003 - the field's only meaning
            elif line.get("remove") is not None:
                removes.append({name: line["remove"].get(name) for name in ("path", "deletionVector")})
            else:
                self._note(line)
        for remove in removes:
            yield PlainRow(True, remove)  # noqa: FBT003

    def _note(self, line: Json) -> None:
        self.describes_table |= any(line.get(name) is not None for name in ("metaData", "protocol"))
        txn, domain = line.get("txn"), line.get("domainMetadata")
        if txn is not None:
            self.others.append(("txn", txn.get("appId"), txn.get("version"), txn.get("lastUpdated")))
        elif domain is not None:
            settings = domain.get("configuration", "")
            self.others.append(("domainMetadata", domain.get("domain"), settings, domain.get("removed", False)))
        elif all(line.get(name) is None for name in _KNOWN):
            self.others.append(("unknown",))

    def _lines(self) -> Iterator[Json]:
        stream = self._store.stream(self._file.path, chunk_size=CHUNK_SIZE)
        try:
            rest = b""
            for chunk in stream:
                *lines, rest = (rest + bytes(chunk)).split(b"\n")
                yield from self._parsed(lines)
            yield from self._parsed([rest])
        finally:
            stream.close()

    def _parsed(self, lines: Sequence[bytes]) -> Iterator[Json]:
        for line in filter(None, map(bytes.strip, lines)):
            try:
                found = loaded(line)
            except (ValueError, RecursionError) as error:
                message = f"{self._file.path} has a line that is not JSON: {error}"
                raise CorruptLogError(message, path=self._file.path, version=self._file.version) from error
            yield found if isinstance(found, dict) else {}


def expected_row(row: PlainRow, columns: Sequence[SidecarColumn], types: Mapping[str, pa.DataType]) -> Json:
    """Return the expected column values of an action in a delta sidecar; for a remove, only its key counts."""
    if row.removed:
        columns = [each for each in columns if each.role in {ColumnRole.PATH, ColumnRole.DV}]
    stats = {} if row.removed else logged_stats(row.body.get("stats"))
    return {each.name: _expected(each, types[each.name], row.body, stats) for each in columns}


def _expected(column: SidecarColumn, kind: pa.DataType, body: Json, stats: Json) -> Any:
    match column.role:
        case ColumnRole.DV:
            vector = body.get("deletionVector")
            default = 0 if column.path[0] in {"sizeInBytes", "cardinality"} else None
            return None if vector is None else vector.get(column.path[0], default)
        case ColumnRole.PARTITION:
            return logged_partition((body.get("partitionValues") or {}).get(column.path[0]), kind)
        case ColumnRole.PARTITION_VALUES:
            return body.get("partitionValues") or None
        case role if role in EXTRA_NAMES:
            return body.get(EXTRA_NAMES[role]) or None if role is ColumnRole.TAGS else body.get(EXTRA_NAMES[role])
        case role if role in STATS_NAMES:
            path = (STATS_NAMES[role], *(column.path if role in STATS_OF_COLUMNS else ()))
            value = logged_bound(_found(stats, path), kind, up=role is ColumnRole.MAX)
            is_count = role in {ColumnRole.NUM_RECORDS, ColumnRole.NULL_COUNT}
            return UNJUDGED if is_count and isinstance(value, int) and value < 0 else value
        case role:
            return body.get(_NAMES[role])


def _found(stats: Any, path: Sequence[str]) -> Any:
    for name in path:
        stats = stats.get(name) if isinstance(stats, dict) else None
    return stats


_NAMED_DIFFERENCES = 5
_ROWS_AT_ONCE = 512
_AGAIN = "scans read the commits instead; `lazydelta sidecar delta` writes it anew"

Tell = Callable[[int], None]
"""Called with the number of actions compared since the last call."""


class DeltaReport(msgspec.Struct, frozen=True, kw_only=True):
    """Scope of the comparison of delta sidecars; the problems found are in the overall report.

    ``gaps`` are the runs of commits since the checkpoint, as first and last version, that no valid delta sidecar
    covers; they are read as JSON. ``leftovers`` are files that no reader needs: the checkpoint covers their commits, or
    the manifest does not list them. `clean` deletes them eventually.
    """

    files: int = 0
    commits: int = 0
    actions: int = 0
    gaps: list[tuple[int, int]] = []
    leftovers: list[str] = []


class _DifferentError(Exception):
    """Raised when enough differences are found in one file."""


def verify_deltas(store: Store, tell: Tell) -> tuple[DeltaReport | None, list[str]]:
    """Compare all delta sidecars with their commits and return the problems; None if the table has none."""
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
        # Use the log alone: neither the sidecar nor the delta sidecars may influence the expected state.
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
        """Return the entries of the manifest, and the files that it does not list."""
        there = {file.path for file in self._files if file.path != DELTA_MANIFEST}
        try:
            spans = DeltaManifest.decode(self._store.get(DELTA_MANIFEST)).spans
        except ObjectNotFoundError:
            spans = ()  # the writer of the files was killed before publishing them
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
        # Commits that the checkpoint covers can be missing from the log; no reader uses their rows.
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

    def _opened(self, entry: DeltaEntry, state: LogSnapshot) -> tuple[PartFooter, bytes]:
        data = self._store.get(entry.file)
        if len(data) != entry.size:
            message = f"it has {len(data)} bytes, and the manifest says {entry.size}"
            raise SidecarError(message)
        footer = PartFooter(data[entry.footer_offset :], expected=entry.footer_sha256)
        said = (entry.table_id, entry.schema_hash)
        if said != (footer.state.table_id, footer.state.schema_hash):
            message = "its table or schema differs from the manifest"
            raise SidecarError(message)
        if said != (state.metadata.id, schema_hash(state.metadata)):
            message = f"its table or schema differs from the log at version {entry.last}"
            raise SidecarError(message)
        return footer, data


class _Comparison:
    """A comparison of one delta sidecar with its commits, both from newest to oldest."""

    def __init__(
        self,
        store: Store,
        entry: DeltaEntry,
        state: LogSnapshot,
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
        """Yield every row with its version, in file order; check each row group against its description."""
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
    """Return timestamps as their stored integers: Python's calendar cannot represent all of them."""
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
    """Yield the runs of commits after the checkpoint that none of the entries cover, ascending."""
    following = base + 1
    for entry in entries:
        if entry.first > following:
            yield following, entry.first - 1
        following = entry.last + 1
    if following <= version:
        yield following, version

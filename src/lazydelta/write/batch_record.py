"""`BatchRecord`: a description of an identified batch, kept in its commit to compare a repeated batch with.

An application id and version show that a batch was committed, not that it is the same batch. A stream whose checkpoint
location was restored from a backup reuses older numbers, and a job may reuse a number. Skipping such a batch would lose
its rows. The commit therefore records the row count, the rows per partition, the range of timestamps and, if known, the
source files. A different batch under the same number is an error.

Micro-batches of a steady source often have equal row counts and timestamps. They are compared by a digest of all
values and by a mark of the plan in the stream's checkpoint location. A repeat after a crash has the same plan, even if
recomputed values (a random number, a sum of floats) differ. Batches numbered by a job are compared without their other
values, because a repeated job recomputes such values too.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.errors import WriteError
from lazydelta.log.replay import ReverseCommitReader
from lazydelta.log.segment import list_commits
from lazydelta.protocol.actions import Add, LogLine, Txn
from lazydelta.protocol.arrow_types import decoded_type, is_list
from lazydelta.protocol.file_names import LogFile
from lazydelta.protocol.values import folder_name
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import flags
from lazydelta.storage import Store
from lazydelta.write.commit import num_records
from lazydelta.write.data_files import Partition, coded, groups_of

__all__ = ["BATCH_FIELD", "BatchDigest", "BatchRecord", "RowCounter", "check_repeat", "find_batch"]


logger = logging.getLogger(__name__)

BATCH_FIELD = "lazydeltaBatch"
"""The field of ``commitInfo`` that holds the record. Other readers ignore unknown fields there."""

# Beyond this number, partitions are recorded as a digest to keep the line short.
_LISTED_PARTITIONS = 48
_SHOWN_PARTITIONS = 4
_NAMED_SOURCES = 3
_COMMITS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """Description of a batch. ``partitions`` maps folders to row counts; ``timestamps`` is the time range and the sum.

    ``digest`` covers all rows. ``plan`` identifies the planned contents of a micro-batch. ``sources`` identify the
    source files, and ``named`` holds some of their names. A batch with sources is compared by them alone, and its other
    fields may stay empty. With ``is_stream``, a batch that cannot be compared is refused: a stream repeats at most its
    last batch, whose commit exists unless it was deleted.
    """

    rows: int = 0
    rejected: int = 0
    partitions: Mapping[str, int] = field(default_factory=dict)
    timestamps: tuple[str, str, str] | None = None
    sources: tuple[str, ...] | None = None
    named: tuple[str, ...] = ()
    digest: str | None = None
    plan: str | None = None
    is_stream: bool = False

    @classmethod
    def of_adds(cls, adds: Iterable[Add], **more: Any) -> Self:
        """Return the record of files that are about to be committed."""
        rows, partitions = 0, Counter[str]()
        for each in adds:
            count = num_records(each.stats) or 0
            rows += count
            if each.partition_values:
                partitions[folder_name(each.partition_values)] += count
        return cls(rows=rows, partitions=partitions, **more)

    def from_sources(self, files: Iterable[tuple[str, int]]) -> Self:
        """Return the record of a batch that consists of source files, given as names and sizes."""
        found = sorted(files)
        marks = tuple(_mark(name, size) for name, size in found)
        return replace(self, sources=marks, named=tuple(name for name, _ in found[:_NAMED_SOURCES]))

    def body(self) -> dict[str, Any]:
        """Return the record as stored in the commit."""
        body: dict[str, Any] = {"rows": self.rows, "rejected": self.rejected, "numPartitions": len(self.partitions)}
        listed = dict(sorted(self.partitions.items()))
        if len(listed) <= _LISTED_PARTITIONS:
            body["partitions"] = listed
        else:
            body["partitionsDigest"] = hashlib.sha256(msgspec.json.encode(list(listed.items()))).hexdigest()
        if self.timestamps is not None:
            body["moments"] = list(self.timestamps)
        if self.sources is not None:
            body["sources"], body["sourceNames"] = list(self.sources), list(self.named)
        return body | {key: value for key, value in (("digest", self.digest), ("plan", self.plan)) if value is not None}

    def is_same(self, recorded: Mapping[str, Any]) -> bool | None:
        """Return whether a commit holds this batch, or None if its record is not conclusive."""
        known = recorded.get("sources")
        if self.sources is not None:
            # Some source files may have been removed since. The remaining ones must be a subset of the recorded ones.
            return None if not isinstance(known, list) else set(self.sources) <= set(known)
        if self.plan is not None and self.plan == recorded.get("plan"):
            return True
        ours = self.body()
        names: tuple[str, ...] = ("rows", "rejected", "numPartitions", "partitions", "partitionsDigest", "moments")
        if self.digest is not None and "digest" in recorded:
            names = ("rows", "rejected", "digest")
        return all(recorded.get(name) == ours.get(name) for name in names) if "rows" in recorded else None


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The commit of a batch and its record, which is None if another writer made the commit.

    ``version`` is None if the log has no such commit: it was cleaned up or, with ``was_never``, never existed.
    """

    version: int | None = None
    recorded: Mapping[str, Any] | None = None
    was_never: bool = False


class RowCounter:
    """Counts rows per partition in the same way as the data file writer. ``logged`` are the physical column names."""

    def __init__(self, partition_columns: Sequence[str], logged: Sequence[str] | None = None) -> None:
        self.rows = 0
        self._columns = tuple(partition_columns)
        self._logged = self._columns if logged is None else tuple(logged)
        self._counts: Counter[Partition] = Counter()

    def write(self, rows: pa.RecordBatch) -> None:
        """Count the rows of a batch."""
        self.rows += rows.num_rows
        if rows.num_rows == 0 or not self._columns:
            return
        groups, inverse = groups_of([coded(rows.column(name), name) for name in self._columns])
        for partition, count in zip(groups, np.bincount(inverse, minlength=len(groups)).tolist(), strict=True):
            self._counts[partition] += count

    @property
    def partitions(self) -> Counter[str]:
        """Return the row count of each folder."""
        named = ((dict(zip(self._logged, each, strict=True)), count) for each, count in self._counts.items())
        return Counter({folder_name(values): count for values, count in named})


def find_batch(store: Store, txn: Txn, newest: int) -> CommittedBatch:
    """Find the commit of a batch.

    Commits are read newest first, so the last batch of an application is found at once. An older batch costs reading
    all commits since.
    """
    upper = newest
    while upper >= 0:
        lower = max(0, upper - _COMMITS_AT_ONCE + 1)
        files = list(list_commits(store, lower, upper))
        if [each.version for each in files] != list(range(lower, upper + 1)):
            return _among(store, files, txn) or CommittedBatch()  # older commits were cleaned up
        if (found := _among(store, files, txn)) is not None:
            return found
        upper = lower - 1
    return CommittedBatch(was_never=True)


def _among(store: Store, files: Sequence[LogFile], txn: Txn) -> CommittedBatch | None:
    """Search commits for a batch, newest first. Return None if they are not conclusive."""
    with closing(ReverseCommitReader(store, files)) as commits:
        for commit in commits:
            found, info = _header(commit.actions, txn.app_id)
            if found is not None and found.version == txn.version:
                recorded = info.get(BATCH_FIELD)
                return CommittedBatch(commit.file.version, recorded if isinstance(recorded, dict) else None)
            if found is not None and found.version < txn.version:  # the versions of an application only increase
                return CommittedBatch(was_never=True)
    return None


def _mark(name: str, size: int) -> str:
    return hashlib.blake2b(f"{name}\0{size}".encode(errors="surrogateescape"), digest_size=6).hexdigest()


def _header(actions: Iterable[Sequence[LogLine]], app_id: str) -> tuple[Txn | None, dict[str, Any]]:
    info: dict[str, Any] = {}
    for lines in actions:
        for line in lines:
            if line.commit_info is not None:
                info = line.commit_info
            elif line.txn is not None and line.txn.app_id == app_id:
                return line.txn, info
    return None, info


def check_repeat(store: Store, txn: Txn, batch: BatchRecord, newest: int) -> None:
    """Raise `WriteError` unless the table has this same batch under the application and version.

    An empty batch always passes, because no rows can be lost.
    """
    if not (batch.rows or batch.rejected or batch.sources):
        return
    found = find_batch(store, txn, newest)
    same = None if found.recorded is None else batch.is_same(found.recorded)
    if same:
        return
    kind = "Micro-batch" if batch.is_stream else "Batch"
    name = f"{kind} {txn.version} of the application {txn.app_id!r}"
    ours = _described(batch.body())
    if found.recorded is not None and same is False:
        message = (
            f"{name} is in the table at {store.uri} since version {found.version}, with {_described(found.recorded)}; "
            f"another batch has the same number, with {ours}"
        )
        raise WriteError(message, path=store.uri, version=found.version, hint=_HINTS[batch.is_stream])
    if found.was_never:
        message = f"The table at {store.uri} has later batches of the application {txn.app_id!r}, but never had"
        raise WriteError(f"{message} number {txn.version}: {ours}", path=store.uri, hint=_HINTS[batch.is_stream])
    message = f"{name} is in the table at {store.uri}, but its commit is gone, or does not say what it was"
    if batch.is_stream:
        hint = "whether they are the same is unknown; use a new checkpoint location"
        raise WriteError(f"{message}: now it has {ours}", path=store.uri, hint=hint)
    # A job may be repeated long after its commit was cleaned up, and a repeat is documented as a no-op.
    logger.warning("%s; it is taken for done", message)


_HINTS = {
    True: "the checkpoint location is older than the table, or the query was changed, or computes other values each "
    "time: use the newest copy of the location with the unchanged query, or a new location",
    False: "nothing was written; the batch numbers of an application must increase, one per batch",
}


def _described(body: Mapping[str, Any]) -> str:
    parts: list[str] = []
    if body.get("sources"):
        names = [str(each) for each in body.get("sourceNames") or ()]
        more = ", …" if len(names) < len(body["sources"]) else ""
        parts.append(f"{len(body['sources'])} source files ({', '.join(names)}{more})")
    if body.get("rows") or not parts:
        parts.append(f"{body.get('rows')} rows")
    if body.get("rejected"):
        parts.append(f"{body['rejected']} rejected rows")
    listed = body.get("partitions")
    if isinstance(listed, dict) and len(listed) <= _SHOWN_PARTITIONS and listed:
        parts.append(" and ".join(f"{count} in {name}" for name, count in listed.items()))
    elif body.get("numPartitions"):
        parts.append(f"{body['numPartitions']} partitions")
    if body.get("moments"):
        parts.append("times from {} to {} (sum {})".format(*body["moments"]))
    if body.get("digest"):
        parts.append(f"values of the digest {body['digest']}")
    return ", ".join(parts)


# ``BatchDigest``: a number that identifies the rows of a batch, independent of tasks, batch boundaries and row order.
#
# It is the sum of the row hashes. A row hash combines the value hashes, each mixed with its column name, so column
# order does not matter either. Nulls add nothing. The arithmetic is vectorized and reproducible across processes.


if TYPE_CHECKING:
    import numpy.typing as npt  # it generates its docstrings at import

    Numbers = npt.NDArray[np.uint64]


_MODULUS = 1 << 64
# Strings are hashed eight bytes at a time for all rows at once. A long string would slow down its whole batch.
_LONG, _WORD = 512, 8
_FACTORS = np.frombuffer(hashlib.shake_256(b"rows").digest(8 * (_LONG // _WORD + 1)), np.uint64) | np.uint64(1)
_SEEDS = _FACTORS[:4]
_MASKS = np.array([(1 << (8 * count)) - 1 for count in range(_WORD + 1)], np.uint64)
_ABSENT, _ONE, _HALF = np.uint64(0), np.uint64(1), np.uint64(32)
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class BatchDigest:
    """Digest of the rows added so far."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        found = _spread(_row_hashes(zip(rows.schema.names, rows.columns, strict=True), rows.num_rows))
        self.value = (self.value + int(found.sum(dtype=np.uint64))) % _MODULUS

    @staticmethod
    def text(values: Iterable[int]) -> str:
        """Return the combined digest of several tasks as a hex string."""
        return f"{sum(values) % _MODULUS:016x}"


def _row_hashes(columns: Iterable[tuple[str, pa.Array]], count: int) -> Numbers:
    total = np.ones(count, np.uint64)
    for name, column in columns:
        seed, factor = _of_name(name.lower())
        found = _folded(_hashes(column) ^ seed)
        found *= factor
        total += _present(found, column)
    return total


@cache
def _of_name(name: str) -> tuple[np.uint64, np.uint64]:
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    seed, factor = np.frombuffer(digest, np.uint64)
    return seed, factor | _ONE


def _folded(values: Numbers) -> Numbers:
    """Mix the high bits into the low bits, so that multiplication by an odd number depends on all bits."""
    values ^= values >> _HALF
    return values


def _present(hashes: Numbers, column: pa.Array) -> Numbers:
    return hashes if column.null_count == 0 else np.where(flags(pc.is_valid(column)), hashes, _ABSENT)


def _spread(values: Numbers) -> Numbers:
    """Mix the bits of each number so that close numbers end up far apart (the SplitMix64 finalizer)."""
    found = values.copy()
    for shift, factor in _STEPS:
        found ^= found >> np.uint64(shift)
        found *= np.uint64(factor)
    found ^= found >> np.uint64(31)
    return found


def _hashes(column: pa.Array) -> Numbers:
    """Return a hash for each value of a column. The hashes of nulls are arbitrary."""
    kind, count = column.type, len(column)
    if decoded_type(kind) != kind:
        return _hashes(pc.cast(column, decoded_type(kind)))
    if count == 0 or pa.types.is_null(kind):
        return np.zeros(count, np.uint64)
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        return _row_hashes(zip(names, column.flatten(), strict=True), count)
    if pa.types.is_map(kind):
        keys, values = _element_hashes(column, column.keys), _element_hashes(column, column.items)
        return _sums(column, _spread(keys * _SEEDS[0] + values))
    if is_list(kind):
        column = column if pa.types.is_list(kind) else pc.cast(column, pa.list_(kind.value_field))
        elements, starts = _element_hashes(column, column.values), _starts(column)
        places = np.arange(len(elements), dtype=np.uint64) - np.repeat(starts[:-1], np.diff(starts)).astype(np.uint64)
        return _sums(column, _spread(elements + places * _SEEDS[1] + _ONE))
    return _leaf_hashes(column)


def _leaf_hashes(column: pa.Array) -> Numbers:
    kind, count = column.type, len(column)
    if pa.types.is_boolean(kind):
        return flags(column).astype(np.uint64)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        width = kind.bit_width // 8
        code = f"f{width}" if pa.types.is_floating(kind) else f"u{min(width, 8)}"
        words = max(1, width // 8)
        stored = np.frombuffer(column.buffers()[1], code, count * words, column.offset * width)
        if pa.types.is_floating(kind):
            stored = np.where(np.isnan(stored), np.array(np.nan, code), stored).view(f"u{width}")
        found: Numbers = stored[::words].astype(np.uint64)
        for index in range(1, words):
            found = _spread(found) + stored[index::words]
        return found
    return _text_hashes(pc.cast(column, pa.binary()))


def _text_hashes(column: pa.Array) -> Numbers:
    starts, data = _starts(column), column.buffers()[2]
    lengths, starts = np.diff(starts), starts[:-1]
    used = np.zeros(int(lengths.sum()) + _WORD, np.uint8)  # padded: the last word may read past the end of the data
    if data is not None and len(used) > _WORD:
        used[:-_WORD] = np.frombuffer(data, np.uint8, len(used) - _WORD, int(_offsets(column)[0]))
    words = np.ndarray((len(used) - _WORD + 1,), np.dtype("<u8"), used, strides=(1,))  # one word at every byte offset
    found: Numbers = lengths.astype(np.uint64) * _FACTORS[0]
    shortest = int(lengths.min())
    for number, position in enumerate(range(0, min(int(lengths.max()), _LONG), _WORD), 1):
        if position + _WORD <= shortest:
            found += _folded(words[starts + position]) * _FACTORS[number]
            continue
        some = slice(None) if position < shortest else np.flatnonzero(lengths > position)
        word = words[starts[some] + position] & _MASKS[np.minimum(lengths[some] - position, _WORD)]
        found[some] += _folded(word) * _FACTORS[number]
    for index in np.flatnonzero(lengths > _LONG).tolist():
        text = used[starts[index] : starts[index] + lengths[index]].tobytes()
        found[index] = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
    return found


def _offsets(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4).astype(np.int64)


def _starts(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the start offset of each value's elements relative to the first, and the end offset of the last."""
    found: npt.NDArray[np.int64] = _offsets(column) - _offsets(column)[0]
    return found


def _element_hashes(column: pa.Array, elements: pa.Array) -> Numbers:
    first, last = _offsets(column)[[0, -1]].tolist()
    within = elements.slice(first, last - first)
    return _present(_spread(_hashes(within) ^ _SEEDS[3]), within)


def _sums(column: pa.Array, elements: Numbers) -> Numbers:
    """Return for each value the sum of its element hashes, combined with the element count."""
    sums = np.zeros(len(elements) + 1, np.uint64)
    np.cumsum(elements, out=sums[1:])
    starts = _starts(column)
    found: Numbers = sums[starts[1:]] - sums[starts[:-1]] + np.diff(starts).astype(np.uint64) * _SEEDS[2]
    return found

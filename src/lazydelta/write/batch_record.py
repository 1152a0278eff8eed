"""``BatchRecord``: what a batch that names itself was, kept in its commit, so that a repeated one can be compared.

An application's id and version say that a batch is there, not that it is the same one: a stream whose checkpoint
location was restored from a backup counts on from an older number, and a job may be given a number twice. To skip such
a batch would lose its rows. So the commit says how many rows it has, how many of them each partition, what their times
are, and which files they came from, as far as that is known; another batch under the same number is an error.

Other values are not compared: rows that are computed again (a random number, a sum of floats) may differ in a batch
that is the same. Times are, since batches of a steady source often have the same number of rows.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.errors import WriteError
from lazydelta.log.actions import Add, LogLine, Txn
from lazydelta.log.names import LogFile
from lazydelta.log.reverse_commits import ReverseCommitReader
from lazydelta.log.segment import list_commits
from lazydelta.storage import Store
from lazydelta.types.partition_text import folder_name
from lazydelta.write.commit_lines import num_records
from lazydelta.write.partition_rows import Partition, coded, groups_of

__all__ = ["BATCH_FIELD", "BatchRecord", "CommittedBatch", "RowCounter", "check_repeat", "find_batch"]

logger = logging.getLogger(__name__)

BATCH_FIELD = "lazydeltaBatch"
"""The field of ``commitInfo`` that holds it; other readers ignore what they do not know there."""

# More partitions than this are recorded by a digest, so that the line stays small.
_LISTED_PARTITIONS = 48
_SHOWN_PARTITIONS = 4
_NAMED_SOURCES = 3
_COMMITS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """What a batch is; ``partitions`` has the rows of each folder, ``moments`` the first time, the last and the sum.

    ``sources`` are marks of the files that the rows came from, and ``named`` the names of some; a batch that has them
    is known by them alone, and its other numbers may be left open. With ``is_stream`` what cannot be compared is
    refused: a stream repeats at most its last batch, whose commit is there unless somebody took it away.
    """

    rows: int = 0
    rejected: int = 0
    partitions: Mapping[str, int] = field(default_factory=dict)
    moments: tuple[str, str, str] | None = None
    sources: tuple[str, ...] | None = None
    named: tuple[str, ...] = ()
    is_stream: bool = False

    @classmethod
    def of_adds(cls, adds: Iterable[Add], **more: Any) -> Self:
        """Return the record of files that are to be committed."""
        rows, partitions = 0, Counter[str]()
        for each in adds:
            count = num_records(each.stats) or 0
            rows += count
            if each.partition_values:
                partitions[folder_name(each.partition_values)] += count
        return cls(rows=rows, partitions=partitions, **more)

    def from_sources(self, files: Iterable[tuple[str, int]]) -> Self:
        """Return the record of a batch that consists of files, given by name and size."""
        found = sorted(files)
        marks = tuple(_mark(name, size) for name, size in found)
        return replace(self, sources=marks, named=tuple(name for name, _ in found[:_NAMED_SOURCES]))

    def body(self) -> dict[str, Any]:
        """Return what the commit says."""
        body: dict[str, Any] = {"rows": self.rows, "rejected": self.rejected, "numPartitions": len(self.partitions)}
        listed = dict(sorted(self.partitions.items()))
        if len(listed) <= _LISTED_PARTITIONS:
            body["partitions"] = listed
        else:
            body["partitionsDigest"] = hashlib.sha256(msgspec.json.encode(list(listed.items()))).hexdigest()
        if self.moments is not None:
            body["moments"] = list(self.moments)
        if self.sources is not None:
            body["sources"], body["sourceNames"] = list(self.sources), list(self.named)
        return body

    def is_same(self, recorded: Mapping[str, Any]) -> bool | None:
        """Tell whether a commit has this batch, None where it does not say enough."""
        known = recorded.get("sources")
        if self.sources is not None:
            # Some of the files may have been tidied away since then; what is left must have been part of it.
            return None if not isinstance(known, list) else set(self.sources) <= set(known)
        ours = self.body()
        names = ("rows", "rejected", "numPartitions", "partitions", "partitionsDigest", "moments")
        return all(recorded.get(name) == ours.get(name) for name in names) if "rows" in recorded else None


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The commit of a batch, and what it says of it; nothing where another writer made it.

    ``version`` is None where the log has no such commit: it was cleaned up or, with ``was_never``, never there.
    """

    version: int | None = None
    recorded: Mapping[str, Any] | None = None
    was_never: bool = False


class RowCounter:
    """Counts the rows of a table by partition, as those do that write them; ``logged`` are the names in the log."""

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
        """Return the rows of each folder."""
        named = ((dict(zip(self._logged, each, strict=True)), count) for each, count in self._counts.items())
        return Counter({folder_name(values): count for values, count in named})


def find_batch(store: Store, txn: Txn, newest: int) -> CommittedBatch:
    """Return the commit of a batch.

    The newest commits are read first, so the last batch of an application is found at once; one before it costs the
    commits since then.
    """
    upper = newest
    while upper >= 0:
        lower = max(0, upper - _COMMITS_AT_ONCE + 1)
        files = list(list_commits(store, lower, upper))
        if [each.version for each in files] != list(range(lower, upper + 1)):
            return _among(store, files, txn) or CommittedBatch()  # the others were cleaned up
        if (found := _among(store, files, txn)) is not None:
            return found
        upper = lower - 1
    return CommittedBatch(was_never=True)


def _among(store: Store, files: Sequence[LogFile], txn: Txn) -> CommittedBatch | None:
    """Look for a batch in commits, the last of them first; None if they do not tell."""
    with closing(ReverseCommitReader(store, files)) as commits:
        for commit in commits:
            found, info = _header(commit.actions, txn.app_id)
            if found is not None and found.version == txn.version:
                recorded = info.get(BATCH_FIELD)
                return CommittedBatch(commit.file.version, recorded if isinstance(recorded, dict) else None)
            if found is not None and found.version < txn.version:  # an application's versions only grow
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
    """Raise unless the batch is the one that the table has under this application and version.

    An empty one is let through: there is nothing to lose.
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
            f"another one came under the same number, with {ours}"
        )
        raise WriteError(message, path=store.uri, version=found.version, hint=_HINTS[batch.is_stream])
    if found.was_never:
        message = f"The table at {store.uri} has later batches of the application {txn.app_id!r}, and never had"
        raise WriteError(f"{message} number {txn.version}: {ours}", path=store.uri, hint=_HINTS[batch.is_stream])
    message = f"{name} is in the table at {store.uri}, but its commit is gone, or does not say what it was"
    if batch.is_stream:
        hint = "whether this is the same cannot be told; go on with a fresh checkpoint location"
        raise WriteError(f"{message}: now it has {ours}", path=store.uri, hint=hint)
    # A job may be run again long after its commit was cleaned up, and has been told that this does nothing.
    logger.warning("%s; it is taken for done", message)


_HINTS = {
    True: "the checkpoint location is older than the table, or the query was changed: go on with its newest copy and "
    "the query as it was, or with a fresh location",
    False: "nothing was written; an application gives its batches numbers that grow, each to one batch",
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
    return ", ".join(parts)

"""``CommitLines``: the lines of a commit, built chunk by chunk.

A commit is published by one put-if-absent, and no store takes that in pieces: at that moment the whole commit is in
memory once. Until then its file actions are kept encoded, above a few megabytes in a temporary file, so a transaction
that removes a million files holds bytes and not objects.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata as distributions
from typing import Any

import msgspec

from lazydelta.log.action_bodies import (
    add_body,
    cdc_body,
    domain_body,
    metadata_body,
    protocol_body,
    remove_body,
    txn_body,
)
from lazydelta.log.actions import Add, DomainMetadata, Metadata, Protocol, Remove, Txn

__all__ = [
    "CommitInfo",
    "CommitLines",
    "FileTotals",
    "engine",
    "header_lines",
    "num_records",
]

_IN_MEMORY = 8 << 20
_CHUNK = 1 << 20

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class FileTotals:
    """What the file actions amount to; ``rows_known`` and ``sizes_known`` say whether every action told."""

    added: int = 0
    added_bytes: int = 0
    added_rows: int = 0
    rows_known: bool = True
    removed: int = 0
    removed_bytes: int = 0
    sizes_known: bool = True

    def metrics(self) -> dict[str, str]:
        """Return the totals as ``operationMetrics``, under Delta-Spark's names."""
        found = {"numFiles": self.added, "numOutputBytes": self.added_bytes}
        if self.rows_known:
            found["numOutputRows"] = self.added_rows
        if self.removed:
            found["numRemovedFiles"] = self.removed
            if self.sizes_known:
                found["numRemovedBytes"] = self.removed_bytes
        return {key: str(value) for key, value in found.items()}


class _Records(msgspec.Struct, rename="camel"):
    num_records: int | None = None


class CommitLines:
    """The file actions of one commit, encoded."""

    def __init__(self) -> None:
        self._spool = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY, prefix="lazydelta-commit-")  # noqa: SIM115
        self.totals = FileTotals()

    def add(self, adds: Iterable[Add]) -> None:
        """Append files that become part of the table."""
        totals = self.totals
        lines: list[bytes] = []
        for each in adds:
            lines.append(_encode({"add": add_body(each)}))
            totals.added += 1
            totals.added_bytes += each.size
            rows = num_records(each.stats)
            totals.added_rows += rows or 0
            totals.rows_known &= rows is not None
        self._write(lines)

    def remove(self, removes: Iterable[Remove]) -> None:
        """Append files that leave the table."""
        totals = self.totals
        lines: list[bytes] = []
        for each in removes:
            lines.append(_encode({"remove": remove_body(each)}))
            totals.removed += 1
            totals.removed_bytes += each.size or 0
            totals.sizes_known &= each.size is not None
        self._write(lines)

    def note_changes(self, files: Iterable[Add]) -> None:
        """Append files with rows that were changed; they are no part of the table."""
        self._write([_encode({"cdc": cdc_body(each)}) for each in files])

    def chunks(self) -> Iterator[bytes]:
        """Yield what was written so far, in pieces."""
        self._spool.seek(0)
        while chunk := self._spool.read(_CHUNK):
            yield chunk
        self._spool.seek(0, io.SEEK_END)

    def below(self, header: bytes) -> bytes:
        """Return the whole commit: ``header``, then the file actions."""
        whole = io.BytesIO()
        whole.write(header)
        self._spool.seek(0)
        shutil.copyfileobj(self._spool, whole, _CHUNK)
        self._spool.seek(0, io.SEEK_END)
        return whole.getvalue()

    def close(self) -> None:
        """Give back memory and the temporary file."""
        self._spool.close()

    def __del__(self) -> None:
        spool = getattr(self, "_spool", None)
        if spool is not None:
            spool.close()

    def _write(self, lines: list[bytes]) -> None:
        if lines:
            self._spool.write(b"\n".join([*lines, b""]))


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """The provenance of a commit, which is also how its writer knows it again."""

    txn_id: str
    operation: str
    parameters: Mapping[str, Any]
    timestamp: int
    in_commit_timestamp: int | None
    is_blind_append: bool
    read_version: int | None
    metrics: Mapping[str, str]
    more: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the action's fields; the id stands first so that a look at the first bytes finds it."""
        body: dict[str, Any] = {"txnId": self.txn_id}
        if self.in_commit_timestamp is not None:
            body["inCommitTimestamp"] = self.in_commit_timestamp
        body |= {
            "timestamp": self.timestamp,
            "operation": self.operation,
            "operationParameters": {key: _text(value) for key, value in self.parameters.items()},
            "isBlindAppend": self.is_blind_append,
            "operationMetrics": dict(self.metrics),
            "engineInfo": engine(),
        }
        if self.read_version is not None:
            body["readVersion"] = self.read_version
        return {**body, **self.more}


def header_lines(
    info: CommitInfo,
    *,
    protocol: Protocol | None = None,
    metadata: Metadata | None = None,
    txns: Iterable[Txn] = (),
    domains: Iterable[DomainMetadata] = (),
) -> bytes:
    """Return the lines before the file actions; in-commit timestamps ask for ``commitInfo`` to be the first."""
    lines: list[dict[str, Any]] = [{"commitInfo": info.body()}]
    if protocol is not None:
        lines.append({"protocol": protocol_body(protocol)})
    if metadata is not None:
        lines.append({"metaData": metadata_body(metadata)})
    lines.extend({"txn": txn_body(each)} for each in txns)
    lines.extend({"domainMetadata": domain_body(each)} for each in domains)
    return b"".join(_encode(line) + b"\n" for line in lines)


@cache
def engine() -> str:
    """Return the name under which we sign commits."""
    try:
        return f"lazydelta/{distributions.version('lazydelta')}"
    except distributions.PackageNotFoundError:
        return "lazydelta"  # run from a source folder that is not installed


def num_records(stats: str | None) -> int | None:
    """Return how many rows the statistics of a file say that it has."""
    if stats is None:
        return None
    try:
        return msgspec.json.decode(stats, type=_Records).num_records
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _text(value: Any) -> str:
    # Delta-Spark stores parameters as text, and everything but text as the JSON of it.
    return value if isinstance(value, str) else _encode(value).decode()

"""``ChecksumCheck``: compare a version with every field of its checksum.

A checksum provides protocol and metadata without reading the log, so a wrong one goes unnoticed until it is compared. A
full scan reads the whole log anyway and can compare at little cost: it passes the tail through here, the reader counts
the files, and only the few checkpoint rows that are not files are read again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from lazydelta.errors import ChecksumMismatchError, LazyDeltaError
from lazydelta.log.checkpoint.reader import checkpoint_actions
from lazydelta.log.checksum.reader import VersionChecksum
from lazydelta.log.replay import TailCommit
from lazydelta.log.segment import LogSegment
from lazydelta.log.snapshot import LogSnapshot
from lazydelta.protocol.actions import DomainMetadata, LogLine, Metadata, Protocol
from lazydelta.protocol.file_names import LogFile
from lazydelta.protocol.properties import TableProperties
from lazydelta.storage import Store

__all__ = ["ChecksumCheck"]

logger = logging.getLogger(__name__)

_NAMED_DIFFERENCES = 3

_Fields = dict[str, Any]


class ChecksumCheck(msgspec.Struct):
    """One comparison; the newest action of each kind, application and domain counts."""

    segment: LogSegment
    file: LogFile
    checksum: VersionChecksum
    _newest: dict[tuple[str, str], tuple[float, LogLine]] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: LogSnapshot) -> ChecksumCheck | None:
        """Return the comparison for a version; None if it has no checksum of its own."""
        file, checksum = snapshot.segment.checksum, snapshot.checksum
        return None if file is None or checksum is None else cls(snapshot.segment, file, checksum)

    def watch(self, commits: Iterable[TailCommit]) -> Iterator[TailCommit]:
        """Yield the commits, newest first, and record their actions other than files as they are read."""
        for age, commit in enumerate(commits):
            yield TailCommit(commit.file, self._watched(commit.actions, age), commit.rows)

    def mismatch(self, store: Store, *, num_files: int, size: int) -> ChecksumMismatchError | None:
        """Return the error to raise or warn about if the log, with this many files, does not match the checksum.

        The checkpoint is read from ``store``. An unreadable checkpoint does not count against the checksum.
        """
        problems = list(self._counts(num_files, size))
        try:
            self._ask_checkpoint(store)
        except LazyDeltaError as error:
            logger.info("%s is compared by its counts only: %s", self.file.path, error)
        else:
            problems += self._differences()
        if not problems:
            return None
        return ChecksumMismatchError(
            f"{self.file.path} {'; '.join(problems)}",
            path=self.file.path,
            version=self.file.version,
            hint="the log or its checksum is damaged; set the option checksum='off' to read it regardless",
        )

    def _watched(self, actions: Iterable[list[LogLine]], age: int) -> Iterator[list[LogLine]]:
        for lines in actions:
            for line in lines:
                if line.add is None and line.remove is None:
                    self._note(line, age)
            yield lines

    def _note(self, line: LogLine, age: float) -> None:
        if line.txn is not None:
            key = ("txn", line.txn.app_id)
        elif line.domain_metadata is not None:
            key = ("domainMetadata", line.domain_metadata.domain)
        elif line.describes_table():
            key = ("protocol" if line.has("protocol") else "metaData", "")
        else:
            return
        known = self._newest.get(key)
        # The last line of a commit counts, and a reader may fetch several commits before it decodes them.
        if known is None or age <= known[0]:
            self._newest[key] = (age, line)

    def _ask_checkpoint(self, store: Store) -> None:
        wanted = [name for name in ("protocol", "metaData") if (name, "") not in self._newest]
        wanted += ["txn"] if self._compares_transactions() else []
        wanted += ["domainMetadata"] if self.checksum.domain_metadata is not None else []
        if wanted:
            for line in checkpoint_actions(store, self.segment, *wanted):
                self._note(line, math.inf)

    def _compares_transactions(self) -> bool:
        # If transactions expire, the valid ones depend on the time of the check.
        expires = TableProperties.of(self.checksum.metadata, strict=False).transaction_retention is not None
        return self.checksum.set_transactions is not None and not expires

    def _counts(self, num_files: int, size: int) -> Iterator[str]:
        said = self.checksum
        if (said.num_files, said.table_size_bytes) != (num_files, size):
            yield (
                f"counts {said.num_files} files of {said.table_size_bytes} bytes, "
                f"the log gives {num_files} files of {size} bytes"
            )

    def _differences(self) -> Iterator[str]:
        said = self.checksum
        for name, mine in (("protocol", said.protocol), ("metaData", said.metadata)):
            fields = _differing(mine, self._newest.get((name, "")))
            if fields:
                yield f"has another {name} than the log, by its {', '.join(fields)}"
        lines = [line for _, line in self._newest.values()]
        if self._compares_transactions():
            yield from _compared(
                "application",
                {each.app_id: each.version for each in said.set_transactions or ()},
                {line.txn.app_id: line.txn.version for line in lines if line.txn is not None},
            )
        if said.domain_metadata is not None:
            logged = [line.domain_metadata for line in lines if line.domain_metadata is not None]
            yield from _compared("domain", _configurations(said.domain_metadata), _configurations(logged))


def _configurations(domains: Iterable[DomainMetadata]) -> dict[str, str]:
    return {each.domain: each.configuration for each in domains if not each.removed}


def _differing(said: Protocol | Metadata, found: tuple[float, LogLine] | None) -> list[str]:
    mine, logged = _comparable(said), _Fields()
    if found is not None:
        raw = found[1].protocol if isinstance(said, Protocol) else found[1].meta_data
        try:
            logged = _comparable(msgspec.json.decode(raw, type=type(said)))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            logged = _Fields()  # the checksum has a value where the log has none that is readable
    return [name for name in sorted(mine.keys() | logged.keys()) if mine.get(name) != logged.get(name)]


def _comparable(action: Protocol | Metadata) -> _Fields:
    """Return the non-empty fields, with features sorted: empty fields may be omitted, and features are unordered."""
    fields: _Fields = msgspec.to_builtins(action)
    for name in ("readerFeatures", "writerFeatures"):
        if fields.get(name):
            fields[name] = sorted(fields[name])
    if "format" in fields:
        fields["format"] = {key: value for key, value in fields["format"].items() if value}
    return {name: value for name, value in fields.items() if value not in (None, "", {}, (), [])}


def _compared(what: str, said: _Fields, logged: _Fields) -> Iterator[str]:
    names = [name for name in sorted(said.keys() | logged.keys()) if said.get(name) != logged.get(name)]
    for name in names[:_NAMED_DIFFERENCES]:
        yield f"has the {what} {name!r} at {said.get(name, 'nothing')!r}, the log at {logged.get(name, 'nothing')!r}"
    if len(names) > _NAMED_DIFFERENCES:
        yield f"differs in {len(names) - _NAMED_DIFFERENCES} more of them"

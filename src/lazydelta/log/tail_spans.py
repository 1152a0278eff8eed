"""``LogBase``: what serves in place of a checkpoint, and ``TailSpans``: runs of commits that come as rows.

The log does not know the format of either (a sidecar's manifest and delta sidecars, see ``sidecar.reading``). It knows
where in the tail a span belongs, and that the commits still exist. If a span fails at any point, its commits are read
instead. A span holds no protocol and no metadata, so lookups of these skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np

from lazydelta.log.checkpoint.columns import StatsWanted
from lazydelta.log.commits import Prefetch
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.segment import Checkpoint, LogSegment
from lazydelta.protocol.actions import LogLine, Metadata
from lazydelta.protocol.actions import Protocol as TableProtocol
from lazydelta.protocol.file_names import LogFile
from lazydelta.storage import Store

__all__ = [
    "BaseState",
    "FoundSpans",
    "LogBase",
    "PendingState",
    "SpanError",
    "SpanRows",
    "TailSpan",
    "TailSpans",
]


class SpanError(Exception):
    """A span that cannot be used. It never leaves a scan: the span's commits are read instead."""


class SpanRows(msgspec.Struct, frozen=True):
    """File actions in order of precedence: newest commit first, and within a commit the adds before the removes.

    Rows of ``files`` that are not in ``is_add`` are removes, which have only a path and a deletion vector. ``rest`` is
    the newest version that may still have rows to come: the version of the last row, or after the final rows the
    version below the span.
    """

    files: FileBatch
    is_add: np.ndarray[Any, np.dtype[np.bool_]]
    rest: int


class SpanReader(Protocol):
    """One read of a span; the objects needed first are requested when it begins."""

    def lines(self) -> list[LogLine]:
        """Return the actions that are neither about files nor the table, oldest first; blocks until they arrive."""

    def rows(self) -> Iterator[SpanRows]:
        """Yield the file actions, newest first; a single empty batch if there are none."""

    def close(self) -> None:
        """Cancel pending requests."""


class TailSpan(Protocol):
    """The commits ``file.version`` to ``file.end``, as far as the segment has them, of the table with this id."""

    @property
    def file(self) -> LogFile:
        """Return the object that holds the span."""

    @property
    def table_id(self) -> str:
        """Return the id of the table that the span was built from."""

    def read(self, store: Store, wanted: StatsWanted | None) -> SpanReader:
        """Start reading the span with the statistics wanted; does not block and does not raise."""


class FoundSpans(msgspec.Struct, frozen=True):
    """The disjoint spans of a tail, ascending, and the rejected ones by path with the reason."""

    spans: tuple[TailSpan, ...] = ()
    rejected: dict[str, str] = {}


class BaseState(NamedTuple):
    """Protocol and metadata at a checkpoint, and the object that they were read from."""

    protocol: TableProtocol
    metadata: Metadata
    path: str


PendingState: TypeAlias = Callable[[], BaseState | None]
"""Waits for the pending requests; returns None if nothing proves that the state belongs to this checkpoint."""


class LogBase(Protocol):
    """What serves in place of a checkpoint and of runs of commits, in fewer round trips: the log's half of a base.

    `scan.base.ScanBase` adds the files. The log knows when to request these objects, but not their format.
    """

    def state_paths(self, store: Store, version: int) -> Sequence[str]:
        """Return the objects to request as soon as a checkpoint of this version may exist."""

    def begin_state(self, store: Store, checkpoint: Checkpoint, prefetch: Prefetch) -> PendingState | None:
        """Start reading protocol and metadata at a checkpoint, in parallel with other reads."""

    def prefetch_spans(self, store: Store, segment: LogSegment, prefetch: Prefetch) -> None:
        """Prefetch the objects that describe the spans of a tail, if the tail is long enough."""

    def find_spans(self, store: Store, segment: LogSegment, prefetch: Prefetch) -> FoundSpans:
        """Return the spans that are verified to match the listed commits."""


class TailSpans:
    """The spans of one snapshot, located on first use; thread-safe."""

    def __init__(self, base: LogBase | None = None) -> None:
        self.base = base
        self.rejected: dict[str, str] = {}
        self._found: FoundSpans | None = None
        self._lock = Lock()

    @property
    def is_unused(self) -> bool:
        """Whether no span was found so far, so that all commits were read."""
        return self._found is None or not self._found.spans

    def found(self, store: Store, segment: LogSegment, prefetch: Prefetch) -> tuple[TailSpan, ...]:
        """Return the usable spans, without those rejected since."""
        if self.base is None:
            return ()
        with self._lock:
            if self._found is None:
                self._found = self.base.find_spans(store, segment, prefetch)
                self.rejected.update(self._found.rejected)
            return tuple(span for span in self._found.spans if span.file.path not in self.rejected)

    def reject(self, path: str, reason: object) -> None:
        """Stop using the span at this path."""
        self.rejected[path] = str(reason)

    def reject_strangers(self, table_id: str) -> bool:
        """Reject the spans found so far that belong to another table, and return whether there were any."""
        known = () if self._found is None else self._found.spans
        others = [span for span in known if span.table_id != table_id and span.file.path not in self.rejected]
        for span in others:
            self.reject(span.file.path, f"it belongs to table {span.table_id}")
        return bool(others)

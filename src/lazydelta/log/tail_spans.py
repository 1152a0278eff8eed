"""``TailSpans``: runs of the tail's commits that lie ready elsewhere, as rows and not as JSON.

The log does not know what that is (delta sidecars of ours, see ``sidecar.reading.delta_spans``); it knows where in the
tail they belong, and that the commits themselves are still there. So whatever fails about a span, at any moment, its
commits are read instead. A span holds no protocol and no metadata: whoever looks for these passes it by.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Any, Protocol

import msgspec
import numpy as np

from lazydelta.log.actions import LogLine
from lazydelta.log.asked_ahead import AskedAhead
from lazydelta.log.checkpoint.checkpoint_columns import StatsWanted
from lazydelta.log.file_batch import FileBatch
from lazydelta.log.names import LogFile
from lazydelta.log.segment import LogSegment
from lazydelta.storage import Store

__all__ = ["FoundSpans", "SpanError", "SpanRows", "SpanSource", "TailSpan", "TailSpans"]


class SpanError(Exception):
    """A span that cannot be used. It never leaves a scan: its commits answer instead."""


class SpanRows(msgspec.Struct, frozen=True):
    """Actions about files in the order in which they count: newest commit first, of each the adds before the removes.

    Of the rows of ``files`` those that ``is_add`` leaves out are removes, which have a path and a deletion vector and
    nothing else. ``rest`` is the newest version that may still have rows to come: that of the last row, and behind
    the last rows of all the version below the span.
    """

    files: FileBatch
    is_add: np.ndarray[Any, np.dtype[np.bool_]]
    rest: int


class SpanReading(Protocol):
    """One reading of a span: what is needed first is asked for when it begins."""

    def lines(self) -> list[LogLine]:
        """Return the actions that are neither about files nor the table, oldest first; wait for them."""

    def rows(self) -> Iterator[SpanRows]:
        """Yield the actions about files, newest first; one batch without rows where there are none."""

    def close(self) -> None:
        """Stop what is under way."""


class TailSpan(Protocol):
    """The commits ``file.version`` to ``file.end``, as far as the segment has them, of the table with this id."""

    @property
    def file(self) -> LogFile:
        """Return the object that they are read from."""

    @property
    def table_id(self) -> str:
        """Return the id of the table that they were read from."""

    def read(self, store: Store, wanted: StatsWanted | None) -> SpanReading:
        """Begin to read it, with the statistics wanted; nothing is waited for, and nothing raised."""


class FoundSpans(msgspec.Struct, frozen=True):
    """Spans of a tail, ascending and apart from each other, and what is not used, by its path, with the reason."""

    spans: tuple[TailSpan, ...] = ()
    rejected: dict[str, str] = {}


class SpanSource(Protocol):
    """Knows where spans are."""

    def ask(self, store: Store, segment: LogSegment, ahead: AskedAhead) -> None:
        """Ask early for what tells of the spans of a tail, where it is long enough."""

    def find(self, store: Store, segment: LogSegment, ahead: AskedAhead) -> FoundSpans:
        """Return the spans that are proven to be those of the listed commits."""


class TailSpans:
    """The spans of one snapshot, found when they are first asked for; safe under threads."""

    def __init__(self, source: SpanSource | None = None) -> None:
        self.source = source
        self.rejected: dict[str, str] = {}
        self._found: FoundSpans | None = None
        self._lock = Lock()

    def found(self, store: Store, segment: LogSegment, ahead: AskedAhead) -> tuple[TailSpan, ...]:
        """Return the spans that can be used, but for those that were rejected since."""
        if self.source is None:
            return ()
        with self._lock:
            if self._found is None:
                self._found = self.source.find(store, segment, ahead)
                self.rejected.update(self._found.rejected)
            return tuple(span for span in self._found.spans if span.file.path not in self.rejected)

    def reject(self, path: str, reason: object) -> None:
        """Use the span of this path no more."""
        self.rejected[path] = str(reason)

    def reject_strangers(self, table_id: str) -> bool:
        """Reject the spans found so far that are another table's, and tell whether there are any."""
        known = () if self._found is None else self._found.spans
        others = [span for span in known if span.table_id != table_id and span.file.path not in self.rejected]
        for span in others:
            self.reject(span.file.path, f"it belongs to table {span.table_id}")
        return bool(others)

"""A stream that writes a table in its own way, and whose sidecar follows: a listener, and a function for foreachBatch.

Both only say that the table may have changed. A thread of the driver's looks, and refreshes the sidecar when there is a
new checkpoint, whoever wrote it: Delta-Spark in this stream, another job, another engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from lazydelta.maintenance.watch_thread import BackgroundWatch

__all__ = ["SidecarListener", "following_sidecar"]


class SidecarListener(StreamingQueryListener):
    """Refreshes a table's sidecar after progress of the session's streaming queries, of ``query_name`` alone if given.

    ``spark.streams.addListener(listener)`` begins it; after ``removeListener`` its ``close`` waits for what is under
    way. ``watch`` has what the last look did, and the metrics.
    """

    def __init__(
        self,
        uri: str,
        *,
        query_name: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        checkpoint_every: int | None = None,
        checksum: bool = False,
    ) -> None:
        """Make no request; ``checkpoint_every`` and ``checksum`` are those of `BackgroundWatch`."""
        self.watch = BackgroundWatch(uri, storage_options, checkpoint_every=checkpoint_every, checksum=checksum)
        self._name = query_name

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's
        """Do nothing: nothing was written yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's
        """Look at the table, in the thread: Spark's events wait for their listeners."""
        if self._name is None or event.progress.name == self._name:
            self.watch.nudge()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: ARG002, N802 - Spark's
        """Look at the table: others may write it while this stream has nothing to do."""
        self.watch.nudge()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: ARG002, N802 - Spark's
        """Look at the table for what the last micro-batch left."""
        self.watch.nudge()

    def close(self) -> None:
        """Take no more events, and wait for the look that was asked for."""
        self.watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def following_sidecar(
    write: Callable[[DataFrame, int], Any], watch: BackgroundWatch
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes as ``write`` does, and then lets the sidecar follow.

    A batch that fails is Spark's to repeat; the sidecar is not looked at then.
    """

    def write_and_nudge(batch: DataFrame, batch_id: int) -> None:
        write(batch, batch_id)
        watch.nudge()

    return write_and_nudge

"""Build a sidecar on the cluster of a Spark session, for tables with tens of millions of files.

Spark runs the tasks of ``SpreadBuild`` and shuffles their output as opaque bytes: no row becomes a Spark row. The
driver plans, chooses the buckets from a sample and writes the manifest, so its memory does not grow with the table.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, Self

from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from lazydelta.errors import LazyDeltaError, OptionError
from lazydelta.log.checkpoint.reader import CheckpointResult, Unit
from lazydelta.maintenance.after_commit import sidecar_beside
from lazydelta.maintenance.watch import BackgroundWatch
from lazydelta.sidecar.building.build import Progress, build
from lazydelta.sidecar.building.distributed import BucketParts, SpreadBuild, UnitKeys, splitters_of
from lazydelta.sidecar.building.publish import BuildResult, Publication
from lazydelta.sidecar.format.manifest import list_folder
from lazydelta.sidecar.handle import TableHandle
from lazydelta.spark.errors import error_of_ours
from lazydelta.storage import Store
from lazydelta.write.checkpoint.distributed import (
    UNIT_ROWS,
    PartCarrier,
    PartWritten,
    SpreadCheckpoint,
    write_checkpoint_in_parts,
)
from lazydelta.write.checkpoint.writer import MEMORY_BUDGET, write_last_checkpoint

__all__ = ["SidecarListener", "build_sidecar", "checkpoint_table", "following_sidecar", "write_on"]


# Each unit is read twice by one task: large enough to pay for the task, small enough to keep all cores busy.
_UNIT_ROWS = 500_000
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

P = ParamSpec("P")

logger = logging.getLogger(__name__)


def _takes_what_build_takes(
    in_process: Callable[P, BuildResult],
) -> Callable[[Callable[..., BuildResult]], Callable[Concatenate[SparkSession, P], BuildResult]]:
    """Give a function the signature of the in-process build, after its session parameter."""

    def decorated(function: Callable[..., BuildResult]) -> Callable[Concatenate[SparkSession, P], BuildResult]:
        own = [each for each in inspect.signature(function).parameters.values() if each.kind not in _OPEN]
        asked = [each for each in inspect.signature(in_process).parameters.values() if each.name != "maker"]
        described = inspect.Signature([*own, *asked], return_annotation=BuildResult.__name__)
        function.__signature__ = described  # type: ignore[attr-defined]
        return function

    return decorated


@_takes_what_build_takes(build)
def build_sidecar(spark: SparkSession, *table: Any, **how: Any) -> BuildResult:
    """Build the sidecar of the newest checkpoint, or of the one at ``version``, with the tasks of a Spark session.

    Parameters and result are those of `lazydelta.sidecar.build`, except for the boundaries between parts;
    ``memory_budget`` applies to each task. Failed or repeated tasks have no effect on the result.
    """
    if not hasattr(spark, "_jsc"):
        hint = "use a session of the cluster itself, or lazydelta.sidecar.build in one process"
        raise OptionError("A sidecar is not built over Spark Connect, which cannot run lazydelta's tasks", hint=hint)

    def make(publication: Publication, budget: int, told: Progress | None) -> BuildResult:
        return _made_on(spark, publication, budget, told)

    return build(*table, maker=make, **how)


def _made_on(spark: SparkSession, publication: Publication, budget: int, progress: Progress | None) -> BuildResult:
    context = spark.sparkContext
    job = SpreadBuild.begin(publication, budget)
    units = job.units(_UNIT_ROWS)
    shared = context.broadcast(job)

    def sample(unit: Unit) -> UnitKeys:
        return shared.value.sample(unit)

    try:
        sampled = context.parallelize(units, max(1, len(units))).map(sample).collect()
        files = sum(each.count for each in sampled)
        if not files:
            return publication.publish(iter(()), encoders=1)
        splitters = splitters_of(sampled, job.buckets(files))
        if progress is not None:
            progress(0, files)
        results = _written(spark, shared, units, splitters)
    except BaseException as error:
        job.discard(publication)
        if isinstance(error, Py4JError | PySparkException):
            raise error_of_ours(error, "the build of the sidecar") from error
        raise
    finally:
        shared.destroy()
    if progress is not None:
        progress(files, files)
    return job.publish(publication, results)


def _written(spark: SparkSession, shared: Any, units: Sequence[Unit], splitters: Sequence[bytes]) -> list[BucketParts]:
    ends = spark.sparkContext.broadcast(splitters)

    def spread(unit: Unit) -> Iterator[tuple[int, bytes]]:
        found: Iterator[tuple[int, bytes]] = shared.value.spread(unit, ends.value)
        return found

    def write(bucket: int, pieces: Iterable[tuple[int, bytes]]) -> Iterator[BucketParts]:
        context = TaskContext.get()
        attempt = 0 if context is None else context.taskAttemptId()
        yield shared.value.write(bucket, (piece for _, piece in pieces), attempt)

    try:
        rows = spark.sparkContext.parallelize(units, len(units)).flatMap(spread)
        # Each bucket is one partition, with its number as the key, so every bucket has its own task.
        placed = rows.partitionBy(len(splitters) + 1, lambda bucket: bucket)
        found: list[BucketParts] = placed.mapPartitionsWithIndex(write).collect()
    finally:
        ends.destroy()
    return found


# Refresh the sidecar of a table that a stream writes: a listener, and a function for foreachBatch.
#
# Both only signal that the table may have changed. A driver thread checks it and refreshes the sidecar if there is a
# new checkpoint, whether this stream, another job or another engine wrote it.


class SidecarListener(StreamingQueryListener):
    """Refreshes a sidecar as the session's streaming queries progress, or only ``query_name`` if given.

    Start it with ``spark.streams.addListener(listener)``. After ``removeListener``, call ``close`` to wait for running
    work. ``watch`` has the result of the last check, and the metrics.
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
        """Make no request yet. ``checkpoint_every`` and ``checksum`` are passed to `BackgroundWatch`."""
        self.watch = BackgroundWatch(uri, storage_options, checkpoint_every=checkpoint_every, checksum=checksum)
        self._name = query_name

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing, because nothing was written yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Check the table in a background thread, because Spark's event bus waits for its listeners."""
        if self._name is None or event.progress.name == self._name:
            self.watch.nudge()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: ARG002, N802 - Spark's signature
        """Check the table, because others may write it while this stream is idle."""
        self.watch.nudge()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: ARG002, N802 - Spark's signature
        """Check the table after the last micro-batch."""
        self.watch.nudge()

    def close(self) -> None:
        """Accept no more events, and wait for a pending check."""
        self.watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def following_sidecar(
    write: Callable[[DataFrame, int], Any], watch: BackgroundWatch
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that calls ``write`` and then triggers a refresh of the sidecar.

    If a batch fails, Spark retries it, and the sidecar is not checked.
    """

    def write_and_nudge(batch: DataFrame, batch_id: int) -> None:
        write(batch, batch_id)
        watch.nudge()

    return write_and_nudge


# Write a checkpoint with the tasks of a Spark session: one task per part; the driver completes the checkpoint.


def checkpoint_table(  # noqa: PLR0913 - keyword-only but for the first three
    spark: SparkSession,
    table_uri: str | os.PathLike[str],
    version: int | None = None,
    *,
    files_per_part: int = UNIT_ROWS,
    memory_budget: int = MEMORY_BUDGET,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    sidecar: bool = True,
) -> CheckpointResult:
    """Write the checkpoint of the newest version, or of ``version``, with Spark tasks, unless it exists.

    It has one part per ``files_per_part`` files of the previous checkpoint, approximately. ``_last_checkpoint`` points
    to it once it is complete. Small checkpoints are written by the driver as one file. ``memory_budget`` applies to
    each task. Failed or repeated tasks have no effect on the result.

    The sidecar of the newest checkpoint follows: refreshed by the driver, or built by tasks if there is none yet;
    ``sidecar=False`` leaves it as it is.
    """
    handle = TableHandle.open(table_uri, storage_options, options)
    result = write_on(
        spark, handle.store, version, files_per_part=files_per_part, memory_budget=memory_budget, progress=progress
    )
    if not sidecar or not handle.options.sidecar_enabled:
        return result
    if any(file.kind == "manifest" for file in list_folder(handle.store)):
        sidecar_beside(handle, memory_budget=memory_budget)
        return result
    try:
        build_sidecar(spark, table_uri, storage_options=storage_options, options=options, memory_budget=memory_budget)
    except LazyDeltaError as error:
        logger.warning("The checkpoint of %s is written, and its sidecar is not: %s", handle.uri, error)
    return result


def write_on(
    spark: SparkSession,
    store: Store,
    version: int | None = None,
    *,
    files_per_part: int = UNIT_ROWS,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
) -> CheckpointResult:
    """Write the checkpoint of a table whose store is already open."""
    if not hasattr(spark, "_jsc"):
        hint = "use a session of the cluster itself, or DeltaTable.create_checkpoint in one process"
        raise OptionError(
            "A checkpoint is not written over Spark Connect, which cannot run lazydelta's tasks", hint=hint
        )
    result = write_checkpoint_in_parts(
        store, _on_spark(spark), version, unit_rows=files_per_part, memory_budget=memory_budget, progress=progress
    )
    write_last_checkpoint(store, result)
    return result


def _on_spark(spark: SparkSession) -> PartCarrier:
    context = spark.sparkContext

    def carry(job: SpreadCheckpoint, units: Sequence[tuple[int, Unit]]) -> list[PartWritten]:
        sent = context.broadcast(replace(job, store=job.store.carrying_credentials()))

        def write(given: tuple[int, Unit]) -> PartWritten | LazyDeltaError:
            try:
                done: PartWritten = sent.value.write(*given)
            except LazyDeltaError as error:
                return error  # not raised: Spark would pass on only its message
            return done

        try:
            found = context.parallelize(units, len(units)).map(write).collect()
        except (Py4JError, PySparkException) as error:
            raise error_of_ours(error, "the checkpoint") from error
        finally:
            sent.destroy()
        failed = next((each for each in found if isinstance(each, LazyDeltaError)), None)
        if failed is not None:
            raise failed
        return [each for each in found if isinstance(each, PartWritten)]

    return carry

"""A sidecar built on the cluster of a Spark session, for tables of tens of millions of files.

Spark carries the tasks of ``SpreadBuild`` and moves what they hand on, as opaque bytes: no row becomes one of Spark's.
The driver plans, chooses the buckets from a sample and writes the manifest, so that its memory does not grow with the
table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec

from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lazydelta.errors import OptionError
from lazydelta.log.checkpoint.checkpoint_units import Unit
from lazydelta.sidecar.building.builder import Progress, build
from lazydelta.sidecar.building.publication import BuildResult, Publication
from lazydelta.sidecar.building.spread_build import BucketParts, SpreadBuild, UnitKeys, splitters_of
from lazydelta.spark.sparks_words import error_of_ours

__all__ = ["build_sidecar"]

# A unit is read by one task, twice: enough to be worth its start, and few enough that all cores have some.
_UNIT_ROWS = 500_000
_OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

P = ParamSpec("P")


def _takes_what_build_takes(
    in_process: Callable[P, BuildResult],
) -> Callable[[Callable[..., BuildResult]], Callable[Concatenate[SparkSession, P], BuildResult]]:
    """Give a function the parameters of the build in one process behind its session: they are written down there."""

    def decorated(function: Callable[..., BuildResult]) -> Callable[Concatenate[SparkSession, P], BuildResult]:
        own = [each for each in inspect.signature(function).parameters.values() if each.kind not in _OPEN]
        asked = [each for each in inspect.signature(in_process).parameters.values() if each.name != "maker"]
        described = inspect.Signature([*own, *asked], return_annotation=BuildResult.__name__)
        function.__signature__ = described  # type: ignore[attr-defined]
        return function

    return decorated


@_takes_what_build_takes(build)
def build_sidecar(spark: SparkSession, *table: Any, **how: Any) -> BuildResult:
    """Build the sidecar of the newest checkpoint, or of that of ``version``, with the tasks of a Spark session.

    The parameters are those of `lazydelta.sidecar.build`, and so is what comes out, up to where parts are cut;
    ``memory_budget`` is that of a task. Tasks that fail or are run twice leave nothing that counts.
    """
    if not hasattr(spark, "_jsc"):
        hint = "use a session of the cluster itself, or lazydelta.sidecar.build in one process"
        raise OptionError("A sidecar is not built over Spark Connect, which carries no tasks of ours", hint=hint)

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
        job.discard(())
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
        # The bucket is the partition: keys are its numbers, and every bucket has a task of its own.
        placed = rows.partitionBy(len(splitters) + 1, lambda bucket: bucket)
        found: list[BucketParts] = placed.mapPartitionsWithIndex(write).collect()
    finally:
        ends.destroy()
    return found

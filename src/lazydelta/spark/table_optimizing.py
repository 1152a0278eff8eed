"""OPTIMIZE by the tasks of a Spark session: a bin is a task, the driver finds the bins and commits what came back."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from typing import Any

from py4j.protocol import Py4JError
from pyspark import AccumulatorParam
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lazydelta.errors import LazyDeltaError, OptionError
from lazydelta.handle import TableHandle
from lazydelta.log.actions import Add
from lazydelta.maintenance.once import after_commit
from lazydelta.maintenance.optimize.bin_carriers import BinCarrier
from lazydelta.maintenance.optimize.bins import Bin
from lazydelta.maintenance.optimize.optimizing import OptimizeProgress, OptimizeResult, OptimizeSettings, optimize
from lazydelta.maintenance.optimize.rewriting import Rewriter, Rewritten
from lazydelta.pruning import Where
from lazydelta.spark.sparks_words import error_of_ours
from lazydelta.spark.task_attempt import is_run_again
from lazydelta.write.earlier_attempts import FAMILY_DIGITS
from lazydelta.write.file_commit import delete_files

__all__ = ["on_spark", "optimize_table"]

# So many bins for each core are sent together: enough that no core waits long for the last one.
_BINS_PER_CORE = 4


def optimize_table(
    spark: SparkSession,
    table_uri: str | os.PathLike[str],
    *,
    where: Where = None,
    settings: OptimizeSettings | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    progress: OptimizeProgress | None = None,
) -> OptimizeResult:
    """Pack the small files of a table with the tasks of a session; what is due after the commits is done as well.

    It is what ``lazydelta optimize`` does in one process; the memory budget of the settings is that of a task.
    """
    handle = TableHandle.open(table_uri, storage_options, options)
    return optimize(
        handle,
        where=where,
        settings=settings,
        dry_run=dry_run,
        progress=progress,
        committed=lambda done: after_commit(handle, done.version, done.metadata),
        carrier=on_spark(spark),
    )


def on_spark(spark: SparkSession) -> BinCarrier:
    """Return what has bins rewritten by the tasks of a session."""
    if not hasattr(spark, "_jsc"):
        hint = "use a session of the cluster itself, or DeltaTable.optimize in one process"
        raise OptionError("Tables are not optimised over Spark Connect, which carries no tasks of ours", hint=hint)
    context = spark.sparkContext
    at_once = max(1, context.defaultParallelism) * _BINS_PER_CORE

    def carry(rewriter: Rewriter, bins: Iterator[Bin]) -> Generator[Rewritten]:
        while some := list(islice(bins, at_once)):
            done = _rewritten(spark, rewriter, some)
            while done:
                each = done.pop(0)
                try:
                    yield each
                except GeneratorExit:
                    delete_files(rewriter.handle.store, [add for left in done for add in left.adds])
                    raise

    return carry


def _rewritten(spark: SparkSession, rewriter: Rewriter, bins: list[Bin]) -> list[Rewritten]:
    context = spark.sparkContext
    # Of a job that failed Spark gives nothing back. What its finished tasks wrote is told on the side.
    finished = context.accumulator([], _Adds())
    sent = context.broadcast(rewriter.carrying_credentials())
    # Names that the attempts at one bin have in common, and no other bin.
    named = [(uuid.uuid4().hex[:FAMILY_DIGITS], each) for each in bins]

    def rewrite(given: tuple[str, Bin]) -> Rewritten | LazyDeltaError:
        family, bin_ = given
        try:
            done: Rewritten = sent.value.rewrite(bin_, family, run_again=is_run_again())
        except LazyDeltaError as error:
            # Not raised here: Spark would give up the job while other tasks still write, and nobody would know what.
            return error
        finished.add(list(done.adds))
        return done

    try:
        found = context.parallelize(named, len(named)).map(rewrite).collect()
    except BaseException as error:
        delete_files(rewriter.handle.store, finished.value)
        if isinstance(error, Py4JError | PySparkException):
            raise error_of_ours(error, "OPTIMIZE") from error
        raise
    finally:
        sent.destroy()
    failed = next((each for each in found if isinstance(each, LazyDeltaError)), None)
    if failed is not None:
        delete_files(rewriter.handle.store, finished.value)
        raise failed
    return [each for each in found if isinstance(each, Rewritten)]


class _Adds(AccumulatorParam[list[Add]]):
    def zero(self, value: list[Add]) -> list[Add]:  # noqa: ARG002 - Spark's
        return []

    def addInPlace(self, value1: list[Add], value2: list[Add]) -> list[Add]:  # noqa: N802 - Spark's
        value1 += value2
        return value1

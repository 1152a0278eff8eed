"""A checkpoint written by the tasks of a Spark session: a part is a task, and the driver writes what makes it count."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lazydelta.errors import LazyDeltaError, OptionError
from lazydelta.handle import TableHandle
from lazydelta.log.checkpoint.checkpoint_result import CheckpointResult
from lazydelta.log.checkpoint.checkpoint_units import Unit
from lazydelta.log.checkpoint.writing.checkpoint_writer import MEMORY_BUDGET, Progress
from lazydelta.log.checkpoint.writing.spread_checkpoint import (
    UNIT_ROWS,
    PartCarrier,
    PartWritten,
    SpreadCheckpoint,
    write_checkpoint_in_parts,
)
from lazydelta.log.hint.hint_writer import write_last_checkpoint
from lazydelta.spark.sparks_words import error_of_ours
from lazydelta.storage import Store

__all__ = ["checkpoint_table", "write_on"]


def checkpoint_table(
    spark: SparkSession,
    table_uri: str | os.PathLike[str],
    version: int | None = None,
    *,
    files_per_part: int = UNIT_ROWS,
    memory_budget: int = MEMORY_BUDGET,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> CheckpointResult:
    """Write the checkpoint of the newest version, or of ``version``, with the tasks of a session, unless it is there.

    It has a part for about ``files_per_part`` files of the previous checkpoint, and ``_last_checkpoint`` points to it
    when it is complete. Where there is little to share out, one file is written here; ``memory_budget`` is that of a
    task. Tasks that fail or are run twice leave nothing that counts.
    """
    store = TableHandle.open(table_uri, storage_options, options).store
    return write_on(
        spark, store, version, files_per_part=files_per_part, memory_budget=memory_budget, progress=progress
    )


def write_on(
    spark: SparkSession,
    store: Store,
    version: int | None = None,
    *,
    files_per_part: int = UNIT_ROWS,
    memory_budget: int = MEMORY_BUDGET,
    progress: Progress | None = None,
) -> CheckpointResult:
    """Do the same to a table whose store is open."""
    if not hasattr(spark, "_jsc"):
        hint = "use a session of the cluster itself, or DeltaTable.create_checkpoint in one process"
        raise OptionError("A checkpoint is not written over Spark Connect, which carries no tasks of ours", hint=hint)
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
                return error  # as it is: of what a task raises Spark passes on a text
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

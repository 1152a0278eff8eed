"""VACUUM whose listing is done by the tasks of a Spark session: a folder is a task, the driver decides what may go.

A listing waits for the store most of the time, so many folders at once are listed in a fraction of the time. What the
log refers to is known to the driver alone, and so the tasks say what is there and old, folder by folder, in little
space; the driver holds as many answers as there are tasks at a time.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lazydelta.errors import LazyDeltaError, OptionError
from lazydelta.handle import TableHandle
from lazydelta.maintenance.vacuum.listing import Listed, Lister, ListingJob, in_one_walk
from lazydelta.maintenance.vacuum.vacuuming import VacuumProgress, VacuumResult, vacuum
from lazydelta.spark.sparks_words import error_of_ours

__all__ = ["MANY_TO_LIST", "listing_on_spark", "vacuum_table"]

MANY_TO_LIST = 100_000
"""From so many files on, tasks are worth their start: one listing shows them in some hundred requests."""
# So many folders for each core are sent together: enough that no core waits long for the largest.
_FOLDERS_PER_CORE = 8


def vacuum_table(  # noqa: PLR0913 - keyword-only but for the session and the table
    spark: SparkSession,
    table_uri: str | os.PathLike[str],
    *,
    retention: timedelta | None = None,
    dry_run: bool = True,
    enforce_retention: bool = True,
    keep_versions: Sequence[int] = (),
    many: int = MANY_TO_LIST,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    progress: VacuumProgress | None = None,
) -> VacuumResult:
    """Delete the files of a table that no version within the retention refers to, found by the tasks of a session.

    It is what ``lazydelta vacuum`` does in one process, and so is what comes out. Tables of fewer than ``many`` files,
    and those without partitions, are listed here: there are no folders to share out.
    """
    handle = TableHandle.open(table_uri, storage_options, options)
    result = vacuum(
        handle,
        retention=retention,
        dry_run=dry_run,
        enforce_retention=enforce_retention,
        keep_versions=keep_versions,
        progress=progress,
        lister=listing_on_spark(spark, many=many),
    )
    result.check(handle.uri)
    return result


def listing_on_spark(spark: SparkSession, *, many: int = 0) -> Lister:
    """Return what lists the folders of a table by the tasks of a session, where the log names ``many`` files."""
    if not hasattr(spark, "_jsc"):
        hint = "use a session of the cluster itself, or DeltaTable.vacuum in one process"
        raise OptionError("Tables are not listed over Spark Connect, which carries no tasks of ours", hint=hint)
    at_once = max(1, spark.sparkContext.defaultParallelism) * _FOLDERS_PER_CORE

    def listed(job: ListingJob) -> Iterator[Listed]:
        if job.kept < many:
            yield from in_one_walk(job)
            return
        folders, above = job.folders(at_once)
        yield from above
        if len(folders) == 1:
            yield from job.below(folders[0])
            return
        waiting = iter(folders)
        while some := list(islice(waiting, at_once)):
            yield from _listed_by_tasks(spark, job, some)

    return listed


def _listed_by_tasks(spark: SparkSession, job: ListingJob, folders: Sequence[str]) -> Iterator[Listed]:
    context = spark.sparkContext
    sent = context.broadcast(job.carrying_credentials())

    def below(folder: str) -> bytes | LazyDeltaError:
        try:
            return zlib.compress(msgspec.msgpack.encode(list(sent.value.below(folder))), 1)
        except LazyDeltaError as error:
            return error  # as it is: of what a task raises Spark passes on a text

    try:
        found = context.parallelize(folders, len(folders)).map(below).collect()
    except (Py4JError, PySparkException) as error:
        raise error_of_ours(error, "the listing of the table") from error
    finally:
        sent.destroy()
    failed = next((each for each in found if isinstance(each, LazyDeltaError)), None)
    if failed is not None:
        raise failed
    decoder = msgspec.msgpack.Decoder(list[Listed])
    for each in found:
        if isinstance(each, bytes):
            yield from decoder.decode(zlib.decompress(each))

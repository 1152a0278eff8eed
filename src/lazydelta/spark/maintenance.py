"""OPTIMIZE with the tasks of a Spark session: one task per bin; the driver finds the bins and commits the results."""

from __future__ import annotations

import os
import re
import time
import uuid
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark import AccumulatorParam, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lazydelta.errors import LazyDeltaError, OptionError
from lazydelta.maintenance.after_commit import after_commit
from lazydelta.maintenance.background import maintain_later, maintain_now
from lazydelta.maintenance.optimize import OptimizeProgress, OptimizeResult, OptimizeSettings, optimize
from lazydelta.maintenance.rewrite import Bin, BinCarrier, Rewriter, Rewritten
from lazydelta.maintenance.vacuum import VacuumProgress, VacuumResult, vacuum
from lazydelta.maintenance.vacuum_files import Listed, Lister, ListingJob, in_one_walk
from lazydelta.predicates import Where, parse_predicate, referenced_columns
from lazydelta.predicates.tree import IsNull, leaves
from lazydelta.protocol.actions import Add, Txn
from lazydelta.protocol.schema import Primitive
from lazydelta.sidecar.handle import TableHandle
from lazydelta.spark.errors import error_of_ours
from lazydelta.write.commit import CommitNote
from lazydelta.write.create import new_metadata
from lazydelta.write.file_commit import delete_files
from lazydelta.write.job import FAMILY_DIGITS, WriteJob, WriteResult
from lazydelta.write.options import WriteOptions
from lazydelta.write.plan import schema_of

__all__ = [
    "in_session",
    "is_run_again",
    "listing_on_spark",
    "maintain_rejected",
    "maintain_written",
    "on_spark",
    "optimize_table",
    "session_settings",
    "settings_of_task",
    "task_number",
    "vacuum_table",
]


# VACUUM with a listing by the tasks of a Spark session: one task per folder; the driver decides what to delete.
#
# A listing mostly waits for the store, so listing many folders in parallel is much faster. Only the driver knows what
# the log refers to, so the tasks return the old files of each folder in compact form. The driver holds only one round
# of results at a time.


MANY_TO_LIST = 100_000
"""Number of files from which tasks pay off; a single listing returns them in about a hundred requests."""
# Folders per core in one round: enough that no core waits long for the largest.
_FOLDERS_PER_CORE = 8


def vacuum_table(  # noqa: PLR0913 - keyword-only except for the session and the table
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
    """Delete the files that no version within the retention refers to, listed by the tasks of a session.

    The result is the same as that of ``lazydelta vacuum``, which runs in one process. Tables with fewer than ``many``
    files, and tables without partitions, are listed by the driver, because there are no folders to distribute.
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
    """Return a lister that uses the tasks of a session if the log has at least ``many`` files."""
    if not hasattr(spark, "_jsc"):
        hint = "use a session of the cluster itself, or DeltaTable.vacuum in one process"
        raise OptionError("Tables are not listed over Spark Connect, which cannot run lazydelta's tasks", hint=hint)
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
            return error  # not raised: Spark would pass on only its message

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


# Maintenance after a commit by a Spark job: on the driver's machine, at most one run at a time.


def maintain_written(uri: str, options: WriteOptions, done: WriteResult, *, later: bool = False) -> None:
    """Run the maintenance that a job's commits made due, before returning or, with ``later``, in the background."""
    maintain_rejected(uri, options, done)
    if options.maintain and not done.already_committed:
        maintain = maintain_later if later else maintain_now
        maintain(TableHandle.open(uri, options.storage_options), done.version, done.metadata)


def maintain_rejected(uri: str, options: WriteOptions, done: WriteResult) -> None:
    """Run the maintenance of the rejected table in the background."""
    beside = done.rejected_commit
    if options.maintain and beside is not None and not beside.already_committed:
        table = TableHandle.open(options.rejected_uri(uri), options.storage_options)
        maintain_later(table, beside.version, beside.metadata)


# Context of a task: its number, its attempt, and the settings of its session.
#
# Spark does not pass session settings to a Python data source, but sends all of them to the tasks. Settings that change
# the meaning of a write in Delta-Spark and in Spark's own formats are applied there and at the commit.


_OVERWRITE_MODE = "spark.sql.sources.partitionOverwriteMode"
_TIME_ZONE = "spark.sql.session.timeZone"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_APP_ID, _APP_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_HEEDED = frozenset({_OVERWRITE_MODE, _TIME_ZONE, _USER_METADATA, _APP_ID, _APP_VERSION})
_DEFAULTS = "spark.databricks.delta.properties.defaults."
# The protocol versions follow from the features of the table.
_VERSIONS = frozenset({"minreaderversion", "minwriterversion"})
_UTC = frozenset(
    {"utc", "gmt", "z", "etc/utc", "etc/gmt", "utc+0", "gmt+0", "gmt0", "+00:00", "+0", "universal", "zulu"}
)
_TIMESTAMP = re.compile(r"'\s*\d{4,}-\d{1,2}[^']*'")
_ZONED = re.compile(r"(z|utc|gmt|[a-z]+/[a-z_/]+|:\d\d[\d.]*\s*[+-]\d{1,2}(:?\d\d)?)\s*'\Z", re.IGNORECASE)
_CALL = re.compile(r"\b(?!(?:in|and|or|not|between)\b)\w+\s*\(", re.IGNORECASE)


def task_number() -> int:
    """Return the number of the current task within its job, or 0 outside a task."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def is_run_again() -> bool:
    """Return whether this is a retry of the current task, so that an earlier attempt may have left files."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def settings_of_task() -> dict[str, str]:
    """Return the settings of the current task's session that affect a write."""
    return session_settings(getattr(TaskContext.get(), "_localProperties", None) or {})


def session_settings(found: Mapping[str, str]) -> dict[str, str]:
    """Return the session settings that affect a write."""
    return {key: value for key, value in found.items() if key in _HEEDED or key.startswith(_DEFAULTS)}


def in_session(job: WriteJob, settings: Mapping[str, str], *, is_stream: bool = False) -> WriteJob:
    """Return the job with the settings of a session applied. Its own options take precedence.

    A stream that replaces all rows does so in any session, and numbers its micro-batches itself, as in Delta-Spark.
    """
    _refuse_timestamps(job, settings.get(_TIME_ZONE))
    plan, options, defaults = job.plan, job.options, _defaults(settings)
    if defaults and job.version < 0:
        job = _created_with(job, defaults)
        plan = job.plan
    text = settings.get(_USER_METADATA)
    if text is not None and options.user_metadata is None:
        plan = replace(plan, note=CommitNote({"userMetadata": text}))
    if is_stream:
        return replace(job, plan=plan)
    is_dynamic = options.partition_overwrite_mode is None and settings.get(_OVERWRITE_MODE, "").lower() == "dynamic"
    if is_dynamic and plan.mode == "overwrite" and plan.overwrite_where is None:
        if plan.replaces_schema:
            message = "overwrite_schema replaces all rows, and the session uses dynamic partition overwrites"
            raise OptionError(message, hint=f"set partitionOverwriteMode to static, or {_OVERWRITE_MODE}")
        plan = replace(plan, replaces_partitions=True)
    return _numbered(replace(job, plan=plan), settings)


def _numbered(job: WriteJob, settings: Mapping[str, str]) -> WriteJob:
    """Return the job with the session's application id and version, unless its own options set them."""
    given = {key: settings[key] for key in (_APP_ID, _APP_VERSION) if key in settings}
    if not given or job.options.app_id is not None:
        return job
    try:
        txn = Txn(app_id=given[_APP_ID], version=int(given[_APP_VERSION]))
    except (KeyError, ValueError):
        shown = ", ".join(f"{key}={value}" for key, value in given.items())
        hint = "set both, the version to a number, or unset them"
        raise OptionError(f"The session numbers its writes by {shown}", hint=hint) from None
    options = replace(job.options, app_id=txn.app_id, app_version=txn.version)
    return replace(job, options=options).of_batch(txn)


def _defaults(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the session's default properties for new tables."""
    found = {key[len(_DEFAULTS) :]: value for key, value in settings.items() if key.startswith(_DEFAULTS)}
    return {f"delta.{name}": value for name, value in found.items() if name.lower() not in _VERSIONS}


def _created_with(job: WriteJob, defaults: Mapping[str, str]) -> WriteJob:
    creation = job.plan.creation
    creation = replace(creation, properties={**defaults, **creation.properties})
    configuration: dict[str, Any] = {**defaults, **(job.metadata.configuration or {})}
    try:
        new_metadata(job.plan.incoming(job.source), properties=configuration)
    except LazyDeltaError as error:
        names = ", ".join(sorted(key.removeprefix("delta.") for key in defaults))
        error.hint = f"the session sets {_DEFAULTS}… for new tables ({names}); unset what lazydelta does not write"
        raise
    metadata = msgspec.structs.replace(job.metadata, configuration=configuration)
    return replace(job, plan=replace(job.plan, creation=creation), metadata=metadata)


def _refuse_timestamps(job: WriteJob, zone: str | None) -> None:
    """Reject an overwrite condition with a timestamp without a zone: Spark uses the session's zone, lazydelta UTC."""
    where = job.plan.overwrite_where
    is_utc = not (time.timezone or time.daylight) if zone is None else zone.lower() in _UTC
    if is_utc or not isinstance(where, str):
        return
    timestamps = _TIMESTAMP.findall(where)
    if timestamps and all(map(_ZONED.search, timestamps)) and not _CALL.search(where):
        return
    predicate = parse_predicate(where, schema_of(job.metadata))
    compared = () if predicate is None else (each for each in leaves(predicate) if not isinstance(each, IsNull))
    if any(column.type == Primitive("timestamp") for each in compared for column in referenced_columns(each)):
        message = f"replaceWhere compares timestamps in the session time zone, and the session's is {zone or 'not UTC'}"
        hint = "add a time zone, as in '2026-02-10T14:00:00Z', without functions; lazydelta uses UTC, Spark does not"
        raise OptionError(f"{message}: {where}", hint=hint)


# Bins per core in one round: enough that no core waits long for the last one.
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
    """Compact the small files of a table with the tasks of a session, then run the maintenance that is due.

    The result is the same as that of ``lazydelta optimize``, which runs in one process. The memory budget in the
    settings applies to each task.
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
    """Return a carrier that rewrites bins with the tasks of a session."""
    if not hasattr(spark, "_jsc"):
        hint = "use a session of the cluster itself, or DeltaTable.optimize in one process"
        raise OptionError("Tables are not optimised over Spark Connect, which cannot run lazydelta's tasks", hint=hint)
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
    # Spark returns nothing from a failed job. An accumulator records what finished tasks wrote.
    finished = context.accumulator([], _Adds())
    sent = context.broadcast(rewriter.carrying_credentials())
    # A name shared by all attempts at one bin, and by no other bin.
    named = [(uuid.uuid4().hex[:FAMILY_DIGITS], each) for each in bins]

    def rewrite(given: tuple[str, Bin]) -> Rewritten | LazyDeltaError:
        family, bin_ = given
        try:
            done: Rewritten = sent.value.rewrite(bin_, family, run_again=is_run_again())
        except LazyDeltaError as error:
            # Returned, not raised: Spark would abandon the job while other tasks still write files that nothing tracks.
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
    def zero(self, value: list[Add]) -> list[Add]:  # noqa: ARG002 - Spark's signature
        return []

    def addInPlace(self, value1: list[Add], value2: list[Add]) -> list[Add]:  # noqa: N802 - Spark's name
        value1 += value2
        return value1

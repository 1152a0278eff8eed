"""The commands that maintain a table: ``doctor``, ``optimize``, ``vacuum`` and ``delete``."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate

import click

from lazydelta.cli import sentences
from lazydelta.cli.output import INTERRUPTED, Output, note
from lazydelta.cli.parameters import (
    CONTEXT,
    TableTarget,
    chosen_engine,
    counting,
    engine_options,
    session,
    target_command,
    where_option,
)

if TYPE_CHECKING:
    from lazydelta.maintenance.vacuum_files import Listed, ListingJob
    from lazydelta.sidecar.handle import TableHandle

__all__ = ["doctor", "optimize", "vacuum"]


_MIB = 1 << 20


class _Mebibytes(click.IntRange):
    """A number of mebibytes from 1: ``128``, ``128MB`` or ``128MiB``."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number: Any = re.sub(r"(?i)\s*mi?b?$", "", value) if isinstance(value, str) else value
        return super().convert(number, param, ctx)


# From this number of small files, starting the executors of a cluster pays off.
_MANY_TO_PACK = 10_000
# The same for the number of files to list, folder by folder.
_MANY_TO_LIST = 100_000
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SHORT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", re.IGNORECASE)


@dataclass(slots=True)
class _Target:
    """The table, its access options, and the output."""

    handle: TableHandle
    out: Output
    done: dict[str, tuple[int, int | None]] = field(default_factory=dict)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Record the progress."""
        self.done[what] = done, total

    def watched(self) -> Any:
        """Return a context manager that shows progress."""

        def describe() -> str:
            parts = (
                f"{done:,}{'' if total is None else f' of {total:,}'} files {what}"
                for what, (done, total) in list(self.done.items())
            )
            return ", ".join(parts) or "reading the log"

        return self.out.watch(describe)


def _upkeep_command(function: Callable[Concatenate[_Target, ...], None]) -> Callable[..., None]:
    """Open the table for a command and report its progress."""

    @target_command()
    @functools.wraps(function)
    def command(target: TableTarget, **rest: Any) -> None:
        function(_Target(target.handle, target.out), **rest)

    return command


def _retention(ctx: click.Context, parameter: click.Parameter, text: str | None) -> timedelta | None:
    if text is None:
        return None
    from lazydelta.protocol.properties import parse_interval  # noqa: PLC0415 - as above

    short = _SHORT.fullmatch(text)
    try:
        found = timedelta(**{_UNITS[short[2].lower()]: float(short[1])}) if short else parse_interval(text)
    except OverflowError:
        found = None
    if found is None:
        raise click.BadParameter("write it like 168h, 7d or 'interval 7 days'.", ctx, parameter)
    return found


@click.command("doctor", context_settings=CONTEXT)
@target_command()
@click.option("--deep", is_flag=True, help="Also list the table's folder to find unreferenced data files.")
@click.option("--fix", is_flag=True, help="Offer to run the command of each finding.")
@click.option("--yes", is_flag=True, help="With --fix, run every command without asking.")
@click.pass_context
def doctor(ctx: click.Context, target: TableTarget, *, deep: bool, fix: bool, yes: bool) -> None:
    """Find what makes a table slow or unsafe to read, what it costs, and the command that fixes it.

    The exit code is 1 if there are findings, 0 for a healthy table. The number of requests does not depend on the
    size of the table, except with --deep.
    """
    from lazydelta.maintenance.doctor import diagnose  # noqa: PLC0415 - as above

    watched = _Target(target.handle, target.out)
    with watched.watched():
        found = diagnose(target.handle, deep=deep, progress=watched.progress)
    target.out.tell(found, lambda each: str(each).splitlines())
    left = len(found.findings)
    for finding in found.findings if fix else ():
        if finding.by_hand:
            note(f"{finding.code}: has to be mended by hand")
            continue
        if not yes and not click.confirm(f"run `{finding.command}`?", err=True):
            continue
        given = [part for each in target.storage_options.items() for part in ("--storage-option", "=".join(each))]
        root = ctx.find_root().command
        if root.main([*shlex.split(finding.command)[1:], *given], "lazydelta", standalone_mode=False) in {None, 0}:
            left -= 1
    ctx.exit(1 if left else 0)


@click.command("optimize", context_settings=CONTEXT)
@_upkeep_command
@where_option("Pack these partitions only; SQL or JSON over partition columns.")
@click.option(
    "--target-size",
    type=_Mebibytes(),
    metavar="MIB",
    help="The approximate size of new files; by default the property delta.targetFileSize, or 128.",
)
@click.option("--sort-by", metavar="A,B", help="Sort the rows of rewritten files by these columns.")
@click.option(
    "--z-order", metavar="A,B", help="Rewrite all files with their rows along a Z-order curve of these columns."
)
@click.option(
    "--memory",
    type=click.IntRange(min=1),
    metavar="MIB",
    default=256,
    show_default=True,
    help="Memory budget; sorting spills to temporary files.",
)
@engine_options
@click.option("--dry-run", is_flag=True, help="Show what would be packed, without changing it.")
def optimize(  # noqa: PLR0913 - each is an option
    target: _Target,
    *,
    where: str | None,
    target_size: int | None,
    sort_by: str | None,
    z_order: str | None,
    memory: int,
    engine: str,
    master: str | None,
    conf: dict[str, str],
    dry_run: bool,
) -> None:
    """Compact the small files of each partition of a table into larger ones.

    Rows do not change; deleted rows are purged. Concurrent changes by other writers take precedence.
    """
    from lazydelta.maintenance import optimize as optimizing  # noqa: PLC0415
    from lazydelta.maintenance.after_commit import after_commit  # noqa: PLC0415

    if sort_by and z_order:
        raise click.UsageError("--sort-by and --z-order are mutually exclusive.", click.get_current_context())
    handle = target.handle
    asked: dict[str, Any] = {
        "where": where,
        "settings": optimizing.OptimizeSettings(
            target_size=None if target_size is None else target_size * _MIB,
            sort_by=[name for each in (z_order or sort_by or "").split(",") if (name := each.strip())],
            curve="z" if z_order else None,
            memory_budget=memory * _MIB,
        ),
        "dry_run": dry_run,
        "progress": target.progress,
        "committed": lambda done: after_commit(handle, done.version, done.metadata),
    }

    def to_pack() -> int:
        return optimizing.optimize(handle, **asked | {"dry_run": True}).removed.count

    if chosen_engine(engine, master, conf, to_pack, many=_MANY_TO_PACK) == "spark" and not dry_run:
        with session("lazydelta optimize", master, conf, target.out) as spark, target.watched():
            from lazydelta.spark.maintenance import on_spark  # noqa: PLC0415 - loads Spark

            result = optimizing.optimize(handle, **asked, carrier=on_spark(spark))
    else:
        with target.watched():
            result = optimizing.optimize(handle, **asked)
    target.out.tell(asdict(result), sentences.optimized)


@click.command("vacuum", context_settings=CONTEXT)
@_upkeep_command
@click.option(
    "--retention",
    metavar="TIME",
    callback=_retention,
    help="Keep files removed or written within this time, such as 168h or 7d. [default: the "
    "retention of the table, or 7 days]",
)
@click.option("--no-retention-check", is_flag=True, help="Allow a shorter retention than that of the table.")
@click.option(
    "--keep-version",
    "keep_versions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Keep this version readable, regardless of its age; repeatable.",
)
@click.option(
    "--without-log",
    is_flag=True,
    help="Delete data files of jobs that failed before creating their table; URI has no log.",
)
@engine_options
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, without deleting it.")
def vacuum(  # noqa: PLR0913 - each is an option
    target: _Target,
    *,
    retention: timedelta | None,
    no_retention_check: bool,
    keep_versions: tuple[int, ...],
    without_log: bool,
    engine: str,
    master: str | None,
    conf: dict[str, str],
    dry_run: bool,
) -> None:
    """Delete files that no version within the table's retention refers to.

    The retention protects readers of older versions and slow writers.
    """
    from lazydelta.maintenance import vacuum as vacuuming  # noqa: PLC0415 - not needed for --help
    from lazydelta.maintenance import vacuum_files  # noqa: PLC0415

    if without_log:
        if engine == "spark":
            raise click.UsageError("--engine spark is not valid without a log.", click.get_current_context())
        if keep_versions:
            raise click.UsageError("--keep-version is not valid without a log.", click.get_current_context())
        found = vacuuming.vacuum_without_log(
            target.handle, retention=retention, dry_run=dry_run, enforce_retention=not no_retention_check
        )
        target.out.tell(asdict(found), sentences.vacuumed)
        return
    if engine != "auto":  # report invalid options before any work
        chosen_engine(engine, master, conf, lambda: 0, many=_MANY_TO_LIST)

    def listed(job: ListingJob) -> Iterator[Listed]:
        # Only the log shows how much there is to list, so the session starts after reading it.
        if chosen_engine(engine, master, conf, lambda: job.kept, many=_MANY_TO_LIST) == "local":
            yield from vacuum_files.in_one_walk(job)
            return
        with session("lazydelta vacuum", master, conf, None) as spark:
            from lazydelta.spark.maintenance import listing_on_spark  # noqa: PLC0415 - loads Spark

            yield from listing_on_spark(spark)(job)

    with target.watched():
        result = vacuuming.vacuum(
            target.handle,
            retention=retention,
            dry_run=dry_run,
            enforce_retention=not no_retention_check,
            keep_versions=keep_versions,
            progress=target.progress,
            lister=listed,
        )
    target.out.tell(asdict(result), sentences.vacuumed)
    result.check(target.handle.uri)


# ``lazydelta delete``: deletes the rows that match a predicate.


@click.command("delete", context_settings=CONTEXT)
@target_command()
@where_option("Delete the rows for which this is true; SQL or JSON over any columns.")
@click.option("--all", "every", is_flag=True, help="Delete all rows.")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, without changing it.")
def delete(target: TableTarget, *, where: str | None, every: bool, dry_run: bool) -> None:
    """Delete the rows of a table that match a predicate, in one commit.

    Files in which all rows match are removed, others are rewritten without the matching rows. Rows for
    which the predicate is null are kept.
    """
    if (where is None) is not every:
        raise click.UsageError("Specify the rows: --where PREDICATE, or --all for every row.")
    from lazydelta.maintenance.after_commit import after_commit  # noqa: PLC0415 - not needed for --help
    from lazydelta.write.row_changes.statements import DeleteSettings, delete_rows  # noqa: PLC0415

    handle, version = target.handle, None
    try:
        with counting(target.out, "with rows that may match read") as progress:
            result = delete_rows(handle, where, DeleteSettings(progress=progress), dry_run=dry_run)
            version = result.version
            if version is not None:
                after_commit(handle, version, result.metadata)
    except KeyboardInterrupt:
        note(_interrupted(version, dry_run=dry_run))
        click.get_current_context().exit(INTERRUPTED)
    found = result.deleted
    told: dict[str, Any] = {
        "dry_run": result.dry_run,
        "read_version": result.read_version,
        "version": result.version,
        "rows": found.rows,
        "copied_rows": found.copied_rows,
        "removed_files": found.removed_files,
        "removed_bytes": found.removed_bytes,
        "rewritten_files": found.rewritten_files,
        "added_files": found.added_files,
        "added_bytes": found.added_bytes,
    }
    target.out.tell(told, sentences.deleted)


def _interrupted(version: int | None, *, dry_run: bool) -> str:
    if dry_run:
        return "interrupted: nothing was changed"
    if version is not None:
        return f"interrupted when the rows were deleted, as version {version}; the next commit does what else is due"
    # If Ctrl-C came during the commit, only the log shows whether it succeeded. Running again is safe in both cases.
    return (
        "interrupted: one commit deletes all of the rows or none; the same command deletes those that are still there"
    )

"""The commands that keep a table healthy: ``optimize`` and ``vacuum``."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate

import click

from lazydelta.cli import sentences
from lazydelta.cli.output import Output
from lazydelta.cli.parameters import CONTEXT, where_option
from lazydelta.cli.spark_engine import chosen_engine, engine_options, session
from lazydelta.cli.table_target import TableTarget, target_command

if TYPE_CHECKING:
    from lazydelta.handle import TableHandle
    from lazydelta.maintenance.vacuum.listing import Listed, ListingJob

__all__ = ["optimize", "vacuum"]

_MIB = 1 << 20
# So many small files are worth the start of a cluster's executors.
_MANY_TO_PACK = 10_000
# And so many files are, to be listed folder by folder.
_MANY_TO_LIST = 100_000
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SHORT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", re.IGNORECASE)


@dataclass(slots=True)
class _Target:
    """Which table, how to reach it, and where to report."""

    handle: TableHandle
    out: Output
    done: dict[str, tuple[int, int | None]] = field(default_factory=dict)

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Note how far the work has come."""
        self.done[what] = done, total

    def watched(self) -> Any:
        """Return a block during which progress is shown."""

        def describe() -> str:
            parts = (
                f"{done:,}{'' if total is None else f' of {total:,}'} files {what}"
                for what, (done, total) in list(self.done.items())
            )
            return ", ".join(parts) or "reading the log"

        return self.out.watch(describe)


def _upkeep_command(function: Callable[Concatenate[_Target, ...], None]) -> Callable[..., None]:
    """Give a command its table, opened, and a report of progress."""

    @target_command()
    @functools.wraps(function)
    def command(target: TableTarget, **rest: Any) -> None:
        function(_Target(target.handle, target.out), **rest)

    return command


def _retention(ctx: click.Context, parameter: click.Parameter, text: str | None) -> timedelta | None:
    if text is None:
        return None
    from lazydelta.log.properties import parse_interval  # noqa: PLC0415 - as above

    short = _SHORT.fullmatch(text)
    try:
        found = timedelta(**{_UNITS[short[2].lower()]: float(short[1])}) if short else parse_interval(text)
    except OverflowError:
        found = None
    if found is None:
        raise click.BadParameter("write it like 168h, 7d or 'interval 7 days'.", ctx, parameter)
    return found


@click.command("optimize", context_settings=CONTEXT)
@_upkeep_command
@where_option("Pack these partitions only; SQL or JSON over partition columns.")
@click.option(
    "--target-size",
    type=click.IntRange(min=1),
    metavar="MIB",
    help="About how large files become; by default what the table says (delta.targetFileSize), 128 if nothing.",
)
@click.option("--sort-by", metavar="A,B", help="Sort the rows of what is packed by these columns.")
@click.option(
    "--memory",
    type=click.IntRange(min=1),
    metavar="MIB",
    default=256,
    show_default=True,
    help="Hold this much at once; sorting uses temporary files beyond it.",
)
@engine_options
@click.option("--dry-run", is_flag=True, help="Change nothing, and tell what would be packed.")
def optimize(  # noqa: PLR0913 - each is an option
    target: _Target,
    *,
    where: str | None,
    target_size: int | None,
    sort_by: str | None,
    memory: int,
    engine: str,
    master: str | None,
    conf: dict[str, str],
    dry_run: bool,
) -> None:
    """Pack the small files of each partition of a table into few large ones.

    Rows do not change; deleted ones are left out for good. What others write meanwhile goes before.
    """
    from lazydelta.maintenance.once import after_commit  # noqa: PLC0415
    from lazydelta.maintenance.optimize import optimizing  # noqa: PLC0415

    handle = target.handle
    asked: dict[str, Any] = {
        "where": where,
        "settings": optimizing.OptimizeSettings(
            target_size=None if target_size is None else target_size * _MIB,
            sort_by=[name for each in (sort_by or "").split(",") if (name := each.strip())],
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
            from lazydelta.spark.table_optimizing import on_spark  # noqa: PLC0415 - and with it Spark

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
    help="Keep what was removed or written since: 168h, 7d; by default what the table says, 7 days if nothing.",
)
@click.option("--no-retention-check", is_flag=True, help="Allow a retention that is shorter than the table's.")
@click.option(
    "--keep-version",
    "keep_versions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Keep this version readable, however old it is; repeatable.",
)
@click.option(
    "--without-log",
    is_flag=True,
    help="Clear away data files of jobs that failed before their table was there: URI is no table.",
)
@engine_options
@click.option("--dry-run", is_flag=True, help="Delete nothing, and tell what would be deleted.")
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
    """Delete the files of a table that no version within the retention refers to.

    Readers of older versions, and writers that take longer, would miss them: the retention is there for these.
    """
    from lazydelta.maintenance.vacuum import failed_jobs, listing, vacuuming  # noqa: PLC0415 - `--help` does not wait for them

    if without_log:
        if engine == "spark":
            raise click.UsageError("--engine spark makes no sense without a log.", click.get_current_context())
        if keep_versions:
            raise click.UsageError("--keep-version makes no sense without a log.", click.get_current_context())
        found = failed_jobs.vacuum_without_log(
            target.handle, retention=retention, dry_run=dry_run, enforce_retention=not no_retention_check
        )
        target.out.tell(asdict(found), sentences.vacuumed)
        return
    if engine != "auto":  # what makes no sense is said before any work
        chosen_engine(engine, master, conf, lambda: 0, many=_MANY_TO_LIST)

    def listed(job: ListingJob) -> Iterator[Listed]:
        # Only the log tells how much there is to list, so the session waits for it.
        if chosen_engine(engine, master, conf, lambda: job.kept, many=_MANY_TO_LIST) == "local":
            yield from listing.in_one_walk(job)
            return
        with session("lazydelta vacuum", master, conf, None) as spark:
            from lazydelta.spark.table_vacuuming import listing_on_spark  # noqa: PLC0415 - and with it Spark

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

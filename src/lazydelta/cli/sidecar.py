"""The ``sidecar`` group: build, refresh, delta, watch, verify, show, clean and drop."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate

import click
import msgspec

from lazydelta.cli import sentences
from lazydelta.cli.app import CommandGroup
from lazydelta.cli.output import Output, output
from lazydelta.cli.parameters import (
    CONTEXT,
    TableTarget,
    check_uri,
    chosen_engine,
    debug_option,
    engine_options,
    folders,
    json_option,
    library_option,
    session,
    storage_option,
    target_command,
)
from lazydelta.errors import LazyDeltaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lazydelta.maintenance.watch import Look
    from lazydelta.sidecar import SidecarInfo

__all__ = ["sidecar"]


DIFFERENT = 1
_MIB = 1 << 20
_PICTURE_WIDTH = 100
# Below this, one process finishes before a cluster has started its executors and shuffled the files.
MANY_FILES = 10_000_000


@dataclass(slots=True)
class Target:
    """The table, its access options, and the output."""

    uri: str
    common: dict[str, Any]
    out: Output
    done: int = 0
    total: int | None = None

    def progress(self, done: int, total: int | None) -> None:
        """Record the progress."""
        self.done, self.total = done, total

    def watched(self, deed: str) -> Any:
        """Return a context manager that shows progress."""

        def describe() -> str:
            of = "" if self.total is None else f" of {self.total:,}"
            return f"{self.done:,}{of} files {deed}"

        return self.out.watch(describe)


def _sidecar_command(function: Callable[Concatenate[Target, ...], None]) -> Callable[..., None]:
    """Add the table and the progress report to a command."""

    @target_command()
    @functools.wraps(function)
    def command(target: TableTarget, **rest: Any) -> None:
        common = {"storage_options": target.storage_options or None, "options": target.options}
        function(Target(target.uri, common, target.out), **rest)

    return command


def _version_option(help_text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--version", type=click.IntRange(min=0), metavar="N", help=help_text)


_memory_option = click.option(
    "--memory",
    type=click.IntRange(min=16),
    metavar="MIB",
    default=512,
    show_default=True,
    help="Memory budget; sorting spills to temporary files.",
)


@click.group("sidecar", cls=CommandGroup, homes={"watch": "lazydelta.cli.sidecar"})
def sidecar() -> None:
    """Build, verify and remove the sidecars that let scans find files fast."""


@sidecar.command("build", context_settings=CONTEXT)
@_sidecar_command
@_version_option("Build for the checkpoint of this version, not for the newest one.")
@click.option("--sort-by", metavar="A,B", help="Sort by these columns instead of the partition columns or the time.")
@click.option("--force", is_flag=True, help="Build the sidecar again even if a valid one exists.")
@_memory_option
@engine_options
@click.option("--dry-run", is_flag=True, help="Show what would be built and where, without building it.")
def build(  # noqa: PLR0913 - each is an option
    target: Target,
    *,
    version: int | None,
    sort_by: str | None,
    force: bool,
    memory: int,
    engine: str,
    master: str | None,
    conf: dict[str, str],
    dry_run: bool,
) -> None:
    """Build the sidecar of a table's newest checkpoint.

    An existing sidecar is checked page by page and kept if it is valid. Readers see a new one only when it is
    complete.
    """
    from lazydelta import sidecar as library  # noqa: PLC0415
    from lazydelta.sidecar.building.build import preview  # noqa: PLC0415
    from lazydelta.sidecar.handle import TableHandle  # noqa: PLC0415

    names = None if sort_by is None else [name for each in sort_by.split(",") if (name := each.strip())]
    handle = TableHandle.open(target.uri, **target.common)
    chosen = chosen_engine(
        engine, master, conf, lambda: preview(handle, version, sort_by=names).actions, many=MANY_FILES
    )
    if dry_run:
        found = preview(handle, version, sort_by=names, force=force)
        target.out.tell(msgspec.structs.replace(found, engine=chosen), sentences.sidecar_foreseen)
        return
    asked: dict[str, Any] = {
        "sort_by": names,
        "force": force,
        "memory_budget": memory * _MIB,
        "progress": target.progress,
        **target.common,
    }
    if chosen == "spark":
        with session("lazydelta sidecar build", master, conf, target.out) as spark, target.watched("written"):
            from lazydelta.spark import build_sidecar  # noqa: PLC0415

            result = build_sidecar(spark, target.uri, version, **asked)
    else:
        with target.watched("read"):
            result = library.build(target.uri, version, **asked)
    target.out.tell(result, sentences.sidecar_built)


@sidecar.command("refresh", context_settings=CONTEXT)
@_sidecar_command
@_memory_option
def refresh(target: Target, *, memory: int) -> None:
    """Update the sidecar to the newest checkpoint.

    Unchanged parts are reused, so the cost depends on the changes. If that is not possible, all of it is rebuilt.
    """
    from lazydelta import sidecar as library  # noqa: PLC0415

    with target.watched("read"):
        result = library.refresh(target.uri, memory_budget=memory * _MIB, progress=target.progress, **target.common)
    target.out.tell(result, sentences.sidecar_built)


@sidecar.command("delta", context_settings=CONTEXT)
@_sidecar_command
@click.option(
    "--at-least",
    type=click.IntRange(min=1),
    metavar="N",
    default=100,
    show_default=True,
    help="Write a delta sidecar only for at least this many commits that are in none yet.",
)
@_memory_option
def delta(target: Target, *, at_least: int, memory: int) -> None:
    """Write delta sidecars for the commits since the newest checkpoint.

    In a long gap between checkpoints, scans read these few files instead of every commit. Existing ones are
    verified and kept, and small ones are merged.
    """
    from lazydelta import sidecar as library  # noqa: PLC0415

    with target.watched("read"):
        result = library.build_deltas(
            target.uri, at_least=at_least, memory_budget=memory * _MIB, progress=target.progress, **target.common
        )
    target.out.tell(result, sentences.deltas_built)


@sidecar.command("verify", context_settings=CONTEXT)
@_sidecar_command
@_version_option("Verify the sidecar of this version, not that of the newest checkpoint.")
@_memory_option
def verify(target: Target, *, version: int | None, memory: int) -> None:
    """Prove that the sidecar equals the log: every file, every statistic, every range.

    The exit code is 1 if it does not. Scans detect damage themselves and read the checkpoint instead.
    """
    from lazydelta import sidecar as library  # noqa: PLC0415

    with target.watched("compared"):
        report = library.verify(
            target.uri, version, memory_budget=memory * _MIB, progress=target.progress, **target.common
        )
    target.out.tell(report, sentences.sidecar_verified)
    if not report.ok:
        click.get_current_context().exit(DIFFERENT)


@sidecar.command("show", context_settings=CONTEXT)
@_sidecar_command
@_version_option("Show the sidecar of this version, not the newest one.")
@click.option("--all", "everything", is_flag=True, help="Draw every row group.")
def show(target: Target, *, version: int | None, everything: bool) -> None:
    """Show the parts of a sidecar, and draw the time range of each row group."""
    from lazydelta import sidecar as library  # noqa: PLC0415

    with target.watched("read"):
        info = library.show(target.uri, version, **target.common)

    def words(found: SidecarInfo) -> Iterator[str]:
        from lazydelta.cli.tables import console  # noqa: PLC0415 - it knows the terminal

        screen = console()
        has_blocks = "utf" in screen.encoding.lower()
        width = min(_PICTURE_WIDTH, screen.width)
        return sentences.sidecar_shown(found, everything=everything, width=width, blocks=has_blocks)

    target.out.tell(info, words)


@sidecar.command("clean", context_settings=CONTEXT)
@_sidecar_command
@click.option(
    "--grace-hours",
    type=click.FloatRange(min=0),
    metavar="H",
    default=24.0,
    show_default=True,
    help="Keep younger files, which a running build may still need.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, without deleting it.")
def clean(target: Target, *, grace_hours: float, dry_run: bool) -> None:
    """Delete sidecar files that no manifest needs.

    Sidecars of existing checkpoints and the newest valid sidecar are kept.
    """
    from lazydelta import sidecar as library  # noqa: PLC0415

    with target.watched("deleted"):
        result = library.clean(
            target.uri, grace_hours=grace_hours, dry_run=dry_run, progress=target.progress, **target.common
        )
    target.out.tell(result, sentences.sidecar_cleaned)


@sidecar.command("drop", context_settings=CONTEXT)
@_sidecar_command
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, without deleting it.")
def drop(target: Target, *, dry_run: bool) -> None:
    """Delete all sidecars of a table; the table itself is not touched, and scans read its checkpoint."""
    from lazydelta import sidecar as library  # noqa: PLC0415

    with target.watched("deleted"):
        result = library.drop(target.uri, dry_run=dry_run, progress=target.progress, **target.common)
    target.out.tell(result, sentences.sidecar_cleaned)


# ``lazydelta sidecar watch``: maintains the sidecars of tables that other processes write, until it is stopped.


# Checks that changed nothing are not shown. Programs still receive every check, because its metrics change.
_QUIET = frozenset({"unchanged", "resting", "busy"})


@click.command("watch", context_settings=CONTEXT)
@click.argument("uri", nargs=-1, required=True, shell_complete=folders)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="The interval between checks of all tables.",
)
@click.option(
    "--checkpoint",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write a checkpoint after N commits without one; by default writers do this.",
)
@click.option(
    "--checksum",
    is_flag=True,
    help="Write the newest version's checksum if its writer did not, by replaying the table.",
)
@click.option(
    "--delta",
    type=click.IntRange(min=0),
    metavar="N",
    default=100,
    show_default=True,
    help="Write a delta sidecar for N commits since the checkpoint that are in none; 0 disables this.",
)
@click.option("--once", is_flag=True, help="Check once and exit, with code 2 if something failed.")
@click.option(
    "--memory",
    type=click.IntRange(min=16),
    metavar="MIB",
    default=512,
    show_default=True,
    help="Memory budget; the rest spills to temporary files.",
)
@click.option("--dry-run", is_flag=True, help="Check once and show what would be done, without changing anything.")
@storage_option
@library_option
@json_option
@debug_option
def watch(  # noqa: PLR0913 - each is an option
    *,
    uri: tuple[str, ...],
    interval: float,
    checkpoint: int | None,
    checksum: bool,
    delta: int,
    once: bool,
    memory: int,
    dry_run: bool,
    storage_option: dict[str, str],
    option: dict[str, str],
    as_json: bool,
) -> None:
    """Keep the sidecars of tables up to date until Ctrl-C, for checkpoints by any writer.

    A check takes one listing and one small request per table; only one process per machine watches a table.
    """
    from lazydelta.maintenance.watch import TableWatch, WatchSettings, watch_tables  # noqa: PLC0415
    from lazydelta.sidecar.handle import TableHandle  # noqa: PLC0415 - not needed for --help

    for each in uri:
        # The rest of `--storage-option key = secret` is not a table, and must not be shown as one.
        if each.startswith("="):
            raise click.UsageError("an argument begins with '='; write an option's value as key=value.")
        check_uri(each)
    out = output(as_json=as_json)
    settings = WatchSettings(checkpoint, checksum, memory * _MIB, delta or None)
    watching = _Watching(out)
    watches = [
        TableWatch(TableHandle.open(each, storage_option or None, option), settings, progress=watching.progress)
        for each in uri
    ]
    if dry_run:
        for table in watches:
            out.step(table.foresee(), sentences.watch_foreseen)
        return
    with out.watch(watching.describe):
        if once:
            for table in watches:
                watching.report(table.look(), always=True)
        else:
            watch_tables(watches, watching.report, interval=interval, stop=threading.Event())
    watching.check()


class _Watching:
    """The checks so far."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._done: tuple[int, int | None] | None = None
        self._last: dict[str, Look] = {}
        self._failed: Look | None = None

    def progress(self, done: int, total: int | None) -> None:
        """Record the progress of a build."""
        self._done = done, total

    def describe(self) -> str:
        """Describe the current state."""
        if self._done is not None:
            done, total = self._done
            return f"{done:,}{'' if total is None else f' of {total:,}'} files read"
        behind = sum(each.metrics.lag_commits or 0 for each in self._last.values())
        return f"watching {len(self._last):,} tables, {behind:,} commits behind"

    def report(self, look: Look, *, always: bool = False) -> None:
        """Report a check."""
        self._done = None
        before = self._last.get(look.table)
        self._last[look.table] = look
        if look.error is not None:
            self._failed = look
        is_news = always or look.state not in _QUIET | {"waiting"} or before is None
        words = sentences.watch_looked if is_news else _nothing
        self._out.step(look, words)

    def check(self) -> None:
        """Raise the last error, for a single check."""
        if self._failed is not None:
            raise LazyDeltaError(f"{self._failed.table}: {self._failed.error}")


def _nothing(_look: Look) -> Iterator[str]:
    return iter(())

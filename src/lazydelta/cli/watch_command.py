"""``lazydelta sidecar watch``: looks after the sidecars of tables that others write, until it is told to end."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lazydelta.cli import sentences
from lazydelta.cli.output import Output, output
from lazydelta.cli.parameters import CONTEXT, check_uri, debug_option, json_option, library_option, storage_option
from lazydelta.errors import LazyDeltaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lazydelta.maintenance.watching import Look

__all__ = ["watch"]

_MIB = 1 << 20
# Looks that changed nothing are no news; programs are told of every look all the same, because metrics go on.
_QUIET = frozenset({"unchanged", "resting", "busy"})


@click.command("watch", context_settings=CONTEXT)
@click.argument("uri", nargs=-1, required=True)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="Look at all tables this often.",
)
@click.option(
    "--checkpoint",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write a checkpoint after N commits without one; by default checkpoints are left to the writers.",
)
@click.option(
    "--checksum",
    is_flag=True,
    help="Write the version checksum at the head where its writer wrote none, from a replay of the whole table.",
)
@click.option(
    "--delta",
    type=click.IntRange(min=0),
    metavar="N",
    default=100,
    show_default=True,
    help="Write a delta sidecar for N commits since the checkpoint that are in none; 0 for never.",
)
@click.option("--once", is_flag=True, help="Look once, and end; the exit code is 2 if something failed.")
@click.option(
    "--memory",
    type=click.IntRange(min=16),
    metavar="MIB",
    default=512,
    show_default=True,
    help="Build within this much memory; what does not fit goes to temporary files.",
)
@click.option("--dry-run", is_flag=True, help="Look once, change nothing, and tell what would be done.")
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
    """Keep the sidecars of tables up to date, whoever writes their checkpoints, until Ctrl-C.

    A look costs one listing and one small request for each table; one at a time looks after a table on a machine.
    """
    from lazydelta.handle import TableHandle  # noqa: PLC0415 - loaded by whoever runs the command, not by its help
    from lazydelta.maintenance.watching import TableWatch, WatchSettings, watch_tables  # noqa: PLC0415

    for each in uri:
        # What is left over of `--storage-option key = secret` is no table, and must not be shown as one.
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
    with _ended_by_signals(), out.watch(watching.describe):
        if once:
            for table in watches:
                watching.report(table.look(), always=True)
        else:
            watch_tables(watches, watching.report, interval=interval, stop=threading.Event())
    watching.check()


class _Watching:
    """What was seen so far."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._done: tuple[int, int | None] | None = None
        self._last: dict[str, Look] = {}
        self._failed: Look | None = None

    def progress(self, done: int, total: int | None) -> None:
        """Note how far a build has come."""
        self._done = done, total

    def describe(self) -> str:
        """Say how things are."""
        if self._done is not None:
            done, total = self._done
            return f"{done:,}{'' if total is None else f' of {total:,}'} files read"
        behind = sum(each.metrics.lag_commits or 0 for each in self._last.values())
        return f"watching {len(self._last):,} tables, {behind:,} commits behind"

    def report(self, look: Look, *, always: bool = False) -> None:
        """Tell of a look."""
        self._done = None
        before = self._last.get(look.table)
        self._last[look.table] = look
        if look.error is not None:
            self._failed = look
        is_news = always or look.state not in _QUIET | {"waiting"} or before is None
        words = sentences.watch_looked if is_news else _nothing
        self._out.step(look, words)

    def check(self) -> None:
        """Raise what went wrong last, for those who looked once."""
        if self._failed is not None:
            raise LazyDeltaError(f"{self._failed.table}: {self._failed.error}")


def _nothing(_look: Look) -> Iterator[str]:
    return iter(())


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End as on Ctrl-C when a service manager says so: what is half built is taken back."""

    def interrupt(_number: int, _frame: Any) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

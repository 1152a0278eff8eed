"""The root of the command: errors become one line and an exit code, a closed pipe or Ctrl-C ends the scan quietly.

=====  ===============================================================================================
code   meaning
=====  ===============================================================================================
0      done, also when the reader of a pipe had enough
1      a bug in lazydelta; `sidecar verify`: the sidecar differs from the log
2      an error that the message explains: a wrong option, no such table, no access, a damaged log, …
130    interrupted by Ctrl-C
=====  ===============================================================================================
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from lazydelta import __version__
from lazydelta.cli.command_group import CommandGroup
from lazydelta.cli.output import INTERRUPTED
from lazydelta.cli.parameters import debug_option, in_debug_mode
from lazydelta.cli.wording import one_line, printable
from lazydelta.errors import KqlError, LazyDeltaError
from lazydelta.warned import ChecksumWarning, PredicateWarning

__all__ = ["cli", "main"]

BUG, EXPLAINED = 1, 2
_COMMANDS = {
    "info": "lazydelta.cli.commands",
    "files": "lazydelta.cli.commands",
    "rows": "lazydelta.cli.commands",
    "explain": "lazydelta.cli.commands",
    "history": "lazydelta.cli.commands",
    "query": "lazydelta.cli.query_command",
    "kql": "lazydelta.cli.kql_command",
    "serve": "lazydelta.cli.serve_command",
    "create": "lazydelta.cli.write",
    "append": "lazydelta.cli.write",
    "ingest": "lazydelta.cli.ingest_command",
    "delete": "lazydelta.cli.delete_command",
    "sidecar": "lazydelta.cli.sidecar",
    "optimize": "lazydelta.cli.upkeep",
    "vacuum": "lazydelta.cli.upkeep",
    "checkpoint": "lazydelta.cli.write",
    "log": "lazydelta.cli.write",
    "demo": "lazydelta.cli.showcase_commands",
    "bench": "lazydelta.cli.showcase_commands",
}
# What a full or broken disk says behind a redirected output.
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class _Root(CommandGroup):
    """A group that ends the process the way the table above says."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 - click's signature
        **extra: Any,
    ) -> Any:
        """Run; a wrong command line is an error like any other, in one line."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as helpful:
            helpful.show()
            sys.exit(helpful.exit_code)
        except click.ClickException as error:
            click.echo(f"error: {one_line(error.format_message())}{_help_for(error)}", err=True)
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            # What is still buffered meets a closed pipe here, where it is handled, and not at exit.
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            _discard_output()
            ctx.exit(0)
        except KeyboardInterrupt:
            # The reader of a pipe had the same Ctrl-C; what it did not take is lost either way.
            _discard_output()
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except LazyDeltaError as error:
            _report(ctx, error, f"error: {one_line(str(error))}")
            ctx.exit(EXPLAINED)
        except Exception as error:  # noqa: BLE001 - the outermost frame, where a bug must still end in one line
            # Stores raise errors of ours: what fails here without a name is a standard stream.
            if isinstance(error, OSError) and error.errno in _CANNOT_WRITE and error.filename is None:
                _discard_output()
                _report(
                    ctx,
                    error,
                    f"error: The output cannot be written: {error.strerror} (make room, or send it elsewhere)",
                )
                ctx.exit(EXPLAINED)
            hint = "" if in_debug_mode(ctx) else " (a bug in lazydelta; run with --debug for its trace)"
            _report(ctx, error, f"internal error: {type(error).__name__}: {one_line(str(error))}{hint}")
            ctx.exit(BUG)
        return result


@click.group(cls=_Root, homes=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
@debug_option
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Find the files of huge Delta Lake tables, lazily and in little memory."""
    _tolerate_any_encoding()
    handler = _Warnings(ctx)
    logger = logging.getLogger("lazydelta")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)

    def undo() -> None:
        logger.removeHandler(handler)
        logger.setLevel(level)

    ctx.call_on_close(undo)
    _show_warnings(ctx)


def main() -> None:
    """Run the command and exit."""
    try:
        cli(prog_name="lazydelta")
    except KeyboardInterrupt:
        _leave_at_once()
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:
            _leave_at_once()
        raise


def _help_for(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    return "" if ctx is None else f" (`{ctx.command_path} --help` explains)"


def _leave_at_once() -> NoReturn:
    # An interrupt may strike anywhere, also between the start of a thread and the moment somebody knows of it. Such a
    # thread, busy in Arrow while the interpreter is taken down, makes the process hang or abort.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(INTERRUPTED)


class _Warnings(logging.Handler):
    """Shows what the library warns of, and with ``--debug`` all that it logs."""

    def __init__(self, ctx: click.Context) -> None:
        super().__init__()
        self._ctx = ctx

    def emit(self, record: logging.LogRecord) -> None:
        # Asked at each record, because `--debug` may stand after the subcommand.
        if record.levelno >= logging.WARNING or in_debug_mode(self._ctx):
            click.echo(f"{record.levelname.lower()}: {one_line(record.getMessage())}", err=True)


def _show_warnings(ctx: click.Context) -> None:
    """Show what the library warns of in one line, whatever Python was told about warnings."""
    ctx.with_resource(warnings.catch_warnings())
    warnings.simplefilter("always", PredicateWarning)
    warnings.simplefilter("ignore", ChecksumWarning)  # it is logged as well, and shown by the handler
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, PredicateWarning):
            click.echo(f"warning: {one_line(str(message))}", err=True)
        else:
            others(message, category, *place, **more)

    warnings.showwarning = show


def _report(ctx: click.Context, error: Exception, line: str) -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()
    if in_debug_mode(ctx):
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    if isinstance(error, KqlError) and error.excerpt is not None:
        # The place in the query, above the line that scripts look for.
        click.echo("\n".join(map(printable, error.excerpt.split("\n"))), err=True)
    click.echo(line, err=True)


def _tolerate_any_encoding() -> None:
    # An odd character in a path is no reason to die in an ASCII terminal.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    # Python flushes standard output once more at exit, and would complain about the pipe.
    with contextlib.suppress(OSError, ValueError):  # there may be no file behind it
        number = sys.stdout.fileno()
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, number)
        os.close(devnull)

"""The root command. Errors become one line and an exit code.

A closed pipe or a signal ends the scan quietly.

=====  ===============================================================================================
code   meaning
=====  ===============================================================================================
0      success, also if the reader closed the pipe
1      a bug in lazydelta; `sidecar verify`: the sidecar differs from the log; `doctor`: there are findings
2      an error that the message explains: wrong option, missing table, no access, damaged log, …
130    interrupted by Ctrl-C
143    interrupted by SIGTERM, in the same way
=====  ===============================================================================================
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lazydelta import __version__
from lazydelta.cli.output import INTERRUPTED, TERMINATED
from lazydelta.cli.parameters import debug_option, in_debug_mode
from lazydelta.cli.wording import one_line, printable
from lazydelta.errors import KqlError, LazyDeltaError
from lazydelta.warned import ChecksumWarning, PredicateWarning, RetentionWarning

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CommandGroup", "cli", "main"]


# Command groups: descriptions are never truncated, and a command is loaded when it is named.


# Click would truncate a description at the end of the line. Ours are one sentence and may take two lines.
_WHOLE = 1000


class CommandGroup(click.Group):
    """A group whose commands may live in modules that are not loaded yet.

    ``homes`` maps the name of each such command to its module. The function there has the same name, with underscores
    for hyphens.
    """

    def __init__(self, *args: Any, homes: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._homes = dict(homes or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the given order: common tasks come first."""
        return [*self._homes, *(name for name in super().list_commands(ctx) if name not in self._homes)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load and return a command."""
        home = self._homes.get(cmd_name)
        if home is None:
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(home), cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a command line. For one that does not exist, suggest those with a similar name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib  # noqa: PLC0415 - only needed for errors

            known = self.list_commands(ctx)
            near = difflib.get_close_matches(args[0], known, n=2) if args else []
            meant = _OTHER_COMMANDS.get(args[0]) if args else None
            if meant is not None and (meant.endswith(".") or meant.split()[0] in {*known, "--help", "--version"}):
                meant = meant if meant.endswith(".") else f"Write {ctx.command_path} {meant}."
                raise click.UsageError(f"No such command {args[0]!r}. {meant}", error.ctx) from None
            if ctx.parent is not None and not near:
                write = f"Write {ctx.command_path} COMMAND: {', '.join(known)}."
                raise click.UsageError(f"No such command {args[0]!r}. {write}", error.ctx) from None
            if not near or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(near)}?", error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands with whole sentences."""
        rows = [
            (name, command.get_short_help_str(_WHOLE))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


# What other tools call a command or an option, and what ours is called; or a sentence that says what to do.
_COMPLETION = 'Write eval "$(_LAZYDELTA_COMPLETE=bash_source lazydelta)" for completion in bash.'
_QUERY = 'Write lazydelta query "select … from t …" t=URI.'
_IN_PYTHON = "There is a method in Python: DeltaTable(uri).{}."
_OTHER_COMMANDS = {
    **dict.fromkeys(("cdf", "changes", "diff"), _IN_PYTHON.format("load_cdf(version), and changes(version) for files")),
    **dict.fromkeys(("cat", "peek", "tail"), "rows"),
    **dict.fromkeys(("copy", "cp"), "clone"),
    **dict.fromkeys(("drop", "rm"), "Delete the folder of the table; lazydelta delete --all deletes its rows."),
    **dict.fromkeys(("dump", "export"), 'query "from t" t=URI --parquet FILE'),
    **dict.fromkeys(("du", "metadata", "properties", "protocol", "size", "stats"), "info"),
    **dict.fromkeys(("check", "fsck", "verify"), "doctor"),
    **dict.fromkeys(("partitions", "groupby"), _QUERY),
    "completion": _COMPLETION,
    "connect": "shell",
    "import": "append",
    "repl": "shell",
    "truncate": "delete --all",
    "upsert": "merge",
    "versions": "history",
    "web": "ui",
    "compact": "optimize",
    "count": "query \"select count(*) from delta('URI')\"",
    "describe": "info",
    "detail": "info",
    "head": "rows",
    "help": "--help",
    "insert": "append",
    "list": "files",
    "load": "append",
    "ls": "files",
    "read": "rows",
    "schema": "info",
    "select": "query",
    "show": "rows",
    "sql": "query",
    "tables": "info",
    "update": "merge",
    "status": "show",
    "version": "--version",
    "write": "append",
    "z-order": "optimize --z-order A,B",
    "zorder": "optimize --z-order A,B",
}
_OTHER_OPTIONS = {
    **dict.fromkeys(("--count", "--distinct", "--group-by", "--order-by", "--sort", "--sort-by"), _QUERY),
    **dict.fromkeys(("--force", "--yes", "-y"), "Omit it: nothing is asked."),
    **dict.fromkeys(("--install-completion", "--show-completion"), _COMPLETION),
    **dict.fromkeys(("--last", "--since"), "Write --where \"column >= now() - interval '1 day'\"."),
    **dict.fromkeys(("--no-header", "--pretty", "--summary"), "Write --csv or --json, or nothing for a table."),
    **dict.fromkeys(("--verbose", "-v"), "Write --debug to see what is done; explain shows the plan of a scan."),
    **dict.fromkeys(("--stats", "--stats-columns"), _IN_PYTHON.format("files(stats_columns=[…])")),
    "--add-columns": "--add",
    "--compact": "Omit it: that is what optimize does.",
    "--key": "--on",
    "--matched": "--when-matched",
    "--not-matched": "--when-not-matched",
    "--using": "--source",
    "--out": "--parquet, --csv, --json",
    "--parquet": 'Write lazydelta query "from t" t=URI --parquet FILE.',
    "--partition": "--where",
    "--set-property": "--set",
    "--tail": "--limit",
    "--to": "--version",
    "-V": "--version",
    "-l": "--limit",
    "--add-column": "--add",
    "--as-of": "--timestamp",
    "--at": "--timestamp",
    "--column": "--columns",
    "--columns": "--column",
    "--filter": "--where",
    "--format": "--json, --csv",
    "--head": "--limit",
    "--output": "--csv, --json, --parquet",
    "--output-format": "--json, --csv",
    "--predicate": "--where",
    "--retain": "--retention",
    "--retention-hours": "--retention",
    "--schema": "--column",
    "--select": "--columns",
    "--to-version": "--version",
    "--zorder": "--z-order",
    "-c": "--columns",
    "-f": "--json, --csv",
    "-n": "--limit",
    "-o": "--json, --csv",
    "-t": "--table",
    "-w": "--where",
}
BUG, EXPLAINED = 1, 2
_COMMANDS = {
    "info": "lazydelta.cli.table_commands",
    "files": "lazydelta.cli.table_commands",
    "rows": "lazydelta.cli.table_commands",
    "explain": "lazydelta.cli.table_commands",
    "history": "lazydelta.cli.table_commands",
    "query": "lazydelta.cli.query",
    "kql": "lazydelta.cli.query",
    "shell": "lazydelta.cli.shell",
    "serve": "lazydelta.cli.serve",
    "ui": "lazydelta.cli.serve",
    "create": "lazydelta.cli.write",
    "append": "lazydelta.cli.write",
    "ingest": "lazydelta.cli.ingest",
    "delete": "lazydelta.cli.maintenance",
    "merge": "lazydelta.cli.changes",
    "alter": "lazydelta.cli.changes",
    "restore": "lazydelta.cli.changes",
    "clone": "lazydelta.cli.changes",
    "convert": "lazydelta.cli.changes",
    "repair": "lazydelta.cli.changes",
    "generate": "lazydelta.cli.changes",
    "sidecar": "lazydelta.cli.sidecar",
    "doctor": "lazydelta.cli.maintenance",
    "optimize": "lazydelta.cli.maintenance",
    "vacuum": "lazydelta.cli.maintenance",
    "checkpoint": "lazydelta.cli.write",
    "log": "lazydelta.cli.write",
    "demo": "lazydelta.cli.demo",
    "bench": "lazydelta.cli.demo",
}
# Errors of a full or broken disk behind a redirected output.
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class _Root(CommandGroup):
    """A group that ends the process with the exit codes in the table above."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 - click's signature
        **extra: Any,
    ) -> Any:
        """Run the command. Report a wrong command line like any other error, on one line."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as helpful:
            helpful.show()
            sys.exit(helpful.exit_code)
        except click.ClickException as error:
            click.echo(f"error: {one_line(_message_of(error))}{_help_for(error)}", err=True)
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            # Flush here, where a closed pipe is handled, and not at exit.
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            _discard_output()
            ctx.exit(0)
        except KeyboardInterrupt as stopped:
            _end_interrupted(ctx, stopped)
        except Exception as error:  # noqa: BLE001 - the outermost frame, where a bug must still end in one line
            if (stopped_by := _interrupt_behind(error)) is not None:
                _end_interrupted(ctx, stopped_by)
            if isinstance(error, LazyDeltaError):
                _report(ctx, error, f"error: {one_line(str(error))}")
                ctx.exit(EXPLAINED)
            # Stores raise LazyDelta errors, so an OSError without a file name comes from a standard stream.
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
    # Until now there was nothing to undo, and Ctrl-C ended the process; see `lazydelta.__init__`.
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # As on Ctrl-C: unfinished work is undone. A command started by a background shell receives no Ctrl-C.
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        cli(prog_name="lazydelta")
    except KeyboardInterrupt:
        _leave_at_once()
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:
            _leave_at_once()
        if callable(signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # the work is done: no trace of the interpreter's end
        raise


def _end_interrupted(ctx: click.Context, stopped: KeyboardInterrupt) -> NoReturn:
    # The reader of a pipe got the same Ctrl-C, so unread output is lost either way.
    _discard_output()
    click.echo("; ".join(["interrupted", *getattr(stopped, "__notes__", ())]), err=True)
    ctx.exit(INTERRUPTED)


def _interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the Ctrl-C that caused an error. Libraries raise other errors while it propagates."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, KeyboardInterrupt):
            return found
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return None


def _message_of(error: click.ClickException) -> str:
    """Return the message of a wrong command line. An option of another tool is answered with ours."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        known = {name for each in error.ctx.command.params for name in each.opts}
        sentence = _OTHER_OPTIONS.get(error.option_name, "")
        if sentence.endswith("."):
            return f"No such option {error.option_name!r}. {sentence}"
        meant = [name for name in _OTHER_OPTIONS.get(error.option_name, "").split(", ") if name in known]
        if meant:
            return f"No such option {error.option_name!r}. Write {' or '.join(meant)}."
    return error.format_message()


def _help_for(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    return "" if ctx is None else f" (`{ctx.command_path} --help` explains)"


_terminated = threading.Event()


def _terminate(_number: int, _frame: object) -> NoReturn:
    _terminated.set()
    raise KeyboardInterrupt


def _leave_at_once() -> NoReturn:
    # An interrupt can strike anywhere, also between the start of a thread and its registration. Such a thread, busy in
    # Arrow during interpreter shutdown, makes the process hang or abort.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(TERMINATED if _terminated.is_set() else INTERRUPTED)


class _Warnings(logging.Handler):
    """Shows the warnings of the library, and with ``--debug`` everything that it logs."""

    def __init__(self, ctx: click.Context) -> None:
        super().__init__()
        self._ctx = ctx

    def emit(self, record: logging.LogRecord) -> None:
        # Checked for each record, because `--debug` may follow the subcommand.
        if record.levelno >= logging.WARNING or in_debug_mode(self._ctx):
            click.echo(f"{record.levelname.lower()}: {one_line(record.getMessage())}", err=True)


def _show_warnings(ctx: click.Context) -> None:
    """Show warnings of the library on one line, whatever Python's warning filters are."""
    ctx.with_resource(warnings.catch_warnings())
    for kind in (PredicateWarning, RetentionWarning):
        warnings.simplefilter("always", kind)
    warnings.simplefilter("ignore", ChecksumWarning)  # it is also logged, and shown by the handler
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, PredicateWarning | RetentionWarning):
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
        # The position in the query, above the line that scripts look for.
        click.echo("\n".join(map(printable, error.excerpt.split("\n"))), err=True)
    click.echo(line, err=True)


def _tolerate_any_encoding() -> None:
    # An unusual character in a path must not crash the command in an ASCII terminal.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    # Python flushes standard output again at exit, and would complain about the pipe.
    with contextlib.suppress(OSError, ValueError):  # there may be no file behind it
        number = sys.stdout.fileno()
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, number)
        os.close(devnull)

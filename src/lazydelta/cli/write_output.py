"""What the commands that write have to say: one renderer for people, one for programs."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from lazydelta.cli import wording as text
from lazydelta.cli.console_output import ConsoleOutput, console
from lazydelta.cli.json_output import JsonOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

__all__ = ["WriteOutput", "write_output"]

_LISTED = 20


class WriteOutput(Protocol):
    """How such a command speaks; each result is a document of plain values."""

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show ``describe()`` now and then while the block runs, where somebody would see it."""

    def created(self, result: dict[str, Any]) -> None:
        """Print which table was created."""

    def appended(self, result: dict[str, Any]) -> None:
        """Print what was appended."""

    def checkpointed(self, result: dict[str, Any]) -> None:
        """Print which checkpoint was written."""

    def cleaned(self, result: dict[str, Any]) -> None:
        """Print what was deleted from the log."""


def write_output(*, as_json: bool) -> WriteOutput:
    """Return the renderer for programs or for people."""
    return _Json(JsonOutput(sys.stdout)) if as_json else _Text(console(), console(stderr=True))


class _Json:
    """One document a command."""

    def __init__(self, out: JsonOutput) -> None:
        self.watch = out.watch
        self.created = self.appended = self.checkpointed = self.cleaned = out.document


class _Text:
    """One sentence a command."""

    def __init__(self, out: Console, err: Console) -> None:
        self._out = out
        self.watch = ConsoleOutput(out, err).watch

    def created(self, result: dict[str, Any]) -> None:
        self._line(f"{text.printable(result['uri'])} is at version {result['version']}")

    def appended(self, result: dict[str, Any]) -> None:
        self._line(
            f"{text.printable(result['uri'])} is at version {result['version']}: "
            f"{text.count(result['rows'])} rows of {text.count(result['files_read'])} files appended"
        )

    def checkpointed(self, result: dict[str, Any]) -> None:
        deed = "was written" if result["action"] == "written" else "is there already"
        files = result["num_of_add_files"]
        counted = "" if files is None else f"{text.count(files)} files, "
        self._line(
            f"The checkpoint of version {result['version']} {deed}: {counted}{text.size(result['size_in_bytes'])}"
        )

    def cleaned(self, result: dict[str, Any]) -> None:
        paths = result["paths"]
        for path in paths[:_LISTED]:
            self._line(text.printable(path))
        if len(paths) > _LISTED:
            self._line(f"and {len(paths) - _LISTED:,} more")
        deed = "would be deleted" if result["dry_run"] else "deleted"
        floor = "" if result["floor"] is None else f"; version {result['floor']} and later can be read"
        self._line(f"{len(paths):,} files {deed}, {text.size(result['size'])}{floor}")

    def _line(self, line: str) -> None:
        self._out.print(line, soft_wrap=True)

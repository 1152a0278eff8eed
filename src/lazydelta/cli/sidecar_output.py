"""What the ``sidecar`` commands have to say: one renderer for people, one for programs."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from lazydelta.cli import wording as text
from lazydelta.cli.console_output import ConsoleOutput, console
from lazydelta.cli.json_output import JsonOutput
from lazydelta.cli.sidecar_picture import picture

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from lazydelta.sidecar import BuildResult, CleanResult, SidecarInfo, VerifyReport

__all__ = ["SidecarOutput", "sidecar_output"]

_PICTURE_WIDTH = 100
_LISTED = 20


class SidecarOutput(Protocol):
    """How a command of the group speaks."""

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show ``describe()`` now and then while the block runs, where somebody would see it."""

    def built(self, result: BuildResult) -> None:
        """Print what a build or refresh did."""

    def verified(self, report: VerifyReport) -> None:
        """Print whether a sidecar equals the log."""

    def shown(self, info: SidecarInfo, *, everything: bool) -> None:
        """Print what a sidecar consists of."""

    def cleaned(self, result: CleanResult) -> None:
        """Print what was deleted."""


def sidecar_output(*, as_json: bool) -> SidecarOutput:
    """Return the renderer for programs or for people."""
    return _Json(JsonOutput(sys.stdout)) if as_json else _Text(console(), console(stderr=True))


class _Json:
    """One document a command: the result as the library returns it."""

    def __init__(self, out: JsonOutput) -> None:
        self._out = out

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        return self._out.watch(describe)

    def built(self, result: BuildResult) -> None:
        self._document(result)

    def verified(self, report: VerifyReport) -> None:
        self._document(report)

    def shown(self, info: SidecarInfo, *, everything: bool) -> None:  # noqa: ARG002 - programs get everything
        self._document(info)

    def cleaned(self, result: CleanResult) -> None:
        self._document(result)

    def _document(self, found: msgspec.Struct) -> None:
        self._out.document(msgspec.to_builtins(found))


_DEEDS = {
    "built": "was built",
    "refreshed": "was refreshed",
    "manifest-added": "was there and got its manifest",
    "already-valid": "is there and valid",
}


class _Text:
    """Sentences, and a picture for ``show``."""

    def __init__(self, out: Console, err: Console) -> None:
        self._out = out
        self._plain = ConsoleOutput(out, err)

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        return self._plain.watch(describe)

    def built(self, result: BuildResult) -> None:
        parts = _counted(result.num_parts, "part")
        self._line(
            f"The sidecar of version {result.version} {_DEEDS.get(result.action, result.action)}: "
            f"{_counted(result.num_files, 'file')} in {parts}, {text.size(result.size_bytes)}"
        )
        if result.action == "refreshed":
            written = result.num_parts - result.reused_parts
            self._line(f"{_counted(result.reused_parts, 'part')} used again, {_counted(written, 'part')} written")
        elif result.reason is not None:
            self._line(f"Everything was built anew: {text.one_line(result.reason)}")

    def verified(self, report: VerifyReport) -> None:
        for problem in report.problems:
            self._line(text.one_line(problem))
        if report.not_compared:
            names = ", ".join(map(text.printable, report.not_compared))
            self._line(f"The checkpoint does not have, so nothing to compare with: {names}")
        if report.checksum is not None:
            self._line(f"The version checksum {report.checksum}.")
        if report.ok:
            self._line(
                f"The sidecar of version {report.version} equals the log: {_counted(report.num_files, 'file')}, "
                f"{_counted(report.compared_columns, 'column')}, {_counted(report.num_row_groups, 'row group')} in "
                f"{_counted(report.num_parts, 'part')}"
            )
        elif report.tier is not None:
            self._line(f"The sidecar of version {report.version} does not equal the log.")

    def shown(self, info: SidecarInfo, *, everything: bool) -> None:
        for name, fact in _facts(info):
            self._line(f"{name:<12}{text.printable(fact)}")
        self._line("")
        width = min(_PICTURE_WIDTH, self._out.width)
        for line in picture(info, width, everything=everything, blocks="utf" in self._out.encoding.lower()):
            self._line(line)

    def cleaned(self, result: CleanResult) -> None:
        for path in result.deleted[:_LISTED]:
            self._line(text.printable(path))
        if len(result.deleted) > _LISTED:
            self._line(f"and {_counted(len(result.deleted) - _LISTED, 'file')} more")
        deed = "would be deleted" if result.dry_run else "deleted"
        kept = ", ".join(map(str, result.kept_versions)) or "none"
        self._line(
            f"{_counted(len(result.deleted), 'file')} {deed}, {text.size(result.size_bytes)}; "
            f"versions with a sidecar: {kept}"
        )

    def _line(self, line: str) -> None:
        self._out.print(line, soft_wrap=True)


def _facts(info: SidecarInfo) -> list[tuple[str, str]]:
    newest = info.checkpoint_version
    state = "of the newest checkpoint" if newest == info.version else f"stale: the newest checkpoint is {newest}"
    state += "" if info.tier == 1 else ", without a manifest"
    facts: list[tuple[str, Any]] = [
        ("table", info.uri),
        ("version", f"{info.version} ({state})"),
        ("files", text.count(info.num_files)),
        ("size", f"{text.size(info.size_bytes)} in {_counted(len(info.parts), 'part')}"),
        ("row groups", text.count(info.num_row_groups)),
        ("sorted by", ", ".join(info.sort) or "path"),
        ("columns", text.count(len(info.columns))),
    ]
    if info.other_files:
        facts.append(("also there", f"{_counted(info.other_files, 'other file')}, {text.size(info.other_bytes)}"))
    return facts


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

"""What ``lazydelta ingest`` has to say: one renderer for people, one for programs."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import click

from lazydelta.cli import wording as text
from lazydelta.cli.console_output import ConsoleOutput, console
from lazydelta.cli.json_output import JsonOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from lazydelta.spark.files_ingestion import Progress
    from lazydelta.spark.files_stream import MicroBatch
    from lazydelta.write.job import WriteResult

__all__ = ["IngestOutput", "ingest_output"]


class IngestOutput(Protocol):
    """How the command speaks."""

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:
        """Show ``describe()`` now and then while the block runs, where somebody would see it."""

    def note(self, line: str) -> None:
        """Say something about the course of things."""

    def ingested(self, uri: str, result: WriteResult, progress: Progress, seconds: float) -> None:
        """Print what a batch has done."""

    def took(self, uri: str, batch: MicroBatch) -> None:
        """Print what a micro-batch has done, if that is of interest now."""

    def streamed(self, uri: str, version: int | None, totals: dict[str, int]) -> None:
        """Print what a stream has done in all."""


def ingest_output(*, as_json: bool) -> IngestOutput:
    """Return the renderer for programs or for people."""
    return _Json(JsonOutput(sys.stdout)) if as_json else _Text(console(), console(stderr=True))


def _result(result: WriteResult) -> dict[str, Any]:
    return {
        "version": result.version,
        "rows": result.rows,
        "files": result.files,
        "bytes": result.bytes,
        "rejected": result.rejected,
        "already_committed": result.already_committed,
    }


def _note(line: str) -> None:
    click.echo(line, err=True)


class _Json:
    """A document for a batch, a line for each micro-batch."""

    def __init__(self, out: JsonOutput) -> None:
        self._out = out
        self.watch = out.watch
        self.note = _note

    def ingested(self, uri: str, result: WriteResult, progress: Progress, seconds: float) -> None:
        source = {"source_files": progress.source_files, "source_bytes": progress.source_bytes}
        self._out.document({"uri": uri} | _result(result) | source | {"seconds": round(seconds, 3)})

    def took(self, uri: str, batch: MicroBatch) -> None:
        lag = None if batch.lag is None else round(batch.lag, 3)
        line = {"uri": uri, "batch": batch.number} | _result(batch.result)
        sys.stdout.write(json.dumps(line | {"source_files": batch.source_files, "lag_seconds": lag}) + "\n")
        sys.stdout.flush()

    def streamed(self, uri: str, version: int | None, totals: dict[str, int]) -> None:
        """Write nothing: each commit had its line."""


class _Text:
    """A sentence at the end."""

    def __init__(self, out: Console, err: Console) -> None:
        self._out = out
        self.watch = ConsoleOutput(out, err).watch
        self.note = _note

    def ingested(self, uri: str, result: WriteResult, progress: Progress, seconds: float) -> None:
        if result.already_committed:
            self._line(f"{text.printable(uri)} had these rows already, in version {result.version} at the latest")
            return
        self._line(
            f"{text.printable(uri)} is at version {result.version}: {text.count(result.rows)} rows of "
            f"{text.count(progress.source_files)} files in {text.count(result.files)} data files, "
            f"{text.size(result.bytes)}{_rejected(result.rejected)}, {text.duration(seconds * 1000)}"
        )

    def took(self, uri: str, batch: MicroBatch) -> None:
        """Print nothing: the line of progress has it."""

    def streamed(self, uri: str, version: int | None, totals: dict[str, int]) -> None:
        if version is None:
            self._line(f"{text.printable(uri)}: nothing new")
            return
        self._line(
            f"{text.printable(uri)} is at version {version}: {text.count(totals['commits'])} commits, "
            f"{text.count(totals['rows'])} rows of {text.count(totals['source_files'])} files"
            f"{_rejected(totals['rejected'])}"
        )

    def _line(self, line: str) -> None:
        self._out.print(line, soft_wrap=True)


def _rejected(count: int) -> str:
    return f", {text.count(count)} rows rejected" if count else ""

"""For programs: one JSON document, or one JSON object a line for streams.

Everything beyond ASCII is escaped, so the bytes are the same whatever the terminal's encoding, and even a path that
no encoding takes (half a surrogate pair) comes through.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from lazydelta.cli.values import Record, plain, records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

__all__ = ["JsonOutput"]


class JsonOutput:
    """An ``Output`` that writes JSON."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._encode = json.JSONEncoder(default=plain, allow_nan=False, separators=(",", ":")).encode

    def watch(self, describe: Callable[[], str]) -> AbstractContextManager[object]:  # noqa: ARG002 - programs do not watch
        """Show nothing."""
        return nullcontext()

    def tell(self, result: object, words: object = None) -> None:  # noqa: ARG002 - words are for people
        """Write one document, indented, because people look at it too."""
        self._out.write(json.dumps(_document(result), indent=2, allow_nan=False) + "\n")
        self._out.flush()

    def step(self, result: object, words: object = None) -> None:  # noqa: ARG002 - words are for people
        """Write one object on a line."""
        self._lines([_document(result)])

    def sum_up(self, result: object, words: object) -> None:
        """Write nothing: each step had its line."""

    def files(self, batches: Iterable[Iterable[Record]], *, with_counts: bool = False) -> None:  # noqa: ARG002 - always there
        """Write one object a file, flushed by batch."""
        for batch in batches:
            self._lines(batch)

    def changes(self, batches: Iterable[Iterable[Record]]) -> None:
        """Write one object a change, flushed by batch."""
        self.files(batches)

    def rows(self, batches: Iterable[pa.RecordBatch], names: list[str]) -> None:  # noqa: ARG002 - each row has them
        """Write one object a row, flushed by batch."""
        for batch in batches:
            self._lines(records(batch))

    def _lines(self, batch: Iterable[Record]) -> None:
        self._out.write("".join([f"{self._encode(record)}\n" for record in batch]))
        self._out.flush()


def _document(result: object) -> Any:
    """Return what the library returned, a structure or plain values, as plain values."""
    return plain(msgspec.to_builtins(result, enc_hook=plain))

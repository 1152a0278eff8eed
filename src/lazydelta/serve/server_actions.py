"""The actions of a server: how it is, and what can be told of a table in one answer rather than in a stream.

Those that go over files or rows do so as streams do, within the same budgets, and end when their client leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from lazydelta.delta_table import DeltaTable
from lazydelta.errors import OptionError
from lazydelta.serve.answers import Answer
from lazydelta.serve.descriptions import described, estimated, history_of, partitions_in
from lazydelta.serve.served_tables import Identity
from lazydelta.serve.streams import ServedStream
from lazydelta.serve.ticket import Ticket
from lazydelta.wire import ScanCommand, parse_command

__all__ = ["ACTIONS", "ServerActions", "table_in"]

ACTIONS = {
    "health": "whether the server takes streams, and how many are running",
    "metrics": "all metrics, as Prometheus reads them",
    "describe": "version, schema and metadata of a table; the body is a command",
    "domains": "the metadata domains of a table; the body is a command",
    "history": "the provenance of versions, newest first, as many as its limit says; the body is a command",
    "partitions": "the distinct partitions of the files that may match; the body is a command",
    "estimate": "how many files, bytes and rows a scan would read at most; the body is a command",
    "count": "how many rows match; the body is a command",
    "explain": "how a scan went, after it was run and its files were dropped; the body is a command",
}


class _Server(Protocol):
    """What actions need of the server."""

    def health(self) -> dict[str, Any]:
        """Return how it is."""

    def metrics_text(self) -> bytes:
        """Return its metrics."""

    def opened(self, who: Identity, command: ScanCommand) -> DeltaTable:
        """Return a table that somebody may read."""

    def pin(self, who: Identity, command: ScanCommand) -> tuple[DeltaTable, Ticket]:
        """Return a table and the ticket of a command."""

    def begin(self, context: Any, who: Identity, table: DeltaTable, ticket: Ticket) -> tuple[Answer, ServedStream]:
        """Begin what a ticket stands for, within the budgets of the client."""

    def room(self, context: Any) -> Callable[[], None]:
        """Take room for something that is no stream; return what gives it back."""


class _Named(msgspec.Struct):
    table: str | None = None


def table_in(body: bytes) -> str | None:
    """Return the table that the body of an action names, for the log; None where it names none."""
    try:
        return msgspec.json.decode(body, type=_Named).table
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


class ServerActions:
    """Runs actions by their names; each answers with one JSON, ``metrics`` with text."""

    def __init__(self, server: _Server, *, command_bytes: int, cleaned: Callable[[str], str]) -> None:
        self._server = server
        self._most = command_bytes
        self._cleaned = cleaned

    def run(self, context: Any, who: Identity, kind: str, body: bytes) -> bytes:
        """Run an action."""
        if kind == "health":
            return msgspec.json.encode(self._server.health())
        if kind == "metrics":
            return self._server.metrics_text()
        if kind not in ACTIONS:
            message = f"There is no action {kind[:100]!r}"
            raise OptionError(message, hint="list_actions has those that there are")
        command = parse_command(body, most=self._most)
        if kind in {"describe", "domains", "history"}:
            return self._told(context, who, kind, command)
        return msgspec.json.encode(self._scanned(context, who, kind, command), enc_hook=str)

    def _told(self, context: Any, who: Identity, kind: str, command: ScanCommand) -> bytes:
        table = self._server.opened(who, command)
        if kind == "describe":
            return described(table, command.table)
        give_back = self._server.room(context)
        try:
            if kind == "domains":
                return msgspec.json.encode(table.domain_metadata())
            return history_of(table, command.limit, context.is_cancelled, self._cleaned)
        finally:
            give_back()

    def _scanned(self, context: Any, who: Identity, kind: str, command: ScanCommand) -> Any:
        asked: dict[str, dict[str, Any]] = {
            # Rows without columns: those that the log has proven to match need not be read, but then nobody could be
            # told while it is done. So all are, and the client may leave at any moment.
            "count": {"of": "rows", "columns": []},
            "partitions": {"of": "files", "stats_columns": None},
            "estimate": {"of": "files", "stats_columns": []},
        }
        changed = msgspec.structs.replace(command, **asked.get(kind, {}))
        table, ticket = self._server.pin(who, changed)
        answer, stream = self._server.begin(context, who, table, ticket)
        batches = (batch for batch, _ in stream)
        if kind == "partitions":
            return partitions_in(batches, table.metadata().partition_columns)
        if kind == "estimate":
            return estimated(batches)
        rows = _exhausted(batches)
        if kind == "count":
            return {"rows": rows, "version": ticket.command.version}
        explained = answer.explain()
        explained["plan"]["table"] = command.table
        return explained


def _exhausted(batches: Iterator[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)

"""The wire format of errors: class, message and hint as JSON, restored to the same class by the client."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from lazydelta import errors
from lazydelta.errors import KqlError, LazyDeltaError, OptionError, QueryError, ServeError

__all__ = ["MAX_COMMAND_BYTES", "ScanCommand", "error_from", "error_in_json", "parse_command"]


class _Details(msgspec.Struct, omit_defaults=True):
    error: str
    message: str
    hint: str | None = None
    version: int | None = None
    line: int | None = None
    column: int | None = None
    is_syntax: bool = False


def error_in_json(error: LazyDeltaError, message: str) -> bytes:
    """Return an error as JSON, with a message that clients may see."""
    place = (error.line, error.column) if isinstance(error, KqlError | QueryError) else ()
    place = (*place, error.is_syntax) if isinstance(error, KqlError) else place
    return msgspec.json.encode(_Details(type(error).__name__, message, error.hint, error.version, *place))


def error_from(data: bytes) -> LazyDeltaError | None:
    """Return the error that a server described. Return None if there is none."""
    try:
        found = msgspec.json.decode(data, type=_Details)
    except (msgspec.MsgspecError, UnicodeError):
        return None
    kind: Any = getattr(errors, found.error, None) if found.error in errors.__all__ else None
    error: LazyDeltaError = (kind or ServeError)(found.message, hint=found.hint, version=found.version)
    if isinstance(error, KqlError | QueryError):
        error.line, error.column = found.line, found.column
    if isinstance(error, KqlError):
        error.is_syntax = found.is_syntax
    return error


# ``ScanCommand``: a request to a table server, as JSON.


MAX_COMMAND_BYTES = 256 << 10
_MOST_ENDPOINTS = 1024
_MOST_SECONDS = 7 * 86_400


class ScanCommand(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """A scan of files or rows. Each field matches the keyword of ``DeltaTable.files`` or ``rows``.

    ``where`` is a SQL string or a JSON predicate, ``filters`` are tuples as lists. ``version`` is a number or a
    timestamp. ``endpoints`` requests that many tickets, whose results together are the whole. ``timeout`` ends the
    stream after that many seconds. ``table_id`` is the expected id of the table: it is an error if another table has
    replaced it. ``at`` is the timestamp that ``now()`` and ``last`` count from, in nanoseconds since 1970. A repeated
    request sends the one that the server returned.
    """

    table: str
    of: Literal["files", "rows"] = "files"
    where: str | dict[str, Any] | None = None
    filters: list[Any] | None = None
    limit: int | None = None
    row_limit: int | None = None
    strategy: Literal["auto", "reverse", "forward"] = "auto"
    columns: list[str] | None = None
    stats_columns: list[str] | None = None
    batch_size: int | None = None
    version: int | str | None = None
    endpoints: int = 1
    last: str | None = None
    now: str | None = None
    at: int | None = None
    strict: bool = False
    timeout: float | None = None
    table_id: str | None = None

    def checked(self) -> ScanCommand:
        """Return the command. Raise an error if it contradicts itself."""
        wrong = self._wrong()
        if wrong is not None:
            raise OptionError(wrong[0], hint=wrong[1])
        return self

    def _wrong(self) -> tuple[str, str] | None:
        only_files = [name for name in ("row_limit", "stats_columns") if getattr(self, name) is not None]
        if not 1 <= self.endpoints <= _MOST_ENDPOINTS:
            return f"endpoints={self.endpoints} is not valid", f"give a number from 1 to {_MOST_ENDPOINTS}"
        if self.endpoints > 1 and (self.limit is not None or self.row_limit is not None):
            return "A limit cannot be divided among several endpoints", "omit the limit, or endpoints"
        if self.where is not None and self.filters is not None:
            return "where and filters exclude each other", "give one of them"
        if self.of == "rows" and only_files:
            return f"{only_files[0]} is for files, not for rows", "omit it"
        if self.of == "files" and self.columns is not None:
            return "columns are for rows, not for files", "omit them, or ask for stats_columns"
        if self.timeout is not None and not 0 < self.timeout <= _MOST_SECONDS:
            return f"timeout={self.timeout} is not valid", "give seconds, more than 0 and at most a week"
        return None


_decoder = msgspec.json.Decoder(ScanCommand)


def parse_command(data: bytes, *, most: int = MAX_COMMAND_BYTES) -> ScanCommand:
    """Parse a command. One that is too long is refused before parsing."""
    if len(data) > most:
        raise OptionError(f"The command has {len(data)} bytes, more than {most}", hint="send a smaller request")
    try:
        return _decoder.decode(data).checked()
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        hint = 'write JSON such as {"table": "t", "where": "hour >= \'2026021022\'", "limit": 100}'
        raise OptionError(f"The command cannot be understood: {error}", hint=hint) from None

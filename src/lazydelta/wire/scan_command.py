"""``ScanCommand``: what somebody asks of a server of tables, as JSON."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from lazydelta.errors import OptionError

__all__ = ["MAX_COMMAND_BYTES", "ScanCommand", "parse_command"]

MAX_COMMAND_BYTES = 256 << 10
_MOST_ENDPOINTS = 1024
_MOST_SECONDS = 7 * 86_400


class ScanCommand(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """A scan of files or rows; each field is what the keyword of ``DeltaTable.files`` or ``rows`` is.

    ``where`` is SQL text or a JSON predicate, ``filters`` are tuples as lists. ``version`` is a number or a moment.
    ``endpoints`` asks for so many tickets, whose answers together are the whole. ``timeout`` ends the stream after so
    many seconds. ``at`` is the moment that ``now()`` and ``last`` count from, in nanoseconds since 1970: who asks the
    same again gives the one that the server told.
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

    def checked(self) -> ScanCommand:
        """Return the command; what contradicts itself is an error."""
        wrong = self._wrong()
        if wrong is not None:
            raise OptionError(wrong[0], hint=wrong[1])
        return self

    def _wrong(self) -> tuple[str, str] | None:
        only_files = [name for name in ("row_limit", "stats_columns") if getattr(self, name) is not None]
        if not 1 <= self.endpoints <= _MOST_ENDPOINTS:
            return f"endpoints={self.endpoints} makes no sense", f"give a number from 1 to {_MOST_ENDPOINTS}"
        if self.endpoints > 1 and (self.limit is not None or self.row_limit is not None):
            return "A limit cannot be divided among several endpoints", "leave out the limit, or endpoints"
        if self.where is not None and self.filters is not None:
            return "where and filters exclude each other", "give one of them"
        if self.of == "rows" and only_files:
            return f"{only_files[0]} is for files, not for rows", "leave it out"
        if self.of == "files" and self.columns is not None:
            return "columns are for rows, not for files", "leave them out, or ask for stats_columns"
        if self.timeout is not None and not 0 < self.timeout <= _MOST_SECONDS:
            return f"timeout={self.timeout} makes no sense", "give seconds, more than 0 and at most a week"
        return None


_decoder = msgspec.json.Decoder(ScanCommand)


def parse_command(data: bytes, *, most: int = MAX_COMMAND_BYTES) -> ScanCommand:
    """Read a command; one that is too long is refused before it is looked into."""
    if len(data) > most:
        raise OptionError(f"The command has {len(data)} bytes, more than {most}", hint="ask for less at once")
    try:
        return _decoder.decode(data).checked()
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        hint = 'write JSON such as {"table": "t", "where": "hour >= \'2026021022\'", "limit": 100}'
        raise OptionError(f"The command cannot be understood: {error}", hint=hint) from None

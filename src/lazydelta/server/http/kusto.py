"""The Kusto endpoint: queries and commands as Microsoft's clients send them over HTTP."""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from lazydelta.errors import LazyDeltaError, OptionError
from lazydelta.kql.execution.query import KIND, RENDER
from lazydelta.server.flight_sql.guard import CATALOG
from lazydelta.server.http.kusto_commands import Answer, Commands
from lazydelta.server.http.kusto_frames import (
    Column,
    TruncatedError,
    columns_of,
    columns_v2,
    encoded_rows,
    one_api,
    table_v1,
    table_v2,
    visualization,
)
from lazydelta.server.http.queries import Call, Queries, RunningQuery
from lazydelta.server.http.replies import JSON, BadRequestError, Head, json_reply
from lazydelta.server.worker_pool import KqlSettings

__all__ = ["Kusto"]

_REQUEST_ID = "x-ms-client-request-id"
_MOST_RECORDS = 500_000
_MOST_BYTES = 64 << 20
_SPAN = re.compile(r"(?:(\d+)\.)?(\d+):(\d+):(\d+(?:\.\d+)?)")
_SHORT_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SET = re.compile(r"\s*(?://[^\n]*\n\s*)*set\s+(\w+)\s*(?:=\s*([^;\n]+?)\s*)?;", re.IGNORECASE)
_ID = re.compile(r"[\x21-\x7e ]{1,200}")
_PRIMARY = 1
_PROPERTY_COLUMNS = (Column("TableId", "int"), Column("Key", "string"), Column("Value", "dynamic"))
_STATUS_COLUMNS = (
    Column("Timestamp", "datetime"),
    Column("ClientRequestId", "string"),
    Column("ActivityId", "guid"),
    Column("SubActivityId", "guid"),
    Column("ParentActivityId", "guid"),
    Column("Level", "int"),
    Column("LevelName", "string"),
    Column("StatusCode", "int"),
    Column("StatusCodeName", "string"),
    Column("EventType", "int"),
    Column("EventTypeName", "string"),
    Column("Payload", "string"),
)
_CONTENTS_COLUMNS = (
    Column("Ordinal", "long"),
    Column("Kind", "string"),
    Column("Name", "string"),
    Column("Id", "string"),
    Column("PrettyName", "string"),
)


class _Body(msgspec.Struct):
    """A request. Some clients send the properties as JSON text."""

    csl: str
    db: str | None = None
    properties: dict[str, Any] | str | None = None


@dataclass
class Asked:
    """A request as understood: the query, what it adds, and the limits of its result."""

    text: str
    identifier: str
    settings: KqlSettings
    seconds: float | None
    records: int | None
    size: int | None
    is_progressive: bool
    options: Mapping[str, Any] = field(default_factory=dict)


class Kusto:
    """The handlers of the endpoint. ``refused`` is what they make of an error."""

    def __init__(self, queries: Queries, *, has_tokens: bool, most_tables: int) -> None:
        self._queries = queries
        self._has_tokens = has_tokens
        self._commands = Commands(queries, most=most_tables)

    # --- handlers

    def metadata(self, _: Call) -> Iterator[Head | bytes]:
        """Answer how to log in. Clients with a token of their own do not use it."""
        login = {"LoginEndpoint": "", "LoginMfaRequired": False, "KustoClientAppId": "", "KustoClientRedirectUri": ""}
        login |= {"KustoServiceResourceId": "", "FirstPartyAuthorityUrl": ""}
        return json_reply({"AzureAD": login, "dSTS": None})

    def query_v1(self, call: Call) -> Iterator[Head | bytes]:
        """Answer a query, or a command, in version 1."""
        asked = self._asked(call)
        if asked.text.lstrip().startswith("."):
            return self._command(call, asked)
        return self._rows_v1(call, asked)

    def query_v2(self, call: Call) -> Iterator[Head | bytes]:
        """Answer a query, or a command, in version 2."""
        asked = self._asked(call)
        if asked.text.lstrip().startswith("."):
            found = self._commands.answer(call, asked.text)
            frames = [
                _header(is_progressive=False),
                table_v2(0, "QueryProperties", "@ExtendedProperties", _PROPERTY_COLUMNS),
                table_v2(_PRIMARY, "PrimaryResult", "PrimaryResult", found.columns, found.rows),
                self._completion_table(asked, found.summary()),
                {"FrameType": "DataSetCompletion", "HasErrors": False, "Cancelled": False},
            ]
            return json_reply(frames)
        return self._rows_v2(call, asked)

    def command(self, call: Call) -> Iterator[Head | bytes]:
        """Answer a command in version 1. A query is answered too, because some clients send everything here."""
        asked = self._asked(call)
        if not asked.text.lstrip().startswith("."):
            return self._rows_v1(call, asked)
        return self._command(call, asked)

    def common(self, call: Call) -> Mapping[str, str]:
        """Return the headers of every reply of this endpoint."""
        return {_REQUEST_ID: _identifier(call), "x-ms-activity-id": str(uuid.uuid4())}

    def refused(self, call: Call | None, error: BaseException) -> tuple[Head, bytes]:
        """Return the reply for an error."""
        identifier = "" if call is None else _identifier(call)
        status, body = one_api(error, self._queries.tables.without_places, identifier)
        headers = {"retry-after": "1"} if status == 429 else {}  # noqa: PLR2004
        if status == 401:  # noqa: PLR2004
            headers["www-authenticate"] = "Bearer"
        return Head(status if status != 200 else 400, JSON, headers), msgspec.json.encode(body)  # noqa: PLR2004

    # --- version 1

    def _command(self, call: Call, asked: Asked) -> Iterator[Head | bytes]:
        found: Answer = self._commands.answer(call, asked.text)
        yield from json_reply({"Tables": [table_v1("Table_0", found.columns, found.rows)]})

    def _rows_v1(self, call: Call, asked: Asked) -> Iterator[Head | bytes]:
        with self._run(call, asked) as query:
            columns = columns_of(query.schema, KIND)
            rows = self._rows(query, columns, asked)
            first = next(rows, None)
            yield Head()
            head = table_v1("Table_0", columns)
            yield b'{"Tables":[' + msgspec.json.encode({**head, "Rows": []})[:-2]
            failure: LazyDeltaError | None = None
            try:
                if first is not None:
                    yield first
                for piece in rows:
                    yield b"," + piece
            except LazyDeltaError as error:
                failure = error
            yield b"]},"
            yield b",".join(msgspec.json.encode(each) for each in self._other_tables(asked, query, failure))
            if failure is None:
                yield b"]}"
            else:
                told = self._one_api(failure, asked)["error"]["@message"]
                yield b'],"Exceptions":' + msgspec.json.encode([told]) + b"}"

    def _other_tables(self, asked: Asked, query: RunningQuery, failure: LazyDeltaError | None) -> list[dict[str, Any]]:
        drawn = [[0, "Visualization", visualization(_render(query.schema))]]
        status = self._status_row(asked, {"rows": query.shown.rows}, failure)
        contents = [
            [0, "QueryResult", "PrimaryResult", str(uuid.uuid4()), ""],
            [1, "QueryProperties", "@ExtendedProperties", str(uuid.uuid4()), ""],
            [2, "QueryStatus", "QueryStatus", "00000000-0000-0000-0000-000000000000", ""],
        ]
        return [
            table_v1("Table_1", _PROPERTY_COLUMNS, drawn),
            table_v1("Table_2", _STATUS_COLUMNS, [status]),
            table_v1("Table_3", _CONTENTS_COLUMNS, contents),
        ]

    # --- version 2

    def _rows_v2(self, call: Call, asked: Asked) -> Iterator[Head | bytes]:
        with self._run(call, asked) as query:
            columns = columns_of(query.schema, KIND)
            rows = self._rows(query, columns, asked)
            first = next(rows, None)
            yield Head()
            drawn = [[_PRIMARY, "Visualization", visualization(_render(query.schema))]]
            yield b"[" + msgspec.json.encode(_header(is_progressive=asked.is_progressive))
            properties = table_v2(0, "QueryProperties", "@ExtendedProperties", _PROPERTY_COLUMNS, drawn)
            yield b",\n" + msgspec.json.encode(properties)
            pieces = _progressive if asked.is_progressive else _whole
            failure: LazyDeltaError | None = None
            for piece in pieces(columns, first, rows, query):
                if isinstance(piece, LazyDeltaError):
                    failure = piece
                    if not asked.is_progressive:
                        # Clients look for an error after the rows of a table.
                        yield b"," + msgspec.json.encode({"OneApiErrors": [self._one_api(failure, asked)]})
                else:
                    yield piece
            summary = {"rows": query.shown.rows}
            yield b",\n" + msgspec.json.encode(self._completion_table(asked, summary, failure))
            end: dict[str, Any] = {"FrameType": "DataSetCompletion", "HasErrors": failure is not None}
            end["Cancelled"] = query.is_cancelled.is_set()
            if failure is not None:
                end["OneApiErrors"] = [self._one_api(failure, asked)]
            yield b",\n" + msgspec.json.encode(end) + b"]"

    def _completion_table(
        self, asked: Asked, summary: Mapping[str, Any], failure: LazyDeltaError | None = None
    ) -> dict[str, Any]:
        row = self._status_row(asked, summary, failure)
        kind = "QueryCompletionInformation"
        return table_v2(2, kind, kind, _STATUS_COLUMNS, [row])

    def _status_row(self, asked: Asked, summary: Mapping[str, Any], failure: LazyDeltaError | None) -> list[Any]:
        no_id = str(uuid.UUID(int=0))
        now = dt.datetime.now(dt.UTC).isoformat().replace("+00:00", "Z")
        level = (4, "Info", 0, "S_OK (0)") if failure is None else (2, "Error", -2133196797, "E_PARTIAL_FAILURE")
        text = msgspec.json.encode(dict(summary)).decode() if failure is None else str(failure.args[0])
        return [now, asked.identifier, no_id, no_id, no_id, *level, 4, "QueryInfo", text]

    # --- both

    def _run(self, call: Call, asked: Asked) -> Any:
        queries = self._queries
        return queries.run(
            call, "kql", asked.text, identifier=asked.identifier, settings=asked.settings, seconds=asked.seconds
        )

    def _rows(self, query: RunningQuery, columns: list[Column], asked: Asked) -> Iterator[bytes]:
        """Yield the rows as JSON, up to the limits of the result."""
        left_rows, left_bytes = asked.records, asked.size
        for batch in query:
            part: pa.RecordBatch = batch if left_rows is None else batch.slice(0, left_rows)
            data = encoded_rows(part, columns)
            if data:
                yield data
            if left_rows is not None:
                if part.num_rows < batch.num_rows:
                    raise _truncated(f"{asked.records} records")
                left_rows -= part.num_rows
            if left_bytes is not None:
                left_bytes -= len(data)
                if left_bytes < 0:
                    raise _truncated(f"{asked.size} bytes")

    def _one_api(self, error: LazyDeltaError, asked: Asked) -> dict[str, Any]:
        return one_api(error, self._queries.tables.without_places, asked.identifier)[1]

    def _asked(self, call: Call) -> Asked:
        try:
            body = msgspec.json.decode(call.body, type=_Body)
            properties = json.loads(body.properties) if isinstance(body.properties, str) else body.properties
            # Grafana's plugin writes `options`, Microsoft's clients `Options`.
            given = {} if properties is None else {key.lower(): value for key, value in properties.items()}
            options, parameters = dict(given.get("options") or {}), dict(given.get("parameters") or {})
        except (msgspec.MsgspecError, ValueError, TypeError, AttributeError, RecursionError, UnicodeError):
            message = "The request cannot be understood"
            raise BadRequestError(400, message, 'send JSON such as {"db": "lazydelta", "csl": "T | take 10"}') from None
        if body.db and body.db.lower() not in {CATALOG, "netdefaultdb"}:
            raise OptionError(f"There is no database {body.db[:100]!r} here", hint=f"the only one is {CATALOG!r}")
        text, settings = _without_settings(body.csl)
        options = {key.lower(): value for key, value in (options | settings).items()}
        is_cut = not _flag(options.get("notruncation"))
        return Asked(
            text=text,
            identifier=_identifier(call),
            settings=KqlSettings(
                now=_timestamp(options.get("query_now")),
                parameters=parameters,
                window=_window(options),
                take=_number(options, "query_take_max_records"),
            ),
            seconds=_seconds(options.get("servertimeout")),
            records=_number(options, "truncationmaxrecords", _MOST_RECORDS) if is_cut else None,
            size=_number(options, "truncationmaxsize", _MOST_BYTES) if is_cut else None,
            is_progressive=_flag(options.get("results_progressive_enabled")),
            options=options,
        )


# --- frames


def _header(*, is_progressive: bool) -> dict[str, Any]:
    return {"FrameType": "DataSetHeader", "IsProgressive": is_progressive, "Version": "v2.0"}


def _whole(
    columns: list[Column], first: bytes | None, rows: Iterator[bytes], _query: RunningQuery
) -> Iterator[bytes | LazyDeltaError]:
    """Yield one table. An error comes after some rows, or it would have been the reply."""
    head = table_v2(_PRIMARY, "PrimaryResult", "PrimaryResult", columns)
    yield b",\n" + msgspec.json.encode(head)[:-2]
    try:
        if first is not None:
            yield first
        for piece in rows:
            yield b"," + piece
    except LazyDeltaError as error:
        yield error
    yield b"]}"


def _progressive(
    columns: list[Column], first: bytes | None, rows: Iterator[bytes], query: RunningQuery
) -> Iterator[bytes | LazyDeltaError]:
    """Yield a header, a fragment for each batch, and a completion."""
    shown = {"TableKind": "PrimaryResult", "TableName": "PrimaryResult", "Columns": columns_v2(columns)}
    yield b",\n" + msgspec.json.encode({"FrameType": "TableHeader", "TableId": _PRIMARY, **shown})
    fragment = {"FrameType": "TableFragment", "TableFragmentType": "DataAppend", "TableId": _PRIMARY}
    start = msgspec.json.encode({**fragment, "FieldCount": len(columns), "Rows": []})[:-2]
    try:
        if first is not None:
            yield b",\n" + start + first + b"]}"
        for piece in rows:
            yield b",\n" + start + piece + b"]}"
    except LazyDeltaError as error:
        yield error
    end = {"FrameType": "TableCompletion", "TableId": _PRIMARY, "RowCount": query.shown.rows}
    yield b",\n" + msgspec.json.encode(end)


# --- requests


def _identifier(call: Call) -> str:
    given = call.headers.get(_REQUEST_ID, "")
    if _ID.fullmatch(given) is None:
        # The same for the whole call, so that its headers and its errors agree.
        given = str(call.headers.get("lazydelta-id") or uuid.uuid4())
        call.headers = {**call.headers, "lazydelta-id": given}
    return given


def _without_settings(text: str) -> tuple[str, dict[str, Any]]:
    """Return a query whose ``set`` statements are blank, which keeps positions, and what they set."""
    found: dict[str, Any] = {}
    at = 0
    while (match := _SET.match(text, at)) is not None:
        found[match[1].lower()] = True if match[2] is None else match[2].strip("'\"")
        at = match.end()
    blank = "".join(each if each == "\n" else " " for each in text[:at])
    return blank + text[at:], found


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() in {"true", "1"}


def _number(options: Mapping[str, Any], name: str, default: int | None = None) -> int | None:
    value = options.get(name)
    if value is None:
        return default
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < 0:
        raise OptionError(f"The request property {name} is {str(value)[:50]!r}", hint="pass a number of at least 0")
    return number


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    text = str(value).strip().rstrip(")")  # Grafana's plugin writes 00:01:00) from a minute on
    if match := _SPAN.fullmatch(text):
        days, hours, minutes, seconds = match.groups()
        return int(days or 0) * 86_400 + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    if match := _SHORT_SPAN.fullmatch(text):
        return float(match[1]) * _SECONDS[match[2]]
    raise OptionError(f"The request property servertimeout is {text[:50]!r}", hint="write 00:04:00 or 4m")


def _timestamp(value: Any) -> dt.datetime | None:
    if value is None:
        return None
    text = str(value).strip().removeprefix("datetime(").removesuffix(")")
    # Kusto writes seven digits of a second, Python reads six.
    text = re.sub(r"(\.\d{6})\d+", r"\1", text)
    try:
        timestamp = dt.datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"{text[:50]!r} is not a timestamp", hint="write 2026-02-10T14:00:00Z") from None
    return timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=dt.UTC)


def _window(options: Mapping[str, Any]) -> tuple[str, dt.datetime | None, dt.datetime | None] | None:
    column = options.get("query_datetimescope_column")
    first, last = (_timestamp(options.get(f"query_datetimescope_{each}")) for each in ("from", "to"))
    return None if column is None or (first is None and last is None) else (str(column), first, last)


def _render(schema: pa.Schema) -> dict[str, Any] | None:
    found = (schema.metadata or {}).get(RENDER)
    return None if found is None else msgspec.json.decode(found, type=dict[str, Any])


def _truncated(limit: str) -> TruncatedError:
    message = (
        f"Query execution has exceeded the allowed limits (80DA0003): the results of this query exceed the set limit of"
        f" {limit} (E_QUERY_RESULT_SET_TOO_LARGE)"
    )
    return TruncatedError(message, hint="summarize, take fewer rows, or set notruncation")

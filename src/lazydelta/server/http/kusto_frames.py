"""Results and errors in the JSON of Kusto's REST API, versions 1 and 2."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from lazydelta.errors import DeadlineError, KqlError, LazyDeltaError, MemoryLimitError, QueryError, StreamClosedError
from lazydelta.server.http.replies import BadRequestError, error_body, status_of

__all__ = [
    "Column",
    "TruncatedError",
    "columns_of",
    "columns_v2",
    "encoded_rows",
    "one_api",
    "table_v1",
    "table_v2",
    "visualization",
]

_DOTNET = {
    "bool": "SByte",
    "int": "Int32",
    "long": "Int64",
    "real": "Double",
    "string": "String",
    "dynamic": "Object",
    "guid": "Guid",
    "datetime": "DateTime",
    "timespan": "TimeSpan",
    "decimal": "SqlDecimal",
}
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - written with a Z below
_SECOND, _MINUTE, _HOUR, _DAY = 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000
_PROPERTIES = {
    "Title": "title",
    "XColumn": "xcolumn",
    "Series": "series",
    "YColumns": "ycolumns",
    "XTitle": "xtitle",
    "YTitle": "ytitle",
    "XAxis": "xaxis",
    "YAxis": "yaxis",
    "Legend": "legend",
    "YSplit": "ysplit",
    "Accumulate": "accumulate",
    "Kind": "kind",
    "Ymin": "ymin",
    "Ymax": "ymax",
    "Xmin": "xmin",
    "Xmax": "xmax",
}


class TruncatedError(QueryError):
    """The result is larger than its limits. The rows before the limit were sent."""


class Column(NamedTuple):
    """A column of a result, by its type in Kusto."""

    name: str
    kind: str


def columns_of(schema: pa.Schema, key: bytes) -> list[Column]:
    """Return the columns of a described statement; ``key`` has the type in a field's metadata."""
    return [Column(each.name, (each.metadata or {}).get(key, b"string").decode()) for each in schema]


# --- values


def encoded_rows(batch: pa.RecordBatch, columns: Sequence[Column]) -> bytes:
    """Return the rows of a batch as JSON arrays with commas between, without brackets around."""
    if not batch.num_columns:
        return b",".join([b"[]"] * batch.num_rows)
    values = [_values(array, column.kind) for array, column in zip(batch.columns, columns, strict=True)]
    return msgspec.json.encode(list(zip(*values, strict=True)))[1:-1]


def _values(array: pa.Array, kind: str) -> list[Any]:
    if kind in {"datetime", "timespan"} and pa.types.is_temporal(array.type):
        unit = pa.timestamp("us", array.type.tz) if kind == "datetime" else pa.duration("us")
        whole = array.cast(unit).cast(pa.int64()).to_pylist()
        written = timestamp_text if kind == "datetime" else span_text
        return [None if each is None else written(each) for each in whole]
    found: list[Any] = array.to_pylist()
    if kind == "real":
        return [each if each is None or math.isfinite(each) else _infinite(each) for each in found]
    if kind == "dynamic":
        return [None if each is None else msgspec.Raw(each.encode()) for each in found]
    if kind == "decimal":
        return [None if each is None else f"{each:f}" for each in found]
    return found


def timestamp_text(microseconds: int) -> str:
    """Return a timestamp, given in microseconds since 1970, as Kusto writes it."""
    text = (_EPOCH + dt.timedelta(microseconds=microseconds)).isoformat()
    return f"{text}0Z" if "." in text else f"{text}Z"


def span_text(microseconds: int) -> str:
    """Return a span of time as Kusto writes it."""
    days, left = divmod(abs(microseconds), _DAY)
    hours, left = divmod(left, _HOUR)
    minutes, left = divmod(left, _MINUTE)
    seconds, part = divmod(left, _SECOND)
    sign = "-" if microseconds < 0 else ""
    fraction = f".{part:06d}0" if part else ""
    return f"{sign}{f'{days}.' if days else ''}{hours:02d}:{minutes:02d}:{seconds:02d}{fraction}"


def _infinite(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


# --- tables


def table_v1(name: str, columns: Sequence[Column], rows: Sequence[Sequence[Any]] = ()) -> dict[str, Any]:
    """Return a table of version 1."""
    shown = [{"ColumnName": each.name, "DataType": _DOTNET[each.kind], "ColumnType": each.kind} for each in columns]
    return {"TableName": name, "Columns": shown, "Rows": list(rows)}


def table_v2(
    number: int, kind: str, name: str, columns: Sequence[Column], rows: Sequence[Sequence[Any]] = ()
) -> dict[str, Any]:
    """Return a whole table of version 2."""
    return {
        "FrameType": "DataTable",
        "TableId": number,
        "TableKind": kind,
        "TableName": name,
        "Columns": columns_v2(columns),
        "Rows": list(rows),
    }


def columns_v2(columns: Sequence[Column]) -> list[dict[str, str]]:
    """Return columns as version 2 names them."""
    return [{"ColumnName": each.name, "ColumnType": each.kind} for each in columns]


def visualization(render: Mapping[str, Any] | None) -> str:
    """Return how a result should be drawn, as clients expect it in the extended properties."""
    given = {str(key).lower(): value for key, value in (render or {}).items()}
    told = {"Visualization": given.get("visualization")}
    told |= {name: given.get(key) for name, key in _PROPERTIES.items()}
    return msgspec.json.encode(told).decode()


# --- errors


def one_api(error: BaseException, cleaned: Callable[[str], str], identifier: str) -> tuple[int, dict[str, Any]]:
    """Return the status of an error and its body in the form of OneApi."""
    told = error_body(error, cleaned)
    code, kind, status = _kind(error)
    message = str(told["message"])
    if "hint" in told:
        message = f"{message} ({told['hint']})"
    if isinstance(error, KqlError):
        message = f"{'Syntax' if error.is_syntax else 'Semantic'} error: {message}"
    context: dict[str, Any] = {"serviceAlias": "lazydelta", "clientRequestId": identifier}
    found: dict[str, Any] = {
        "code": code,
        "message": "Request is invalid and cannot be executed." if status < 500 else "The request failed.",  # noqa: PLR2004
        "@type": kind,
        "@message": message,
        "@context": context,
        "@permanent": status not in {429, 504},
    }
    if "line" in told:
        found |= {"@line": told["line"], "@pos": told["column"], "@errorCode": "SYN" if "Syntax" in code else "SEM"}
        found["@message"] = f"{message} [line:position={told['line']}:{told['column']}]"
    return status, {"error": found}


def _kind(error: BaseException) -> tuple[str, str, int]:
    if isinstance(error, TruncatedError):
        return "LimitsExceeded", "Kusto.Data.Exceptions.KustoServicePartialQueryFailureLimitsExceededException", 200
    if isinstance(error, MemoryLimitError):
        return "LimitsExceeded", "Kusto.Data.Exceptions.KustoServicePartialQueryFailureLowMemoryConditionException", 400
    if isinstance(error, KqlError):
        name = "Syntax" if error.is_syntax else "Semantic"
        code = "General_BadRequest" if not error.is_syntax else "BadRequest_SyntaxError"
        return code, f"Kusto.Data.Exceptions.{name}Exception", 400
    status = error.status if isinstance(error, BadRequestError) else status_of(error)
    if isinstance(error, DeadlineError):
        return "Timeout", "Kusto.Data.Exceptions.KustoServiceTimeoutException", status
    if isinstance(error, StreamClosedError):
        return "Aborted", "Kusto.Data.Exceptions.KustoQueryCanceledByUserException", 400
    if status == 404:  # noqa: PLR2004
        return "BadRequest_EntityNotFound", "Kusto.Data.Exceptions.EntityNotFoundException", 400
    if status == 429:  # noqa: PLR2004
        return "Throttled", "Kusto.Data.Exceptions.KustoRequestThrottledException", status
    if isinstance(error, LazyDeltaError) and status < 500:  # noqa: PLR2004
        return "General_BadRequest", "Kusto.Data.Exceptions.KustoBadRequestException", status
    return "General_InternalServerError", "Kusto.Data.Exceptions.KustoServiceException", status

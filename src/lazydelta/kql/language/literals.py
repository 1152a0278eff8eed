"""Literals: strings, timespans, datetimes and the ``type(value)`` forms.

Timespans are counted in 100 ns ticks and datetimes in ticks since 1970, which is Kusto's resolution.
"""

from __future__ import annotations

import datetime as dt
import re
import sys
import uuid
from decimal import Decimal, InvalidOperation
from typing import Any

__all__ = [
    "FIRST_TICK",
    "KINDS",
    "LAST_TICK",
    "RFC_TIMESTAMP",
    "TICKS_A_DAY",
    "BadLiteral",
    "span",
    "timestamp",
    "typed",
    "unquoted",
    "written",
]

TICKS_A_SECOND = 10**7
TICKS_A_DAY = 86_400 * TICKS_A_SECOND
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
FIRST_TICK = (dt.datetime(1, 1, 1, tzinfo=dt.UTC) - _EPOCH).days * TICKS_A_DAY
"""Kusto's earliest datetime, in ticks since 1970."""
LAST_TICK = (dt.datetime(9999, 12, 31, tzinfo=dt.UTC) - _EPOCH).days * TICKS_A_DAY + TICKS_A_DAY - 1
"""Kusto's latest datetime, in ticks since 1970."""

KINDS = {
    "bool": "bool",
    "boolean": "bool",
    "date": "datetime",
    "datetime": "datetime",
    "decimal": "decimal",
    "double": "real",
    "dynamic": "dynamic",
    "guid": "guid",
    "int": "int",
    "long": "long",
    "real": "real",
    "string": "string",
    "time": "timespan",
    "timespan": "timespan",
}
"""Kusto's type names, including aliases, and the kind of each."""

_UNITS: dict[str, int | Decimal] = {
    "d": TICKS_A_DAY,
    "h": 3600 * TICKS_A_SECOND,
    "m": 60 * TICKS_A_SECOND,
    "s": TICKS_A_SECOND,
    "ms": 10**4,
    "micro": 10,
    "nano": Decimal("0.01"),
    "tick": 1,
}
_UNIT = re.compile(r"micro|milli|nano|tick|ms|min|[dhms]")
_SPAN = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-z]+)", re.ASCII)
_CLOCK = re.compile(r"([+-])?(?:(\d{1,8})\.)?(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,7}))?)?", re.ASCII)
_DAYS = re.compile(r"[+-]?\d{1,8}(?:\.\d+)?", re.ASCII)
_TIMESTAMP = re.compile(
    r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)?)?)?"
    r"\s*(Z|UTC|GMT|[+-]\d{2}:?\d{2})?",
    re.ASCII | re.IGNORECASE,
)
# Spaces around the dashes of a date, and dates as in 02/17/2016.
_SPACED = re.compile(r"(?<=\d)\s*-\s*(?=\d{1,2}(?:\s*-|[T ]|$))", re.ASCII)
_MONTH_FIRST = re.compile(r"^(\d{1,2})/(\d{1,2})/(\d{4})", re.ASCII)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# RFC 822 and RFC 850, with two- or four-digit years: "Sat, 8 Nov 14 15:05:02 GMT", "Saturday, 08-Nov-14 15:05".
RFC_TIMESTAMP = (
    r"(?i)^(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?,\s*)?"
    rf"(\d{{1,2}})[ -]({'|'.join(_MONTHS)})[ -](\d{{4}}|\d{{2}}) (\d{{1,2}}:\d{{2}}(?::\d{{2}})?)(?: (?:GMT|UTC?|Z))?$"
)
"""Regular expression for RFC 822 and RFC 850 datetimes, valid in both Python and DuckDB."""
_FIRST_OF_1900 = 69
_GUID = re.compile(r"[0-9a-fA-F]{8}(-?)(?:[0-9a-fA-F]{4}\1){3}[0-9a-fA-F]{12}", re.ASCII)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_SURROGATES = range(0xD800, 0xE000)
_NUMBER_LIMITS = {"int": 2**31, "long": 2**63}


class BadLiteral(ValueError):  # noqa: N818 - the parser converts it to a KqlError
    """A literal that is not valid for its type."""


def unquoted(text: str) -> str:
    """Return the value of a string literal. The prefix of hidden strings has no effect here."""
    if text.startswith(("```", "~~~")):
        return text[3:-3]
    text = text.lstrip("hH")
    if text.startswith("@"):
        quote = text[1]
        return text[2:-1].replace(quote * 2, quote)
    return _ESCAPE.sub(_unescaped, text[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code in _ESCAPES:
        return _ESCAPES[code]
    if code[0] in "uUx" and len(code) > 1:
        number = int(code[1:], 16)
    elif code[0] in "01234567":
        number = int(code, 8)
    else:
        raise BadLiteral(f"the escape \\{code} is not known; double the backslash, or write @ before the string")
    if number > sys.maxunicode or number in _SURROGATES:
        raise BadLiteral(f"\\{code} is not a character")
    return chr(number)


def span(text: str) -> int:
    """Return the ticks of a timespan such as ``1.5h``, ``15 seconds``, ``2`` (days) or ``0.12:34:56.7``."""
    text = text.strip()
    if match := _SPAN.fullmatch(text):
        unit = _UNIT.match(match[2])
        name = {"milli": "ms", "min": "m"}.get(unit[0], unit[0]) if unit else ""
        if name in _UNITS:
            return _ticks(Decimal(match[1]) * _UNITS[name], text)
    if match := _CLOCK.fullmatch(text):
        sign, days, hours, minutes, seconds, fraction = match.groups()
        if int(hours) < 24 and int(minutes) < 60 and int(seconds or 0) < 60:  # noqa: PLR2004 - limits of a clock
            whole = ((int(days or 0) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds or 0)
            ticks = whole * TICKS_A_SECOND + int((fraction or "0").ljust(7, "0"))
            return _ticks(Decimal(-ticks if sign == "-" else ticks), text)
    if _DAYS.fullmatch(text):
        return _ticks(Decimal(text) * TICKS_A_DAY, text)
    raise BadLiteral(f"{text!r} is not a timespan; write 1d, 1.5h, 30m, 10s, 100ms or 1.02:03:04")


def _ticks(ticks: Decimal, text: str) -> int:
    if abs(ticks) >= 2**63:
        raise BadLiteral(f"the time span {text!r} is longer than any in Kusto")
    return int(ticks)


def timestamp(text: str) -> int:
    """Return the ticks since 1970 of an ISO 8601, RFC 822 or RFC 850 datetime, in UTC unless it has an offset."""
    match = _TIMESTAMP.fullmatch(_from_month_first(_from_rfc(_SPACED.sub("-", text.strip()))))
    if match is None:
        raise BadLiteral(f"{text.strip()!r} is not a timestamp; write 2026-02-10, or 2026-02-10T22:00:00.123Z")
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        whole = dt.datetime(
            int(year), int(month or 1), int(day or 1), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=dt.UTC
        )
    except ValueError as error:
        raise BadLiteral(f"{text.strip()!r} is not a timestamp: {error}") from error
    ticks = (whole - _EPOCH) // dt.timedelta(microseconds=1) * 10 + int((fraction or "0").ljust(9, "0")) // 100
    if zone is not None and zone[0] in "+-":
        offset = int(zone[1:3]) * 60 + int(zone[-2:])
        ticks -= (offset if zone[0] == "+" else -offset) * 60 * TICKS_A_SECOND
    if not FIRST_TICK <= ticks <= LAST_TICK:
        raise BadLiteral(f"{text.strip()!r} is not a timestamp: it lies outside the years 1 to 9999 of UTC")
    return ticks


def _from_month_first(text: str) -> str:
    return _MONTH_FIRST.sub(lambda match: f"{match[3]}-{match[1]}-{match[2]}", text)


def _from_rfc(text: str) -> str:
    match = re.match(RFC_TIMESTAMP, text, re.ASCII)
    if match is None:
        # A year at the end follows month and day.
        return re.sub(r"^(\d{1,2})[-/](\d{1,2})[-/](\d{4})", r"\3-\1-\2", text)
    day, month, digits, clock = match.groups()
    # POSIX, and therefore DuckDB, reads two-digit years this way.
    year = int(digits) if len(digits) > 2 else int(digits) + (1900 if int(digits) >= _FIRST_OF_1900 else 2000)  # noqa: PLR2004
    return f"{year:04}-{_MONTHS.index(month.lower()) + 1}-{day} {clock}"


def written(kind: str, value: Any) -> str:
    """Return a value as Kusto writes it in a string."""
    if kind == "datetime":
        whole = _EPOCH + dt.timedelta(microseconds=value // 10)
        return f"{whole.isoformat()[:19]}.{value % TICKS_A_SECOND:07}Z"
    if kind == "timespan":
        days, rest = divmod(abs(value), TICKS_A_DAY)
        seconds, fraction = divmod(rest, TICKS_A_SECOND)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return f"{'-' * (value < 0)}{f'{days}.' * (days > 0)}{clock}{f'.{fraction:07}' * (fraction > 0)}"
    return str(value)


def typed(name: str, text: str) -> tuple[str, Any]:
    """Return the kind and value of ``name(text)``; None is null, and the kind ``now`` is the time of the query."""
    kind = KINDS.get(name)
    if kind is None:
        raise BadLiteral(f"the type {name!r} is not supported")
    text = text.strip()
    quoted = text[:1] in {"'", '"'}
    content = text[1:-1] if quoted else text
    if content == "null" and not quoted:
        return (kind, "") if kind == "string" else (kind, None)
    if kind == "datetime":
        return ("now", None) if not content else (kind, timestamp(content))
    if kind == "timespan":
        return kind, span(content)
    if kind == "bool":
        known = {"true": True, "false": False, "1": True, "0": False}.get(content.lower())
        if known is None:
            raise BadLiteral(f"{content!r} is neither true nor false")
        return kind, known
    if kind == "guid":
        return kind, _guid(content)
    if kind == "string":
        raise BadLiteral("write a string in quotes, without string()")
    return kind, _number(kind, content)


def _guid(text: str) -> str:
    if not _GUID.fullmatch(text):
        raise BadLiteral(f"{text!r} is not a guid; write 74be27de-1e4e-49d9-b579-fe0b331d3642")
    return str(uuid.UUID(text))


def _number(kind: str, text: str) -> Any:
    special = {"nan": "nan", "+inf": "inf", "-inf": "-inf", "inf": "inf"}.get(text.lower())
    if kind == "real" and special is not None:
        return float(special)
    try:
        if kind in _NUMBER_LIMITS:
            number = int(text, 16 if text.lower().startswith(("0x", "-0x")) else 10)
            if not -_NUMBER_LIMITS[kind] <= number < _NUMBER_LIMITS[kind]:
                raise BadLiteral(f"{text} does not fit into the type {kind}")
            return number
        value = Decimal(text)
    except (ValueError, InvalidOperation) as error:
        if isinstance(error, BadLiteral):
            raise
        raise BadLiteral(f"{text!r} is not a {kind}") from error
    if not value.is_finite():
        raise BadLiteral(f"{text!r} is not a {kind}")
    return value if kind == "decimal" else float(value)

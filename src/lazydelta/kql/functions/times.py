"""Datetime functions. Weeks start on Sunday; the end of a period is its last microsecond."""

from __future__ import annotations

import datetime as dt
import re
import zoneinfo
from dataclasses import replace

from lazydelta.kql.binding.types import NUMBERS, Typed, literal
from lazydelta.kql.functions.declaration import Function, Given, built, rows
from lazydelta.kql.functions.macros import TICKS_BEFORE_1970
from lazydelta.kql.language.literals import FIRST_TICK, LAST_TICK

__all__ = ["TIMES"]

_UNIT_TICKS = {
    "day": 864_000_000_000,
    "hour": 36_000_000_000,
    "minute": 600_000_000,
    "second": 10_000_000,
    "millisecond": 10_000,
    "microsecond": 10,
}
_YEARS = 10_000
_MONTHS = {"year": 12, "quarter": 3, "month": 1}
_PARTS = {
    "year": "year({0})",
    "quarter": "quarter({0})",
    "month": "month({0})",
    "week_of_year": "week({0})",
    "day": "day({0})",
    "dayofyear": "dayofyear({0})",
    "hour": "hour({0})",
    "minute": "minute({0})",
    "second": "(epoch_us({0}) // 1000000 - epoch_us(date_trunc('minute', {0})) // 1000000)",
    "millisecond": "((kql_ticks({0}) % 10000000) // 10000)",
    "microsecond": "((kql_ticks({0}) % 10000000) // 10)",
    "nanosecond": "((kql_ticks({0}) % 10000000) * 100)",
}
_FORMAT = re.compile(r"([a-zA-Z])\1*|[ /\-:,._\[\]]")
_FRACTION = re.compile(r"f{1,7}|F{1,7}")
_FORMATS = {
    "yyyy": "printf('%04d', year({0}))",
    "yy": "printf('%02d', year({0}) % 100)",
    "y": "(year({0}) % 100)::VARCHAR",
    "MM": "printf('%02d', month({0}))",
    "M": "month({0})::VARCHAR",
    "dd": "printf('%02d', day({0}))",
    "d": "day({0})::VARCHAR",
    "HH": "printf('%02d', hour({0}))",
    "H": "hour({0})::VARCHAR",
    "hh": "printf('%02d', (hour({0}) + 11) % 12 + 1)",
    "h": "((hour({0}) + 11) % 12 + 1)::VARCHAR",
    "mm": "printf('%02d', minute({0}))",
    "m": "minute({0})::VARCHAR",
    "ss": "printf('%02d', (kql_ticks({0}) // 10000000) % 60)",
    "s": "((kql_ticks({0}) // 10000000) % 60)::VARCHAR",
    "tt": "CASE WHEN hour({0}) < 12 THEN 'AM' ELSE 'PM' END",
}


def _now(given: Given) -> Typed:
    offset = given.constant(0, "timespan") if len(given) else 0
    return _at(given.now + offset)


def _ago(given: Given) -> Typed:
    return _at(given.now - given.constant(0, "timespan"))


def _at(ticks: int) -> Typed:
    return literal("datetime", ticks if FIRST_TICK <= ticks <= LAST_TICK else None)


def _start(given: Given) -> Typed:
    period = given.name.removeprefix("startof")
    start = _boundary(given, period, 0)
    # A week may start before the first year.
    start = f"kql_dated({start})" if len(given) > 1 or period == "week" else start
    return given.of("datetime", start, name=_day_name(given))


def _end(given: Given) -> Typed:
    following = _boundary(given, given.name.removeprefix("endof"), 1)
    return given.of("datetime", f"kql_dated({following} - INTERVAL 1 MICROSECOND)")


def _day_name(given: Given) -> str | None:
    return given.values[0].name if given.name == "startofday" else None


def _boundary(given: Given, period: str, later: int) -> str:
    timestamp = given.timestamp(0)
    offset = f"({given.whole(1)} + {later})" if len(given) > 1 else str(later)
    start = f"kql_week_start({timestamp})" if period == "week" else f"date_trunc('{period}', {timestamp})"
    if offset == "0":
        return f"CAST({start} AS TIMESTAMP)"
    return f"CAST({_later(start, period, offset)} AS TIMESTAMP)"


def _later(timestamp: str, period: str, amount: str) -> str:
    """Return SQL for a datetime plus a number of periods. Numbers beyond any calendar never reach DuckDB."""
    if period in _MONTHS:
        months = _MONTHS[period]
        return _bounded(f"{timestamp} + to_months(CAST({amount} * {months} AS INTEGER))", amount, 12 * _YEARS // months)
    if period in {"day", "week"}:
        days = 7 if period == "week" else 1
        return _bounded(f"{timestamp} + to_days(CAST({amount} * {days} AS INTEGER))", amount, 366 * _YEARS // days)
    microseconds = _UNIT_TICKS[period] // 10
    most = 366 * _YEARS * _UNIT_TICKS["day"] // 10 // microseconds
    return _bounded(f"{timestamp} + to_microseconds(CAST({amount} * {microseconds} AS BIGINT))", amount, most)


def _bounded(sql: str, amount: str, most: int) -> str:
    return f"CASE WHEN {amount} BETWEEN -{most} AND {most} THEN {sql} END"


def _period(given: Given, index: int, extra: frozenset[str] = frozenset()) -> str:
    period = str(given.constant(index, "string")).lower()
    known = {*_MONTHS, "week", *_UNIT_TICKS, "nanosecond"} | extra
    if period not in known:
        message = f"{given.name}() has no period {period!r}"
        raise given.complain(message, f"known: {', '.join(sorted(known))}")
    return period


def _add(given: Given) -> Typed:
    period, amount, timestamp = _period(given, 0), given.whole(1), given.timestamp(2)
    if period == "nanosecond":
        period, amount = "microsecond", f"({amount} // 1000)"
    return given.of("datetime", f"kql_dated(CAST({_later(timestamp, period, amount)} AS TIMESTAMP))")


def _difference(given: Given) -> Typed:
    period, later, earlier = _period(given, 0), given.timestamp(1), given.timestamp(2)
    if period in _MONTHS:
        months = "((year({0}) * 12 + month({0}) - 1) // " + str(_MONTHS[period]) + ")"
        sql = f"({months.format(later)} - {months.format(earlier)})"
    elif period == "week":
        sql = f"(kql_weeks({later}) - kql_weeks({earlier}))"
    else:
        last, first = (_ticks(given.values[index], sql) for index, sql in ((1, later), (2, earlier)))
        size = _UNIT_TICKS.get(period)
        sql = f"(({last} - {first}) * 100)" if size is None else f"({last} // {size} - {first} // {size})"
    return given.of("long", f"CAST({sql} AS BIGINT)")


def _ticks(value: Typed, sql: str) -> str:
    """Return SQL for a datetime in ticks. A constant keeps those that a timestamp in microseconds has no room for."""
    is_exact = value.is_literal and value.kind == "datetime" and value.value is not None
    return f"CAST({value.value - FIRST_TICK} AS BIGINT)" if is_exact else f"kql_ticks({sql})"


def _part(given: Given) -> Typed:
    part = str(given.constant(0, "string")).lower()
    if part not in _PARTS:
        raise given.complain(f"datetime_part() has no part {part!r}", f"known: {', '.join(_PARTS)}")
    timestamp = given.timestamp(1)
    sql = _PARTS[part].replace("kql_ticks({0})", _ticks(given.values[1], timestamp)).format(timestamp)
    return given.of("int", f"CAST({sql} AS INTEGER)")


def _field(given: Given) -> Typed:
    function = {
        "hourofday": "hour",
        "dayofmonth": "day",
        "dayofyear": "dayofyear",
        "monthofyear": "month",
        "getmonth": "month",
        "getyear": "year",
        "week_of_year": "week",
        "weekofyear": "week",
    }[given.name]
    return given.of("int", f"CAST({function}({given.timestamp(0)}) AS INTEGER)")


def _day_of_week(given: Given) -> Typed:
    return given.of("timespan", f"(CAST(dayofweek({given.timestamp(0)}) AS BIGINT) * {_UNIT_TICKS['day']})")


def _make(given: Given) -> Typed:
    if len(given) == 1:
        return given.of(
            "datetime",
            given.as_kind(0, "datetime") if given.values[0].kind == "datetime" else f"kql_timestamp({given.text(0)})",
            name=given.values[0].name,
        )
    if len(given) < 3:  # noqa: PLR2004 - a date has three parts
        raise given.complain("make_datetime() needs year, month and day", None)
    parts = [given.whole(index) if index < len(given) else "0" for index in range(5)]
    seconds = "0"
    if len(given) > 5:  # noqa: PLR2004 - the sixth argument
        seconds = given.as_kind(5, "real")
    return given.of("datetime", f"TRY(make_timestamp({', '.join(parts)}, CAST({seconds} AS DOUBLE)))")


def _format(given: Given) -> Typed:
    timestamp, pattern = given.timestamp(0), str(given.constant(1, "string"))
    pieces: list[str] = []
    position = 0
    while position < len(pattern):
        match = _FORMAT.match(pattern, position)
        # A run of one letter is a single specifier: dddd is not dd twice.
        if match is None or (match[1] and match[0] not in _FORMATS and not _FRACTION.fullmatch(match[0])):
            message = f"format_datetime() does not support {pattern[position:]!r} in {pattern!r}"
            raise given.complain(message, "use y, M, d, H, h, m, s, f, F, tt and the delimiters /-:,._[] and space")
        pieces.append(_format_piece(match[0], timestamp))
        position = match.end()
    text = " || ".join(pieces) or "''"
    return given.of("string", f"coalesce({text}, '')", name=given.values[0].name)


def _format_piece(token: str, timestamp: str) -> str:
    if token in _FORMATS:
        return _FORMATS[token].format(timestamp)
    if token[0] in "fF":
        digits = f"substr(printf('%07d', kql_ticks({timestamp}) % 10000000), 1, {len(token)})"
        return digits if token[0] == "f" else f"rtrim({digits}, '0')"
    return f"'{token}'"


def _unix(given: Given) -> Typed:
    scale = {"seconds": 1_000_000, "milliseconds": 1000, "microseconds": 1}
    unit = given.name.split("_")[1]
    if unit == "nanoseconds":
        whole = f"CAST({given.values[0].sql} AS BIGINT)"
        return given.of("datetime", f"kql_dated(make_timestamp(CAST({whole} // 1000 AS BIGINT)))")
    number = f"CAST({given.values[0].sql} AS {'DOUBLE' if given.values[0].kind == 'real' else 'BIGINT'})"
    timestamp = f"make_timestamp(CAST({number} * {scale[unit]} AS BIGINT))"
    return given.of(
        "datetime", f"kql_dated({_bounded(timestamp, number, 366 * _YEARS * 86_400_000_000 // scale[unit])})"
    )


def _bin(given: Given) -> Typed:
    value, size = given.values
    name = value.name
    if value.kind in {"datetime", "timespan"}:
        if size.kind != "timespan":
            given.refuse(1, "a timespan")
        function = "kql_bin_time" if value.kind == "datetime" else "kql_bin"
        return given.of(value.kind, f"{function}({value.sql}, {size.sql})", name=name)
    if value.kind not in {*NUMBERS, "dynamic"}:
        given.refuse(0, "a number, a datetime or a timespan")
    if size.kind not in NUMBERS:
        given.refuse(1, "a number")
    if {value.kind, size.kind} <= {"int", "long"}:
        return given.of("long", f"kql_bin({given.whole(0)}, {given.whole(1)})", name=name)
    return given.of("real", f"kql_bin_real({given.as_kind(0, 'real')}, {given.as_kind(1, 'real')})", name=name)


def _bin_at(given: Given) -> Typed:
    value, size, fixed = given.values
    name = value.name
    if value.kind in {"datetime", "timespan"}:
        if size.kind != "timespan":
            given.refuse(1, "a timespan")
        if fixed.kind != value.kind:
            given.refuse(2, f"a {value.kind}")
        if value.kind == "timespan":
            return given.of("timespan", f"(kql_bin({value.sql} - {fixed.sql}, {size.sql}) + {fixed.sql})", name=name)
        ticks = f"kql_bin(kql_ticks({value.sql}) - kql_ticks({fixed.sql}), {size.sql}) + kql_ticks({fixed.sql})"
        return given.of("datetime", f"kql_from_ticks({ticks})", name=name)
    first, second, third = (given.as_kind(index, "real") for index in range(3))
    binned = f"(kql_bin_real({first} - {third}, {second}) + {third})"
    if {value.kind, size.kind, fixed.kind} <= {"int", "long"}:
        return given.of(
            "long", f"(kql_bin({given.whole(0)} - {given.whole(2)}, {given.whole(1)}) + {given.whole(2)})", name=name
        )
    return given.of("real", binned, name=name)


def _bin_auto(given: Given) -> Typed:
    size = given.settings.get("query_bin_auto_size")
    if size is None:
        raise given.complain("bin_auto() needs the size of a bin", "write set query_bin_auto_size = 1h;")
    value = given.values[0]
    zero = literal("datetime", FIRST_TICK) if value.kind == "datetime" else literal(size.kind, 0)
    return _bin_at(replace(given, values=(value, size, given.settings.get("query_bin_auto_at", zero))))


def _make_span(given: Given) -> Typed:
    if len(given) == 1:
        value = given.values[0]
        sql = value.sql if value.kind == "timespan" else f"kql_span({given.text(0)})"
        return given.of("timespan", sql, name=value.name)
    parts = [
        given.as_kind(index, "real" if index == len(given) - 1 and index >= _SECONDS else "long")
        for index in range(len(given))
    ]
    days = parts.pop(0) if len(parts) == 4 else "0"  # noqa: PLR2004 - with days
    hours, minutes, seconds = (*parts, "0")[:3]
    ticks = f"(({days} * 24 + {hours}) * 60 + {minutes}) * 600000000 + CAST(round({seconds} * 10000000.0) AS BIGINT)"
    valid = (
        f"{days} >= 0 AND {hours} BETWEEN 0 AND 23 AND {minutes} BETWEEN 0 AND 59 AND {seconds} >= 0 AND {seconds} < 60"
    )
    return given.of("timespan", f"(CASE WHEN {valid} THEN {ticks} END)")


_SECONDS = 2


def _format_span(given: Given) -> Typed:
    ticks, pattern = f"abs({given.as_kind(0, 'timespan')})", str(given.constant(1, "string"))
    pieces: list[str] = [f"CASE WHEN {given.as_kind(0, 'timespan')} < 0 THEN '-' ELSE '' END"]
    for match in re.finditer(r"(d+|f+|F+|[hH]+|m+|s+)|[ /\-:,._\[\]]|(.)", pattern):
        token = match[0]
        if match[2] or len(token) > _SPAN_LENGTHS.get(token[0], 1):
            message = f"format_timespan() does not support {token!r} in {pattern!r}"
            raise given.complain(message, "use d, h, H, m, s, f, F and the delimiters /-:,._[] and space")
        pieces.append(_span_piece(token, ticks))
    return given.of("string", f"coalesce({' || '.join(pieces)}, '')", name=given.values[0].name)


_SPAN_LENGTHS = {"d": 8, "f": 7, "F": 7, "h": 2, "H": 2, "m": 2, "s": 2}
_SPAN_UNITS = {"d": (864_000_000_000, 10**9), "h": (36_000_000_000, 24), "m": (600_000_000, 60), "s": (10_000_000, 60)}


def _span_piece(token: str, ticks: str) -> str:
    if token[0] in "fF":
        digits = f"substr(printf('%07d', {ticks} % 10000000), 1, {len(token)})"
        return digits if token[0] == "f" else f"rtrim({digits}, '0')"
    if token[0].lower() in _SPAN_UNITS:
        unit, most = _SPAN_UNITS[token[0].lower()]
        return f"printf('%0{len(token)}d', ({ticks} // {unit}) % {most})"
    return f"'{token}'"


def _shifted(microseconds: int | None, zone: str, *, to_utc: bool) -> int | None:
    try:
        found = zoneinfo.ZoneInfo(zone)
        date = _EPOCH + dt.timedelta(microseconds=microseconds or 0)
        shifted = (
            date.replace(tzinfo=found).astimezone(dt.UTC) if to_utc else date.replace(tzinfo=dt.UTC).astimezone(found)
        )
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OverflowError, OSError):
        return None
    return None if microseconds is None else (shifted.replace(tzinfo=None) - _EPOCH) // dt.timedelta(microseconds=1)


def _to_utc(microseconds: int | None, zone: str) -> int | None:
    return _shifted(microseconds, zone, to_utc=True)


def _to_local(microseconds: int | None, zone: str) -> int | None:
    return _shifted(microseconds, zone, to_utc=False)


_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a time without a zone
_ZONED = {
    "datetime_local_to_utc": rows("datetime_local_to_utc(date: datetime, zone: string) -> datetime", "", _to_utc),
    "datetime_utc_to_local": rows("datetime_utc_to_local(date: datetime, zone: string) -> datetime", "", _to_local),
}


def _zoned(given: Given) -> Typed:
    zone = given.literal(1)
    if zone is None or zone.value not in zoneinfo.available_timezones():
        # DuckDB fails at a zone that it does not know, where Kusto has null.
        return _ZONED[given.name].build(given)
    source, target = (given.string(1), "'UTC'") if given.name == "datetime_local_to_utc" else ("'UTC'", given.string(1))
    return given.of(
        "datetime", f"kql_dated(CAST(timezone({target}, timezone({source}, {given.timestamp(0)})) AS TIMESTAMP))"
    )


def _zones(_given: Given) -> Typed:
    return literal("dynamic", sorted(zoneinfo.available_timezones()))


_PARTS_OF_A_DATE = {
    "dayofmonth": "the day of the month",
    "dayofyear": "the day of the year",
    "getmonth": "the month",
    "getyear": "the year",
    "hourofday": "the hour",
    "monthofyear": "the month",
    "week_of_year": "the week, as ISO 8601 counts them",
    "weekofyear": "the week; former name of `week_of_year`",
}
_PERIODS = ("day", "week", "month", "year")

TIMES: list[Function] = [
    built("ago(span: timespan) -> datetime", "Returns the time of the query minus a timespan.", _ago, prunes=True),
    built("bin(value: any, size: any) -> same", "Rounds down to a multiple of a size.", _bin, named=True, prunes=True),
    built("bin_auto(value: any) -> same", "Rounds down to a bin of the size that `set query_bin_auto_size` gives.",
          _bin_auto, named=True),
    built("bin_at(value: any, size: any, fixed: any) -> same", "Rounds down to a bin; one bin starts at a fixed point.",
          _bin_at, named=True),
    built("datetime_add(period: string, amount: whole, date: datetime) -> datetime", "Adds a number of periods.", _add),
    built("datetime_diff(period: string, later: datetime, earlier: datetime) -> long",
          "Counts the period boundaries between two datetimes.", _difference),
    built("datetime_list_timezones() -> dynamic", "Lists the time zones.", _zones),
    built("datetime_local_to_utc(date: datetime, zone: string) -> datetime",
          "Converts the local time of a time zone to UTC.", _zoned),
    built("datetime_part(part: string, date: datetime) -> int", "Returns part of a datetime as a number.", _part),
    built("datetime_utc_to_local(date: datetime, zone: string) -> datetime",
          "Converts UTC to the local time of a time zone.", _zoned),
    *(built(f"{name}(date: datetime) -> int", f"Returns {about}.", _field) for name, about in _PARTS_OF_A_DATE.items()),
    built("dayofweek(date: datetime) -> timespan", "Returns the days since the last Sunday.", _day_of_week),
    *(
        built(f"endof{each}(date: datetime, offset?: whole) -> datetime", f"Returns the end of the {each}.", _end)
        for each in _PERIODS
    ),
    built("floor(value: any, size: any) -> same", "Another name of `bin`.", _bin, named=True, prunes=True),
    built("format_datetime(date: datetime, format: string) -> string", "Writes a datetime in a format.", _format,
          named=True),
    built("format_timespan(span: timespan, format: string) -> string", "Writes a timespan in a format.", _format_span,
          named=True),
    built("make_datetime(year: whole|string|datetime, month?: whole, day?: whole, hour?: whole, minute?: whole,"
          " second?: real) -> datetime", "Makes a datetime of its parts.", _make),
    built("make_timespan(hours: whole|string|timespan, minutes?: real, seconds?: real, last?: real) -> timespan",
          "Makes a timespan of hours and minutes, then seconds, or of days and all three.", _make_span),
    built("now(offset?: timespan) -> datetime", "Returns the time of the query.", _now, prunes=True),
    *(
        built(f"startof{each}(date: datetime, offset?: whole) -> datetime", f"Returns the start of the {each}.", _start,
              prunes=True)
        for each in _PERIODS
    ),
    *(
        built(f"unixtime_{each}_todatetime(value: real) -> datetime", f"Converts {each} since 1970.", _unix)
        for each in ("microseconds", "milliseconds", "nanoseconds", "seconds")
    ),
]  # fmt: skip
"""The functions; ``floor`` is an alias of ``bin``."""

assert TICKS_BEFORE_1970 % _UNIT_TICKS["day"] == 0  # noqa: S101 - periods of up to a day are aligned to both epochs

"""Functions of moments. Weeks start on Sunday; the end of a period is its last microsecond."""

from __future__ import annotations

import re

from lazydelta.kql.language.kql_literals import FIRST_TICK, LAST_TICK
from lazydelta.kql.meaning.operations.macros import TICKS_BEFORE_1970
from lazydelta.kql.meaning.operations.signatures import Function, Given
from lazydelta.kql.meaning.typed import Typed, literal

__all__ = ["TIME_FUNCTIONS"]

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
    moment = given.moment(0)
    offset = f"({given.whole(1)} + {later})" if len(given) > 1 else str(later)
    start = f"kql_week_start({moment})" if period == "week" else f"date_trunc('{period}', {moment})"
    if offset == "0":
        return f"CAST({start} AS TIMESTAMP)"
    return f"CAST({_later(start, period, offset)} AS TIMESTAMP)"


def _later(moment: str, period: str, amount: str) -> str:
    """Return SQL of a moment and a number of periods; no number reaches DuckDB that leads out of all calendars."""
    if period in _MONTHS:
        months = _MONTHS[period]
        return _bounded(f"{moment} + to_months(CAST({amount} * {months} AS INTEGER))", amount, 12 * _YEARS // months)
    if period in {"day", "week"}:
        days = 7 if period == "week" else 1
        return _bounded(f"{moment} + to_days(CAST({amount} * {days} AS INTEGER))", amount, 366 * _YEARS // days)
    microseconds = _UNIT_TICKS[period] // 10
    most = 366 * _YEARS * _UNIT_TICKS["day"] // 10 // microseconds
    return _bounded(f"{moment} + to_microseconds(CAST({amount} * {microseconds} AS BIGINT))", amount, most)


def _bounded(sql: str, amount: str, most: int) -> str:
    return f"CASE WHEN {amount} BETWEEN -{most} AND {most} THEN {sql} END"


def _period(given: Given, index: int, extra: frozenset[str] = frozenset()) -> str:
    period = str(given.constant(index, "string")).lower()
    known = {*_MONTHS, "week", *_UNIT_TICKS, "nanosecond"} | extra
    if period not in known:
        message = f"{given.name}() knows no period {period!r}"
        raise given.complain(message, f"known are {', '.join(sorted(known))}")
    return period


def _add(given: Given) -> Typed:
    period, amount, moment = _period(given, 0), given.whole(1), given.moment(2)
    if period == "nanosecond":
        period, amount = "microsecond", f"({amount} // 1000)"
    return given.of("datetime", f"kql_dated(CAST({_later(moment, period, amount)} AS TIMESTAMP))")


def _difference(given: Given) -> Typed:
    period, later, earlier = _period(given, 0), given.moment(1), given.moment(2)
    if period in _MONTHS:
        months = "((year({0}) * 12 + month({0}) - 1) // " + str(_MONTHS[period]) + ")"
        sql = f"({months.format(later)} - {months.format(earlier)})"
    elif period == "week":
        sql = f"(kql_weeks({later}) - kql_weeks({earlier}))"
    elif period == "nanosecond":
        sql = f"((kql_ticks({later}) - kql_ticks({earlier})) * 100)"
    else:
        ticks = _UNIT_TICKS[period]
        sql = f"(kql_ticks({later}) // {ticks} - kql_ticks({earlier}) // {ticks})"
    return given.of("long", f"CAST({sql} AS BIGINT)")


def _part(given: Given) -> Typed:
    part = str(given.constant(0, "string")).lower()
    if part not in _PARTS:
        raise given.complain(f"datetime_part() knows no part {part!r}", f"known are {', '.join(_PARTS)}")
    return given.of("int", f"CAST({_PARTS[part].format(given.moment(1))} AS INTEGER)")


def _field(given: Given) -> Typed:
    function = {
        "hourofday": "hour",
        "dayofmonth": "day",
        "dayofyear": "dayofyear",
        "monthofyear": "month",
        "getmonth": "month",
        "getyear": "year",
        "week_of_year": "week",
    }[given.name]
    return given.of("int", f"CAST({function}({given.moment(0)}) AS INTEGER)")


def _day_of_week(given: Given) -> Typed:
    return given.of("timespan", f"(CAST(dayofweek({given.moment(0)}) AS BIGINT) * {_UNIT_TICKS['day']})")


def _make(given: Given) -> Typed:
    parts = [given.whole(index) if index < len(given) else "0" for index in range(5)]
    seconds = "0"
    if len(given) > 5:  # noqa: PLR2004 - the sixth argument
        given.values[5].kind in {"int", "long", "real"} or given.refuse(5, "a number")
        seconds = given.values[5].sql
    return given.of("datetime", f"TRY(make_timestamp({', '.join(parts)}, CAST({seconds} AS DOUBLE)))")


def _format(given: Given) -> Typed:
    moment, pattern = given.moment(0), str(given.constant(1, "string"))
    pieces: list[str] = []
    position = 0
    while position < len(pattern):
        match = _FORMAT.match(pattern, position)
        # A run of a letter is one thing: dddd is no day written twice.
        if match is None or (match[1] and match[0] not in _FORMATS and not _FRACTION.fullmatch(match[0])):
            message = f"format_datetime() knows no {pattern[position:]!r} in {pattern!r}"
            raise given.complain(message, "use y, M, d, H, h, m, s, f, F, tt and the delimiters /-:,._[] and space")
        pieces.append(_format_piece(match[0], moment))
        position = match.end()
    text = " || ".join(pieces) or "''"
    return given.of("string", f"coalesce({text}, '')", name=given.values[0].name)


def _format_piece(token: str, moment: str) -> str:
    if token in _FORMATS:
        return _FORMATS[token].format(moment)
    if token[0] in "fF":
        digits = f"substr(printf('%07d', kql_ticks({moment}) % 10000000), 1, {len(token)})"
        return digits if token[0] == "f" else f"rtrim({digits}, '0')"
    return f"'{token}'"


def _unix(given: Given) -> Typed:
    scale = {"seconds": 1_000_000, "milliseconds": 1000, "microseconds": 1}
    unit = given.name.split("_")[1]
    if unit == "nanoseconds":
        return given.of("datetime", f"kql_dated(make_timestamp(CAST({given.whole(0)} // 1000 AS BIGINT)))")
    given.values[0].kind in {"int", "long", "real"} or given.refuse(0, "a number")
    number = f"CAST({given.values[0].sql} AS {'DOUBLE' if given.values[0].kind == 'real' else 'BIGINT'})"
    moment = f"make_timestamp(CAST({number} * {scale[unit]} AS BIGINT))"
    return given.of("datetime", f"kql_dated({_bounded(moment, number, 366 * _YEARS * 86_400_000_000 // scale[unit])})")


def _bin(given: Given) -> Typed:
    value, size = given.values
    name = value.name
    if value.kind in {"datetime", "timespan"}:
        size.kind == "timespan" or given.refuse(1, "a timespan")
        function = "kql_bin_time" if value.kind == "datetime" else "kql_bin"
        return given.of(value.kind, f"{function}({value.sql}, {size.sql})", name=name)
    numbers = {"int", "long", "real", "decimal"}
    value.kind in numbers or given.refuse(0, "a number, a datetime or a timespan")
    size.kind in numbers or given.refuse(1, "a number")
    if {value.kind, size.kind} <= {"int", "long"}:
        return given.of("long", f"kql_bin({given.whole(0)}, {given.whole(1)})", name=name)
    first, second = (f"CAST({each.sql} AS DOUBLE)" for each in given.values)
    return given.of("real", f"kql_bin_real({first}, {second})", name=name)


TIME_FUNCTIONS = {
    "ago": Function(1, 1, _ago),
    "bin": Function(2, 2, _bin, named_by_first=True),
    "datetime_add": Function(3, 3, _add),
    "datetime_diff": Function(3, 3, _difference),
    "datetime_part": Function(2, 2, _part),
    "dayofmonth": Function(1, 1, _field),
    "dayofweek": Function(1, 1, _day_of_week),
    "dayofyear": Function(1, 1, _field),
    "endofday": Function(1, 2, _end),
    "endofmonth": Function(1, 2, _end),
    "endofweek": Function(1, 2, _end),
    "endofyear": Function(1, 2, _end),
    "floor": Function(2, 2, _bin, named_by_first=True),
    "format_datetime": Function(2, 2, _format, named_by_first=True),
    "getmonth": Function(1, 1, _field),
    "getyear": Function(1, 1, _field),
    "hourofday": Function(1, 1, _field),
    "make_datetime": Function(3, 6, _make),
    "monthofyear": Function(1, 1, _field),
    "now": Function(0, 1, _now),
    "startofday": Function(1, 2, _start),
    "startofmonth": Function(1, 2, _start),
    "startofweek": Function(1, 2, _start),
    "startofyear": Function(1, 2, _start),
    "unixtime_microseconds_todatetime": Function(1, 1, _unix),
    "unixtime_milliseconds_todatetime": Function(1, 1, _unix),
    "unixtime_nanoseconds_todatetime": Function(1, 1, _unix),
    "unixtime_seconds_todatetime": Function(1, 1, _unix),
    "week_of_year": Function(1, 1, _field),
}
"""Each function by its name; ``floor`` is another name of ``bin``."""

assert TICKS_BEFORE_1970 % _UNIT_TICKS["day"] == 0  # noqa: S101 - periods of a day and less start at both

"""Values of the log read once more, by Python's own means: what verification holds against the readers of scans.

Nothing of ``stats`` and ``types.text`` is used, so that a mistake there is not made twice. Values come in the form in
which Arrow stores them: moments as counts, decimals with their scale. A text that may be read in more than one way is
``UNJUDGED`` and equals anything; there are few of these, as moments beyond the years that Python's calendar has.
"""

from __future__ import annotations

import json
import math
import re
import struct
from datetime import UTC, date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import pyarrow as pa

__all__ = ["UNJUDGED", "loaded", "logged_bound", "logged_partition", "logged_stats", "same"]

Json = dict[str, Any]

_EXACT = Context(prec=500)
_PLAIN_MOMENT = re.compile(
    r"(?a)(?P<day>\d{4}-\d\d-\d\d)"
    r"(?:[ T](?P<time>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{1,9}))?(?P<zone>Z|[+-]\d\d:\d\d)?)?"
)
_NUMBER = re.compile(r"(?a)[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_LOST = "\ufffd"
_NANOSECONDS, _MICROSECOND = 9, 1000
_INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "+Infinity": math.inf, "inf": math.inf}


class _Unjudged:
    def __repr__(self) -> str:
        return "a value of an odd form"


UNJUDGED = _Unjudged()


def loaded(text: str | bytes) -> Any:
    """Parse JSON: digits are kept, and what Python takes beyond JSON (NaN, Infinity) is an error."""
    return json.loads(text, parse_float=Decimal, parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    message = f"{constant} is not JSON"
    raise ValueError(message)


def logged_stats(text: str | None) -> Json:
    """Return the statistics of an action; nothing where the text is no object of JSON."""
    try:
        found = loaded(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def logged_bound(value: Any, kind: pa.DataType, *, up: bool) -> Any:
    """Return a bound of a column of this type, or a count; None where it is no such value."""
    if value is None:
        return None
    if pa.types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if pa.types.is_integer(kind):
        return _integer(value, kind)
    if pa.types.is_floating(kind):
        return _float(value, kind)
    if pa.types.is_decimal(kind):
        return _decimal(value, kind, up=up)
    return _from_text(value, kind) if isinstance(value, str) else None


def logged_partition(text: str | None, kind: pa.DataType) -> Any:
    """Return a partition value; the log has all of them as text, and empty text is null."""
    if not text:
        return None
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}.get(text.lower())
    if pa.types.is_integer(kind):
        return _integer(int(text), kind) if re.fullmatch(r"(?a)[+-]?\d{1,40}", text) else None
    if pa.types.is_floating(kind):
        return _float(Decimal(text), kind) if _NUMBER.fullmatch(text) else UNJUDGED
    if pa.types.is_decimal(kind):
        exact = Decimal(text) if _NUMBER.fullmatch(text) else None
        return None if exact is None else _decimal(exact, kind, up=None)
    return _from_text(text, kind)


def same(stored: Any, logged: Any) -> bool:
    """Tell whether a stored value is the logged one."""
    if logged is UNJUDGED:
        return True
    if isinstance(stored, float) and isinstance(logged, float):
        # Zero has a sign, which some readers tell apart; NaN is equal to nothing, itself included.
        return struct.pack("<d", stored) == struct.pack("<d", logged) or (math.isnan(stored) and math.isnan(logged))
    return bool(type(stored) is type(logged) and stored == logged)


def _integer(value: Any, kind: pa.DataType) -> int | None:
    limit = 2 ** (kind.bit_width - 1)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and -limit <= value < limit else None


def _float(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, str):
        return _INFINITE.get(value)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    try:
        number = float(value)
    except OverflowError:
        return UNJUDGED
    if math.isinf(number):
        return UNJUDGED
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0] if kind.bit_width == 32 else number  # noqa: PLR2004
    except OverflowError:
        return None


def _decimal(value: Any, kind: pa.DataType, *, up: bool | None) -> Any:
    """Return a decimal of this scale; digits beyond it are rounded outwards, or allowed for no value."""
    if isinstance(value, str):
        value = Decimal(value) if _NUMBER.fullmatch(value) else UNJUDGED
    if value is UNJUDGED or isinstance(value, bool) or not isinstance(value, int | Decimal):
        return UNJUDGED if value is UNJUDGED else None
    exact = Decimal(value)
    if abs(exact.adjusted()) > 2 * _EXACT.prec // 5:
        return UNJUDGED
    unit = Decimal(1).scaleb(-kind.scale)
    rounded = exact.quantize(unit, ROUND_CEILING if up else ROUND_FLOOR, _EXACT)
    if (up is None and rounded != exact) or abs(rounded) >= Decimal(10) ** (kind.precision - kind.scale):
        return None
    return rounded


def _from_text(text: str, kind: pa.DataType) -> Any:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return UNJUDGED  # half a surrogate pair, which is no text
    if pa.types.is_string(kind):
        return text
    if pa.types.is_binary(kind):
        return None if _LOST in text else data
    return _moment(text, kind)


def _moment(text: str, kind: pa.DataType) -> Any:
    found = _PLAIN_MOMENT.fullmatch(text)
    if found is None:
        return UNJUDGED
    try:
        if pa.types.is_date(kind):
            is_date = found["time"] is None
            return (date.fromisoformat(found["day"]) - date(1970, 1, 1)).days if is_date else UNJUDGED
        zone = found["zone"] or "Z"
        if kind.tz is None and zone != "Z":
            return UNJUDGED
        moment = datetime.fromisoformat(f"{found['day']}T{found['time'] or '00:00:00'}{zone.replace('Z', '+00:00')}")
    except ValueError:
        return UNJUDGED
    passed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    micros, rest = divmod(int((found["fraction"] or "").ljust(_NANOSECONDS, "0")), _MICROSECOND)
    # A bound must not move, so one that is finer than a microsecond is none.
    return None if rest else (passed.days * 86_400 + passed.seconds) * 1_000_000 + micros

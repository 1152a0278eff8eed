"""Formats numbers, timestamps and untrusted text for a terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime

__all__ = ["count", "duration", "one_line", "printable", "size", "timestamp", "value"]

_UNIT = 1024
_THREE_DIGITS = 100
_SECOND_MS = 1000
_MINUTE_S = 60


def size(number: int | None) -> str:
    """Return bytes in the largest unit that keeps a digit before the decimal point, in at most eight characters."""
    if number is None:
        return "-"
    scaled = float(number)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if scaled < _UNIT:
            return f"{scaled:.0f} {unit}" if unit == "B" or scaled >= _THREE_DIGITS else f"{scaled:.1f} {unit}"
        scaled /= _UNIT
    return f"{scaled:,.1f} PiB"


def count(number: int | None) -> str:
    """Return a number with thousands separators."""
    return "-" if number is None else f"{number:,}"


def timestamp(milliseconds: object) -> str:
    """Return epoch milliseconds as UTC. Invalid values, which logs sometimes hold, are shown unchanged."""
    if not isinstance(milliseconds, int):
        return "-" if milliseconds is None else printable(str(milliseconds))
    try:
        # Faster than strftime, and there may be ten million of them. The time zone is cut off.
        return datetime.fromtimestamp(milliseconds // _SECOND_MS, UTC).isoformat(" ")[:19]
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)


def duration(milliseconds: float) -> str:
    """Return a duration with about three digits."""
    if milliseconds < _SECOND_MS:
        return f"{milliseconds:.3g} ms" if milliseconds < 1 else f"{milliseconds:.1f} ms"
    seconds = milliseconds / _SECOND_MS
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    return f"{int(seconds // _MINUTE_S)} min {int(seconds % _MINUTE_S)} s"


def printable(text: str) -> str:
    r"""Return text that is safe for a terminal: control characters and lone surrogates are escaped.

    A path in a log may contain escape sequences that would rewrite the screen, or lone surrogates that cannot be
    encoded. Only these are escaped, in the notation of ``repr``.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def one_line(text: str) -> str:
    """Return a message on one line, even if a server sent several."""
    return printable(" ".join(text.split()))


def value(plain: object) -> str:
    """Return one cell of a row. Nested values are compact JSON."""
    if plain is None:
        return "null"
    if isinstance(plain, str):
        return printable(plain)
    if isinstance(plain, Mapping | list | bool):
        return printable(json.dumps(plain, ensure_ascii=False, separators=(", ", ": ")))
    return str(plain)

"""The triggers of a stream, as functions take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lazydelta.errors import OptionError

__all__ = ["checked_trigger"]

_KINDS = ("processingTime", "availableNow", "once")


def checked_trigger(trigger: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what Spark's ``trigger`` is called with, none if it is not to be called; refuse what it would not serve.

    Under a continuous trigger Spark never hands a row to a data source in Python, and counts the rows as written.
    """
    given = {key: value for key, value in (trigger or {}).items() if value is not None}
    if "continuous" in given:
        message = f"The trigger continuous={given['continuous']!r} would lose every row"
        hint = f"Spark gives no rows to data sources in Python then; use {', '.join(_KINDS)}"
        raise OptionError(message, hint=hint)
    unknown = sorted(set(given) - set(_KINDS))
    if unknown:
        raise OptionError(f"There is no trigger {unknown[0]!r}", hint=f"there are {', '.join(_KINDS)}")
    return given

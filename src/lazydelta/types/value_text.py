"""Values as text, exactly: what ``types.text`` reads back.

Partition values in the log (``types.partition_text``) and the keys and ranges of a sidecar's manifest have these forms.
"""

from __future__ import annotations

import math
from decimal import Decimal

__all__ = ["plain_text"]


def plain_text(value: object) -> str:
    """Write a value that is no date or moment: those are written from what Arrow stores, by ``types.calendar``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float(value)
    # Decimal.__str__ turns to exponents, which not every reader takes for an exact number.
    return f"{value:f}" if isinstance(value, Decimal) else str(value)


def _float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(value)

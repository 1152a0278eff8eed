"""Which parts of a predicate prune, and what becomes of those that cannot: seen, told once, or refused.

A condition that no range decides keeps every file, which looks like an answer and costs like none. So it is named: in
``explain``, in a warning, and with ``strict`` in an error. That a table has no statistics for a column is another
matter, and none of the predicate's.
"""

from __future__ import annotations

import inspect
import warnings

import msgspec

from lazydelta.errors import PredicateError
from lazydelta.pruning.tree import (
    And,
    Compare,
    Constant,
    NanOrder,
    Opaque,
    Or,
    Predicate,
    WithExpression,
    leaves,
    partition_columns,
    stats_columns,
)
from lazydelta.warned import PredicateWarning

__all__ = ["Conjunct", "check_conjuncts", "conjuncts"]


class Conjunct(msgspec.Struct, frozen=True):
    """One of the conditions that must all hold: whether files can be left out by it, and how or why not."""

    text: str
    prunes: bool
    how: str

    def __str__(self) -> str:
        return f"{self.text}: {self.how}"


def conjuncts(predicate: Predicate | None) -> tuple[Conjunct, ...]:
    """Tell of each condition whether it prunes."""
    return tuple(_conjunct(part) for part in _parts(predicate))


def check_conjuncts(predicate: Predicate | None, *, strict: bool) -> None:
    """Warn of conditions that cannot prune, once for the predicate; with ``strict`` they are an error."""
    # Only what is complained of is put into words: PyArrow loads pandas for the text of a moment.
    idle = [part for part in _parts(predicate) if not isinstance(part, Constant) and _why_not(part) is not None]
    if not idle:
        return
    message = "No file can be left out by " + "; nor by ".join(str(_conjunct(part)) for part in idle)
    if strict:
        hint = "compare a column, or a function of it that has ranges, with constants; or leave strict out"
        raise PredicateError(message, hint=hint)
    warnings.warn(PredicateWarning(message), stacklevel=_level_of_caller())


def _parts(predicate: Predicate | None) -> tuple[Predicate, ...]:
    if predicate is None:
        return ()
    if isinstance(predicate, WithExpression):
        return _parts(predicate.part)
    return predicate.parts if isinstance(predicate, And) else (predicate,)


def _conjunct(part: Predicate) -> Conjunct:
    if isinstance(part, Constant):
        return Conjunct(str(part), prunes=True, how="holds for all rows" if part.value else "holds for no row")
    reason = _why_not(part)
    if reason is not None:
        return Conjunct(str(part), prunes=False, how=f"cannot prune, because {reason}")
    if isinstance(part, Opaque):
        return Conjunct(str(part), prunes=True, how="prunes in part, by what stands before its first wildcard")
    if isinstance(part, Compare) and part.nan is NanOrder.LARGEST and not part.column.is_partition:
        how = "prunes by null counts alone, because a NaN is above every maximum (see the option float_max)"
        return Conjunct(str(part), prunes=True, how=how)
    sources = ["partition values"] * bool(partition_columns(part)) + ["statistics"] * bool(stats_columns(part))
    return Conjunct(str(part), prunes=True, how=f"prunes by {' and '.join(sources)}")


def _why_not(part: Predicate) -> str | None:
    """Return why no file can be left out by a condition; None if some can."""
    match part:
        case Opaque(reason=reason, narrowed=narrowed):
            return None if narrowed else reason
        case And(parts):
            reasons = [_why_not(each) for each in parts]
            return None if None in reasons else reasons[0]
        case Or(parts):
            return next((why for each in parts if (why := _why_not(each)) is not None), None)
    return next((leaf.reason for leaf in leaves(part) if isinstance(leaf, Opaque)), None)


def _level_of_caller() -> int:
    """Return how many frames up the first one is that is not ours: that line of the user's is to be shown."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "lazydelta":
        level, frame = level + 1, frame.f_back
    # This function's own frame is not there any more when the warning looks.
    return max(level, 1)

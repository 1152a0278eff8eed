"""Find the conditions of a predicate that prune, and report those that cannot.

A condition that no range can decide keeps every file: the result is correct, but nothing is saved. So it is named in
``explain``, in a warning, and with ``strict`` in an error. Missing statistics for a column are a different problem, not
one of the predicate.
"""

from __future__ import annotations

import inspect
import warnings

import msgspec

from lazydelta.errors import PredicateError
from lazydelta.predicates.tree import (
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
    """One of the conditions that must all hold: whether it can prune files, and how or why not."""

    text: str
    prunes: bool
    how: str

    def __str__(self) -> str:
        return f"{self.text}: {self.how}"


def conjuncts(predicate: Predicate | None) -> tuple[Conjunct, ...]:
    """Return each condition and whether it prunes."""
    return tuple(_conjunct(part) for part in _parts(predicate))


def check_conjuncts(predicate: Predicate | None, *, strict: bool) -> None:
    """Warn about conditions that cannot prune, once per predicate. With ``strict``, raise an error."""
    # Only the reported conditions are formatted: PyArrow loads pandas to format a timestamp.
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
        how = "prunes files of lazydelta by statistics, and those of other writers by null counts alone, because a NaN"
        how += " may be above their maximum (see the option float_max)"
        return Conjunct(str(part), prunes=True, how=how)
    sources = ["partition values"] * bool(partition_columns(part)) + ["statistics"] * bool(stats_columns(part))
    return Conjunct(str(part), prunes=True, how=f"prunes by {' and '.join(sources)}")


def _why_not(part: Predicate) -> str | None:
    """Return why a condition cannot prune any file, or None if it can."""
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
    """Return the number of frames up to the first one outside lazydelta, so that the warning shows the user's line."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "lazydelta":
        level, frame = level + 1, frame.f_back
    # The frame of this function no longer exists when the warning is raised.
    return max(level, 1)

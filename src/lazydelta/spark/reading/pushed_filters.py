"""What Spark pushes of a query's filter, as a predicate of ours.

Spark hands over the conjuncts that are simple enough, each by itself, and filters what it gets once more. So a conjunct
that is not understood is left to it. One that is decides rows too: it must not drop a row that Spark keeps. NaN is the
largest value there, and equals itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import datasource as pushed

from lazydelta.errors import LazyDeltaError
from lazydelta.pruning import NanOrder, Predicate, conjunction
from lazydelta.pruning.binding import compare, is_null, membership, starts_with
from lazydelta.types.schema import TableSchema

__all__ = ["pushed_predicate"]

_COMPARED: dict[type[Any], str] = {
    pushed.EqualTo: "=",
    pushed.EqualNullSafe: "=",
    pushed.GreaterThan: ">",
    pushed.GreaterThanOrEqual: ">=",
    pushed.LessThan: "<",
    pushed.LessThanOrEqual: "<=",
}


def pushed_predicate(filters: Iterable[pushed.Filter], schema: TableSchema) -> Predicate | None:
    """Return what of the filters is understood, None if that is nothing."""
    found = [each for each in (_translated(one, schema, negated=False) for one in filters) if each is not None]
    return conjunction(found) if found else None


def _translated(given: pushed.Filter, schema: TableSchema, *, negated: bool) -> Predicate | None:
    if isinstance(given, pushed.Not):
        return _translated(given.child, schema, negated=not negated)
    attribute = getattr(given, "attribute", None)
    if not attribute:
        return None
    try:
        column = schema.column(tuple(attribute))
        match given:
            case pushed.IsNull():
                return is_null(column, negated=negated)
            case pushed.IsNotNull():
                return is_null(column, negated=not negated)
            case pushed.In(_, values):
                return membership(column, list(values), negated=negated, nan=NanOrder.LARGEST)
            case pushed.StringStartsWith(_, value):
                return starts_with(column, value, negated=negated)
            case pushed.EqualNullSafe(_, value) if value is None or negated:
                # Unlike a comparison it is never unknown: its opposite keeps nulls.
                return is_null(column, negated=negated) if value is None else None
            case _ if type(given) in _COMPARED:
                value = given.value  # type: ignore[attr-defined]
                return compare(column, _COMPARED[type(given)], value, negated=negated, nan=NanOrder.LARGEST)
    except (LazyDeltaError, TypeError, ValueError, OverflowError):
        return None  # a literal that is not of the column's type: Spark knows what it means by that
    return None

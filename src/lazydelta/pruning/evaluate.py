"""Which files may hold a row that passes, and which hold nothing else.

Both answers come from one walk: each leaf says from a file's ranges whether *some* row may pass and whether *every*
row must. Null stands for "the ranges do not tell" and follows Kleene's logic up the tree; at the root it becomes
"may pass" and "need not pass", so whatever is unknown keeps the file.
"""

from __future__ import annotations

import functools
from typing import TypeAlias

import msgspec
import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.arrays import bitmap, typed_scalar
from lazydelta.pruning.bounds import Bounds
from lazydelta.pruning.tree import (
    And,
    Compare,
    Constant,
    In,
    IsNan,
    IsNull,
    NanOrder,
    Not,
    Or,
    Predicate,
    Prefix,
    WithExpression,
)
from lazydelta.stats.ranges import Ranges
from lazydelta.types.schema import Column, Primitive

__all__ = ["all_match", "may_match"]

Truth: TypeAlias = "pa.Array | bool | None"
"""A truth per file; a bool or None (unknown) is the same for all of them."""

_MOST_COMPARED = 32
"""Up to so many values of a list, comparing with each is quicker than a search."""

_MOST_DECIMALS_COMPARED = 1_000
"""Decimals cannot be searched: of more of them than these, only the ends are compared."""

_ZERO = typed_scalar(0, pa.int64())
_FALSE = typed_scalar(value=False, kind=pa.bool_())
_TRUE = typed_scalar(value=True, kind=pa.bool_())
_UNKNOWN = typed_scalar(None, pa.bool_())
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def may_match(predicate: Predicate, ranges: Ranges) -> pa.BooleanArray:
    """Tell for each file whether it may hold a row for which ``predicate`` is true; false is proven."""
    walk = _Walk(ranges)
    truth = walk.truth(predicate, every=False)
    if ranges.num_records is not None:
        rows = pc.not_equal(ranges.num_records, _ZERO)
        if not pc.all(rows).as_py():
            truth = _and(truth, _or(rows, walk.has_values()))
    return _decided(truth, ranges.num_rows, unknown=True)


def all_match(predicate: Predicate, ranges: Ranges) -> pa.BooleanArray:
    """Tell for each file whether ``predicate`` is true for every one of its rows; true is proven."""
    truth = _Walk(ranges).truth(predicate, every=True)
    if ranges.num_records is not None:
        truth = _or(truth, pc.equal(ranges.num_records, _ZERO))
    return _decided(truth, ranges.num_rows, unknown=False)


class _Known(msgspec.Struct, frozen=True):
    """What one column's range says: bounds, where it is nothing but nulls, where it has none."""

    bounds: Bounds
    all_null: Truth
    no_null: Truth


class _Walk:
    """One evaluation; a column named twice is widened once."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._columns: dict[tuple[str, ...], _Known | None] = {}

    def truth(self, predicate: Predicate, *, every: bool) -> Truth:
        """Tell where every row must pass, or else where some row may."""
        match predicate:
            case WithExpression(part):
                return self.truth(part, every=every)
            case And(parts):
                return functools.reduce(_and, (self.truth(part, every=every) for part in parts))
            case Or(parts):
                return functools.reduce(_or, (self.truth(part, every=every) for part in parts))
            case Constant(value):
                return value is True
            case Compare(column) | In(column) | IsNan(column) | Prefix(column) | Not(Compare(column)):
                known = self._known(column)
                if known is None:
                    return None
                if every:
                    return _and(_every_value(predicate, known.bounds), known.no_null)
                return _and(_some_value(predicate, known.bounds), _not(known.all_null))
            case IsNull(column, negated):
                known = self._known(column)
                if known is None:
                    return None
                if every:
                    return known.no_null if negated else known.all_null
                return _not(known.all_null if negated else known.no_null)
        return None

    def has_values(self) -> Truth:
        """Tell where a column that was looked at has a bound: no rows and a range contradict each other."""
        found: Truth = False
        for path in self._columns:
            known = self._ranges.columns.get(path)
            if known is not None and not known.exact:
                bounds = (bound for bound in (known.min, known.max) if bound is not None)
                found = functools.reduce(_or, (pc.is_valid(bound) for bound in bounds), found)
        return found

    def _known(self, column: Column) -> _Known | None:
        if column.physical_path not in self._columns:
            self._columns[column.physical_path] = self._look(column)
        return self._columns[column.physical_path]

    def _look(self, column: Column) -> _Known | None:
        known = self._ranges.column(column)
        if known is None:
            return _Known(Bounds(column, None, None), all_null=True, no_null=None) if _is_void(column) else None
        all_null: Truth = None
        no_null: Truth = None
        if known.null_count is not None:
            no_null = pc.equal(known.null_count, _ZERO)
            if self._ranges.num_records is not None:
                counted = pc.equal(known.null_count, self._ranges.num_records)
                all_null = pc.and_kleene(counted, pc.greater(self._ranges.num_records, _ZERO))
        if known.all_null is not None:
            all_null = _or(all_null, pc.fill_null(known.all_null, _FALSE))
        bounds = Bounds.of(column, known)
        for bound in (known.min, known.max):
            if bound is not None and all_null is not None:
                # A range and no value to range over: one of the two is wrong, and we cannot say which.
                all_null = _and(all_null, pc.is_null(bound))
        return _Known(bounds, all_null, no_null)


def _some_value(predicate: Predicate, bounds: Bounds) -> Truth:
    """Tell where some value that is not null may pass."""
    match predicate:
        case Compare(_, "=", value):
            return _and(bounds.reaches_down(value, or_equal=True), bounds.reaches_up(value, or_equal=True))
        case Compare(_, "!=", value):
            return _not(bounds.is_only(value))
        case Compare(_, op, value) if op in {"<", "<="}:
            return bounds.reaches_down(value, or_equal=op == "<=")
        case Compare(_, op, value, nan):
            # A NaN that is the largest value of all passes, and the maximum does not know of it.
            hidden = nan is NanOrder.LARGEST and bounds.may_be_nan
            return None if hidden else bounds.reaches_up(value, or_equal=op == ">=")
        case IsNan(_, negated):
            numbers = bounds.is_number()
            return numbers if negated else _not(numbers)
        case Not(Compare(column, op, value)):
            # NaN passes, and it may be there whatever the bounds say.
            return None if bounds.may_be_nan else _some_value(Compare(column, _OPPOSITE[op], value), bounds)
        case In(_, values, negated):
            return _not(bounds.is_only_one_of(values)) if negated else _some_of(values, bounds)
        case Prefix(_, prefix, negated):
            return _not(bounds.has_only_prefix(prefix)) if negated else _and(*bounds.reaches_prefix(prefix))
    return None


def _every_value(predicate: Predicate, bounds: Bounds) -> Truth:
    """Tell where every value passes, if none is null."""
    match predicate:
        case Compare(column, "!=", value):
            return _not(_some_value(Compare(column, "=", value), bounds))
        case Not(part):
            return _not(_some_value(part, bounds))
        case In(column, values, negated) if negated:
            return _not(_some_value(In(column, values), bounds))
        case Prefix(column, prefix, negated) if negated:
            return _not(_some_value(Prefix(column, prefix), bounds))
        case Prefix(_, prefix):
            return bounds.has_only_prefix(prefix)
        case Compare(column, op, value, nan) if nan is not NanOrder.UNORDERED and op in {">", ">="}:
            return _not(_some_value(Compare(column, _OPPOSITE[op], value), bounds))
        case IsNan(_, negated):
            numbers = bounds.is_number()
            return numbers if negated else _not(numbers)
        case _ if bounds.may_be_nan:
            return None
        case In(_, values):
            return bounds.is_only_one_of(values)
        case Compare(_, "=", value):
            return bounds.is_only(value)
        case Compare(column, op, value):
            return _not(_some_value(Compare(column, _OPPOSITE[op], value), bounds))
    return None


def _some_of(values: pa.Array, bounds: Bounds) -> Truth:
    """Tell where one of the sorted ``values`` lies within the bounds."""
    most = _MOST_DECIMALS_COMPARED if pa.types.is_decimal(values.type) else _MOST_COMPARED
    if len(values) <= most:
        each = (
            _and(bounds.reaches_down(value, or_equal=True), bounds.reaches_up(value, or_equal=True)) for value in values
        )
        return functools.reduce(_or, each)
    if bounds.lower is None or pa.types.is_decimal(values.type):
        down = bounds.reaches_down(values[len(values) - 1], or_equal=True)
        return _and(down, bounds.reaches_up(values[0], or_equal=True))
    # The first value at or above the lower bound decides: if it is above the upper one, so are all after it.
    position = pc.fill_null(pc.search_sorted(values, bounds.lower), typed_scalar(0, pa.uint64()))
    beyond = pc.equal(position, typed_scalar(len(values), pa.uint64()))
    candidates = pc.take(values, pc.if_else(beyond, typed_scalar(0, pa.uint64()), position))
    return _and(pc.invert(beyond), bounds.reaches_up(candidates, or_equal=True))


def _and(left: Truth, right: Truth) -> Truth:
    if left is False or right is False:
        return False
    if left is True:
        return right
    if right is True:
        return left
    if left is None and right is None:
        return None
    return pc.and_kleene(_UNKNOWN if left is None else left, _UNKNOWN if right is None else right)


def _or(left: Truth, right: Truth) -> Truth:
    if left is True or right is True:
        return True
    if left is False:
        return right
    if right is False:
        return left
    if left is None and right is None:
        return None
    return pc.or_kleene(_UNKNOWN if left is None else left, _UNKNOWN if right is None else right)


def _not(truth: Truth) -> Truth:
    if truth is None or isinstance(truth, bool):
        return None if truth is None else not truth
    return pc.invert(truth)


def _decided(truth: Truth, length: int, *, unknown: bool) -> pa.BooleanArray:
    if truth is None or isinstance(truth, bool):
        value = unknown if truth is None else truth
        return pa.Array.from_buffers(pa.bool_(), length, [None, bitmap([value] * length)])
    return pc.fill_null(truth, _TRUE if unknown else _FALSE)


def _is_void(column: Column) -> bool:
    return column.type == Primitive("void")

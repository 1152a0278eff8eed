"""True bounds from the statistics that writers log.

Logged statistics are inexact in known ways, which only this module handles:

timestamps
    Delta-Spark truncates them to milliseconds. A maximum on a whole millisecond stands for any value up to the next
    one; a maximum with microseconds was not truncated. A truncated minimum is still a lower bound.
strings
    Bounds may be truncated to 32 characters. A truncated minimum is a lower bound. A maximum of 32 characters or more
    is read as its first 31 followed by anything: the tie-breaker that some writers append is not always the largest
    character. Delta-Spark counts UTF-16 units, of which characters beyond U+FFFF take two, so the 32nd may be half
    a character that was lost. A maximum with such characters may have only 16 left.
decimals
    Some writers log them through doubles. From 16 digits on (fewer digits survive) a bound is widened by one unit and
    by 2**-51 of itself, which covers two roundings by the writer and one in the string. deltalake logs values beyond
    64 bits as the largest or smallest 64-bit integer: such a maximum or minimum is unknown.
booleans
    Some writers have logged wrong bounds, and deltalake ignores all of them. So does lazydelta: they would rule out
    little.
floats
    NaN is in no bound. Some writers are known to omit the maximum if there is a NaN (`ColumnRange`). -0.0 equals 0.0.
    A NaN logged as a bound is unknown. If a double column was a float before, the string ``3.4`` of an older file
    stands for the nearest float, 3.4000000953674316, and is widened to include both.

A minimum above its maximum is invalid and treated as unknown. Bounds are outer bounds, so ``tightBounds`` does not
matter here.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import pyarrow as pa

from lazydelta.protocol.literals import is_float
from lazydelta.protocol.schema import Column
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import typed_scalar
from lazydelta.stats.ranges import ColumnRange

__all__ = ["Bounds"]

_TRUNCATED_FROM = 32  # characters; a bound of this length may be truncated
_SURVIVING = 31  # leading characters of a truncated bound that certainly belong to the value
_SURVIVING_WITH_PAIRS = 16  # … if some of them take two of the 32 units that were kept
_DIGITS_A_DOUBLE_KEEPS = 15
_DIGITS_OF_INT64 = 19
_LAST_INTEGER, _DOUBLES_APART = 2**63, 2048  # and its distance to the next double
_FALSE = typed_scalar(value=False, kind=pa.bool_())
_TRUE = typed_scalar(value=True, kind=pa.bool_())
_UNKNOWN = typed_scalar(None, pa.bool_())
_TWO_UNIT_CHARACTERS = r"[\x{10000}-\x{10FFFF}]"


Trust: TypeAlias = "pa.Array | bool"


class Bounds(msgspec.Struct, frozen=True):
    """Bounds on all values of a column, file by file; null and None are unknown.

    ``prefixes`` are (length, strings): where one is not null, the upper bound is that string followed by anything.
    ``logged`` are the minimum and maximum before widening. ``trusted`` marks where these, if equal, prove that all
    values equal them.
    """

    column: Column
    lower: pa.Array | None
    upper: pa.Array | None
    prefixes: tuple[tuple[int, pa.Array], ...] = ()
    logged: tuple[pa.Array, pa.Array] | None = None
    trusted: Trust = False
    may_be_nan: Trust = False

    @classmethod
    def of(cls, column: Column, known: ColumnRange) -> Bounds:
        """Widen logged bounds to bounds that are true."""
        kind = column.type.to_arrow()
        lower, upper = _native(known.min, kind), _native(known.max, kind)
        if is_float(column.type):
            lower, upper = _without_nan(lower), _without_nan(upper)
        logged = None
        if lower is not None and upper is not None:
            nonsense = pc.fill_null(pc.greater(lower, upper), _FALSE)  # a single bound is valid as logged
            if pc.any(nonsense).as_py():
                unknown = typed_scalar(None, kind)
                lower, upper = pc.if_else(nonsense, unknown, lower), pc.if_else(nonsense, unknown, upper)
            logged = (lower, upper)
        if known.exact:
            return cls(column, lower, upper, logged=logged, trusted=True)
        if pa.types.is_boolean(kind):
            return cls(column, None, None)
        if is_float(column.type):
            if column.was_float:
                lower, upper = _with_nearest_float(lower, up=False), _with_nearest_float(upper, up=True)
            hidden: Trust = True
            if known.max_knows_nan is not None and upper is not None:
                hidden = pc.invert(pc.and_(known.max_knows_nan, pc.is_valid(upper)))
            return cls(column, lower, upper, may_be_nan=hidden)
        if pa.types.is_timestamp(kind):
            return cls(column, lower, None if upper is None else _to_next_millisecond(upper))
        if pa.types.is_decimal(kind) and kind.precision > _DIGITS_A_DOUBLE_KEEPS:
            low = _widened(_unsaturated(lower, -_LAST_INTEGER), up=False)
            high = _widened(_unsaturated(upper, _LAST_INTEGER), up=True)
            return cls(column, low, high, logged=logged, trusted=lower is not None and _survives_doubles(lower))
        if pa.types.is_string(kind) and upper is not None:
            whole, prefixes = _untruncated(upper)
            if prefixes:
                upper = pc.if_else(whole, upper, typed_scalar(None, kind))
            return cls(column, lower, upper, prefixes, logged, whole)
        return cls(column, lower, upper, logged=logged, trusted=True)

    def reaches_up(self, value: pa.Scalar | pa.Array, *, or_equal: bool) -> pa.Array | None:
        """Return where some value may be above ``value``, or equal to it if ``or_equal``."""
        if self.upper is None:
            return None
        whole = pc.greater_equal(self.upper, value) if or_equal else pc.greater(self.upper, value)
        if not self.prefixes:
            return whole
        # A string that starts with the prefix can be above anything that does not itself exceed the prefix.
        cut = [
            pc.greater_equal(prefixes, pc.utf8_slice_codeunits(value, 0, length)) for length, prefixes in self.prefixes
        ]
        return pc.coalesce(whole, *cut)

    def reaches_down(self, value: pa.Scalar | pa.Array, *, or_equal: bool) -> pa.Array | None:
        """Return where some value may be below ``value``, or equal to it if ``or_equal``."""
        if self.lower is None:
            return None
        return pc.less_equal(self.lower, value) if or_equal else pc.less(self.lower, value)

    def reaches_prefix(self, prefix: str) -> tuple[pa.Array | None, pa.Array | None]:
        """Return where some value may be at or above the first string with ``prefix``, and at or below the last."""
        first = typed_scalar(prefix, pa.string())
        up = self.reaches_up(first, or_equal=True)
        if self.lower is None:
            return up, None
        return up, pc.or_kleene(pc.less(self.lower, first), pc.starts_with(self.lower, prefix))

    def is_only(self, value: pa.Scalar) -> pa.Array | None:
        """Return where every non-null value is proven to equal ``value``."""
        if self.logged is None or self.trusted is False:
            return None
        equal = pc.and_kleene(pc.equal(self.logged[0], value), pc.equal(self.logged[1], value))
        return equal if self.trusted is True else pc.and_kleene(equal, self.trusted)

    def is_only_one_of(self, values: pa.Array) -> pa.Array | None:
        """Return where every non-null value is proven to be the same one of ``values``."""
        if self.logged is None or self.trusted is False:
            return None
        # is_in() is false for null, but equality is null there, and unknown AND false would be false: hence the order.
        equal = pc.equal(*self.logged)
        found = pc.if_else(equal, pc.is_in(self.logged[0], value_set=values), equal)
        return found if self.trusted is True else pc.and_kleene(found, self.trusted)

    def is_number(self) -> pa.Array | None:
        """Return where a float column is proven to hold numbers only.

        Null where it is null or unknown: a NaN partition value looks the same here.
        """
        if self.lower is None:
            return None
        return self.without_nan(pc.if_else(pc.is_valid(self.lower), _TRUE, _UNKNOWN))

    def without_nan(self, truth: pa.Array | None) -> pa.Array | None:
        """Return what holds for numbers, unknown where there may be a NaN."""
        if self.may_be_nan is False or truth is None:
            return truth
        return None if self.may_be_nan is True else pc.if_else(self.may_be_nan, _UNKNOWN, truth)

    def has_only_prefix(self, prefix: str) -> pa.Array | None:
        """Return where every non-null value is proven to start with ``prefix``."""
        if self.lower is None or self.upper is None:
            return None
        ends = [pc.starts_with(each, prefix) for each in (self.upper, *(strings for _, strings in self.prefixes))]
        return pc.and_kleene(pc.starts_with(self.lower, prefix), pc.coalesce(*ends))


def _native(values: pa.Array | None, kind: pa.DataType) -> pa.Array | None:
    if values is None or values.type == kind:
        return values
    try:
        return pc.cast(values, kind)
    except pa.ArrowException:
        return None


def _without_nan(values: pa.Array | None) -> pa.Array | None:
    if values is None:
        return None
    return pc.if_else(pc.is_nan(values), typed_scalar(None, values.type), values)


def _with_nearest_float(bound: pa.Array | None, *, up: bool) -> pa.Array | None:
    if bound is None:
        return None
    nearest = pc.cast(pc.cast(bound, pa.float32(), safe=False), bound.type)
    return pc.max_element_wise(bound, nearest) if up else pc.min_element_wise(bound, nearest)


def _to_next_millisecond(upper: pa.Array) -> pa.Array:
    cut = pc.cast(pc.cast(upper, pa.timestamp("ms", upper.type.tz), safe=False), upper.type)
    # The next millisecond itself is excluded: it would have been logged as such. Overflow wraps only after year
    # 294,000.
    moved = pc.add(upper.view(pa.int64()), typed_scalar(999, pa.int64())).view(upper.type)
    return pc.if_else(pc.equal(upper, cut), moved, upper)


def _survives_doubles(values: pa.Array) -> pa.Array:
    limit = typed_scalar(10**_DIGITS_A_DOUBLE_KEEPS, pa.decimal128(38, values.type.scale))
    return pc.less(pc.abs(values), limit)


def _unsaturated(values: pa.Array | None, edge: int) -> pa.Array | None:
    """Return bounds without those at the limit of 64-bit integers, or at its rounding to a double."""
    if values is None or values.type.precision < _DIGITS_OF_INT64:
        return values
    wide = pa.decimal128(38, values.type.scale)
    first, last = typed_scalar(edge - _DOUBLES_APART, wide), typed_scalar(edge + _DOUBLES_APART, wide)
    is_edge = pc.and_(pc.greater_equal(values, first), pc.less_equal(values, last))
    return pc.if_else(is_edge, typed_scalar(None, values.type), values)


def _widened(values: pa.Array | None, *, up: bool) -> pa.Array | None:
    if values is None:
        return None
    exact = _survives_doubles(values)
    if pc.all(exact).as_py() is not False:
        return values
    scale = values.type.scale
    wide = pa.decimal256(38, scale)
    base = pc.cast(values, wide)
    unit = pc.cast(typed_scalar(1, pa.decimal128(38, scale)), wide)
    share = pc.cast(typed_scalar(5, pa.decimal128(16, 16)), pa.decimal256(16, 16))  # 5e-16 > 2**-51
    margin = pc.add(pc.multiply(pc.abs(base), share), unit)
    moved = pc.add(base, margin) if up else pc.subtract(base, margin)
    return pc.if_else(exact, pc.cast(base, moved.type), moved)


def _untruncated(upper: pa.Array) -> tuple[Trust, tuple[tuple[int, pa.Array], ...]]:
    """Return which maxima are complete, and the prefixes of those that may be truncated."""
    longest = pc.max(pc.binary_length(upper)).as_py()
    if longest is None or longest < _SURVIVING_WITH_PAIRS:
        return True, ()  # the usual case: no writer truncates strings this short
    length = pc.utf8_length(upper)
    cut = pc.greater_equal(length, typed_scalar(_TRUNCATED_FROM, length.type))
    unknown = typed_scalar(None, upper.type)
    prefixes = []
    whole = pc.invert(cut)
    if pc.all(pc.equal(length, pc.binary_length(upper))).as_py() is False:
        wide = pc.and_kleene(
            pc.greater_equal(length, typed_scalar(_SURVIVING_WITH_PAIRS, length.type)),
            pc.match_substring_regex(upper, _TWO_UNIT_CHARACTERS),
        )
        if pc.any(wide).as_py():
            short = pc.utf8_slice_codeunits(upper, 0, _SURVIVING_WITH_PAIRS)
            prefixes.append((_SURVIVING_WITH_PAIRS, pc.if_else(wide, short, unknown)))
            cut, whole = pc.and_kleene(cut, pc.invert(wide)), pc.and_kleene(whole, pc.invert(wide))
    if pc.any(cut).as_py():
        prefixes.append((_SURVIVING, pc.if_else(cut, pc.utf8_slice_codeunits(upper, 0, _SURVIVING), unknown)))
    return (whole if prefixes else True), tuple(prefixes)

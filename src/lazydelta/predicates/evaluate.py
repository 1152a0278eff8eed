"""Find the files that may hold a matching row, and those that hold only matching rows.

Both answers come from one traversal: each leaf determines from a file's ranges whether *some* row may pass and whether
*every* row must. Null means that the ranges do not tell, and propagates up the tree by Kleene's logic. At the root it
becomes "may pass" and "need not pass", so an unknown result keeps the file.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from lazydelta.predicates.tree import (
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
from lazydelta.protocol.schema import Column, Primitive
from lazydelta.protocol.values import is_float
from lazydelta.runtime import compute as pc
from lazydelta.runtime.arrays import bitmap, boolean_array, typed_array, typed_scalar
from lazydelta.stats.ranges import ColumnRange, Ranges, cast_or_none, partition_ranges, partition_texts, text_range

if TYPE_CHECKING:
    import numpy.typing as npt  # builds its docstrings on import

__all__ = [
    "Bounds",
    "DistinctPartitions",
    "all_match",
    "may_match",
]


# True bounds from the statistics that writers log.


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
        lower, upper = cast_or_none(known.min, kind), cast_or_none(known.max, kind)
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


Truth: TypeAlias = "pa.Array | bool | None"
"""A truth value per file. A bool or None (unknown) applies to all of them."""

_MOST_COMPARED = 32
"""Up to this many values of a list, comparing with each is faster than a search."""

_MOST_DECIMALS_COMPARED = 1_000
"""Decimals cannot be searched. If there are more than this, only the smallest and largest are compared."""

_ZERO = typed_scalar(0, pa.int64())
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def may_match(predicate: Predicate, ranges: Ranges) -> pa.BooleanArray:
    """Return for each file whether it may hold a row for which ``predicate`` is true. False is proven."""
    walk = _Evaluation(ranges)
    truth = walk.truth(predicate, every=False)
    if ranges.num_records is not None:
        rows = pc.not_equal(ranges.num_records, _ZERO)
        if not pc.all(rows).as_py():
            truth = _and(truth, _or(rows, walk.has_values()))
    return _decided(truth, ranges.num_rows, unknown=True)


def all_match(predicate: Predicate, ranges: Ranges) -> pa.BooleanArray:
    """Return for each file whether ``predicate`` is true for every one of its rows. True is proven."""
    truth = _Evaluation(ranges).truth(predicate, every=True)
    if ranges.num_records is not None:
        truth = _or(truth, pc.equal(ranges.num_records, _ZERO))
    return _decided(truth, ranges.num_rows, unknown=False)


class _Known(msgspec.Struct, frozen=True):
    """The range of one column: its bounds, where it is all null, and where it has no nulls."""

    bounds: Bounds
    all_null: Truth
    no_null: Truth


class _Evaluation:
    """One evaluation. A column used twice is widened once."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._columns: dict[tuple[str, ...], _Known | None] = {}

    def truth(self, predicate: Predicate, *, every: bool) -> Truth:
        """Return where every row must pass, or where some row may."""
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
        """Return where a column that was evaluated has a bound: a range without rows is a contradiction."""
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
                # A range without any value is a contradiction: one of the two is wrong, and it is unknown which.
                all_null = _and(all_null, pc.is_null(bound))
        return _Known(bounds, all_null, no_null)


def _some_value(predicate: Predicate, bounds: Bounds) -> Truth:
    """Return where some non-null value may pass."""
    match predicate:
        case Compare(_, "=", value):
            return _and(bounds.reaches_down(value, or_equal=True), bounds.reaches_up(value, or_equal=True))
        case Compare(_, "!=", value):
            return _not(bounds.is_only(value))
        case Compare(_, op, value) if op in {"<", "<="}:
            return bounds.reaches_down(value, or_equal=op == "<=")
        case Compare(_, op, value, nan):
            # A NaN that counts as the largest value passes, and the maximum does not include it.
            reaches = bounds.reaches_up(value, or_equal=op == ">=")
            return bounds.without_nan(reaches) if nan is NanOrder.LARGEST else reaches
        case IsNan(_, negated):
            numbers = bounds.is_number()
            return numbers if negated else _not(numbers)
        case Not(Compare(column, op, value)):
            # NaN passes, and it may be there whatever the bounds are.
            return _numbers_alone(_some_value(Compare(column, _OPPOSITE[op], value), bounds), bounds)
        case In(_, values, negated):
            return _not(bounds.is_only_one_of(values)) if negated else _some_of(values, bounds)
        case Prefix(_, prefix, negated):
            return _not(bounds.has_only_prefix(prefix)) if negated else _and(*bounds.reaches_prefix(prefix))
    return None


def _every_value(predicate: Predicate, bounds: Bounds) -> Truth:
    """Return where every value passes, if none is null."""
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
        case In(_, values):
            return _numbers_alone(bounds.is_only_one_of(values), bounds)
        case Compare(_, "=", value):
            return _numbers_alone(bounds.is_only(value), bounds)
        case Compare(column, op, value):
            return _numbers_alone(_not(_some_value(Compare(column, _OPPOSITE[op], value), bounds)), bounds)
    return None


def _numbers_alone(truth: Truth, bounds: Bounds) -> Truth:
    """Return what holds without NaN, unknown where there may be one."""
    if isinstance(truth, bool):
        return truth if bounds.may_be_nan is False else None
    return bounds.without_nan(truth)


def _some_of(values: pa.Array, bounds: Bounds) -> Truth:
    """Return where one of the sorted ``values`` lies within the bounds."""
    most = _MOST_DECIMALS_COMPARED if pa.types.is_decimal(values.type) else _MOST_COMPARED
    if len(values) <= most:
        each = (
            _and(bounds.reaches_down(value, or_equal=True), bounds.reaches_up(value, or_equal=True)) for value in values
        )
        return functools.reduce(_or, each)
    if bounds.lower is None or pa.types.is_decimal(values.type):
        down = bounds.reaches_down(values[len(values) - 1], or_equal=True)
        return _and(down, bounds.reaches_up(values[0], or_equal=True))
    # The first value at or above the lower bound decides: if it exceeds the upper bound, so do all later ones.
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


# ``DistinctPartitions``: evaluate a predicate on partition values once per combination of values.


_Values: TypeAlias = tuple[str | None, ...]
_MOST_REMEMBERED = 50_000  # combinations of values; the cache is cleared when it exceeds this
_LARGEST_CODE = 2**62
_ROWS_A_COMBINATION = 8  # with fewer rows per combination of values, all rows are evaluated anew


class DistinctPartitions:
    """Caches which partition values can match: a million files are in a few thousand partitions.

    Parsing and comparing strings takes about forty kernel calls per batch, this takes about ten.
    """

    def __init__(self, predicate: Predicate, columns: Sequence[Column]) -> None:
        self._predicate = predicate
        self._columns = tuple(column for column in columns if column.is_partition)
        self._decided: dict[_Values, bool] = {}

    def may_match(self, partition_values: pa.Array) -> pa.BooleanArray:
        """Return for each file whether it may hold a row for which the predicate is true. False is proven."""
        distinct = _distinct(partition_values, self._columns)
        if distinct is None:
            return may_match(self._predicate, partition_ranges(partition_values, self._columns))
        values, rows = distinct
        return boolean_array(self._decide(values)[rows])

    def _decide(self, values: list[_Values]) -> npt.NDArray[np.bool_]:
        unknown = [each for each in values if each not in self._decided]
        if unknown:
            if len(self._decided) > _MOST_REMEMBERED:
                self._decided.clear()
                unknown = values
            self._decided.update(zip(unknown, self._evaluate(unknown), strict=True))
        return np.fromiter(map(self._decided.__getitem__, values), np.bool_, len(values))

    def _evaluate(self, values: list[_Values]) -> list[bool]:
        present = typed_array([True] * len(values), pa.bool_())
        ranges = {
            column.physical_path: text_range(column, typed_array(texts, pa.string()), present)
            for column, texts in zip(self._columns, zip(*values, strict=True), strict=True)
        }
        decided: list[bool] = may_match(self._predicate, Ranges(len(values), columns=ranges)).to_pylist()
        return decided


def _distinct(
    partition_values: pa.Array, columns: Sequence[Column]
) -> tuple[list[_Values], npt.NDArray[np.integer]] | None:
    """Return the combinations of values and the one of each row; None if a value is missing or there are too many."""
    encoded = _encoded(partition_values, columns)
    if not encoded:
        return None
    most = len(partition_values) // _ROWS_A_COMBINATION
    if any(len(each.dictionary) > most for each in encoded):
        return None
    lists = [each.dictionary.to_pylist() for each in encoded]
    if len(encoded) == 1:
        return [(value,) for value in lists[0]], _codes(encoded[0])
    if prod(map(len, lists)) > _LARGEST_CODE:
        return None
    combined = np.zeros(len(partition_values), np.int64)
    for each in encoded:
        combined = combined * len(each.dictionary) + _codes(each)
    found, rows = np.unique(combined, return_inverse=True)
    if len(found) > most:
        return None
    texts = []
    for values in reversed(lists):
        found, codes = np.divmod(found, len(values))
        texts.append([values[code] for code in codes])
    return list(zip(*reversed(texts), strict=True)), rows


def _encoded(partition_values: pa.Array, columns: Sequence[Column]) -> list[pa.DictionaryArray]:
    """Return the values of each column as codes; nothing if a row lacks one of the columns."""
    if len(columns) == 1 and (items := _read_as_codes(partition_values, columns[0].physical_path[0])) is not None:
        return [items]
    texts = partition_texts(partition_values, columns)
    if any(present is None or present.false_count for _, _, present in texts):
        return []
    return [pc.dictionary_encode(values, "encode") for _, values, _ in texts]


def _read_as_codes(maps: pa.Array, name: str) -> pa.DictionaryArray | None:
    """Return the values under ``name`` if they were read as codes and each row has just this key; otherwise None."""
    if not isinstance(maps, pa.MapArray) or maps.null_count or not pa.types.is_dictionary(maps.type.item_type):
        return None
    offsets = np.frombuffer(maps.offsets.buffers()[1], np.int32, len(maps) + 1, maps.offsets.offset * 4)
    first, last = int(offsets[0]), int(offsets[-1])
    keys, items = maps.keys.slice(first, last - first), maps.items.slice(first, last - first)
    if keys.null_count or items.null_count or keys.dictionary.to_pylist() != [name]:
        return None
    return items if (np.diff(offsets) == 1).all() else None


def _codes(encoded: pa.DictionaryArray) -> npt.NDArray[np.int32]:
    indices = encoded.indices
    return np.frombuffer(indices.buffers()[1], np.int32, len(indices), indices.offset * 4)

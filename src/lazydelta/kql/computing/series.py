"""Functions of a series, which is a dynamic array of numbers: arithmetic, comparison, filling, filters, statistics.

An element that is no number counts as missing, and so is the result's element there. JSON has no NaN and no infinity;
KQL writes them as strings, which are read here as the numbers that they mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lazydelta.kql.computing.arrow_functions import UnfitError

__all__ = ["Reals", "as_json", "finite", "reals"]

Reals = NDArray[np.float64]
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Series(NamedTuple):
    """Numbers, and which of them are missing; ``whole`` if all present ones are integers."""

    values: Reals
    missing: NDArray[np.bool_]
    whole: bool


def series(value: Any) -> Series:
    """Return an array, or one number, as a series."""
    elements = value if isinstance(value, list) else [value]
    numbers = [_number(each) for each in elements]
    missing = np.array([each is None for each in numbers], bool)
    whole = all(each is None or isinstance(each, int) for each in numbers)
    return Series(np.array([0.0 if each is None else each for each in numbers], float), missing, whole)


def _number(value: Any) -> float | int | None:
    if isinstance(value, str):
        return _WORDS.get(value)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def reals(value: Any) -> Reals:
    """Return an array as numbers with NaN for missing ones. Anything but an array has no result."""
    if not isinstance(value, list):
        raise UnfitError
    found = series(value)
    return np.where(found.missing, np.nan, found.values)


def finite(value: Any) -> Reals:
    """Return an array of finite numbers. An array with any other element, or none at all, has no result."""
    found = reals(value)
    if not len(found) or not np.isfinite(found).all():
        raise UnfitError
    return found


def as_json(values: NDArray[Any], missing: NDArray[np.bool_] | None = None, *, whole: bool = False) -> list[Any]:
    """Return the elements of an array as JSON can hold them."""
    listed: list[Any] = values.astype(np.int64).tolist() if whole else values.tolist()
    if values.dtype.kind == "f" and not whole:
        for index in np.flatnonzero(~np.isfinite(values)).tolist():
            word = "NaN" if math.isnan(listed[index]) else "Infinity" if listed[index] > 0 else "-Infinity"
            listed[index] = word
    if missing is not None:
        for index in np.flatnonzero(missing).tolist():
            listed[index] = None
    return listed


# Arithmetic and comparison of two series, or of a series and a number.

_EXACT = 2.0**53


def _pair(operation: Callable[[Any, Any], Any], *, keeps_whole: bool = False) -> Callable[[Any, Any], list[Any]]:
    def paired(one: Any, other: Any) -> list[Any]:
        first, second = series(one), series(other)
        if not isinstance(one, list) and not isinstance(other, list):
            raise UnfitError
        size = max(len(part.values) for part, given in ((first, one), (second, other)) if isinstance(given, list))
        left, left_missing = _sized(first, size, is_array=isinstance(one, list))
        right, right_missing = _sized(second, size, is_array=isinstance(other, list))
        with np.errstate(all="ignore"):
            made = np.asarray(operation(left, right))
        missing = left_missing | right_missing
        is_whole = keeps_whole and first.whole and second.whole
        return as_json(made, missing, whole=is_whole and bool((np.abs(made) < _EXACT).all()))

    return paired


def _sized(given: Series, size: int, *, is_array: bool) -> tuple[Reals, NDArray[np.bool_]]:
    """Return a series of that length: a number is repeated, and what an array lacks is missing."""
    if not is_array:
        return np.repeat(given.values, size), np.repeat(given.missing, size)
    more = size - len(given.values)
    return np.pad(given.values, (0, more)), np.pad(given.missing, (0, more), constant_values=True)


series_add = _pair(np.add, keeps_whole=True)
series_subtract = _pair(np.subtract, keeps_whole=True)
series_multiply = _pair(np.multiply, keeps_whole=True)
series_divide = _pair(np.divide)
series_pow = _pair(np.power)
series_greater = _pair(np.greater)
series_greater_equals = _pair(np.greater_equal)
series_less = _pair(np.less)
series_less_equals = _pair(np.less_equal)
series_equals = _pair(np.equal)
series_not_equals = _pair(np.not_equal)


# Functions of each element.


def _each(operation: Callable[[Any], Any], *, keeps_whole: bool = False) -> Callable[[Any], list[Any]]:
    def applied(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise UnfitError
        given = series(value)
        with np.errstate(all="ignore"):
            made = np.asarray(operation(given.values))
        return as_json(made, given.missing, whole=keeps_whole and given.whole)

    return applied


series_abs = _each(np.abs, keeps_whole=True)
series_acos = _each(np.arccos)
series_asin = _each(np.arcsin)
series_atan = _each(np.arctan)
series_ceiling = _each(np.ceil)
series_cos = _each(np.cos)
series_exp = _each(np.exp)
series_floor = _each(np.floor)
series_log = _each(np.log)
series_sign = _each(np.sign)
series_sin = _each(np.sin)
series_tan = _each(np.tan)


# Figures of whole series.


def _numbers(value: Any) -> Reals:
    """Return an array whose elements are all numbers."""
    if not isinstance(value, list):
        raise UnfitError
    found = series(value)
    if found.missing.any():
        raise UnfitError
    return found.values


def series_sum(value: Any) -> float:
    """Return the sum of the elements."""
    return float(_numbers(value).sum())


def series_product(value: Any) -> float:
    """Return the product of the elements."""
    return float(_numbers(value).prod())


def series_magnitude(value: Any) -> float:
    """Return the Euclidean length."""
    return float(np.linalg.norm(_numbers(value)))


def series_dot_product(one: Any, other: Any) -> float:
    """Return the scalar product of two series, or of a series and a number."""
    left, right = (_numbers(each if isinstance(each, list) else [each]) for each in (one, other))
    if isinstance(one, list) and isinstance(other, list) and len(left) != len(right):
        raise UnfitError
    return float((left * right).sum())


def series_cosine_similarity(
    one: Any, other: Any, one_length: float | None = None, other_length: float | None = None
) -> float:
    """Return the cosine of the angle of two series; their magnitudes may be given."""
    lengths = [
        np.linalg.norm(_numbers(each)) if length is None else length
        for each, length in ((one, one_length), (other, other_length))
    ]
    product = series_dot_product(one, other)
    if not lengths[0] or not lengths[1]:
        raise UnfitError
    return float(product / (lengths[0] * lengths[1]))


def series_pearson_correlation(one: Any, other: Any) -> float:
    """Return the coefficient of correlation."""
    left, right = _numbers(one), _numbers(other)
    if len(left) != len(right) or not len(left):
        raise UnfitError
    left, right = left - left.mean(), right - right.mean()
    with np.errstate(all="ignore"):
        return float((left * right).sum() / np.sqrt((left**2).sum() * (right**2).sum()))


def series_stats(value: Any, ignore_nonfinite: Any = None) -> tuple[Any, ...]:
    """Return minimum, its index, maximum, its index, average, standard deviation and variance."""
    numbers = reals(value)
    known = np.isfinite(numbers)
    if not len(numbers) or not known.any() or not (ignore_nonfinite or known.all()):
        raise UnfitError
    lowest = int(np.argmin(np.where(known, numbers, np.inf)))
    highest = int(np.argmax(np.where(known, numbers, -np.inf)))
    present = numbers[known]
    variance = float(present.var(ddof=1)) if len(present) > 1 else 0.0
    average, deviation = float(present.mean()), math.sqrt(variance)
    return float(numbers[lowest]), lowest, float(numbers[highest]), highest, average, deviation, variance


def series_stats_dynamic(value: Any, ignore_nonfinite: Any = None) -> dict[str, Any]:
    """Return the same figures by name, and the sum and the number of elements."""
    names = ("min", "min_idx", "max", "max_idx", "avg", "stdev", "variance")
    known = reals(value)
    known = known[np.isfinite(known)]
    figures = dict(zip(names, series_stats(value, ignore_nonfinite), strict=True))
    return {**figures, "sum": float(known.sum()), "len": len(known)}


# Filling of missing elements.


def _is_missing(values: Any, placeholder: Any) -> list[bool]:
    if not isinstance(values, list):
        raise UnfitError
    if placeholder is None:
        return [each is None for each in values]
    return [each is not None and each == placeholder for each in values]


def series_fill_const(values: Any, constant: Any = None, placeholder: Any = None) -> list[Any]:
    """Return the series with a constant, 0 if none is given, in place of missing elements."""
    filler = 0 if constant is None else constant
    missing = _is_missing(values, placeholder)
    return [filler if gone else each for each, gone in zip(values, missing, strict=True)]


def series_fill_forward(values: Any, placeholder: Any = None) -> list[Any]:
    """Return the series with the last element before them in place of missing elements."""
    filled: list[Any] = []
    known: list[Any] = []
    for each, gone in zip(values, _is_missing(values, placeholder), strict=True):
        known = known if gone else [each]
        filled.append(known[0] if known else each)
    return filled


def series_fill_backward(values: Any, placeholder: Any = None) -> list[Any]:
    """Return the series with the next element after them in place of missing elements."""
    if not isinstance(values, list):
        raise UnfitError
    return series_fill_forward(values[::-1], placeholder)[::-1]


def series_fill_linear(values: Any, placeholder: Any = None, edges: Any = None, constant: Any = 0) -> list[Any]:
    """Return the series with missing elements on the line between their neighbours.

    A series of integers stays one. ``edges`` fills those before the first and after the last element with it, and
    ``constant`` fills a series that has no element.
    """
    missing = np.array(_is_missing(values, placeholder), bool)
    known = np.flatnonzero(~missing)
    if not len(known):
        return [constant for _ in values]
    found = series(values)
    at = np.arange(len(values))
    line = np.interp(at, known, found.values[known])
    inside = missing if edges is None or edges else missing & (at > known[0]) & (at < known[-1])
    whole = all(isinstance(values[index], int) for index in known)
    made: list[Any] = np.trunc(line).astype(np.int64).tolist() if whole else line.tolist()
    return [made[index] if inside[index] else each for index, each in enumerate(values)]


# Filters.


def series_fir(values: Any, coefficients: Any, normalize: Any = None, center: Any = None) -> list[Any]:
    """Return the series after a finite impulse response filter, divided by the sum of the filter if it is normalized.

    What lies before and after the series counts as 0. A filter with negative coefficients cannot be normalized.
    """
    numbers, weights = reals(values), finite(coefficients)
    negative = bool((weights < 0).any())
    if normalize and negative:
        raise UnfitError
    if normalize or (normalize is None and not negative):
        weights = weights / weights.sum()
    ahead = len(weights) // 2 if center else 0
    if not len(numbers):
        return []
    made = np.convolve(np.pad(numbers, (0, ahead)), weights)[ahead : ahead + len(numbers)]
    return as_json(made, np.isnan(made))


def series_iir(values: Any, numerators: Any, denominators: Any) -> list[Any]:
    """Return the series after an infinite impulse response filter."""
    from scipy.signal import lfilter  # noqa: PLC0415 - slow to import, and few queries filter

    numbers, above, below = reals(values), finite(numerators), finite(denominators)
    if not below[0]:
        raise UnfitError
    made = np.asarray(lfilter(above, below, numbers)) if len(numbers) else numbers
    return as_json(made, np.isnan(made))

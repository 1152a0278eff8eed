"""Analysis of a series: regression, spectrum, periods, decomposition into trend and seasons, and outliers.

Elements that are missing take no part in what is learned from a series.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lazydelta.kql.computing.arrow_functions import UnfitError
from lazydelta.kql.computing.series import Reals, as_json, finite, reals

__all__: list[str] = []

_FENCES = {"ctukey": (10.0, 90.0), "tukey": (25.0, 75.0)}
_TRENDS = ("avg", "linefit", "none")
_SEASONAL_SCORE = 0.6
_ANOMALOUS = 1.5
_SHORTEST_PERIOD = 4.0
_LEAST_PERIODS = 3


# Regression. The abscissae are 1, 2, 3, ….


def _line(x: Reals, y: Reals) -> tuple[float, float]:
    """Return slope and interception of the line with the least squares."""
    away = x - x.mean()
    spread = float((away**2).sum())
    slope = float((away * y).sum()) / spread if spread else 0.0
    return slope, float(y.mean()) - slope * float(x.mean())


def _variance(values: Reals) -> float:
    return float(values.var(ddof=1)) if len(values) > 1 else 0.0


def _quality(y: Reals, fitted: Reals) -> tuple[float, float, float]:
    """Return r-square, the variance of the series and that of the residuals."""
    total, left = float(((y - y.mean()) ** 2).sum()), float(((y - fitted) ** 2).sum())
    return 1 - left / total if total else 1.0, _variance(y), _variance(y - fitted)


def _present(value: Any) -> tuple[Reals, Reals, int]:
    """Return the abscissae and the values of the elements that are present, and the length of the series."""
    numbers = reals(value)
    known = np.isfinite(numbers)
    if not known.any():
        raise UnfitError
    return np.flatnonzero(known).astype(np.float64) + 1, numbers[known], len(numbers)


def series_fit_line(value: Any) -> tuple[Any, ...]:
    """Return r-square, slope, variance, residual variance, interception and the line itself."""
    x, y, size = _present(value)
    slope, start = _line(x, y)
    rsquare, variance, residual = _quality(y, slope * x + start)
    return rsquare, slope, variance, residual, start, (slope * np.arange(1, size + 1) + start).tolist()


def series_fit_line_dynamic(value: Any) -> dict[str, Any]:
    """Return the same by name."""
    names = ("rsquare", "slope", "variance", "rvariance", "interception", "line_fit")
    return dict(zip(names, series_fit_line(value), strict=True))


def _split(x: Reals, y: Reals) -> int:
    """Return the first element of the right one of two lines that together have the least squares."""
    count = np.arange(1, len(y) + 1)

    def squares(x: Reals, y: Reals) -> Reals:
        """Return the squares that the line through the first n points leaves, for every n."""
        sx, sy = np.cumsum(x), np.cumsum(y)
        xx, yy = np.cumsum(x * x) - sx**2 / count, np.cumsum(y * y) - sy**2 / count
        xy = np.cumsum(x * y) - sx * sy / count
        with np.errstate(all="ignore"):
            left: Reals = yy - np.where(xx > 0, xy**2 / xx, 0.0)
        return left

    # Centred, because the sums of squares of large numbers would leave no digits for their differences.
    x, y = x - x.mean(), y - y.mean()
    left, right = squares(x, y)[:-1], squares(x[::-1], y[::-1])[:-1][::-1]
    enough = (count[:-1] > 1) & (count[:-1][::-1] > 1)
    return int(np.argmin(np.where(enough, left + right, np.inf))) + 1


def series_fit_2lines(value: Any) -> tuple[Any, ...]:
    """Return what the two lines together are, then the figures of the right one, then those of the left one."""
    x, y, size = _present(value)
    if len(y) < 4:  # noqa: PLR2004 - two points for each line
        raise UnfitError
    split = _split(x, y)
    sides = {"left": (x[:split], y[:split]), "right": (x[split:], y[split:])}
    lines = {side: _line(*points) for side, points in sides.items()}
    first_right = x[split]
    everywhere = np.arange(1, size + 1, dtype=float)
    slopes, starts = (np.where(everywhere < first_right, lines["left"][n], lines["right"][n]) for n in (0, 1))
    fit = slopes * everywhere + starts
    rsquare, variance, residual = _quality(y, fit[x.astype(int) - 1])
    figures: list[Any] = [rsquare, int(first_right) - 1, variance, residual, fit.tolist()]
    for side in ("right", "left"):
        (slope, start), (at, values) = lines[side], sides[side]
        quality = _quality(values, slope * at + start)
        figures += [quality[0], slope, start, quality[1], quality[2]]
    return tuple(figures)


def series_fit_2lines_dynamic(value: Any) -> dict[str, Any]:
    """Return the same by name, each line in a bag of its own."""
    rsquare, split, variance, residual, fit, *sides = series_fit_2lines(value)
    names = ("rsquare", "slope", "interception", "variance", "rvariance")
    lines = {side: dict(zip(names, sides[at : at + 5], strict=True)) for side, at in (("right", 0), ("left", 5))}
    whole = {"rsquare": rsquare, "split_idx": split, "variance": variance, "rvariance": residual, "line_fit": fit}
    return {**whole, **lines}


def series_fit_poly(value: Any, x_values: Any = None, degree: int | None = None) -> tuple[Any, ...]:
    """Return r-square, the coefficients from the highest power down, variances, and the polynomial itself."""
    y = finite(value)
    x = np.arange(1, len(y) + 1, dtype=float) if x_values is None else _abscissae(x_values)
    power = 1 if degree is None else degree
    if len(x) != len(y) or power < 0 or power >= len(y):
        raise UnfitError
    coefficients: Reals = np.asarray(np.polynomial.Polynomial.fit(x, y, power).convert().coef, float)
    coefficients = np.pad(coefficients, (0, power + 1 - len(coefficients)))
    fit: Reals = np.polynomial.polynomial.polyval(x, coefficients)
    rsquare, variance, residual = _quality(y, fit)
    return rsquare, coefficients[::-1].tolist(), variance, residual, fit.tolist()


def _abscissae(values: Any) -> Reals:
    if isinstance(values, list) and values and isinstance(values[0], str):
        try:
            timestamps = [datetime.fromisoformat(each[:26].rstrip("Z")) for each in values]
        except (TypeError, ValueError) as error:
            raise UnfitError from error
        # Large numbers of ticks would leave no digits for powers of them.
        seconds = np.array([(each - timestamps[0]).total_seconds() for each in timestamps])
        return seconds / seconds.max() if seconds.max() else seconds
    return finite(values)


# Spectrum.


def _complex(real: Any, imaginary: Any) -> NDArray[np.complex128]:
    first = finite(real)
    second = np.zeros(len(first)) if imaginary is None else finite(imaginary)
    if len(first) != len(second):
        raise UnfitError
    return first + 1j * second


def series_fft(real: Any, imaginary: Any = None) -> tuple[list[Any], list[Any]]:
    """Return the Fourier transform: its real and its imaginary parts."""
    made = np.fft.fft(_complex(real, imaginary))
    return made.real.tolist(), made.imag.tolist()


def series_ifft(real: Any, imaginary: Any = None) -> tuple[list[Any], list[Any]]:
    """Return the inverse Fourier transform."""
    made = np.fft.ifft(_complex(real, imaginary))
    return made.real.tolist(), made.imag.tolist()


# Periods: the peaks of the autocorrelation.


def _autocorrelation(numbers: Reals) -> Reals:
    """Return the correlation of a series with itself, moved by 0, 1, 2, … elements; 0 to 1."""
    present = numbers[np.isfinite(numbers)]
    # One large outlier would hide every period.
    low, high = np.percentile(present, _FENCES["ctukey"])
    beyond = _ANOMALOUS * (high - low)
    clipped = np.clip(present, low - beyond, high + beyond) if beyond else present
    known = np.full(len(numbers), clipped.mean())
    known[np.isfinite(numbers)] = clipped
    away, size = known - known.mean(), len(known)
    power = np.abs(np.fft.rfft(away, 2 * size)) ** 2
    raw = np.fft.irfft(power)[:size]
    if raw[0] <= 0:
        return np.zeros(size)
    # A longer lag has fewer pairs; the full correction for that would let the noise of the longest ones win.
    scores: Reals = raw / raw[0] * np.sqrt(size / np.arange(size, 0, -1))
    return np.clip(scores, 0.0, 1.0)


def _peaks(scores: Reals, least: float, most: float) -> list[int]:
    """Return the lags at which the correlation has a peak, the highest first. Multiples of one are left out."""
    first, last = max(2, math.ceil(least)), int(min(most, len(scores) // 2))
    peaks = [lag for lag in range(first, last + 1) if _score(scores, lag)]
    chosen: list[int] = []
    for lag in sorted(peaks, key=lambda each: -scores[each]):
        near = (abs(lag / kept - round(lag / kept)) * kept <= 1 and round(lag / kept) > 1 for kept in chosen)
        fraction = (kept % lag == 0 and scores[lag] < scores[kept] for kept in chosen)
        if not any(near) and not any(fraction):
            chosen.append(lag)
    return chosen


def series_periods_detect(value: Any, least: float, most: float, count: int) -> tuple[list[Any], list[Any]]:
    """Return the most significant periods in elements, and their scores from 0 to 1."""
    numbers = reals(value)
    if count < 1 or least < 0 or most < least or not np.isfinite(numbers).any():
        raise UnfitError
    scores = _autocorrelation(numbers)
    found = [each for each in _peaks(scores, max(least, _SHORTEST_PERIOD), most) if scores[each] >= _SEASONAL_SCORE]
    found = found[:count]
    none = [0.0] * (count - len(found))
    return [float(each) for each in found] + none, [float(scores[each]) for each in found] + none


def series_periods_validate(value: Any, *periods: float) -> tuple[list[Any], list[Any]]:
    """Return the periods that were given, and their scores: 0 where the correlation has no peak."""
    numbers = reals(value)
    if not np.isfinite(numbers).any():
        raise UnfitError
    scores = _autocorrelation(numbers)
    lags = [round(each) if math.isfinite(each) else 0 for each in periods]
    found = [_score(scores, lag) for lag in lags]
    return [float(each) for each in periods], found


def _score(scores: Reals, lag: int) -> float:
    """Return the correlation at a lag if it is the highest within a quarter of the lag, else 0."""
    if not 1 < lag <= len(scores) // 2 or lag + 1 >= len(scores):
        return 0.0
    reach = max(1, lag // 4)
    return float(scores[lag]) if scores[lag] >= scores[lag - reach : lag + reach + 1].max() else 0.0


# Decomposition.


def _period(numbers: Reals, period: float | None, threshold: float | None) -> int:
    """Return the period to use, and 0 for none; -1 is to be detected."""
    if period is None or period < 0:
        scores = _autocorrelation(numbers)
        peaks = _peaks(scores, _SHORTEST_PERIOD, len(numbers) / _LEAST_PERIODS)
        enough = _SEASONAL_SCORE if threshold is None else threshold
        return peaks[0] if peaks and scores[peaks[0]] >= enough else 0
    return int(period)


def _seasons(numbers: Reals, period: int, learned: int) -> Reals:
    """Return the median of each place in the period, over all periods of what is learned from."""
    size = len(numbers)
    if not period or learned < period:
        return np.zeros(size)
    rows = -(-learned // period)
    padded = np.pad(numbers[:learned], (0, rows * period - learned), constant_values=np.nan)
    table = padded.reshape(rows, period)
    empty = np.isnan(table).all(axis=0)
    table[0, empty] = 0.0
    return np.resize(np.nanmedian(table, axis=0), size)


def _learned(size: int, test_points: int | None) -> int:
    learned = size - (test_points or 0)
    if not 0 < learned <= size:
        raise UnfitError
    return learned


def series_seasonal(value: Any, period: int | None = None, test_points: int | None = None) -> list[Any]:
    """Return the seasonal component, which is zero where there is no season."""
    numbers = reals(value)
    learned = _learned(len(numbers), test_points)
    if not np.isfinite(numbers[:learned]).any():
        raise UnfitError
    return _seasons(numbers, _period(numbers[:learned], period, None), learned).tolist()  # type: ignore[no-any-return]


def _decomposed(
    value: Any, period: float | None, trend: str | None, test_points: int | None, threshold: float | None
) -> tuple[Reals, Reals, Reals, Reals]:
    numbers, kind = reals(value), trend or "avg"
    learned = _learned(len(numbers), test_points)
    known = np.flatnonzero(np.isfinite(numbers[:learned]))
    if kind not in _TRENDS or not len(known):
        raise UnfitError
    at = np.arange(len(numbers), dtype=float)
    season = _period(numbers[:learned], period, threshold)
    if kind == "none":
        trends = np.zeros(len(numbers))
        seasonal = _seasons(numbers, season, learned)
    else:
        slope, start = _line(at[known], numbers[known]) if kind == "linefit" else (0.0, float(numbers[known].mean()))
        trends = slope * at + start
        seasonal = _seasons(numbers - trends, season, learned)
    baseline = trends + seasonal
    return baseline, seasonal, trends, numbers - baseline


def series_decompose(
    value: Any,
    period: float | None = None,
    trend: str | None = None,
    test_points: int | None = None,
    threshold: float | None = None,
) -> tuple[list[Any], ...]:
    """Return baseline, seasonal component, trend and residuals."""
    *parts, residual = _decomposed(value, period, trend, test_points, threshold)
    return *(part.tolist() for part in parts), as_json(residual, np.isnan(residual))


def series_decompose_forecast(
    value: Any,
    points: int,
    period: float | None = None,
    trend: str | None = None,
    threshold: float | None = None,
) -> tuple[list[Any], ...]:
    """Return the same, learned from all but the last points, which it predicts."""
    return series_decompose(value, period, trend or "linefit", points, threshold)


def series_decompose_anomalies(
    value: Any,
    limit: float | None = None,
    period: float | None = None,
    trend: str | None = None,
    test_points: int | None = None,
    method: str | None = None,
    threshold: float | None = None,
) -> tuple[list[Any], ...]:
    """Return +1, -1 or 0 for each element, its score, and the baseline."""
    baseline, _, _, residual = _decomposed(value, period, trend, test_points, threshold)
    scores = _outliers(residual, _fences(method), None, _learned(len(residual), test_points))
    least = _ANOMALOUS if limit is None else limit
    flags = np.where(scores >= least, 1, np.where(scores <= -least, -1, 0))
    return flags.tolist(), as_json(scores), baseline.tolist()


# Outliers: Tukey's test.


def _fences(kind: str | None) -> tuple[float, float]:
    found = _FENCES.get(kind or "ctukey")
    if found is None:
        raise UnfitError
    return found


def _outliers(numbers: Reals, fences: tuple[float, float], ignored: float | None, learned: int) -> Reals:
    """Return how far each element is beyond the percentiles, in distances between them."""
    known = np.isfinite(numbers) & (True if ignored is None else numbers != ignored)
    base = numbers[:learned][known[:learned]]
    if not len(base):
        return np.zeros(len(numbers))
    low, high = np.percentile(base, fences)
    # What rounding leaves is no distance.
    least = 1e-9 * float(np.abs(base).max())
    spread = high - low if high - low > least else 0.0
    with np.errstate(all="ignore"):
        beyond = np.where(numbers > high, numbers - high, np.where(numbers < low, numbers - low, 0.0))
        beyond = np.where(np.abs(beyond) > least, beyond, 0.0)
        scores = np.where(beyond == 0, 0.0, beyond / spread)
    return np.where(known, scores, 0.0)


def series_outliers(
    value: Any,
    kind: str | None = None,
    ignored: float | None = None,
    low: float | None = None,
    high: float | None = None,
    test_points: int | None = None,
) -> list[Any]:
    """Return a score for each element: above 1.5 it is an outlier upwards, below -1.5 one downwards."""
    least, most = _fences(kind)
    if (kind or "ctukey") == "ctukey":
        least, most = least if low is None else low, most if high is None else high
    if not 2 <= least < most <= 98:  # noqa: PLR2004 - the documented range
        raise UnfitError
    numbers = reals(value)
    return as_json(_outliers(numbers, (least, most), ignored, _learned(len(numbers), test_points)))

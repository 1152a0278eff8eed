"""Sketches: values that stand for many, from which counts of different values and percentiles are estimated.

``hll`` is a HyperLogLog: of the 64 bits of each value's hash, the first name a register and the others how rare the
value is; a register keeps the rarest. ``tdigest`` is a list of values with weights, exact for up to 1,024 values.
DuckDB collects either in memory that does not depend on the number of rows. Both are dynamic values that can be stored.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import itertools
import math
from array import array
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from lazydelta.kql.computing.arrow_functions import UnfitError

__all__: list[str] = []

_RANKS = 64
_MOST_POINTS = 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# HyperLogLog. A code is the number of a register times 64, plus what the register holds.


def sketch_hll(codes: Any, bits: int) -> list[Any]:
    """Return the sketch of the codes of a group."""
    return _packed(codes, bits)


def _packed(codes: Iterable[int], bits: int) -> list[Any]:
    registers: dict[int, int] = {}
    for code in codes:
        register, rank = divmod(code, _RANKS)
        if registers.get(register, 0) < rank:
            registers[register] = rank
    packed = array("I", sorted(register * _RANKS + rank for register, rank in registers.items()))
    return ["hll", bits, base64.b64encode(packed.tobytes()).decode()]


def _unpacked(sketch: Any) -> tuple[int, array[int]]:
    match sketch:
        case ["hll", int(bits), str(text)] if 4 <= bits <= 18:  # noqa: PLR2004 - the precisions of the sketch
            codes = array("I")
            try:
                codes.frombytes(base64.b64decode(text, validate=True))
            except (binascii.Error, ValueError) as error:
                raise UnfitError from error
            return bits, codes
        case _:
            raise UnfitError


def dcount_hll(sketch: Any) -> int:
    """Return the estimated number of different values."""
    bits, codes = _unpacked(sketch)
    size = 1 << bits
    empty = size - len(codes)
    total = empty + sum(2.0 ** -(code % _RANKS) for code in codes)
    estimate = 0.7213 / (1 + 1.079 / size) * size * size / total
    if estimate <= 2.5 * size and empty:
        estimate = size * math.log(size / empty)
    return round(estimate)


def hll_merge(*sketches: Any) -> list[Any]:
    """Return the sketch of the values of all sketches, as coarse as the coarsest of them."""
    return sketch_hll_merge(list(sketches))


def sketch_hll_merge(sketches: Any) -> list[Any]:
    """Return the sketch of the values of a list of sketches."""
    parts = [_unpacked(each) for each in sketches if each is not None]
    if not parts:
        raise UnfitError
    bits = min(each for each, _ in parts)
    return _packed((code for own, codes in parts for code in _coarser(codes, own, bits)), bits)


def _coarser(codes: Iterable[int], own: int, bits: int) -> Iterable[int]:
    """Return codes with fewer registers: the bits that named them become part of what they hold."""
    lost = own - bits
    for code in codes:
        register, rank = divmod(code, _RANKS)
        rest = register & ((1 << lost) - 1)
        new_rank = lost - rest.bit_length() + 1 if rest else rank + lost
        yield (register >> lost) * _RANKS + new_rank


# Digests.


class Digest(NamedTuple):
    """Values in order with their weights, and the type of the values."""

    kind: str
    values: list[float]
    weights: list[float]


def _digest(sketch: Any) -> Digest:
    match sketch:
        case ["tdigest", str(kind), list(values), list(weights)] if len(values) == len(weights):
            if all(isinstance(each, int | float) for each in itertools.chain(values, weights)):
                return Digest(kind, values, weights)
    raise UnfitError


def sketch_tdigest(kind: str, count: int, least: Any, grid: Any) -> list[Any]:
    """Return the digest of a group: of its values in order if they are few, else of its quantiles."""
    if count <= _MOST_POINTS:
        return ["tdigest", kind, least, [1] * len(least)]
    return ["tdigest", kind, sorted(grid), [count / len(grid)] * len(grid)]


def sketch_tdigest_weighted(kind: str, pairs: Any) -> list[Any]:
    """Return the digest of values with weights."""
    return _made(kind, [(value, weight) for value, weight in pairs if value is not None and (weight or 0) > 0])


def _made(kind: str, points: list[tuple[float, float]]) -> list[Any]:
    """Return the digest of points; neighbours become their mean if there are too many."""
    points = sorted(points)
    if len(points) > _MOST_POINTS:
        share = sum(weight for _, weight in points) / (_MOST_POINTS - 2)
        joined: list[tuple[float, float]] = [points[0]]
        value = weight = 0.0
        for each, own in points[1:-1]:
            value, weight = value + each * own, weight + own
            if weight >= share:
                joined.append((value / weight, weight))
                value = weight = 0.0
        if weight:
            joined.append((value / weight, weight))
        points = [*joined, points[-1]]
    return ["tdigest", kind, [value for value, _ in points], [weight for _, weight in points]]


def tdigest_merge(*sketches: Any) -> list[Any]:
    """Return the digest of the values of all digests."""
    return sketch_tdigest_merge(list(sketches))


def sketch_tdigest_merge(sketches: Any) -> list[Any]:
    """Return the digest of the values of a list of digests."""
    parts = [_digest(each) for each in sketches if each is not None]
    if not parts:
        raise UnfitError
    points = [point for each in parts for point in zip(each.values, each.weights, strict=True)]
    return _made(parts[0].kind, points)


def _percentile(digest: Digest, percent: float) -> float:
    if not digest.values or not 0 <= percent <= 100:  # noqa: PLR2004 - per cent
        raise UnfitError
    sums = list(itertools.accumulate(digest.weights))
    # A hair less, because sums of fractions may miss the share that they reach.
    place = bisect.bisect_left(sums, sums[-1] * percent / 100 * (1 - 1e-12))
    return digest.values[min(place, len(sums) - 1)]


def sketch_percentile(sketch: Any, percent: float) -> float:
    """Return a percentile as a number: of microseconds since 1970 for datetimes, of ticks for timespans."""
    return _percentile(_digest(sketch), percent)


def percentile_tdigest(sketch: Any, percent: float) -> Any:
    """Return a percentile as a dynamic value."""
    digest = _digest(sketch)
    return _shown(digest.kind, _percentile(digest, percent))


def percentiles_array_tdigest(sketch: Any, *percents: Any) -> list[Any]:
    """Return several percentiles."""
    wanted = percents[0] if len(percents) == 1 and isinstance(percents[0], list) else percents
    return [percentile_tdigest(sketch, each) for each in wanted]


def _shown(kind: str, value: float) -> Any:
    if kind == "datetime":
        timestamp = _EPOCH + timedelta(microseconds=round(value))
        return f"{timestamp:%Y-%m-%dT%H:%M:%S.%f}0Z"
    if kind == "timespan":
        ticks = round(value)
        days, rest = divmod(abs(ticks), 864_000_000_000)
        seconds, fraction = divmod(rest, 10_000_000)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return f"{'-' * (ticks < 0)}{f'{days}.' if days else ''}{clock}{f'.{fraction:07}' if fraction else ''}"
    return round(value) if kind == "long" else value


def rank_tdigest(sketch: Any, value: float) -> float:
    """Return how many values are at most a value."""
    digest = _digest(sketch)
    return float(sum(digest.weights[: bisect.bisect_right(digest.values, value)]))


def percentrank_tdigest(sketch: Any, value: float) -> float:
    """Return how many per cent of the values are at most a value."""
    digest = _digest(sketch)
    if not digest.values:
        raise UnfitError
    return 100 * rank_tdigest(sketch, value) / sum(digest.weights)

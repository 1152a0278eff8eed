"""Patterns of values that many rows share: ``basket``, ``autocluster`` and ``diffpatterns``.

A row is a tuple of values, where None stands for a value that is rare or missing, with one weight or two. A pattern is
a tuple of values as well; a row matches it if it has all of them, and None matches every value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from lazydelta.kql.computing.steps import batch_of

__all__ = ["Row", "clusters", "differences", "frequent", "pattern_stage"]


# Larger patterns follow from these, and there are exponentially many of them.
_SEED = 3


class Row(NamedTuple):
    """Values and weights."""

    values: tuple[Any, ...]
    weights: tuple[float, ...]


class Pattern(NamedTuple):
    """Values and the weights of all rows that have them."""

    values: tuple[Any, ...]
    weights: tuple[float, ...]

    @property
    def size(self) -> int:
        """The number of its values."""
        return sum(each is not None for each in self.values)


def frequent(rows: list[Row], least: Sequence[float], most: int) -> list[Pattern]:
    """Return all patterns of at most so many values with a weight that is large enough, the heaviest first."""
    if not rows:
        return []
    width = len(rows[0].values)
    found: list[Pattern] = []

    def grow(values: tuple[Any, ...], inside: list[Row], first: int) -> None:
        if sum(each is not None for each in values) == most:
            return
        for place in range(first, width):
            by_value: dict[Any, list[Row]] = {}
            for row in inside:
                if row.values[place] is not None:
                    by_value.setdefault(row.values[place], []).append(row)
            for value, those in by_value.items():
                weights = _total(those)
                if any(weight >= bound for weight, bound in zip(weights, least, strict=True)):
                    longer = (*values[:place], value, *values[place + 1 :])
                    found.append(Pattern(longer, weights))
                    grow(longer, those, place + 1)

    grow((None,) * width, rows, 0)
    return sorted(found, key=lambda each: (-max(each.weights), each.size, str(each.values)))


def _total(rows: list[Row]) -> tuple[float, ...]:
    return tuple(sum(weights) for weights in zip(*(row.weights for row in rows), strict=True))


def _matches(pattern: Pattern, row: Row) -> bool:
    return all(one is None or one == other for one, other in zip(pattern.values, row.values, strict=True))


def _closed(pattern: Pattern, rows: list[Row]) -> Pattern:
    """Return a pattern with all values that its rows have in common."""
    columns = zip(*(row.values for row in rows if _matches(pattern, row)), strict=True)
    common = (set(column) for column in columns)
    return Pattern(tuple(each.pop() if len(each) == 1 else None for each in common), pattern.weights)


def clusters(rows: list[Row], share: float, size_weight: float, most: int) -> list[Pattern]:
    """Return a few patterns that cover most rows, each a compromise between many rows and many values."""
    if not rows:
        return []
    (total,) = _total(rows)
    width = len(rows[0].values)
    seeds = frequent(rows, (share * total,), min(width, _SEED))
    waiting = list(dict.fromkeys(_closed(each, rows) for each in seeds))
    left = rows
    chosen: list[Pattern] = []
    while waiting and left and len(chosen) < most:
        open_weights = {each: sum(row.weights[0] for row in left if _matches(each, row)) for each in waiting}
        waiting = [each for each in waiting if open_weights[each] >= share * total]
        if not waiting:
            break

        def score(each: Pattern) -> float:
            covered = open_weights[each] / total  # noqa: B023 - called in this round only
            return float(covered**size_weight * (each.size / width) ** (1 - size_weight))

        best = max(waiting, key=lambda each: (score(each), each.size, str(each.values)))
        chosen.append(best)
        waiting.remove(best)
        left = [row for row in left if not _matches(best, row)]
    return chosen


def differences(rows: list[Row], share: float, most: int) -> list[Pattern]:
    """Return patterns whose shares of the two weights differ by at least ``share``, none with a better part of it."""
    if not rows:
        return []
    totals = _total(rows)
    if not all(totals):
        return []

    def gap(each: Pattern) -> float:
        return abs(each.weights[0] / totals[0] - each.weights[1] / totals[1])

    bounds = tuple(share * total for total in totals)
    waiting = [each for each in frequent(rows, bounds, most) if gap(each) >= share]
    waiting.sort(key=lambda each: (-gap(each), -each.size, str(each.values)))
    chosen: list[Pattern] = []
    for each in waiting:
        mine = {(place, value) for place, value in enumerate(each.values) if value is not None}
        others = ({(place, value) for place, value in enumerate(one.values) if value is not None} for one in chosen)
        # A part, or an extension, of a pattern with a larger difference says nothing new.
        if not any(mine <= other or other <= mine for other in others):
            chosen.append(each)
    return chosen


def pattern_stage(
    outputs: Sequence[tuple[str, int | None, Any]], weights: int, find: Callable[[list[Row]], list[Pattern]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function from rows of values and weights to patterns: number, weights, shares, difference and values.

    ``outputs`` are the kinds of the columns of values, their place in a row (None for one that takes no part), and what
    they show for any value.
    """
    digits = weights
    numbers = ("long",) * (1 + weights) + ("real",) * (weights + (weights > 1))

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = []
        for batch in batches:
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                values = tuple(None if value == "" else value for value in row[:-weights])
                rows.append(Row(values, tuple(float(each) for each in row[-weights:])))
        totals = _total(rows) if rows else (0.0,) * weights
        shown = []
        for number, each in enumerate(find(rows)):
            pairs = zip(each.weights, totals, strict=True)
            shares = [100 * weight / total if total else 0.0 for weight, total in pairs]
            gap = [abs(shares[0] - shares[1])] if weights > 1 else []
            values_shown = (None if place is None else each.values[place] for _, place, _ in outputs)
            filled = [one[2] if value is None else value for value, one in zip(values_shown, outputs, strict=True)]
            rounded = [round(share, digits) for share in (*shares, *gap)]
            shown.append((number, *(int(weight) for weight in each.weights), *rounded, *filled))
        yield from batch_of((*numbers, *(kind for kind, _, _ in outputs)), shown)

    return step

"""``scan``: sequences of rows that match steps, one after the other.

The state of a step holds the columns of the last row of each step up to it. A row is tried on the steps from the last
to the first. Conditions and assignments over the row alone were computed before; those that use a state are evaluated
row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from lazydelta.kql.computing.steps import batch_of

__all__ = [
    "Row",
    "SequenceStep",
    "clusters",
    "differences",
    "frequent",
    "pattern_stage",
    "sequences",
]


Evaluate = Callable[[list[Any]], tuple[Any, ...]]


class SequenceStep(NamedTuple):
    """A step: which rows it returns, its condition, and the values it assigns to declared columns by position.

    ``condition`` and the values of ``assigned`` are positions in a row of the source, or functions of the row, the
    declared defaults and the states of all steps.
    """

    output: str
    condition: int | Evaluate
    assigned: tuple[tuple[int, int | Evaluate], ...]


@dataclass(slots=True)
class _State:
    match: int
    rows: list[tuple[Any, ...] | None]


def sequences(
    steps: tuple[SequenceStep, ...],
    width: int,
    defaults: tuple[Any, ...],
    kinds: tuple[str, ...],
    partition: tuple[int, ...],
    *,
    is_numbered_apart: bool = False,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function from rows to the rows that match, with declared columns, match and step.

    The first ``width`` columns of a row are its own, the others computed before. ``partition`` are the positions of
    columns whose values have sequences of their own, each numbered from 0 if ``is_numbered_apart``.
    """

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        scans: dict[tuple[Any, ...], _Scan] = {}
        counter = iter(range(2**62))

        def rows() -> Iterator[tuple[Any, ...]]:
            for batch in batches:
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    key = tuple(row[index] for index in partition)
                    if key not in scans:
                        matches = iter(range(2**62)) if is_numbered_apart else counter
                        scans[key] = _Scan(steps, width, defaults, matches)
                    yield from scans[key].feed(row)
            for scan in scans.values():
                yield from scan.end()

        yield from batch_of(kinds, rows())

    return step


class _Scan:
    def __init__(
        self, steps: tuple[SequenceStep, ...], width: int, defaults: tuple[Any, ...], counter: Iterator[int]
    ) -> None:
        self._steps = steps
        self._width = width
        self._defaults = defaults
        self._counter = counter
        self._states: list[_State | None] = [None] * len(steps)
        # Rows of steps that return the last one only, until it is known to be the last.
        self._waiting: list[tuple[Any, ...] | None] = [None] * len(steps)

    def feed(self, row: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        for place in reversed(range(len(self._steps))):
            before = self._states[place - 1] if place else None
            if before is not None and self._holds(place, row, before):
                self._states[place - 1] = None
                # The sequence leaves the step before, whose last row is known now, and replaces the one of this step.
                yield from self._last(place - 1)
                yield from self._last(place)
                rows = [*before.rows[:place], None, *before.rows[place + 1 :]]
                yield from self._matched(place, row, _State(before.match, rows), before)
                continue
            state = self._states[place]
            if state is None and place:
                continue
            known = state or _State(-1, [None] * len(self._steps))
            if self._holds(place, row, known):
                if place == 0 and state is None:
                    known = _State(next(self._counter), known.rows)
                yield from self._matched(place, row, known, known)

    def end(self) -> Iterator[tuple[Any, ...]]:
        """Return the rows that turn out to be the last of their steps."""
        for place in range(len(self._steps)):
            yield from self._last(place)

    def _last(self, place: int) -> Iterator[tuple[Any, ...]]:
        waiting = self._waiting[place]
        self._waiting[place] = None
        if waiting is not None:
            yield waiting

    def _matched(self, place: int, row: tuple[Any, ...], state: _State, seen: _State) -> Iterator[tuple[Any, ...]]:
        step = self._steps[place]
        values = list(self._defaults)
        for index, value in step.assigned:
            values[index] = self._value(value, row, seen, values)
        whole = (*row[: self._width], *values)
        state.rows[place] = whole
        self._states[place] = state
        shown = (*whole, state.match)
        if step.output == "all":
            yield shown
        elif step.output == "last":
            self._waiting[place] = shown

    def _holds(self, place: int, row: tuple[Any, ...], state: _State) -> bool:
        return bool(self._value(self._steps[place].condition, row, state, list(self._defaults)))

    def _value(self, what: int | Evaluate, row: tuple[Any, ...], state: _State, values: list[Any]) -> Any:
        if isinstance(what, int):
            return row[what]
        given = [*row[: self._width], *values]
        empty = (*(None for _ in range(self._width)), *self._defaults)
        for each in state.rows:
            given += each or empty
        return what(given)[0]


# Patterns of values that many rows share: ``basket``, ``autocluster`` and ``diffpatterns``.


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

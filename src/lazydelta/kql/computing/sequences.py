"""``scan``: sequences of rows that match steps, one after the other.

The state of a step holds the columns of the last row of each step up to it. A row is tried on the steps from the last
to the first. Conditions and assignments over the row alone were computed before; those that use a state are evaluated
row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from lazydelta.kql.computing.steps import batch_of

__all__ = ["SequenceStep", "sequences"]

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
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function from rows to the rows that match, with declared columns, match and step.

    The first ``width`` columns of a row are its own, the others computed before. ``partition`` are the positions of
    columns whose values have sequences of their own.
    """

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        scans: dict[tuple[Any, ...], _Scan] = {}
        counter = iter(range(2**62))

        def rows() -> Iterator[tuple[Any, ...]]:
            for batch in batches:
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    key = tuple(row[index] for index in partition)
                    if key not in scans:
                        scans[key] = _Scan(steps, width, defaults, counter)
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

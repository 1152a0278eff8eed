"""What of a plan reaches the tables: conditions, a row limit, and why the rest does not.

Conditions go down through renamed and computed columns by replacing each column with what it stands for. They stop
where they would change which rows an operator sees: ``take``, ``top``, ``sample``, aggregates of them, and the side of
a join that rows without a partner come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lazydelta.kql.meaning.query_plan import (
    Aggregate,
    Attach,
    Filter,
    Limit,
    Match,
    Merge,
    Order,
    Plan,
    Relation,
    Rows,
    Scan,
)
from lazydelta.kql.meaning.typed import Typed, substituted
from lazydelta.kql.running.prunable import Unprunable, conjunction, prunable

__all__ = ["Note", "Pushed", "push_down"]


@dataclass(frozen=True, slots=True)
class Note:
    """What became of a part of the query at a table: ``why`` is empty if it reached it whole."""

    text: str
    reached: bool
    why: str = ""


@dataclass(slots=True)
class Pushed:
    """What one scan is asked for."""

    where: dict[str, Any] | None = None
    limit: int | None = None
    notes: list[Note] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Condition:
    expression: Typed
    text: str


@dataclass(frozen=True, slots=True)
class _Above:
    """What lies above a node: conditions that its rows must pass, and how many rows are wanted of it."""

    conditions: tuple[_Condition, ...] = ()
    limit: int | None = None
    stopped: tuple[Note, ...] = ()

    def without_limit(self, why: str) -> _Above:
        """Return the same, with the row limit stopped."""
        notes = self.stopped
        if self.limit is not None:
            notes = (*notes, Note(f"take {self.limit}", reached=False, why=why))
        return _Above(self.conditions, None, notes)

    def keeping(self, keep: Callable[[Typed], bool], why: str) -> _Above:
        """Return the same, with only the conditions that may go on."""
        kept = tuple(each for each in self.conditions if keep(each.expression))
        lost = (Note(each.text, reached=False, why=why) for each in self.conditions if each not in kept)
        return _Above(kept, self.limit, (*self.stopped, *lost))


def push_down(
    relation: Relation, known: Callable[[Typed], Typed | None], has_bounds: Callable[[Scan, str], bool]
) -> dict[Scan, Pushed]:
    """Return what reaches each scan of a relation's plan.

    ``known`` gives constants their value, ``has_bounds`` tells whether a table can prune by one of its columns.
    """
    found: dict[Scan, Pushed] = {}
    _Walk(found, known, has_bounds).visit(relation.plan, _Above())
    return found


class _Walk:
    def __init__(
        self,
        found: dict[Scan, Pushed],
        known: Callable[[Typed], Typed | None],
        has_bounds: Callable[[Scan, str], bool],
    ) -> None:
        self._found = found
        self._known = known
        self._has_bounds = has_bounds

    def visit(self, plan: Plan, above: _Above) -> None:
        match plan:
            case Scan():
                self._found[plan] = self._scan(plan, above)
            case Rows():
                pass
            case Filter(source=source, condition=condition, texts=texts):
                parts = condition.arguments if len(texts) > 1 else (condition,)
                mine = [
                    _Condition(each, text) for part, text in zip(parts, texts, strict=True) for each in _conjuncts(part)
                ]
                self.visit(source, _Above((*above.conditions, *mine), above.limit, above.stopped))
            case Attach(source=source, columns=columns):
                self.visit(source, self._substituted(above, columns))
            case Aggregate(source=source, keys=keys):
                passing = above.without_limit("groups are made of all rows")
                passing = passing.keeping(lambda each: each.refs <= keys.keys(), "it is about an aggregate")
                self.visit(source, self._substituted(passing, keys))
            case Order(source=source):
                self.visit(source, above.without_limit("an order is made of all rows"))
            case Limit(source=source, count=count, at_random=at_random):
                self._limit(source, count, above, at_random=at_random)
            case Match():
                self._match(plan, above)
            case Merge(legs=legs):
                for source, chosen in legs:
                    self.visit(source, self._substituted(above, chosen))

    def _substituted(self, above: _Above, definitions: dict[str, Typed]) -> _Above:
        conditions = tuple(
            _Condition(substituted(each.expression, definitions), each.text) for each in above.conditions
        )
        return _Above(conditions, above.limit, above.stopped)

    def _limit(self, source: Plan, count: int, above: _Above, *, at_random: bool) -> None:
        word = "sample" if at_random else "take"
        stopped = above.keeping(lambda _: False, f"it comes after {word}")
        # A condition in between may need all rows of this limit to find those of the one above.
        wanted = count if above.limit is None or above.conditions else min(count, above.limit)
        limit = None if at_random else wanted
        self.visit(source, _Above((), limit, stopped.stopped))

    def _match(self, plan: Match, above: _Above) -> None:
        above = above.without_limit("a join looks at all rows")
        left_ids, right_ids = plan.left_columns.keys(), plan.right_columns.keys()
        left_open = plan.kind in {"inner", "leftouter", "leftsemi", "leftanti"}
        right_open = plan.kind in {"inner", "innerunique", "rightouter", "rightsemi", "rightanti"}
        keys = frozenset(str(one.value) for one, _ in plan.pairs)
        why = f"a {plan.kind} join lets rows through that do not pass it" if not left_open else "of the other side"

        def to_left(each: Typed) -> bool:
            # Of rows with equal keys innerunique takes one, so only a condition on the keys may choose before it.
            return each.refs <= left_ids and (left_open or (plan.kind == "innerunique" and each.refs <= keys))

        self.visit(plan.left, above.keeping(to_left, why))
        self.visit(plan.right, above.keeping(lambda each: right_open and each.refs <= right_ids, "of the other side"))

    def _scan(self, plan: Scan, above: _Above) -> Pushed:
        pushed = Pushed(notes=list(above.stopped))
        parts: list[dict[str, Any]] = []
        exact = True

        def column_of(identity: str) -> str | None:
            name = plan.columns.get(identity)
            return name if name is not None and self._has_bounds(plan, name) else None

        for each in above.conditions:
            try:
                part = prunable(each.expression, column_of, self._known)
            except Unprunable as reason:
                exact = False
                pushed.notes.append(Note(each.text, reached=False, why=str(reason)))
                continue
            exact = exact and part.exact
            if part.where is not None:
                parts.append(part.where)
            why = "" if part.exact else "files are left out by it, rows are tested again"
            pushed.notes.append(Note(each.text, reached=True, why=why))
        pushed.where = conjunction(parts)
        if above.limit is not None:
            if exact:
                pushed.limit = above.limit
                pushed.notes.append(Note(f"take {above.limit}", reached=True))
            else:
                why = "a condition before it is tested row by row"
                pushed.notes.append(Note(f"take {above.limit}", reached=False, why=why))
        return pushed


def _conjuncts(condition: Typed) -> list[Typed]:
    if condition.op == "and":
        return [part for each in condition.arguments for part in _conjuncts(each)]
    return [condition]

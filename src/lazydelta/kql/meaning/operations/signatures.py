"""How functions are declared: how many arguments, of which types, and what they become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lazydelta.kql.meaning.kinds import Complain, described, to_text
from lazydelta.kql.meaning.typed import Typed, as_kind, call

__all__ = ["Function", "Given"]


@dataclass(frozen=True, slots=True)
class Given:
    """A call: the function's name, its arguments, the query's moment in ticks, and how to complain."""

    name: str
    values: tuple[Typed, ...]
    complain: Complain
    now: int

    def __len__(self) -> int:
        return len(self.values)

    def text(self, index: int) -> str:
        """Return SQL of an argument that is read as text, whatever it is."""
        return to_text(self.values[index])

    def string(self, index: int) -> str:
        """Return SQL of an argument that must be a text; a dynamic value is read as one."""
        return self.text(self._of(index, "string", "dynamic"))

    def whole(self, index: int) -> str:
        """Return SQL of a whole number."""
        return as_kind(self.values[self._of(index, "int", "long")], "long")

    def moment(self, index: int) -> str:
        """Return SQL of a moment."""
        return self.values[self._of(index, "datetime")].sql

    def condition(self, index: int) -> str:
        """Return SQL of a condition."""
        return self.values[self._of(index, "bool")].sql

    def constant(self, index: int, *kinds: str) -> Any:
        """Return the value of an argument that must be written in the query."""
        value = self.values[self._of(index, *kinds)]
        if not value.is_literal or value.value is None:
            message = f"argument {index + 1} of {self.name}() must be a constant"
            raise self.complain(message, "write its value")
        return value.value

    def of(self, kind: str, sql: str, *, name: str | None = None) -> Typed:
        """Return the call as an expression."""
        return call(kind, self.name, sql, self.values, name=name)

    def _is(self, index: int, *kinds: str) -> bool:
        return self.values[index].kind in kinds

    def _of(self, index: int, *kinds: str) -> int:
        if not self._is(index, *kinds):
            found = described(self.values[index].kind)
            message = f"argument {index + 1} of {self.name}() is {found}, and should be {' or '.join(kinds)}"
            raise self.complain(message, None)
        return index

    def refuse(self, index: int, expected: str) -> Any:
        """Raise an error about the type of an argument."""
        found = described(self.values[index].kind)
        message = f"argument {index + 1} of {self.name}() is {found}, and should be {expected}"
        raise self.complain(message, None)


@dataclass(frozen=True, slots=True)
class Function:
    """A function: how many arguments it takes, what it becomes, and whether its column is called as its argument."""

    least: int
    most: int
    build: Callable[[Given], Typed]
    named_by_first: bool = False

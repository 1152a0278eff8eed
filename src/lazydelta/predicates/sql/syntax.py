"""Syntax tree of a SQL condition, independent of any table. Both SQL parsers produce it.

Parsers only parse; `lazydelta.predicates.sql.translation` alone decides the meaning of names, functions and casts.
``str()`` of a node is SQL again, for messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

__all__ = [
    "Arithmetic",
    "Between",
    "Call",
    "Cast",
    "Comparison",
    "Foreign",
    "Junction",
    "Literal",
    "Membership",
    "Name",
    "Negation",
    "Negative",
    "NullTest",
    "Pattern",
    "Syntax",
    "TruthTest",
    "names_in",
]


class Syntax:
    """A node. The subclasses in this module are the only ones."""

    __slots__ = ()


class Name(Syntax, msgspec.Struct, frozen=True):
    """A column, possibly nested. A dot inside quotes does not separate names."""

    parts: tuple[str, ...]
    quoted: bool = False

    def __str__(self) -> str:
        return ".".join(part if part.isidentifier() else "`" + part.replace("`", "``") + "`" for part in self.parts)


class Literal(Syntax, msgspec.Struct, frozen=True):
    """A value: a string, number, boolean, bytes, interval, or None for NULL."""

    value: Any

    def __str__(self) -> str:
        if self.value is None:
            return "NULL"
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        if isinstance(self.value, bytes):
            return f"X'{self.value.hex()}'"
        return str(self.value).upper() if isinstance(self.value, bool) else str(self.value)


class Call(Syntax, msgspec.Struct, frozen=True):
    """A function call, with the name in lower case. ``extract(hour FROM t)`` is ``extract('hour', t)``."""

    name: str
    arguments: tuple[Syntax, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


class Cast(Syntax, msgspec.Struct, frozen=True):
    """A cast to a type by its plain name. ``sized`` is set if the type has a length or precision."""

    part: Syntax
    kind: str
    sized: bool = False

    def __str__(self) -> str:
        return f"CAST({self.part} AS {self.kind})"


class Arithmetic(Syntax, msgspec.Struct, frozen=True):
    """A sum, difference or product."""

    op: str
    left: Syntax
    right: Syntax

    def __str__(self) -> str:
        return f"({self.left} {self.op} {self.right})"


class Negative(Syntax, msgspec.Struct, frozen=True):
    """The negative of a number."""

    part: Syntax

    def __str__(self) -> str:
        return f"-{self.part}"


class Foreign(Syntax, msgspec.Struct, frozen=True):
    """Valid SQL that lazydelta does not evaluate: the SQL string, and the column names in it."""

    text: str
    parts: tuple[Syntax, ...] = ()
    reason: str = "lazydelta does not evaluate it"

    def __str__(self) -> str:
        return self.text


class Junction(Syntax, msgspec.Struct, frozen=True):
    """Conditions joined by ``and`` or ``or``."""

    word: str
    parts: tuple[Syntax, ...]

    def __str__(self) -> str:
        return "(" + f" {self.word.upper()} ".join(map(str, self.parts)) + ")"


class Negation(Syntax, msgspec.Struct, frozen=True):
    """NOT."""

    part: Syntax

    def __str__(self) -> str:
        return f"NOT ({self.part})"


class Comparison(Syntax, msgspec.Struct, frozen=True):
    """=, !=, <, <=, >, >=, or <=>, which is never unknown."""

    op: str
    left: Syntax
    right: Syntax

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"


class Between(Syntax, msgspec.Struct, frozen=True):
    """A value from ``low`` to ``high``, both inclusive."""

    part: Syntax
    low: Syntax
    high: Syntax

    def __str__(self) -> str:
        return f"{self.part} BETWEEN {self.low} AND {self.high}"


class Membership(Syntax, msgspec.Struct, frozen=True):
    """IN with a list."""

    part: Syntax
    values: tuple[Syntax, ...]

    def __str__(self) -> str:
        return f"{self.part} IN ({', '.join(map(str, self.values))})"


class NullTest(Syntax, msgspec.Struct, frozen=True):
    """IS NULL."""

    part: Syntax

    def __str__(self) -> str:
        return f"{self.part} IS NULL"


class TruthTest(Syntax, msgspec.Struct, frozen=True):
    """IS TRUE or IS FALSE, which are never unknown."""

    part: Syntax
    value: bool

    def __str__(self) -> str:
        return f"{self.part} IS {str(self.value).upper()}"


class Pattern(Syntax, msgspec.Struct, frozen=True):
    """LIKE, with its escape character."""

    part: Syntax
    pattern: Syntax
    escape: Syntax | None = None

    def __str__(self) -> str:
        tail = "" if self.escape is None else f" ESCAPE {self.escape}"
        return f"{self.part} LIKE {self.pattern}{tail}"


def names_in(node: Syntax) -> Iterator[Name]:
    """Yield every column that a node refers to, left to right."""
    pending: list[Any] = [node]
    while pending:
        each = pending.pop()
        if isinstance(each, Name):
            yield each
        elif isinstance(each, tuple):
            pending.extend(reversed(each))
        elif isinstance(each, msgspec.Struct):
            pending.extend(getattr(each, name) for name in reversed(each.__struct_fields__))

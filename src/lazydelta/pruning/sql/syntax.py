"""What a condition in SQL says, before any table is known: the tree that both parsers of text give.

Parsers only read; what a name, a function or a cast means is decided in one place, `lazydelta.pruning.sql.translation`.
``str()`` of a node is SQL again, for messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

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
    """A node; the subclasses here are all there are."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Name(Syntax):
    """A column, perhaps nested; quotes keep a dot in a name from parting it."""

    parts: tuple[str, ...]
    quoted: bool = False

    def __str__(self) -> str:
        return ".".join(part if part.isidentifier() else "`" + part.replace("`", "``") + "`" for part in self.parts)


@dataclass(frozen=True, slots=True)
class Literal(Syntax):
    """A value: text, a number, a boolean, bytes, a span of time, or None for NULL."""

    value: Any

    def __str__(self) -> str:
        if self.value is None:
            return "NULL"
        if isinstance(self.value, str):
            return "'" + self.value.replace("'", "''") + "'"
        if isinstance(self.value, bytes):
            return f"X'{self.value.hex()}'"
        return str(self.value).upper() if isinstance(self.value, bool) else str(self.value)


@dataclass(frozen=True, slots=True)
class Call(Syntax):
    """A function by its name in small letters; ``extract(hour FROM t)`` is ``extract('hour', t)``."""

    name: str
    arguments: tuple[Syntax, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True, slots=True)
class Cast(Syntax):
    """A cast to a type by its plain name; ``sized`` where the type has a length or precision of its own."""

    part: Syntax
    kind: str
    sized: bool = False

    def __str__(self) -> str:
        return f"CAST({self.part} AS {self.kind})"


@dataclass(frozen=True, slots=True)
class Arithmetic(Syntax):
    """A sum, a difference or a product."""

    op: str
    left: Syntax
    right: Syntax

    def __str__(self) -> str:
        return f"({self.left} {self.op} {self.right})"


@dataclass(frozen=True, slots=True)
class Negative(Syntax):
    """The number with the other sign."""

    part: Syntax

    def __str__(self) -> str:
        return f"-{self.part}"


@dataclass(frozen=True, slots=True)
class Foreign(Syntax):
    """Something that is SQL and that we do not evaluate, as text, with the names in it."""

    text: str
    parts: tuple[Syntax, ...] = ()
    reason: str = "lazydelta does not evaluate it"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Junction(Syntax):
    """Conditions joined by ``and`` or ``or``."""

    word: str
    parts: tuple[Syntax, ...]

    def __str__(self) -> str:
        return "(" + f" {self.word.upper()} ".join(map(str, self.parts)) + ")"


@dataclass(frozen=True, slots=True)
class Negation(Syntax):
    """NOT."""

    part: Syntax

    def __str__(self) -> str:
        return f"NOT ({self.part})"


@dataclass(frozen=True, slots=True)
class Comparison(Syntax):
    """=, !=, <, <=, >, >=, or <=> which is never unknown."""

    op: str
    left: Syntax
    right: Syntax

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"


@dataclass(frozen=True, slots=True)
class Between(Syntax):
    """A value from ``low`` to ``high``, both included."""

    part: Syntax
    low: Syntax
    high: Syntax

    def __str__(self) -> str:
        return f"{self.part} BETWEEN {self.low} AND {self.high}"


@dataclass(frozen=True, slots=True)
class Membership(Syntax):
    """IN with a list."""

    part: Syntax
    values: tuple[Syntax, ...]

    def __str__(self) -> str:
        return f"{self.part} IN ({', '.join(map(str, self.values))})"


@dataclass(frozen=True, slots=True)
class NullTest(Syntax):
    """IS NULL."""

    part: Syntax

    def __str__(self) -> str:
        return f"{self.part} IS NULL"


@dataclass(frozen=True, slots=True)
class TruthTest(Syntax):
    """IS TRUE or IS FALSE, which are never unknown."""

    part: Syntax
    value: bool

    def __str__(self) -> str:
        return f"{self.part} IS {str(self.value).upper()}"


@dataclass(frozen=True, slots=True)
class Pattern(Syntax):
    """LIKE, with the character that takes the meaning of its wildcards away."""

    part: Syntax
    pattern: Syntax
    escape: Syntax | None = None

    def __str__(self) -> str:
        tail = "" if self.escape is None else f" ESCAPE {self.escape}"
        return f"{self.part} LIKE {self.pattern}{tail}"


def names_in(node: Syntax) -> Iterator[Name]:
    """Yield every column that a node names, left to right."""
    pending: list[Any] = [node]
    while pending:
        each = pending.pop()
        if isinstance(each, Name):
            yield each
        elif isinstance(each, tuple):
            pending.extend(reversed(each))
        elif isinstance(each, Syntax):
            pending.extend(getattr(each, field.name) for field in reversed(fields(each)))  # type: ignore[arg-type]

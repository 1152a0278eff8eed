"""What binding one query shares: its text, its moment, the tables, fresh identities, and what must run first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from lazydelta.errors import KqlError
from lazydelta.kql.language import kql_syntax as syntax
from lazydelta.kql.language.complaints import QueryText
from lazydelta.kql.meaning.kinds import Complain
from lazydelta.kql.meaning.query_plan import Relation
from lazydelta.kql.meaning.typed import Typed

__all__ = ["Binding", "Scope", "Session", "TableFunction", "Tables"]


class Tables(Protocol):
    """The tables that a query may name."""

    def columns(self, name: str) -> list[tuple[str, str]] | None:
        """Return the columns of a table with their kinds, None if there is no such table."""

    def names(self) -> list[str]:
        """Return the names of all tables."""


class Evaluator(Protocol):
    """Runs parts of a query whose result the rest is made of, and checks what only DuckDB can judge."""

    def values(self, relation: Relation) -> tuple[str, list[Any] | str]:
        """Return the kind of a relation's only column with its values, or with SQL that selects them if many."""

    def check_regex(self, pattern: str) -> str | None:
        """Return what is wrong with a regular expression, None if nothing is."""


@dataclass(frozen=True, slots=True)
class TableFunction:
    """A function, or a table given a name by ``let``, with the names that it sees."""

    parameters: tuple[syntax.Parameter, ...]
    program: syntax.Program
    scope: Scope
    is_function: bool


Binding: TypeAlias = "Typed | Relation | TableFunction"
"""What a name in a query may stand for besides a column or a table."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that ``let`` and parameters have given."""

    names: Mapping[str, Binding] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def get(self, name: str) -> Binding | None:
        """Return what a name stands for."""
        return self.names.get(name)

    def having(self, name: str, binding: Binding) -> Scope:
        """Return a scope with one more name."""
        return Scope({**self.names, name: binding})


class Session:
    """The state of binding one query."""

    def __init__(self, text: str, now: int, tables: Tables, evaluator: Evaluator) -> None:
        self.query = QueryText(text)
        self.now = now
        self.tables = tables
        self.evaluator = evaluator
        # Comparisons of the order of texts, which a cluster does not have.
        self.text_orders: list[syntax.Binary | syntax.Between] = []
        self._count = 0

    def identity(self) -> str:
        """Return an identity that no other column has."""
        self._count += 1
        return f"c{self._count}"

    def error(self, at: int, what: str, hint: str | None = None) -> KqlError:
        """Return an error about a place in the query."""
        return self.query.error(at, what, hint=hint)

    def complain(self, node: syntax.Node) -> Complain:
        """Return a function that makes errors about a node."""
        complain: Callable[[str, str | None], KqlError] = lambda what, hint: self.error(node.at, what, hint)  # noqa: E731
        return complain

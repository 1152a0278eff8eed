"""Predicate tree: the common form of all input forms, and the only one that is evaluated.

Negation is pushed down to the leaves when the tree is built, so a tree has no NOT above a leaf and only one question
remains: for which rows is it *true*? Rows for which it is false and rows for which it is unknown (null) no longer have
to be distinguished, which keeps pruning under three-valued logic simple enough to be correct. ``Not`` remains only
around order comparisons of floats, because NaN, which is unordered in IEEE 754, makes ``NOT (x < 5)`` differ from ``x
>= 5``. If NaN is the largest value (`NanOrder`), they are the same.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from lazydelta.protocol.schema import Column
from lazydelta.runtime import compute as pc

__all__ = [
    "And",
    "Compare",
    "Constant",
    "In",
    "IsNan",
    "IsNull",
    "NanOrder",
    "Not",
    "Opaque",
    "Or",
    "Predicate",
    "Prefix",
    "WithExpression",
    "believing_maxima",
    "bounded_columns",
    "counts_matter",
    "leaves",
    "partition_columns",
    "referenced_columns",
    "stats_columns",
]


class NanOrder(enum.Enum):
    """The order of NaN among the values of a float column.

    PyArrow follows IEEE 754: NaN is neither below nor above anything and does not equal itself. In SQL (Spark, DuckDB,
    DataFusion) and in Polars it equals itself and is larger than all other values, so that ``x > 5`` keeps its rows.
    Then a maximum, which writers compute without NaN, says nothing about ``>``. It does if the writer logs no maximum
    at all for a column with a NaN (Delta-Spark, lazydelta).
    """

    UNORDERED = "unordered"
    LARGEST = "largest"
    LARGEST_AND_IN_NO_MAXIMUM = "largest, and a file that has one has no maximum"


class Predicate:
    """A node of the tree. The subclasses in this module are the only ones."""

    __slots__ = ()


class Constant(Predicate, msgspec.Struct, frozen=True):
    """The same truth value for every row. None is unknown, which no row passes."""

    value: bool | None

    def __str__(self) -> str:
        return "NULL" if self.value is None else str(self.value).upper()


class Compare(Predicate, msgspec.Struct, frozen=True):
    """A column compared with a value of exactly its type. ``op`` is one of =, !=, <, <=, >, >=.

    ``nan`` only matters for > and >= on float columns: all other comparisons with a number treat NaN alike.
    """

    column: Column
    op: str
    value: pa.Scalar
    nan: NanOrder = NanOrder.UNORDERED

    def __str__(self) -> str:
        return f"{_name(self.column)} {self.op} {_literal(self.value)}"


class In(Predicate, msgspec.Struct, frozen=True):
    """A column tested against a set: ``values`` are sorted, distinct, not null and of the column's type."""

    column: Column
    values: pa.Array
    negated: bool = False

    def __hash__(self) -> int:
        # Arrays can be compared but have no hash.
        return hash((self.column, len(self.values), self.negated))

    def __str__(self) -> str:
        shown = ", ".join(_literal(value) for value in self.values[:10])
        more = f", … {len(self.values) - 10} more" if len(self.values) > 10 else ""  # noqa: PLR2004 - a display limit
        return f"{_name(self.column)} {'NOT ' if self.negated else ''}IN ({shown}{more})"


class IsNull(Predicate, msgspec.Struct, frozen=True):
    """IS NULL, or IS NOT NULL if ``negated``."""

    column: Column
    negated: bool = False

    def __str__(self) -> str:
        return f"{_name(self.column)} IS {'NOT ' if self.negated else ''}NULL"


class IsNan(Predicate, msgspec.Struct, frozen=True):
    """A float column that is NaN, or is a number if ``negated``. Null is neither."""

    column: Column
    negated: bool = False

    def __str__(self) -> str:
        return f"{_name(self.column)} {'!=' if self.negated else '='} 'NaN'"


class Prefix(Predicate, msgspec.Struct, frozen=True):
    """A string column that starts with ``prefix``, or does not if ``negated``. Null is neither."""

    column: Column
    prefix: str
    negated: bool = False

    def __str__(self) -> str:
        escaped = self.prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("'", "''")
        return f"{_name(self.column)} {'NOT ' if self.negated else ''}LIKE '{escaped}%'"


class And(Predicate, msgspec.Struct, frozen=True):
    """True if all parts are."""

    parts: tuple[Predicate, ...]

    def __str__(self) -> str:
        return "(" + " AND ".join(map(str, self.parts)) + ")"


class Or(Predicate, msgspec.Struct, frozen=True):
    """True if at least one part is."""

    parts: tuple[Predicate, ...]

    def __str__(self) -> str:
        return "(" + " OR ".join(map(str, self.parts)) + ")"


class Not(Predicate, msgspec.Struct, frozen=True):
    """True where an order comparison of a float column is false, NaN included, and null where it is null."""

    part: Compare

    def __str__(self) -> str:
        return f"NOT ({self.part})"


class Opaque(Predicate, msgspec.Struct, frozen=True):
    """A condition that cannot be analysed: it prunes nothing and proves nothing, for a ``reason``.

    ``expression`` filters rows by it if PyArrow can evaluate it, ``sql`` if DuckDB can, in DuckDB's dialect.
    ``narrowed`` marks a condition next to a node that prunes for it, such as the prefix of a pattern.
    """

    text: str
    columns: tuple[Column, ...] = ()
    expression: pc.Expression | None = None
    reason: str = "lazydelta does not evaluate it"
    narrowed: bool = False
    sql: str | None = None

    def __eq__(self, other: object) -> bool:
        # Comparing two PyArrow expressions gives a third expression, never a boolean.
        if not isinstance(other, Opaque):
            return NotImplemented
        return (self.text, self.columns, self.narrowed) == (other.text, other.columns, other.narrowed)

    def __hash__(self) -> int:
        return hash((self.text, self.columns, self.narrowed))

    def __str__(self) -> str:
        return self.text


class WithExpression(Predicate, msgspec.Struct, frozen=True):
    """A PyArrow expression that was translated in part. Rows are filtered by the original."""

    part: Predicate
    expression: pc.Expression

    def __eq__(self, other: object) -> bool:
        return self.part == other.part if isinstance(other, WithExpression) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.part)

    def __str__(self) -> str:
        return str(self.part)


def believing_maxima(predicate: Predicate) -> Predicate | None:
    """Return the predicate as if no file had a NaN missing from its maximum; None if that is the same."""
    hiding = (isinstance(leaf, Compare) and leaf.nan is NanOrder.LARGEST for leaf in leaves(predicate))
    return _believing(predicate) if any(hiding) else None


def _believing(predicate: Predicate) -> Predicate:
    match predicate:
        case And(parts) | Or(parts):
            return type(predicate)(tuple(_believing(part) for part in parts))
        case WithExpression(part):
            return _believing(part)
        case Compare(nan=NanOrder.LARGEST):
            return msgspec.structs.replace(predicate, nan=NanOrder.LARGEST_AND_IN_NO_MAXIMUM)
    return predicate


def leaves(predicate: Predicate) -> Iterator[Predicate]:
    """Yield the nodes that are not connectives, left to right."""
    match predicate:
        case And(parts) | Or(parts):
            for part in parts:
                yield from leaves(part)
        case Not(part) | WithExpression(part):
            yield from leaves(part)
        case _:
            yield predicate


def referenced_columns(predicate: Predicate | None) -> tuple[Column, ...]:
    """Return each column that pruning can use, once, in order of appearance, without those of opaque parts."""
    if predicate is None:
        return ()
    found: dict[Column, None] = {}
    for leaf in leaves(predicate):
        if isinstance(leaf, Compare | In | IsNan | IsNull | Prefix):
            found[leaf.column] = None
    return tuple(found)


def partition_columns(predicate: Predicate | None) -> tuple[Column, ...]:
    """Return the referenced columns whose values the log holds for each file."""
    return tuple(column for column in referenced_columns(predicate) if column.is_partition)


def stats_columns(predicate: Predicate | None) -> tuple[Column, ...]:
    """Return the referenced columns that need file statistics."""
    return tuple(column for column in referenced_columns(predicate) if not column.is_partition)


def bounded_columns(predicate: Predicate | None) -> tuple[Column, ...]:
    """Return the referenced statistics columns whose minimum and maximum can rule out a file."""
    asked = () if predicate is None else leaves(predicate)
    compared = {leaf.column for leaf in asked if isinstance(leaf, Compare | In | Prefix)}
    return tuple(column for column in stats_columns(predicate) if column in compared)


def counts_matter(predicate: Predicate) -> bool:
    """Return whether row and null counts can rule out a file whose bounds are all known."""
    return any(not isinstance(leaf, Compare | In | Prefix) for leaf in leaves(predicate))


def _name(column: Column) -> str:
    return ".".join(part if part.isidentifier() else "`" + part.replace("`", "``") + "`" for part in column.path)


def _literal(value: pa.Scalar) -> str:
    kind = value.type
    if pa.types.is_string(kind):
        return "'" + str(value.as_py()).replace("'", "''") + "'"
    if pa.types.is_binary(kind):
        return f"X'{value.as_py().hex()}'"
    if pa.types.is_date(kind):
        return f"DATE '{value}'"
    if pa.types.is_timestamp(kind):
        return f"TIMESTAMP '{value}'"
    return str(value)

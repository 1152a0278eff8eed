"""Translate the filters of a Spark plan, which are Catalyst expressions in the JVM, into a predicate.

Spark passes the filters of a scan when it plans the scan, and filters rows again afterwards. A conjunct without a
translation is therefore left out; the rest must not rule out a file that holds a row which Spark keeps. Literals are
read as Spark stores them (days, microseconds), never by their text, which depends on the session's time zone and is
ambiguous when clocks go back.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal as PyDecimal
from typing import Any

from py4j.protocol import Py4JError

from lazydelta.errors import LazyDeltaError
from lazydelta.predicates import NanOrder, Predicate, conjunction
from lazydelta.predicates.binding import MIRRORED, compare, disjunction, is_null, membership, starts_with
from lazydelta.protocol.schema import Column, Field, Struct, TableSchema
from lazydelta.protocol.values import Instant, is_float

__all__ = ["METADATA_FIELDS", "predicate_of"]

# Fields of Spark's hidden column ``_metadata``. A filter on one of them arrives as a filter on a plain column of that
# name, so a column of the table with such a name cannot be told from it and never prunes.
METADATA_FIELDS = frozenset(
    {
        "_metadata",
        "_tmp_metadata_row_index",
        "file_block_length",
        "file_block_start",
        "file_modification_time",
        "file_name",
        "file_path",
        "file_size",
        "row_index",
    }
)
_COMPARED = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
_DAY = 86_400 * 10**9


def _single(value: str) -> float:
    # Java prints a float with the digits that tell it from other floats, which are not those of the nearest double.
    number: float = struct.unpack("<f", struct.pack("<f", float(value)))[0]
    return number


_READ: dict[str, Callable[[Any], object]] = {
    "string": str,
    "long": int,
    "integer": int,
    "short": int,
    "byte": int,
    "float": _single,
    "double": float,
    "boolean": lambda value: str(value).lower() == "true",
    "date": lambda value: Instant(int(value) * _DAY),
    "timestamp": lambda value: Instant(int(value) * 1000),
    "timestamp_ntz": lambda value: Instant(int(value) * 1000),
    "binary": bytes,
}
# The JSON of a plan has their text, which is not their value.
_BY_VALUE = frozenset({"date", "timestamp", "timestamp_ntz", "binary"})


class _UntranslatableError(Exception):
    """Internal to this module: the current node has no translation."""


def predicate_of(expressions: Sequence[Any], schema: TableSchema) -> Predicate | None:
    """Return a predicate that holds wherever all of the Catalyst ``expressions`` do; None if none has a translation.

    Column names in the expressions are the physical ones.
    """
    found: list[Predicate] = []
    for each in expressions:
        try:
            found.append(_Filter(each, schema).predicate(0, negated=False))
        # A filter that Spark cannot print, or one of another shape than expected, is left to Spark.
        except (_UntranslatableError, Py4JError, LazyDeltaError, LookupError, ValueError, TypeError, ArithmeticError):
            continue
        except RecursionError:
            continue
    return conjunction(found) if found else None


class _Filter:
    """One filter. ``toJSON`` lists its nodes in pre-order, so node ``i`` of the list is ``expression.apply(i)``."""

    def __init__(self, expression: Any, schema: TableSchema) -> None:
        self._expression = expression
        self._fields = {each.physical_name: each for each in schema.fields}
        self._partitions = frozenset(schema.physical_partition_columns)
        self._nodes: list[dict[str, Any]] = json.loads(expression.toJSON())
        self._children: list[list[int]] = [[] for _ in self._nodes]
        self._link()

    def _link(self) -> None:
        """Find the children of each node: they follow it, as many as it says."""
        open_nodes: list[tuple[int, int]] = []
        for index, node in enumerate(self._nodes):
            if open_nodes:
                parent, missing = open_nodes.pop()
                self._children[parent].append(index)
                if missing > 1:
                    open_nodes.append((parent, missing - 1))
            if node["num-children"]:
                open_nodes.append((index, node["num-children"]))

    def predicate(self, index: int, *, negated: bool) -> Predicate:
        kind, below = self._kind(index), self._children[index]
        if kind in {"And", "Or"}:
            return self._connective(below, negated=negated, all_needed=(kind == "Or") is not negated)
        if kind == "Not":
            return self.predicate(below[0], negated=not negated)
        if kind in {"IsNull", "IsNotNull"}:
            return is_null(self._column(below[0]), negated=(kind == "IsNotNull") is not negated)
        if kind in _COMPARED:
            return self._comparison(kind, *below, negated=negated)
        if kind in {"In", "InSet"}:
            column = self._column(below[0])
            values = self._set(index, column) if kind == "InSet" else [self._literal(each) for each in below[1:]]
            if is_float(column.type) and 0.0 in values:
                raise _UntranslatableError  # -0.0 is a member for Spark, and another value in a set of Arrow's
            return membership(column, values, negated=negated, nan=NanOrder.LARGEST)
        if kind == "StartsWith":
            prefix = self._literal(below[1])
            if isinstance(prefix, str):
                return starts_with(self._column(below[0]), prefix, negated=negated)
        if kind == "IsNaN" and not negated:  # false for a null, so that its negation keeps nulls
            return compare(self._column(below[0]), "=", float("nan"), nan=NanOrder.LARGEST)
        if kind in {"AttributeReference", "GetStructField"}:
            return compare(self._column(index), "=", value=True, negated=negated)
        raise _UntranslatableError

    def _connective(self, below: list[int], *, negated: bool, all_needed: bool) -> Predicate:
        """Join the parts. By De Morgan's rules an AND under a NOT is an OR, of which no part may be left out."""
        parts: list[Predicate] = []
        for each in below:
            try:
                parts.append(self.predicate(each, negated=negated))
            except (_UntranslatableError, LazyDeltaError):
                if all_needed:
                    raise
        if not parts:
            raise _UntranslatableError
        return disjunction(parts) if all_needed else conjunction(parts)

    def _comparison(self, kind: str, left: int, right: int, *, negated: bool) -> Predicate:
        op = _COMPARED[kind]
        if self._kind(left) == "Literal":
            left, right, op = right, left, MIRRORED[op]
        column, value = self._column(left), self._literal(right)
        if kind == "EqualNullSafe":
            # Unlike a comparison it is never null, so its negation keeps nulls.
            if value is None:
                return is_null(column, negated=negated)
            if negated:
                raise _UntranslatableError
        return compare(column, op, value, negated=negated, nan=NanOrder.LARGEST)

    def _kind(self, index: int) -> str:
        name: str = self._nodes[index]["class"]
        return name.rpartition(".")[2]

    def _column(self, index: int) -> Column:
        fields, _ = self._path(index)
        first, last = fields[0], fields[-1]
        return Column(
            tuple(each.name for each in fields),
            tuple(each.physical_name for each in fields),
            last.type,
            is_partition=len(fields) == 1 and first.physical_name in self._partitions,
            was_float=last.was_float,
        )

    def _path(self, index: int) -> tuple[tuple[Field, ...], list[str] | None]:
        """Return the fields from the root, and the field names of a struct as the plan has them.

        A plan may have pruned fields of a struct, so a field is found by its name and not by its position. Where a
        struct was cast, which gives mapped columns their logical names, the position is the table's.
        """
        node, kind = self._nodes[index], self._kind(index)
        if kind == "AttributeReference":
            if node["name"] in METADATA_FIELDS:
                raise _UntranslatableError
            return (self._fields[node["name"]],), _names(node["dataType"])
        if kind == "Cast":
            fields, _ = self._path(self._children[index][0])
            if not isinstance(fields[-1].type, Struct) or len(_names(node["dataType"]) or ()) != len(
                fields[-1].type.fields
            ):
                raise _UntranslatableError
            return fields, None
        if kind != "GetStructField":
            raise _UntranslatableError
        fields, names = self._path(self._children[index][0])
        among = fields[-1].type
        if not isinstance(among, Struct):
            raise _UntranslatableError
        if names is None:
            inner = among.fields[node["ordinal"]]
            return (*fields, inner), None
        name = names[node["ordinal"]]
        inner = next(each for each in among.fields if each.physical_name == name)
        return (*fields, inner), _names(self._type_below(index))

    def _type_below(self, index: int) -> Any:
        """Return the type of a struct's field, as the plan has it."""
        node = self._nodes[index]
        if self._kind(index) == "AttributeReference":
            return node["dataType"]
        outer = self._type_below(self._children[index][0])
        return outer["fields"][node["ordinal"]]["type"]

    def _literal(self, index: int) -> object:
        if self._kind(index) != "Literal":
            raise _UntranslatableError
        node = self._nodes[index]
        kind, value = node["dataType"], node["value"]
        if value is None:
            return None
        return _value(self._expression.apply(index).value() if kind in _BY_VALUE else value, kind)

    def _set(self, index: int, column: Column) -> list[object]:
        """Return the values of an ``InSet``, which Spark makes of more than ten values, by one call for all of them."""
        kind = str(column.type)
        values = self._expression.apply(index).hset()
        if kind == "binary" or values.contains(None):
            raise _UntranslatableError
        separator = f"\0{uuid.uuid4().hex}\0"
        texts = values.mkString(separator).split(separator)
        if len(texts) != values.size():
            raise _UntranslatableError
        return [_value(each, kind) for each in texts]


def _names(kind: Any) -> list[str] | None:
    return [each["name"] for each in kind["fields"]] if isinstance(kind, dict) and "fields" in kind else None


def _value(value: Any, kind: Any) -> object:
    if isinstance(kind, str) and kind.startswith("decimal"):
        return PyDecimal(str(value))
    if not isinstance(kind, str) or kind not in _READ:
        raise _UntranslatableError  # intervals, variants and the like
    return _READ[kind](value)

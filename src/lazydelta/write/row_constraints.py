"""CHECK constraints of a table: no row goes in that one of them does not hold for.

As in Delta-Spark a constraint has to be true; one that is null for a row is broken by it. What our filter of rows does
not decide exactly as Spark would is refused by name, before anything is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.errors import PredicateError, UnsupportedFeatureError, WriteError
from lazydelta.log.actions import Metadata
from lazydelta.pruning import Predicate, parse_predicate, referenced_columns, to_arrow_expression
from lazydelta.pruning.tree import IsNull, leaves
from lazydelta.types.schema import Primitive, TableSchema

__all__ = ["RowConstraints"]

_PREFIX = "delta.constraints."
# What depends on when, where or by whom it is asked.
_UNSTABLE = re.compile(
    r"\b(now|current_\w+|localtimestamp|unix_timestamp|rand\w*|uuid|session_user|user)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class _Constraint:
    name: str
    text: str
    expression: pc.Expression

    def check(self, rows: pa.RecordBatch) -> None:
        kept = rows.filter(self.expression).num_rows
        if kept == rows.num_rows:
            return
        message = f"{rows.num_rows - kept} rows break the table's CHECK constraint {self.name!r}: {self.text}"
        shown = rows.filter(pc.invert(pc.fill_null(_mask(rows, self.expression), False))).slice(0, 1).to_pylist()  # noqa: FBT003
        hint = f"nothing was committed; leave such rows out, as for example {_brief(shown[0])}"
        raise WriteError(message, hint=hint)


class RowConstraints:
    """The constraints that metadata names, ready to be checked; what we cannot check is refused here."""

    def __init__(self, metadata: Metadata, table: TableSchema) -> None:
        self._constraints = [
            _constraint(key[len(_PREFIX) :], text or "", table)
            for key, text in (metadata.configuration or {}).items()
            if key.lower().startswith(_PREFIX)
        ]

    def check(self, rows: pa.RecordBatch) -> None:
        """Raise if a row breaks a constraint; rows are under the table's columns."""
        if not self._constraints or not rows.num_rows:
            return
        plain = _decoded(rows)
        for each in self._constraints:
            each.check(plain)


def _constraint(name: str, text: str, table: TableSchema) -> _Constraint:
    try:
        predicate = parse_predicate(text, table)
        expression = None if predicate is None else to_arrow_expression(predicate, table)
        why = "it is empty" if predicate is None else _ambiguous(predicate, text)
    except PredicateError as error:
        expression, why = None, str(error)
    if expression is None or why is not None:
        message = f"The table has the CHECK constraint {name!r} ({text}), which lazydelta cannot check: {why}"
        hint = f"write it with Delta-Spark, or drop it: ALTER TABLE … DROP CONSTRAINT {name}"
        raise UnsupportedFeatureError(message, features=("checkConstraints",), hint=hint)
    return _Constraint(name, text, expression)


def _ambiguous(predicate: Predicate, text: str) -> str | None:
    """Return why a constraint may mean one thing to us and another to Spark."""
    if _UNSTABLE.search(text):
        return "its answer depends on when, where and by whom it is asked"
    for leaf in leaves(predicate):
        compared = () if isinstance(leaf, IsNull) else referenced_columns(leaf)
        if any(column.type == Primitive("timestamp") for column in compared):
            return "it compares moments, which Spark reads in the time zone of its session"
    return None


def _mask(rows: pa.RecordBatch, expression: pc.Expression) -> pa.Array:
    """Return the constraint's value for each row."""
    import pyarrow.dataset as ds  # noqa: PLC0415 - only for the words of an error

    table = ds.dataset(pa.Table.from_batches([rows])).to_table(columns={"holds": expression})
    return table["holds"].combine_chunks()


def _decoded(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows without dictionaries, which the made partition column has."""
    columns = [each.dictionary_decode() if pa.types.is_dictionary(each.type) else each for each in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _brief(row: object) -> str:
    text = repr(row)
    return text if len(text) <= 200 else f"{text[:197]}..."  # noqa: PLR2004 - a line or two

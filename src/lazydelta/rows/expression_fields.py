"""Which of a table's fields a PyArrow expression names, and the error for one that does not fit the table."""

from __future__ import annotations

import pyarrow as pa

from lazydelta import compute as pc
from lazydelta.errors import PredicateError
from lazydelta.types.schema import Field, TableSchema

__all__ = ["bad_filter", "named_fields"]


def named_fields(expression: pc.Expression, schema: TableSchema) -> list[Field]:
    """Return the top-level fields that ``expression`` names.

    An expression does not tell. It cannot be bound without a column that it does name, so each is left out in turn.
    """
    known = schema.to_arrow()
    error = _binds(expression, known)
    if error is not None:
        raise bad_filter(expression, error) from error
    return [each for index, each in enumerate(schema.fields) if _binds(expression, known.remove(index)) is not None]


def bad_filter(expression: pc.Expression, error: Exception) -> PredicateError:
    """Return the error for a filter that cannot be evaluated over the table's columns."""
    message = f"The filter {str(expression)[:200]} cannot be applied to the table's columns: {error}"
    return PredicateError(message, hint="compare each column with values of its own type")


def _binds(expression: pc.Expression, schema: pa.Schema) -> Exception | None:
    """Return why ``expression`` cannot be evaluated over ``schema``; None if it can."""
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in schema], schema=schema)
    try:
        empty.filter(expression)
    except (pa.ArrowException, KeyError, ValueError, TypeError) as error:
        return error
    return None

"""A predicate of ours as a condition of Spark's, true for the same rows."""

from __future__ import annotations

from functools import reduce
from operator import and_, or_

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from lazydelta.pruning import tree
from lazydelta.types.calendar import has_plain_year, moment_text
from lazydelta.types.literals import is_float
from lazydelta.types.schema import Column

__all__ = ["spark_condition"]

_CAST = {pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint", pa.float32(): "float"}


def spark_condition(predicate: tree.Predicate) -> SparkColumn | None:
    """Return the condition, None where Spark has none that means the same."""
    match predicate:
        case tree.And(parts) | tree.Or(parts):
            found = [spark_condition(part) for part in parts]
            known = [each for each in found if each is not None]
            if len(known) < len(found):
                return None
            return reduce(and_ if isinstance(predicate, tree.And) else or_, known)
        case tree.Not(part):
            positive = spark_condition(part)
            return None if positive is None else ~positive
        case tree.Constant(value):
            return F.lit(value is True)
        case tree.Compare():
            return _compared(predicate)
        case tree.In(column, values, negated):
            literals = [_literal(value) for value in values]
            chosen = [each for each in literals if each is not None]
            if len(chosen) < len(literals):
                return None
            member = _named(column).isin(chosen)
            return ~member if negated else member
        case tree.IsNull(column, negated):
            return _named(column).isNotNull() if negated else _named(column).isNull()
        case tree.IsNan(column, negated):
            # Spark's isnan is false for null, and ours is unknown.
            named = _named(column)
            return named.isNotNull() & (~F.isnan(named) if negated else F.isnan(named))
        case tree.Prefix(column, prefix, negated):
            starts = _named(column).startswith(prefix)
            return ~starts if negated else starts
    return None


def _compared(node: tree.Compare) -> SparkColumn | None:
    column, value = _named(node.column), _literal(node.value)
    if value is None:
        return None
    match node.op:
        case "=":
            return column == value
        case "!=":
            return column != value
        case "<":
            return column < value
        case "<=":
            return column <= value
    found = column > value if node.op == ">" else column >= value
    if is_float(node.column.type) and node.nan is tree.NanOrder.UNORDERED:
        return found & ~F.isnan(column)  # to Spark, NaN is larger than everything
    return found


def _named(column: Column) -> SparkColumn:
    return F.col(".".join(f"`{part.replace('`', '``')}`" for part in column.path))


def _literal(value: pa.Scalar) -> SparkColumn | None:
    kind = value.type
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            return F.timestamp_micros(F.lit(value.value).cast("bigint"))
        text = moment_text(value.value, "us") if has_plain_year(value.value, "us") else None
        return None if text is None else F.lit(text).cast("timestamp_ntz")
    if pa.types.is_date(kind):
        return F.date_from_unix_date(F.lit(value.value).cast("int"))
    if pa.types.is_decimal(kind):
        return F.lit(str(value.as_py())).cast(f"decimal({kind.precision},{kind.scale})")
    if pa.types.is_binary(kind):
        return F.unhex(F.lit(value.as_py().hex()))
    plain = F.lit(value.as_py())
    return plain.cast(_CAST[kind]) if kind in _CAST else plain

"""Rows that a query holds itself: ``print``, ``range``, ``datatable``, and the schema of another table as rows."""

from __future__ import annotations

from lazydelta.kql.language import kql_syntax as syntax
from lazydelta.kql.meaning.columns_shown import one_name, unused
from lazydelta.kql.meaning.kinds import common_kind, converted
from lazydelta.kql.meaning.query_plan import OutputColumn, Relation, Rows
from lazydelta.kql.meaning.query_session import Session
from lazydelta.kql.meaning.scalars import Scalars
from lazydelta.kql.meaning.typed import NUMBERS, SQL_TYPES, Typed, literal, quoted

__all__ = ["datatable", "printed", "ranged", "schema_rows"]

_DATA_TYPES = {
    "bool": "System.SByte",
    "int": "System.Int32",
    "long": "System.Int64",
    "real": "System.Double",
    "decimal": "System.Data.SqlTypes.SqlDecimal",
    "string": "System.String",
    "datetime": "System.DateTime",
    "timespan": "System.TimeSpan",
    "dynamic": "System.Object",
    "guid": "System.Guid",
}


def printed(session: Session, items: tuple[syntax.Named, ...], scalars: Scalars) -> Relation:
    """Return one row of values."""
    shown: list[OutputColumn] = []
    parts: list[str] = []
    for index, item in enumerate(items):
        bound = scalars.bind(item.expression)
        identity = session.identity()
        name = one_name(session, item)
        if name is not None and name in {each.name for each in items[:index]}:
            raise session.error(item.at, f"there are two columns {name!r}", "give one another name")
        name = name or unused(f"print_{index}", (each.name for each in shown))
        shown.append(OutputColumn(name, bound.kind, identity))
        parts.append(f"{bound.sql} AS {identity}")
    return Relation(Rows(f"SELECT {', '.join(parts)}"), tuple(shown))


def ranged(session: Session, node: syntax.Range, scalars: Scalars) -> Relation:
    """Return a column of values at equal distances."""
    first, last, step = (scalars.bind(each) for each in (node.first, node.last, node.step))
    identity = session.identity()
    kinds = (first.kind, last.kind, step.kind)
    if kinds == ("datetime", "datetime", "timespan"):
        numbers = (f"epoch_us({first.sql})", f"epoch_us({last.sql})", f"({step.sql} // 10)")
        kind, made = "datetime", "make_timestamp(x)"
    elif set(kinds) == {"timespan"} or (set(kinds) <= {"int", "long"}):
        numbers = (first.sql, last.sql, step.sql)
        kind, made = "timespan" if "timespan" in kinds else "long", "x"
    elif set(kinds) <= set(NUMBERS):
        return _real_range(session, node, (first, last, step))
    else:
        raise session.error(node.at, f"range cannot go from {kinds[0]} to {kinds[1]} by {kinds[2]}", "use one type")
    start, end, distance = (f"CAST({each} AS BIGINT)" for each in numbers)
    if step.is_literal and not step.value:
        raise session.error(node.step.at, "a step of zero has no end", "write a step")
    sql = f"SELECT {made} AS {identity} FROM (SELECT unnest(generate_series({start}, {end}, {distance})) AS x)"
    return Relation(Rows(sql), (OutputColumn(node.name, kind, identity),))


def _real_range(session: Session, node: syntax.Range, bounds: tuple[Typed, Typed, Typed]) -> Relation:
    first, last, step = (converted(each, "real") for each in bounds)
    identity = session.identity()
    count = f"CAST(floor(({last} - {first}) / {step} + 1e-9) AS BIGINT)"
    sql = f"SELECT {first} + x * {step} AS {identity} FROM (SELECT unnest(generate_series(0, {count})) AS x)"
    return Relation(Rows(sql), (OutputColumn(node.name, "real", identity),))


def datatable(session: Session, node: syntax.DataTable, scalars: Scalars) -> Relation:
    """Return the rows written in the query."""
    shown = tuple(OutputColumn(name, kind, session.identity()) for name, kind in node.columns)
    if len({each.name for each in shown}) < len(shown):
        raise session.error(node.at, "a datatable has two columns of one name", "give one another name")
    width = len(shown)
    if len(node.values) % width:
        message = f"{len(node.values)} values do not fill rows of {width} columns"
        raise session.error(node.at, message, "write a value for every column of every row")
    cells = [_cell(session, scalars, shown[index % width], each) for index, each in enumerate(node.values)]
    rows = [cells[start : start + width] for start in range(0, len(cells), width)]
    empty = not rows
    rows = rows or [[literal(each.kind, None).sql for each in shown]]
    values = ", ".join(f"({', '.join(row)})" for row in rows)
    names = ", ".join(each.identity for each in shown)
    typed = ", ".join(
        each.identity
        if each.kind == "decimal"
        else f"CAST({each.identity} AS {SQL_TYPES[each.kind]}) AS {each.identity}"
        for each in shown
    )
    none = " WHERE FALSE" if empty else ""
    return Relation(Rows(f"SELECT {typed} FROM (VALUES {values}) AS d({names}){none}"), shown)


def _cell(session: Session, scalars: Scalars, column: OutputColumn, node: syntax.Expression) -> str:
    bound = scalars.bind(node)
    if bound.refs:
        raise session.error(node.at, "a datatable holds constants only")
    if bound.kind == column.kind:
        return bound.sql
    if bound.is_literal and bound.value is None:
        return literal(column.kind, None).sql
    fits = {bound.kind, column.kind} <= set(NUMBERS) and common_kind((bound.kind, column.kind)) == column.kind
    narrows = bound.kind == "long" and column.kind == "int" and bound.is_literal and abs(bound.value) < 2**31
    if fits or narrows:
        return f"CAST({bound.sql} AS {SQL_TYPES[column.kind]})"
    if column.kind == "dynamic":
        return converted(bound, "dynamic")
    if bound.kind == "string" and column.kind == "datetime" and bound.is_literal:
        return f"kql_moment({bound.sql})"
    raise session.error(node.at, f"column {column.name!r} is a {column.kind}, and this is a {bound.kind}")


def schema_rows(session: Session, relation: Relation) -> Relation:
    """Return a row for each column of a table; the table itself is not read."""
    names = [("ColumnName", "string"), ("ColumnOrdinal", "long"), ("DataType", "string"), ("ColumnType", "string")]
    shown = tuple(OutputColumn(name, kind, session.identity()) for name, kind in names)
    rows = ", ".join(
        f"({quoted(each.name)}, CAST({index} AS BIGINT), {quoted(_DATA_TYPES[each.kind])}, {quoted(each.kind)})"
        for index, each in enumerate(relation.columns)
    )
    head = ", ".join(each.identity for each in shown)
    return Relation(Rows(f"SELECT * FROM (VALUES {rows}) AS d({head})"), shown)

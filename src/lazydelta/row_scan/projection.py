"""Projection down to nested leaves: of a struct only the fields that were asked for are read and returned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lazydelta.errors import OptionError
from lazydelta.types.schema import Column, Field, Struct, TableSchema

__all__ = ["pruned_fields", "selected_fields"]


def selected_fields(schema: TableSchema, columns: Sequence[str] | None) -> tuple[Field, ...]:
    """Return the fields that ``columns`` name, in that order; ``a.b`` is the struct ``a`` with the one field ``b``."""
    if columns is None:
        return schema.fields
    if isinstance(columns, str):
        raise OptionError("columns is a list of names, not a text", hint=f"write [{columns!r}]")
    found = [schema.column(name) for name in columns]
    if len({each.path for each in found}) != len(found):
        raise OptionError(f"A column is named twice in {list(columns)}", hint="name each column once")
    return pruned_fields(schema, found)


def pruned_fields(schema: TableSchema, columns: Iterable[Column]) -> tuple[Field, ...]:
    """Return the top-level fields that hold ``columns``, without what else their structs have."""
    return _pruned(schema.fields, [each.path for each in columns])


def _pruned(fields: tuple[Field, ...], paths: Sequence[tuple[str, ...]]) -> tuple[Field, ...]:
    below: dict[str, list[tuple[str, ...]]] = {}
    for head, *rest in paths:
        below.setdefault(head, []).append(tuple(rest))
    by_name = {each.name: each for each in fields}
    return tuple(_with_only(by_name[name], rests) for name, rests in below.items())


def _with_only(field: Field, paths: Sequence[tuple[str, ...]]) -> Field:
    if not isinstance(field.type, Struct) or () in paths:
        return field
    # Fields of a struct keep the table's order: two readers of the same fields get the same type.
    wanted = {each.name: each for each in _pruned(field.type.fields, paths)}
    return msgspec.structs.replace(
        field, type=Struct(tuple(wanted[each.name] for each in field.type.fields if each.name in wanted))
    )

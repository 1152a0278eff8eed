"""Kusto's types: which go together, and how each reads as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from lazydelta.errors import KqlError
from lazydelta.kql.meaning.typed import NUMBERS, Typed, as_kind

__all__ = ["Complain", "common_kind", "converted", "described", "to_text", "unified"]

Complain: TypeAlias = Callable[[str, str | None], KqlError]
"""Makes an error about the part of the query at hand from what is wrong and what to do."""


def described(kind: str) -> str:
    """Return a kind with its article."""
    return f"an {kind}" if kind == "int" else f"a {kind}"


def common_kind(kinds: Iterable[str]) -> str | None:
    """Return the kind that takes all of these in, None if there is none."""
    found = list(dict.fromkeys(kinds))
    if len(found) == 1:
        return found[0]
    if all(each in NUMBERS for each in found):
        if "real" in found:
            return "real"
        return max(found, key=NUMBERS.index)
    return None


def unified(what: str, values: Sequence[Typed], complain: Complain) -> tuple[str, list[str]]:
    """Return the common kind of values, and their SQL in it."""
    # A null says nothing of the type that it should have; among dynamic values everything is one.
    kinds = [each.kind for each in values if not (each.is_literal and each.value is None)] or [values[0].kind]
    kind = common_kind(kinds)
    if kind is None and "dynamic" in kinds:
        kind = "dynamic"
    if kind is None:
        named = ", ".join(dict.fromkeys(kinds))
        raise complain(f"{what} has values of different types: {named}", "convert them to one type")
    return kind, [converted(each, kind) for each in values]


def converted(value: Typed, kind: str) -> str:
    """Return SQL of a value as another kind that takes it in."""
    if value.kind == kind:
        return value.sql
    if kind == "dynamic":
        return f"to_json({to_text(value) if value.kind in {'datetime', 'timespan'} else value.sql})"
    return to_text(value) if kind == "string" else as_kind(value, kind)


def to_text(value: Typed) -> str:
    """Return SQL of a value as Kusto writes it in a text; null is the empty text."""
    if value.kind == "string":
        return value.sql
    if value.kind == "dynamic":
        return f"coalesce(json_extract_string({value.sql}, '$'), '')"
    if value.kind == "datetime":
        return f"kql_moment_text({value.sql})"
    if value.kind == "timespan":
        return f"kql_span_text({value.sql})"
    return f"coalesce(CAST({value.sql} AS VARCHAR), '')"

"""LIKE patterns: what of a pattern can prune, and the rest as an exact row filter."""

from __future__ import annotations

from lazydelta import compute as pc
from lazydelta.errors import PredicateError
from lazydelta.pruning.binding import compare, conjunction, starts_with
from lazydelta.pruning.tree import Opaque, Predicate
from lazydelta.types.schema import Column

__all__ = ["like", "plain_prefix"]


def like(column: Column, pattern: str, *, escape: str = "\\", negated: bool = False) -> Predicate:
    """Match ``pattern``, in which % is any text and _ any character.

    Without wildcards it is an equality, with one % at the end a prefix. Anything else still prunes by what stands
    before its first wildcard, and is exact only when rows are filtered.
    """
    if len(escape) != 1:
        message = f"The ESCAPE of a LIKE on column {column.name!r} is {escape!r}"
        raise PredicateError(message, hint="give one character")
    tokens = _tokens(column, pattern, escape)
    prefix = ""
    for position, (character, wild) in enumerate(tokens):
        if wild:
            rest = tokens[position:]
            break
        prefix += character
    else:
        starts_with(column, prefix)  # Only for its check that this is a string column.
        return compare(column, "=", prefix, negated=negated)
    exact = all(wild and character == "%" for character, wild in rest)
    if exact:
        return starts_with(column, prefix, negated=negated)
    usable = starts_with(column, prefix)
    expression = pc.match_like(pc.field(*column.path), _arrow_pattern(tokens))
    text = f"{column.name} {'NOT ' if negated else ''}LIKE {pattern!r}"
    if negated:
        # Rows that lack the prefix pass, and so may those that have it.
        return Opaque(text, (column,), ~expression, reason="no range is left out by what a text is not like")
    reason = "the pattern begins with a wildcard"
    return conjunction([usable, Opaque(text, (column,), expression, reason=reason, narrowed=bool(prefix))])


def plain_prefix(column: Column, pattern: str, escape: str = "\\") -> str | None:
    """Return the text before the one % at the end of a pattern; None where the pattern asks for more."""
    tokens = _tokens(column, pattern, escape)
    texts = [character for character, wild in tokens if not wild]
    wild = [character for character, wild in tokens[len(texts) :] if wild]
    return "".join(texts) if wild and set(wild) == {"%"} and len(texts) + len(wild) == len(tokens) else None


def _tokens(column: Column, pattern: str, escape: str) -> list[tuple[str, bool]]:
    tokens: list[tuple[str, bool]] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                message = f"The LIKE pattern {pattern!r} on column {column.name!r} ends with its escape character"
                raise PredicateError(message, hint="double the escape character, or remove it")
            if following in {"%", "_", escape}:
                tokens.append((following, False))
            else:
                tokens += [(character, False), (following, False)]
        else:
            tokens.append((character, character in {"%", "_"}))
    return tokens


def _arrow_pattern(tokens: list[tuple[str, bool]]) -> str:
    # PyArrow knows the backslash alone.
    return "".join("\\" + char if not wild and char in {"%", "_", "\\"} else char for char, wild in tokens)

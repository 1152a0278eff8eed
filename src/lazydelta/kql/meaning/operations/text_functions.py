"""Functions of texts."""

from __future__ import annotations

from lazydelta.kql.meaning.operations.signatures import Function, Given
from lazydelta.kql.meaning.typed import Typed

__all__ = ["TEXT_FUNCTIONS"]

_MANY = 64
_FEW_OCCURRENCES = 8


def _strcat(given: Given) -> Typed:
    return given.of("string", "(" + " || ".join(given.text(index) for index in range(len(given))) + ")")


def _substring(given: Given) -> Typed:
    text, start = given.text(0), f"kql_from({given.text(0)}, {given.whole(1)})"
    length = f", greatest({given.whole(2)}, 0)" if len(given) > 2 else ""  # noqa: PLR2004 - the third argument
    return given.of("string", f"coalesce(substr({text}, {start} + 1{length}), '')")


def _split(given: Given) -> Typed:
    parts = f"string_split({given.text(0)}, {given.string(1)})"
    if len(given) > 2:  # noqa: PLR2004 - the third argument
        index = f"({given.whole(2)}) + 1"
        parts = f"list_slice({parts}, {index}, {index})"
    name = given.values[0].name
    return given.of("dynamic", f"to_json({parts})", name=name)


def _lower(given: Given) -> Typed:
    return given.of("string", f"lower({given.text(0)})")


def _upper(given: Given) -> Typed:
    return given.of("string", f"upper({given.text(0)})")


def _strlen(given: Given) -> Typed:
    name = given.values[0].name
    return given.of("long", f"CAST(length({given.string(0)}) AS BIGINT)", name=f"strlen_{name}" if name else None)


def _strcmp(given: Given) -> Typed:
    first, second = given.string(0), given.string(1)
    return given.of(
        "long", f"CAST(CASE WHEN {first} < {second} THEN -1 WHEN {first} > {second} THEN 1 ELSE 0 END AS BIGINT)"
    )


def _replace(given: Given) -> Typed:
    return given.of("string", f"replace({given.string(0)}, {given.string(1)}, {given.string(2)})")


def _extract(given: Given) -> Typed:
    group = given.constant(1, "int", "long")
    found = f"regexp_extract({given.string(0 + 2)}, {given.string(0)}, {group})"
    if len(given) == 3:  # noqa: PLR2004 - without a type
        return given.of("string", found)
    kind = given.constant(3, "type")
    as_text = Typed("string", found, "call")
    conversion = {
        "string": found,
        "dynamic": f"kql_parse_json({found})",
        "long": f"kql_long({as_text.sql})",
        "int": f"TRY_CAST(kql_long({as_text.sql}) AS INTEGER)",
        "real": f"TRY_CAST(nullif(trim({as_text.sql}), '') AS DOUBLE)",
        "bool": f"kql_bool({as_text.sql})",
        "datetime": f"kql_moment({as_text.sql})",
        "timespan": f"kql_span({as_text.sql})",
        "decimal": f"TRY_CAST(nullif(trim({as_text.sql}), '') AS DECIMAL(38,18))",
        "guid": f"TRY_CAST({as_text.sql} AS UUID)",
    }.get(kind)
    if conversion is None:
        raise given.complain(f"extract() cannot return the type {kind}", "extract a text and convert it")
    return given.of(kind, conversion)


def _trim(given: Given) -> Typed:
    edge = given.name.removeprefix("trim")
    sql = given.string(1)
    if edge in {"", "_start"}:
        sql = f"regexp_replace({sql}, '^(?:' || {given.string(0)} || ')+', '')"
    if edge in {"", "_end"}:
        sql = f"regexp_replace({sql}, '(?:' || {given.string(0)} || ')+$', '')"
    return given.of("string", sql)


def _indexof(given: Given) -> Typed:
    text, wanted = given.text(0), given.text(1)
    start = f"kql_from({text}, {given.whole(2)})" if len(given) > 2 else "0"  # noqa: PLR2004 - positions
    length = given.constant(3, "int", "long") if len(given) > 3 else -1  # noqa: PLR2004
    nth = given.constant(4, "int", "long") if len(given) > 4 else 1  # noqa: PLR2004
    if length < -1 or nth < 1:
        return given.of("long", "CAST(NULL AS BIGINT)")
    if length < 0:
        parts = f"string_split(substr({text}, {start} + 1), {wanted})"
        return given.of("long", f"CAST(kql_found({parts}, {wanted}, {start}, {nth}) AS BIGINT)")
    if nth > _FEW_OCCURRENCES:
        raise given.complain(f"indexof() with a length finds {_FEW_OCCURRENCES} occurrences at most", "leave it out")
    # The length counts anew from each occurrence.
    position = f"({start} - 1)"
    for _ in range(nth):
        position = f"kql_next({text}, {wanted}, {position} + 1, {length})"
    return given.of("long", f"CAST(coalesce({position}, -1) AS BIGINT)")


TEXT_FUNCTIONS = {
    "extract": Function(3, 4, _extract),
    "indexof": Function(2, 5, _indexof),
    "replace_string": Function(3, 3, _replace),
    "split": Function(2, 3, _split),
    "strcat": Function(1, _MANY, _strcat),
    "strcmp": Function(2, 2, _strcmp),
    "strlen": Function(1, 1, _strlen),
    "substring": Function(2, 3, _substring),
    "tolower": Function(1, 1, _lower),
    "toupper": Function(1, 1, _upper),
    "trim": Function(2, 2, _trim),
    "trim_end": Function(2, 2, _trim),
    "trim_start": Function(2, 2, _trim),
}
"""Each function by its name."""

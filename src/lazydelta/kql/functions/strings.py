"""String functions that DuckDB computes."""

from __future__ import annotations

import re

from lazydelta.kql.binding.types import Typed, quoted
from lazydelta.kql.functions.declaration import Function, Given, built, from_text, rows, template

__all__ = ["STRINGS"]

_FEW_OCCURRENCES = 8
_GROUP = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\((?!\?)|\(\?P?<(?![=!])(\w+)>", re.DOTALL)
_MOST_REPEATS = 1024
_UNITS = ("Bytes", "KB", "MB", "GB", "TB", "PB", "EB")


def _strcat(given: Given) -> Typed:
    return given.of("string", "(" + " || ".join(given.text(index) for index in range(len(given))) + ")")


def _strcat_delim(given: Given) -> Typed:
    return given.of("string", f"concat_ws({', '.join(given.text(index) for index in range(len(given)))})")


def _strcat_array(given: Given) -> Typed:
    elements, delimiter = f"json_extract_string({given.as_kind(0, 'dynamic')}, '$[*]')", given.string(1)
    if given.values[1].is_literal:
        return given.of("string", f"coalesce(array_to_string({elements}, {delimiter}), '')")
    # DuckDB takes a constant only.
    joined = f"list_reduce({elements}, lambda a, b: coalesce(a, '') || {delimiter} || coalesce(b, ''))"
    return given.of("string", f"(CASE WHEN len({elements}) > 0 THEN coalesce({joined}, '') ELSE '' END)")


def _substring(given: Given) -> Typed:
    text, start = given.text(0), f"kql_from({given.text(0)}, {given.whole(1)})"
    length = f", greatest({given.whole(2)}, 0)" if len(given) > 2 else ""  # noqa: PLR2004 - the third argument
    return given.of("string", f"coalesce(substr({text}, {start} + 1{length}), '')")


def _split(given: Given) -> Typed:
    parts = f"string_split({given.text(0)}, {given.string(1)})"
    if len(given) > 2:  # noqa: PLR2004 - the third argument
        index = f"({given.whole(2)}) + 1"
        parts = f"list_slice({parts}, {index}, {index})"
    return given.of("dynamic", f"to_json({parts})", name=given.values[0].name)


def _strlen(given: Given) -> Typed:
    name = given.values[0].name
    return given.of("long", f"CAST(length({given.text(0)}) AS BIGINT)", name=f"strlen_{name}" if name else None)


def _strcmp(given: Given) -> Typed:
    first, second = given.string(0), given.string(1)
    return given.of(
        "long", f"CAST(CASE WHEN {first} < {second} THEN -1 WHEN {first} > {second} THEN 1 ELSE 0 END AS BIGINT)"
    )


def _extract(given: Given) -> Typed:
    group = given.constant(1, "int", "long")
    found = f"regexp_extract({given.string(2)}, {given.string(0)}, {group})"
    if len(given) == 3:  # noqa: PLR2004 - without a type
        return given.of("string", found)
    kind = given.constant(3, "type")
    return given.of(kind, from_text(found, kind))


def group_names(pattern: str) -> list[str | None]:
    """Return the capture groups of a regular expression: their names, or None for those without one."""
    return [match[1] for match in _GROUP.finditer(pattern) if match[0].startswith("(")]


def _extract_all(given: Given) -> Typed:
    pattern, text = given.constant(0, "string"), given.string(len(given) - 1)
    names = group_names(pattern)
    if not names:
        raise given.complain("the regular expression of extract_all() has no capture group", "write ( ) in it")
    chosen: list[int] = [*range(1, len(names) + 1)]
    if len(given) == 3:  # noqa: PLR2004 - with capture groups
        chosen = [_group(given, each, names) for each in given.constant(1, "dynamic")]
    lists = [f"regexp_extract_all({text}, {quoted(pattern)}, {group})" for group in chosen]
    if len(lists) == 1:
        found = lists[0]
    else:
        parts = ", ".join(f"x[{index + 1}]" for index in range(len(lists)))
        found = f"list_transform(list_zip({', '.join(lists)}), lambda x: [{parts}])"
    return given.of("dynamic", f"(CASE WHEN len({lists[0]}) > 0 THEN to_json({found}) END)")


def _group(given: Given, wanted: object, names: list[str | None]) -> int:
    if isinstance(wanted, str) and wanted in names:
        return names.index(wanted) + 1
    if isinstance(wanted, int | float) and 0 <= wanted <= len(names):
        return int(wanted)
    raise given.complain(f"the regular expression of extract_all() has no capture group {wanted!r}", None)


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
        raise given.complain(f"indexof() with a length finds {_FEW_OCCURRENCES} occurrences at most", "omit it")
    # The length applies from each occurrence anew.
    position = f"({start} - 1)"
    for _ in range(nth):
        position = f"kql_next({text}, {wanted}, {position} + 1, {length})"
    return given.of("long", f"CAST(coalesce({position}, -1) AS BIGINT)")


def _indexof_regex(given: Given) -> Typed:
    text, pattern = given.text(0), given.string(1)
    start = given.whole(2) if len(given) > 2 else "0"  # noqa: PLR2004 - positions
    length = given.whole(3) if len(given) > 3 else "-1"  # noqa: PLR2004
    nth = given.constant(4, "int", "long") if len(given) > 4 else 1  # noqa: PLR2004
    if nth < 1:
        return given.of("long", "CAST(NULL AS BIGINT)")
    part = f"CASE WHEN {length} < 0 THEN substr({text}, {start} + 1) ELSE substr({text}, {start} + 1, {length}) END"
    # What precedes the match is the shortest text after which it follows.
    before = f"'(?s)^(' || repeat('.*?(?:' || {pattern} || ')', {nth - 1}) || '.*?)(?:' || {pattern} || ')'"
    at = f"length(regexp_extract({part}, {before}, 1)) + {start}"
    found = f"CASE WHEN regexp_matches({part}, {before}) THEN {at} ELSE -1 END"
    return given.of("long", f"CAST(CASE WHEN {start} >= 0 AND {length} >= -1 THEN {found} END AS BIGINT)")


def _countof(given: Given) -> Typed:
    kind = str(given.constant(2, "string")) if len(given) > 2 else "normal"  # noqa: PLR2004 - the third argument
    if kind not in {"normal", "regex"}:
        raise given.complain(f"countof() has no kind {kind!r}", "write 'normal' or 'regex'")
    if kind == "regex":
        return given.of("long", f"CAST(len(regexp_extract_all({given.text(0)}, {given.string(1)})) AS BIGINT)")
    return given.of("long", f"CAST(kql_count({given.text(0)}, {given.text(1)}) AS BIGINT)")


def _estimate(given: Given) -> Typed:
    sizes = {"bool": 1, "int": 4, "long": 8, "real": 8, "datetime": 8, "timespan": 8, "guid": 16, "decimal": 16}
    parts = [
        f"strlen({given.text(index)})" if each.kind in {"string", "dynamic"} else str(sizes[each.kind])
        for index, each in enumerate(given.values)
    ]
    return given.of("long", f"CAST({' + '.join(parts) or '0'} AS BIGINT)")


def _format_bytes(number: float | None, precision: int | None, unit: str | None, base: int | None) -> str | None:
    if number is None:
        return None
    base = base or 1024
    if unit:
        power = _UNITS.index(unit) if unit in _UNITS else 0
    else:
        power = 0
        while power < len(_UNITS) - 1 and abs(number) >= base ** (power + 1):
            power += 1
    value = f"{number / base**power:.{precision or 0}f}"
    return f"{value.rstrip('0').rstrip('.') if '.' in value else value} {_UNITS[power]}"


_TRIM = "Removes what matches a regular expression from"

STRINGS: list[Function] = [
    rows("format_bytes(value: real, precision?: long, unit?: string, base?: long) -> string",
         "Writes a number of bytes with its unit.", _format_bytes, named=True),
    template("base64_encode_tostring(value: string) -> string", "Encodes a string as base64.",
             "to_base64(encode({value}))"),
    template("base64_encodestring(value: string) -> string", "Former name of `base64_encode_tostring`.",
             "to_base64(encode({value}))"),
    template("base64_decode_tostring(value: string) -> string", "Decodes base64 to a string; empty if it is not valid.",
             "kql_from_base64({value})"),
    template("base64_decodestring(value: string) -> string", "Former name of `base64_decode_tostring`.",
             "kql_from_base64({value})"),
    built("countof(text: text, search: text, kind?: string) -> long",
          "Counts a substring (overlapping) or the matches of a regular expression.", _countof),
    built("estimate_data_size(columns: any...) -> long", "Estimates the size of the columns in bytes.", _estimate),
    built("extract(regex: regex, group: whole, text: string, type?: type) -> string",
          "Returns the match of a capture group, converted to a type if one is given.", _extract),
    built("extract_all(regex: regex, groups: dynamic|string, text?: string) -> dynamic",
          "Returns all matches of capture groups.", _extract_all),
    built("indexof(text: text, search: text, start?: whole, length?: whole, occurrence?: whole) -> long",
          "Returns the position of a substring, or -1.", _indexof),
    built("indexof_regex(text: text, regex: regex, start?: whole, length?: whole, occurrence?: whole) -> long",
          "Returns the position of a match of a regular expression, or -1.", _indexof_regex),
    template("isascii(value: string) -> bool", "Tests whether all characters are ASCII.",
             "strlen({value}) = length({value})"),
    template("isutf8(value: string) -> bool", "Tests whether a string is valid UTF-8, which all strings here are.",
             "{value} IS NOT NULL"),
    template("regex_quote(value: string) -> string", "Escapes the characters that are special in regular expressions.",
             r"regexp_replace({value}, '([\\.+*?()|\[\]{{}}^$])', '\\\1', 'g')"),
    template("replace_regex(text: string, regex: regex, rewrite: string) -> string",
             r"Replaces the matches of a regular expression; `\1` is a capture group.",
             "regexp_replace({text}, {regex}, {rewrite}, 'g')"),
    template("replace(regex: regex, rewrite: string, text: string) -> string", "Former name of `replace_regex`.",
             "regexp_replace({text}, {regex}, {rewrite}, 'g')"),
    template("replace_string(text: string, search: string, rewrite: string) -> string", "Replaces a substring.",
             "replace({text}, {search}, {rewrite})"),
    template("reverse(value: text) -> string", "Reverses the characters of a value.", "reverse({value})"),
    built("split(text: text, delimiter: string, index?: whole) -> dynamic",
          "Splits a string, and returns all parts or the one at an index, as an array.", _split),
    built("strcat(value: text...) -> string", "Joins values.", _strcat),
    built("strcat_array(array: dynamic, delimiter: string) -> string", "Joins the elements of an array.",
          _strcat_array),
    built("array_strcat(array: dynamic, delimiter: string) -> string", "Another name of `strcat_array`.",
          _strcat_array),
    built("strcat_delim(delimiter: text, value: text...) -> string", "Joins values with a delimiter between them.",
          _strcat_delim),
    built("strcmp(a: string, b: string) -> long", "Compares strings byte by byte: -1, 0 or 1.", _strcmp, prunes=True),
    template("string_size(value: text) -> long", "Returns the size of a string in bytes.",
             "CAST(strlen({value}) AS BIGINT)", named="string_size_{}"),
    built("strlen(value: string) -> long", "Returns the number of characters.", _strlen),
    template("strrep(value: text, times: long, delimiter: text = '') -> string",
             f"Repeats a value, at most {_MOST_REPEATS:,} times.",
             f"CASE WHEN {{times}} > 0 THEN repeat({{value}} || {{delimiter}}, least({{times}}, {_MOST_REPEATS}) - 1)"
             " || {value} ELSE '' END"),
    built("substring(text: text, start: whole, length?: whole) -> string",
          "Returns part of a string; a negative start counts from the end.", _substring),
    template("tolower(value: text) -> string", "Converts to lower case.", "lower({value})"),
    template("toupper(value: text) -> string", "Converts to upper case.", "upper({value})"),
    template("translate(search: string, replacements: string, text: string) -> string",
             "Replaces characters one by one; the last replacement stands for those that are missing.",
             "translate({text}, {search}, kql_padded({replacements}, length({search})))"),
    built("trim(regex: regex, text: string) -> string", f"{_TRIM} both ends of a string.", _trim),
    built("trim_end(regex: regex, text: string) -> string", f"{_TRIM} the end of a string.", _trim),
    built("trim_start(regex: regex, text: string) -> string", f"{_TRIM} the start of a string.", _trim),
]  # fmt: skip
"""The functions."""

"""Conditions in SQL as people write them, drawn at random: every form that is read without the large parser."""

from __future__ import annotations

import random

_INTEGERS = ["i", "tiny", "p", "n.i", "`i`", '"i"', "I", "`n`.`i`"]
_TEXTS = ["s", "q", "long_s"]
_DATES = ["d", "r"]
_TIMESTAMPS = ["t", "ntz", "u"]
_FLOATS = ["f", "single"]
_COMPARISONS = ["=", "==", "!=", "<>", "<", "<=", ">", ">=", "<=>"]
_UNITS = ["second", "minute", "HOUR", "day", "week", "month", "quarter", "year"]
_SPANS = ["1 hour", "'1' hour", "'90' MINUTES", "'1 day 2 hours'", "2 weeks", "'-1' day", "3 months", "'1.5' hours"]
_TYPED = [
    "DATE '2026-02-08'",
    "TIMESTAMP '2026-02-08 10:00:00'",
    "date '2026-02-28'",
    "timestamp '2026-02-08T10:30:00Z'",
]
_PLAIN = ["'2026-02-08'", "'2026-02-08 10:00:00'", "'2026-02-08T10:00:00.123456Z'", "'1969-12-31'"]

_OTHERS = ["b", "NOT b", "b IS TRUE", "b IS NOT FALSE", "TRUE", "false", "NULL", "1 = 1", "'a' < 'b'", "i < tiny"]
_OTHERS += [
    "s = q",
    "starts_with(s, 'ab')",
    "isnull(i)",
    "n IS NOT NULL",
    "b = true",
    "m >= 1.005",
    "huge < 1234567890.5",
]


def condition(rng: random.Random, depth: int = 3) -> str:
    """Draw a condition of any form."""
    kind = rng.random()
    if depth and kind < 0.3:
        word = rng.choice([" AND ", " and ", " OR ", "\n  or "])
        parts = [condition(rng, depth - 1) for _ in range(rng.randint(2, 4))]
        return word.join(f"({part})" if rng.random() < 0.5 else part for part in parts)
    if depth and kind < 0.4:
        return rng.choice(["NOT ", "not ", "NOT NOT "]) + f"({condition(rng, depth - 1)})"
    if depth and kind < 0.45:
        return f"NOT {_leaf(rng)}"
    return _leaf(rng)


def _leaf(rng: random.Random) -> str:
    drawn = rng.choice([_integer, _integer, _text, _timestamp, _timestamp, _timestamp, _date, _float, _other])
    return drawn(rng)


def _test(rng: random.Random, left: str, values: list[str]) -> str:
    kind = rng.random()
    tight = rng.random() < 0.2
    if kind < 0.6:
        op, value = rng.choice(_COMPARISONS), rng.choice(values)
        if rng.random() < 0.15:
            return f"{value} {op} {left}"
        return f"{left}{op}{value}" if tight else f"{left} {op} {value}"
    negation = rng.choice(["", "NOT ", "not "])
    if kind < 0.75:
        items = ", ".join(rng.choice([*values, "NULL"]) for _ in range(rng.randint(1, 4)))
        return f"{left} {negation}IN ({items})"
    if kind < 0.9:
        return f"{left} {negation}between {rng.choice(values)} AND {rng.choice(values)}"
    return f"{left} IS {negation}NULL"


def _integer(rng: random.Random) -> str:
    values = [
        "1",
        "-5",
        "1.5",
        "2e3",
        "300",
        "'7'",
        "9223372036854775808",
        "2 + 3",
        "(4)",
        "- 3",
        "2 * 60",
        ".5",
        "CAST('5' AS INT)",
    ]
    left = rng.choice(_INTEGERS)
    return _test(rng, rng.choice([left, left, f"CAST({left} AS bigint)"]), values)


def _text(rng: random.Random) -> str:
    left = rng.choice(_TEXTS)
    if rng.random() < 0.4:
        pattern = rng.choice(["'a%'", "'a_b%'", "'%x'", "'plain'", r"'a\_b%'", r"'a\nb%'", "'it''s%'", "''"])
        escape = rng.choice(["", "", " ESCAPE '!'"])
        return f"{left} {rng.choice(['', 'NOT '])}LIKE {pattern}{escape}"
    return _test(
        rng, left, ["'a'", "'it''s'", "''", "'é😀'", "'a -- b'", r"'back\slash'", "cast(current_date as string)"]
    )


def _now(rng: random.Random) -> str:
    return rng.choice(
        ["current_timestamp", "CURRENT_TIMESTAMP()", "now()", "current_date", "current_date()", "ago(1h)", "ago(30m)"]
    )


def _timestamp(rng: random.Random) -> str:
    column = rng.choice(_TIMESTAMPS)
    span = rng.choice(_SPANS)
    left = rng.choice(
        [
            column,
            column,
            f"date({column})",
            f"CAST({column} AS DATE)",
            f"date_trunc('{rng.choice(_UNITS)}', {column})",
            f"{column} + INTERVAL {rng.choice(_SPANS[:5])}",
            f"{column} - interval {span}",
            f"date_trunc('day', {column} - INTERVAL 5 minutes)",
            f"to_date({column})",
        ]
    )
    values = [
        *_PLAIN,
        *_TYPED,
        f"{_now(rng)} - INTERVAL {span}",
        f"{_now(rng)}",
        "now() - interval 1 hour + interval 5 minutes",
        "datetime(2026-02-08)",
        "datetime(2026-02-08 10:30)",
        f"date_trunc('{rng.choice(_UNITS)}', {rng.choice(['now()', 'current_date'])})",
        "to_timestamp('2026-02-08 10:00:00')",
    ]
    if rng.random() < 0.2:
        part = rng.choice(["year", "month", "day", "hour", "quarter"])
        asked = rng.choice([f"extract({part} FROM {column})", f"{part}({column})", f"date_part('{part}', {column})"])
        return _test(rng, asked, ["2026", "2", "1.5", "2025 + 1"])
    return _test(rng, left, values)


def _date(rng: random.Random) -> str:
    column = rng.choice(_DATES)
    if rng.random() < 0.25:
        text = f"CAST({column} AS STRING)"
        if rng.random() < 0.3:
            return f"{text} LIKE '2026-0%'"
        return _test(rng, text, ["'2026-02-08'", "'2026-02'", "'abc'", "'2026-02-30'"])
    left = rng.choice(
        [column, f"{column} + 1", f"date_sub({column}, 2)", f"year({column})", f"{column} - interval 1 day"]
    )
    if left.startswith("year"):
        return _test(rng, left, ["2026", "2025"])
    return _test(rng, left, [*_PLAIN[:2], *_TYPED, "current_date - 1", "current_date + 7", "date_add(current_date, 3)"])


def _float(rng: random.Random) -> str:
    return _test(rng, rng.choice(_FLOATS), ["1", "1.5", "-0.0", "'NaN'", "'inf'", "1e300", "1e999", "0.1"])


def _other(rng: random.Random) -> str:
    return rng.choice(_OTHERS)

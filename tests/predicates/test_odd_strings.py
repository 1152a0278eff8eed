"""Statistics as no writer logs them, but JSON allows, or just not: bounds are what Python's own parser finds.

The texts are taken by the decoder, many at a time, or by what reads texts that are alike, as their neighbours and the
number of columns asked for have it. Whichever it is, each text counts for itself.
"""

from __future__ import annotations

import json
import math
import random
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from lazydelta.stats import Ranges, ranges_from_json
from tests.predicates import worlds

SCHEMA = worlds.schema()
NAMES = ["i", "f", "m", "s", "n.i"]
OTHERS = ["tiny", "long_s", "d", "t", "huge"]
NUMBERS = ["0", "-0", "7", "-12", "1.5", "12.25", "1e2", "25E-1", "-1.5e+3", "0.0", "007", "+1", "1.", ".5", "-", "1e"]
NUMBERS += ["9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" * 40, "1e400", "-1e400", "1e-400"]
NUMBERS += ["NaN", "Infinity", "-Infinity", "12.345", "-12.345", "9999999.99", "99999999.99", "0.1234567890123456789"]
TEXTS = ["", "a", "minValues", '{\\"i\\":1}', "\\u0069", "\\\\", "x\\ty", "é", "😀", "NaN", "Infinity", "7", "a,b", "}"]
TEXTS += [',\\"maxValues\\":{', "\n", "\x00", "\\x", "\\u12", "i\\"]
OTHER_VALUES = ["null", "true", "false", "{}", "[]", '{"i":3}', "[1,2]", '[{"i":4}]', "nul", ""]
BLANKS = ["", "", "", " ", "\t", "\n ", "\r\n"]


def value(rng: random.Random, column: str, odd: float) -> str:
    if rng.random() >= odd:
        return rng.choice({"i": ["5", "-12", "123456789"], "s": ['"abc"', '"sensor-1"']}.get(column, ["12.25", "-1.5"]))
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(NUMBERS)
    return f'"{rng.choice(TEXTS)}"' if kind < 0.8 else rng.choice(OTHER_VALUES)


def spelled(rng: random.Random, key: str, odd: float) -> str:
    """Return a key, now and then with an escape for one of its letters."""
    if rng.random() >= odd / 10:
        return f'"{key}"'
    place = rng.randrange(len(key))
    return f'"{key[:place]}\\u{ord(key[place]):04x}{key[place + 1 :]}"'


def blank(rng: random.Random, odd: float) -> str:
    return rng.choice(BLANKS) if rng.random() < odd else ""


def members(rng: random.Random, found: list[tuple[str, str]], odd: float) -> str:
    pairs = [
        f"{blank(rng, odd)}{spelled(rng, key, odd)}{blank(rng, odd)}:{blank(rng, odd)}{text}{blank(rng, odd)}"
        for key, text in found
    ]
    return "{" + ",".join(pairs) + "}"


def section(rng: random.Random, odd: float) -> str:
    found = [(name, value(rng, name, odd)) for name in ("i", "f", "m", "s")]
    # A nested column whose names are those of others.
    inner = [(name, value(rng, name, odd)) for name in ("i", "s", "minValues")]
    found.append(("n", members(rng, inner, odd) if rng.random() >= odd / 5 else value(rng, "n", odd)))
    if rng.random() < odd:
        rng.shuffle(found)
    if rng.random() < odd / 2:
        found.append((rng.choice(["i", "s", "n"]), value(rng, "i", odd)))
    if rng.random() < odd / 2:
        del found[rng.randrange(len(found))]
    return members(rng, found, odd)


def document(rng: random.Random, odd: float) -> str:
    parts = [("numRecords", "7"), ("minValues", section(rng, odd)), ("maxValues", section(rng, odd))]
    parts.append(("nullCount", '{"i":0,"s":1}'))
    if rng.random() < odd / 3:
        parts.append(
            (rng.choice(["minValues", "maxValues", "i"]), rng.choice([section(rng, odd), value(rng, "i", odd)]))
        )
    text = blank(rng, odd) + members(rng, parts, odd) + blank(rng, odd)
    if rng.random() < odd / 5:
        text = text[: rng.randrange(len(text))]  # cut short
    return text


def no_number(_: str) -> NoReturn:
    message = "JSON has neither NaN nor infinities"
    raise ValueError(message)


def parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_float=Decimal, parse_constant=no_number)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def bound(document: dict[str, Any], part: str, name: str) -> object:
    """Return the value at a place of a document, None where it is not of the column's type."""
    found: Any = document.get(part)
    for key in name.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    kind = name.rpartition(".")[2]
    if kind == "s":
        return found if isinstance(found, str) else None
    if kind == "f" and isinstance(found, str):
        return {"Infinity": math.inf, "-Infinity": -math.inf}.get(found)
    if kind == "m" and found == "7":
        found = Decimal(7)  # some writers log decimals as texts
    if isinstance(found, bool) or not isinstance(found, (int, Decimal)):
        return None
    if kind == "i":  # a fraction or an exponent makes it something else, whatever it comes to
        return found if isinstance(found, int) and -(2**63) <= found < 2**63 else None
    number = Decimal(found)
    if kind == "f":
        double = float(number)
        return double if math.isfinite(double) else None
    if number.adjusted() > 50:
        return None
    unscaled = (number * 100).to_integral_value(ROUND_CEILING if part == "maxValues" else ROUND_FLOOR)
    return unscaled / 100 if abs(unscaled) < 10**9 else None


def assert_bounds(found: Ranges, names: list[str], texts: list[str]) -> int:
    """Compare with what Python's parser finds; return how many values there are."""
    documents, known = [parsed(text) for text in texts], 0
    for name in names:
        ranges = found.column(SCHEMA.column(name))
        assert ranges is not None
        for part, array in (("minValues", ranges.min), ("maxValues", ranges.max)):
            assert array is not None
            for text, each, actual in zip(texts, documents, array.to_pylist(), strict=True):
                expected = bound(each, part, name)
                assert actual == expected, (name, part, text)
                known += actual is not None
    return known


@pytest.mark.parametrize("odd", [0.0, 0.002, 0.05, 0.5])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.each_value
def test_bounds_are_what_a_full_parse_finds(seed: int, odd: float) -> None:
    rng = random.Random(seed)
    # The first one shows which shape the others may have.
    texts = [document(rng, 0.0), *(document(rng, odd) for _ in range(700))]
    stats = pa.array(texts, pa.string())
    known = 0
    for names in (["i"], ["f"], ["m"], ["s", "n.i"], NAMES, [*NAMES, *OTHERS]):
        columns = [SCHEMA.column(name) for name in names]
        for only_bounds in (True, False):
            ranges = ranges_from_json(stats, columns, only_bounds=only_bounds)
            known += assert_bounds(ranges, [name for name in names if name in NAMES], texts)
    assert known > 1_000

"""Texts of statistics that are alike, read at once: what the decoder makes of each, whatever is in them."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable

import pyarrow as pa
import pytest

from lazydelta.protocol.schema import Column
from lazydelta.stats import ranges_from_json
from lazydelta.stats.ranges import ColumnRange, Ranges
from lazydelta.stats.similar_json import parse_similar, shape_of
from tests.predicates import worlds

SCHEMA = worlds.schema()
COLUMNS = [SCHEMA.column(name) for name in [*worlds.TYPES, "n.i"]]
WHOLE = ["0", "7", "42", "-3", "123456789012", "-0", "9223372036854775807", "-9223372036854775808", "200"]
FLOATS = [*WHOLE, "0.5", "-12.25", "3.141592653589793", "1e3", "-0.0", "0.30000000000000004", "9007199254740993"]
# Numbers that JSON does not have, or that do not fit, and other things where a number is due.
ODD = [
    "007",
    "+5",
    "1.",
    ".5",
    "-",
    "",
    "1.2.3",
    "0x1F",
    "1-2",
    "--1",
    "NaN",
    "Infinity",
    "1E400",
    "1" * 30,
    " 1",
    "1 ",
]
ODD += [
    '"NaN"',
    '"7"',
    "null",
    "true",
    "{}",
    "[1]",
    "9223372036854775808",
    "12.345678",
    "1.5",
    "-.5",
    "00",
    "-01",
    "0.0",
]
TEXTS = ["", "a", "sensor-1", "é", "😀", "x" * 32, "a,b", "b,", "a:b{", "\\u0041", '\\"', "x" * 200, "\x7f"]
ODD_TEXTS = ['a"b', "a\\", "a\nb", "a\x00b", '","i":"', '"}', "\\ud800", "\\x"]


def number(rng: random.Random, plain: list[str], odd: float) -> str:
    if rng.random() < odd:
        return rng.choice(ODD)
    return rng.choice(plain) if rng.random() < 0.5 else str(rng.randint(0, 99))


def text(rng: random.Random, column: str, odd: float) -> str:
    if rng.random() < odd:
        return f'"{rng.choice(ODD_TEXTS)}"'
    if column in {"d", "t", "ntz"} and rng.random() > odd:
        timestamp = rng.choice(["", "T10:00:00.123Z", "T10:00:00Z", "T23:59:59.999+01:00"]) if column != "d" else ""
        return f'"2026-02-{rng.randint(1, 28):02d}{timestamp}"'
    return f'"{rng.choice(TEXTS if rng.random() < odd else TEXTS[:6])}"'


def value(rng: random.Random, column: str, odd: float) -> str:
    if column in {"i", "tiny", "n.i"}:
        return number(rng, WHOLE, odd)
    if column in {"f", "single"}:
        return number(rng, FLOATS, odd)
    if column in {"m", "big", "huge"}:
        return number(rng, ["1.25", "-3.50", "1234567.89", "0.01", "1234567.80"], odd)
    return text(rng, column, odd)


def document(rng: random.Random, absent: set[str], odd: float) -> str:
    """One text of a writer that leaves out the bounds of some columns."""

    def section(make: Callable[[str], str], names: list[str]) -> str:
        flat = [f'"{name}":{make(name)}' for name in names if "." not in name]
        return "{" + ",".join([*flat, '"n":{"i":' + make("n.i") + "}"]) + "}"

    names = [name for name in worlds.TYPES if name not in absent and name != "b"]
    bounds = [section(lambda name: value(rng, name, odd), names) for _ in range(2)]
    counts = section(lambda _: number(rng, WHOLE[:3], odd / 4), list(worlds.TYPES))
    tight = ',"tightBounds":true' if "s" in absent else ""
    head = f'"numRecords":{rng.randint(0, 9999)}{tight}'
    return f'{{{head},"minValues":{bounds[0]},"maxValues":{bounds[1]},"nullCount":{counts}}}'


def damaged(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text))
    kind = rng.randint(0, 3)
    if kind == 0:
        return text[:place] + text[place + 1 :]
    if kind == 1:
        return text[:place] + rng.choice('0123456789.,:{}"\\-+eE \n' + string.ascii_letters) + text[place:]
    if kind == 2:
        return text[:place] + rng.choice('0123456789.,:{}"-') + text[place + 1 :]
    return text[:place]


def read(texts: list[str], columns: list[Column], *, only_bounds: bool = False) -> tuple[Ranges, int]:
    """Read texts at once as far as they are alike; also return how many were left to the decoder."""
    left = 0

    def decoded(some: pa.Array) -> Ranges:
        nonlocal left
        left += len(some)
        return by_decoder(some.to_pylist(), columns, only_bounds=only_bounds)

    stats = pa.array(texts, pa.string())
    return parse_similar(stats, columns, decoded, only_bounds=only_bounds, most_slots=1000), left


def by_decoder(texts: list[str], columns: list[Column], *, only_bounds: bool) -> Ranges:
    """Read so few texts at a time that each of them is decoded."""
    found = [
        ranges_from_json(pa.array(texts[start : start + 100], pa.string()), columns, only_bounds=only_bounds)
        for start in range(0, len(texts), 100)
    ]

    def joined(path: tuple[str, ...], part: str) -> pa.Array | None:
        arrays = [getattr(each.columns[path], part) for each in found]
        return None if arrays[0] is None else pa.concat_arrays(arrays)

    columns_found = {
        path: ColumnRange(joined(path, "min"), joined(path, "max"), joined(path, "null_count"))
        for path in found[0].columns
    }
    if only_bounds:
        return Ranges(len(texts), columns=columns_found)
    records, tight = ([getattr(each, name) for each in found] for name in ("num_records", "tight_bounds"))
    return Ranges(len(texts), pa.concat_arrays(records), pa.concat_arrays(tight), columns_found)


def assert_same(first: Ranges, second: Ranges, texts: list[str]) -> None:
    assert first.num_rows == second.num_rows
    assert list(first.columns) == list(second.columns)
    pairs = [(name, getattr(first, name), getattr(second, name)) for name in ("num_records", "tight_bounds")]
    for path, known in first.columns.items():
        pairs += [
            (f"{path} {part}", getattr(known, part), getattr(second.columns[path], part))
            for part in ("min", "max", "null_count")
        ]
    for name, one, other in pairs:
        if one is None or other is None:
            assert one is None, name
            assert other is None, name
            continue
        assert one.type == other.type, name
        if not bits(one).equals(bits(other)):
            row = next(row for row in range(len(one)) if not bits(one)[row].equals(bits(other)[row]))
            pytest.fail(f"{name}: {bits(one)[row]} instead of {bits(other)[row]} in {texts[row]}")


def bits(values: pa.Array) -> pa.Array:
    """Return what is compared: zero and minus zero differ, and NaN is like NaN."""
    if pa.types.is_floating(values.type):
        return values.view(pa.int64() if values.type == pa.float64() else pa.int32())
    return values


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.one_in(4)
def test_alike_or_not_each_text_says_what_the_decoder_reads(seed: int) -> None:
    rng = random.Random(seed)
    odd = [0.0, 0.0, 0.0005, 0.002][seed % 4]
    shapes = [set(), {"s", "m"}, {"f"}] if seed % 2 else [set()]
    texts = [document(rng, rng.choice(shapes), odd) for _ in range(900)]
    if seed >= 4:
        texts = [damaged(rng, each) if rng.random() < 0.1 else each for each in texts]
    for only_bounds in (False, True):
        found, left = read(texts, COLUMNS, only_bounds=only_bounds)
        assert_same(found, by_decoder(texts, COLUMNS, only_bounds=only_bounds), texts)
        assert odd or seed >= 4 or left < len(texts)


@pytest.mark.parametrize(
    ("column", "part"),
    [
        ("i", "nullCount"),
        *((name, "minValues") for name in ("i", "tiny", "f", "single", "m", "huge", "s", "d", "t", "b")),
    ],
)
def test_one_odd_value_among_many_is_read_as_the_decoder_reads_it(column: str, part: str) -> None:
    rng = random.Random(1)
    for odd in [*ODD, *FLOATS, *(f'"{each}"' for each in [*TEXTS, *ODD_TEXTS])]:
        usual = "7" if part == "nullCount" else value(rng, column, 0)
        texts = [f'{{"numRecords":{each},"{part}":{{"{column}":{usual},"x":"y"}}}}' for each in range(260)]
        texts[rng.randrange(1, 260)] = f'{{"numRecords":5,"{part}":{{"{column}":{odd},"x":"y"}}}}'
        columns = [SCHEMA.column(column)]
        found, _ = read(texts, columns)
        assert_same(found, by_decoder(texts, columns, only_bounds=False), texts)


def test_texts_of_one_writer_take_no_decoder() -> None:
    rng = random.Random(3)
    columns = [column for column in COLUMNS if column.path not in {("f",), ("single",), ("m",), ("big",), ("huge",)}]
    usual = {"i": "5", "tiny": "3", "n.i": "12", "t": '"2026-02-10T10:00:00.123Z"', "d": '"2026-02-10"'}

    def text(row: int) -> str:
        bounds = ",".join(f'"{name}":{item}' for name, item in usual.items() if "." not in name)
        nulls = ",".join(f'"{name}":{rng.randint(0, 200)}' for name in worlds.TYPES)
        return f'{{"numRecords":{row},"minValues":{{{bounds}}},"maxValues":{{{bounds}}},"nullCount":{{{nulls}}}}}'

    found, left = read([text(row) for row in range(5_000)], columns)
    assert left == 0
    assert found.num_records is not None
    assert found.num_records.to_pylist() == list(range(5_000))


def test_a_few_that_differ_are_all_that_the_decoder_gets() -> None:
    texts = [f'{{"numRecords":{row},"nullCount":{{"i":0}}}}' for row in range(1_000)]
    for row in (3, 500, 999):
        texts[row] = f'{{"numRecords":{row},"nullCount":{{"i":null}}}}'
    found, left = read(texts, [SCHEMA.column("i")])
    assert left == 3
    known = found.column(SCHEMA.column("i"))
    assert known is not None
    assert known.null_count is not None
    assert [row for row, each in enumerate(known.null_count.to_pylist()) if each is None] == [3, 500, 999]


@pytest.mark.parametrize("odd", ['{"numRecords": 1}', '{"numRecords":1,"x":"\\n"}', "nonsense", ""])
def test_a_first_text_without_a_shape_does_not_leave_the_others_to_the_decoder(odd: str) -> None:
    texts = [f'{{"numRecords":{row},"nullCount":{{"i":0}}}}' for row in range(9_000)]
    texts[0] = odd
    found, left = read(texts, [SCHEMA.column("i")])
    assert left == 1
    assert_same(found, by_decoder(texts, [SCHEMA.column("i")], only_bounds=False), texts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"a" :1}',
        '{"a":1,}',
        '{"a":1,"a":2}',
        '{"a":1}}',
        '{"a":01}',
        '{"a":1e5}',
        '{"a":"b,","c":1}',
        '{"a":"\\n"}',
        '{"a":"\n"}',
        '{"a":[1]}',
        "{1:2}",
        '{"a":,"b":1}',
        '{"a"}',
        '{"a":1{}',
    ],
)
def test_what_needs_a_decoder_has_no_shape(text: str) -> None:
    assert shape_of(text.encode()) is None


def test_a_shape_is_the_text_without_its_values() -> None:
    text = '{"a":1,"b":{"c":"x, y","d":null,"e":{}},"f":-2.5}'
    shape = shape_of(text.encode())
    assert shape is not None
    assert [(slot.path, slot.is_text) for slot in shape.slots] == [(("a",), False), (("b", "c"), True), (("f",), False)]
    values = [b"1", b"x, y", b"-2.5", b""]
    assert b"".join(literal + each for literal, each in zip(shape.literals, values, strict=True)).decode() == text
    assert shape.constants == {("b", "d"): None}
    assert json.loads(text)

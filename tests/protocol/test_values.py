"""Text and values: one reading for one value and for arrays, one writing that it reads back."""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from decimal import Decimal as PyDecimal

import pyarrow as pa
import pytest

from lazydelta.errors import CorruptLogError
from lazydelta.protocol.schema import Column, DataType, Decimal, Primitive
from lazydelta.protocol.time import parse_timestamp, timestamp_text
from lazydelta.protocol.values import from_text, partition_texts, partition_value, stored_value
from lazydelta.runtime.arrays import Stored, typed_array
from lazydelta.sidecar.format.rows import text_of
from lazydelta.stats import ranges_from_json

NAMES = ("long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date")
KINDS: list[DataType] = [
    *map(Primitive, (*NAMES, "timestamp", "timestamp_ntz", "string")),
    Decimal(10, 2),
    Decimal(38, 0),
    Decimal(20, 18),
]
NUMBERS = (
    "0 -0 +0 1 -1 +7 007 127 128 -128 -129 32767 32768 2147483647 2147483648 9223372036854775807 9223372036854775808 "
    "-9223372036854775808 99999999.99 100000000 1.5 -1.25 1. .5 -.5 +.5 1.005 1.50 0E-18 1E2 1e+2 1e-2 12e-1 0e999 "
    "1e999 -1e999 1E40 1e40 3.4028235e38 3.4028236e38 1e-45 1e-50 5e-324 1e-400 1.7976931348623157E308 0.1 "
    "16777217 0x1F 0x1p3 1_000 1e 1e2.5 . + - -- nan NaN NAN inf -inf +inf Infinity -Infinity +Infinity infinity "
    "1d 1f 00000000000000000000000000000000000000000000001 12345678901234567890123456789012345678"
)
TEXTS = [
    *NUMBERS.split(),
    *["true", "false", "TRUE", "False", "tRuE", "yes", "t", "1", "0"],
    *(
        "",
        " ",
        " 1",
        "1 ",
        "\t1",
        "true ",
        "é",
        "a b",
        "\u0663",
        "\ufffd",
        "x\ufffdy",
        "null",
        "3" * 39,
        "3" * 50,
        "0." + "3" * 40,
        "1." + "0" * 50,
        "-" + "9" * 38,
        "0" * 30 + "1" * 20,
    ),
]
YEARS = ("-290308", "-9999", "-0001", "0000", "0001", "1582", "1600", "1900", "1970", "2000", "2023", "2024", "9999")
MORE_YEARS = ("10000", "+10000", "+2024", "+294247", "5881580", "5881581", "9999999", "24", "-24", "99999999")
DAYS = ("01-01", "02-28", "02-29", "02-30", "12-31", "1-1", "13-01", "00-10", "10-00")
TIMES = (
    "",
    *(f"{between}{time}" for between in " T" for time in ("00:00:00", "23:59:59.999999", "12:30", "10", "24:00:00")),
    *(f"T12:00:{rest}" for rest in ("59.1", "59.123", "59.123456", "59.1234567", "59.123456000", "60", "5", "05.")),
    "  12:00",
    "T",
)
ZONES = ("", "Z", " Z", "UTC", " UTC", "GMT", "+00:00", "-00:00", "+05:30", "-0800", "+05", "+24:00", "CET", "z")


def _some_texts() -> list[str]:
    timestamps = [f"{year}-{day}" for year in (*YEARS, *MORE_YEARS) for day in DAYS]
    timestamps += [f"2024-02-29{time}{zone}" for time in TIMES for zone in ZONES]
    draw = random.Random(7)
    for _ in range(600):
        date = f"{draw.choice((*YEARS, *MORE_YEARS))}-{draw.choice(DAYS)}"
        timestamps.append(f"{date}{draw.choice(TIMES)}{draw.choice(ZONES)}")
    made = ["".join(draw.choices("0123456789+-.eE", k=draw.randrange(1, 9))) for _ in range(600)]
    return list(dict.fromkeys([*TEXTS, *timestamps, *made]))


ALL = _some_texts()


def _same(left: pa.Scalar, right: pa.Scalar) -> bool:
    if left.is_valid and right.is_valid and pa.types.is_floating(left.type):
        return struct.pack("<d", left.as_py()) == struct.pack("<d", right.as_py())
    return bool(left.equals(right))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_one_value_and_arrays_are_read_alike(kind: DataType) -> None:
    """By the cast of a whole array, and one by one where an odd value is among them."""
    arrow = kind.to_arrow()
    expected = typed_array([stored_value(text, kind) for text in ALL], arrow)
    among = from_text(pa.array(ALL), kind)
    assert among.type == arrow
    readable = 0
    for index, text in enumerate(ALL):
        alone = from_text(pa.array([text, None]), kind)
        assert alone.null_count == (1 if expected[index].is_valid else 2), text
        assert _same(alone[0], expected[index]), text
        assert _same(among[index], expected[index]), text
        readable += expected[index].is_valid
    assert readable > 1


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_arrays_do_not_know_is_an_error_for_rows(kind: DataType) -> None:
    """But for what rows take as it is left: timestamps finer than a microsecond, and bytes that became replacements."""
    known = from_text(pa.array(ALL), kind)
    for index, text in enumerate(ALL):
        if not text:
            continue
        if known[index].is_valid:
            assert _same(partition_value(text, kind, column="p", path="f"), known[index]), text
        elif stored_value(text, kind, approximate=True) is None:
            with pytest.raises(CorruptLogError, match="column 'p' of file f"):
                partition_value(text, kind, column="p", path="f")
        else:
            assert "\ufffd" in text or ".1234567" in text


def test_rows_round_down_what_a_bound_does_not_know() -> None:
    kind = Primitive("timestamp")
    text = "1969-12-31T23:59:59.9999999Z"
    assert stored_value(text, kind) is None
    assert stored_value(text, kind, approximate=True) == -1


def _values(kind: DataType) -> list[Stored]:
    draw = random.Random(str(kind))
    if isinstance(kind, Decimal):
        most = 10**kind.precision - 1
        return [0, 1, -1, most, -most, *(draw.randint(-most, most) for _ in range(200))]
    assert isinstance(kind, Primitive)
    arrow = kind.to_arrow()
    if kind.name in {"float", "double"}:
        bits = [struct.pack("<q", draw.getrandbits(63)) for _ in range(200)]
        form, width = ("<f", 4) if kind.name == "float" else ("<d", 8)
        drawn = [struct.unpack(form, each[:width])[0] for each in bits]
        return [0.0, -0.0, 0.5, 1 / 3, math.inf, -math.inf, *(value for value in drawn if not math.isnan(value))]
    if kind.name == "boolean":
        return [True, False]
    if kind.name in {"string", "binary"}:
        return ["a", "é", "a b", "\0", "=%", "null"]
    limit = 2 ** (arrow.bit_width - 1)
    plain = [draw.randrange(-719_162, 2_932_897) for _ in range(100)]
    near = plain if kind.name == "date" else [each * 86_400_000_000 + draw.randrange(86_400_000_000) for each in plain]
    close = [each for each in near if -limit <= each < limit]
    return [0, 1, -1, limit - 1, -limit, *(draw.randrange(-limit, limit) for _ in range(200)), *close]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_written_is_read_back(kind: DataType) -> None:
    """As a partition value always; in a manifest where its readers know the value, and never as another one."""
    stored = _values(kind)
    values = typed_array(stored, kind.to_arrow())
    texts = partition_texts(values, "p")
    for value, text in zip(values, texts, strict=True):
        back = partition_value(text, kind, column="p", path="f")
        assert back.equals(value) or (value.as_py() == 0 and back.as_py() == 0), text  # zero has one partition
        ours = text_of(value)
        if ours is not None:
            assert _same(from_text(pa.array([ours]), kind)[0], value), ours
        else:
            assert pa.types.is_binary(value.type) or pa.types.is_temporal(value.type)


def test_nan_is_a_partition_and_no_end_of_a_range() -> None:
    value = pa.scalar(math.nan, pa.float64())
    assert partition_texts(pa.array([math.nan]), "p") == ["NaN"]
    assert text_of(value) is None


@pytest.mark.parametrize("unit", ["D", "ms", "us"])
def test_the_calendar_is_pythons_where_python_has_one(unit: str) -> None:
    draw = random.Random(unit)
    per_day = {"D": 1, "ms": 86_400_000, "us": 86_400_000_000}[unit]
    epoch = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock
    for days in [-719_162, -1, 0, 2_932_896, *(draw.randrange(-719_162, 2_932_897) for _ in range(300))]:
        text = timestamp_text(days * per_day, unit)
        timestamp = parse_timestamp(text)
        assert timestamp is not None
        assert text.startswith((epoch + dt.timedelta(days=days)).date().isoformat())
        assert (timestamp.days, timestamp.wall_clock) == (days, days * 86_400 * 10**9)


def test_a_leap_day_is_one_in_every_century_that_has_it() -> None:
    for year, leap in (("-0004", True), ("-0100", False), ("0000", True), ("1900", False), ("+12000", True)):
        assert (parse_timestamp(f"{year}-02-29") is not None) is leap


def test_decimals_are_written_without_exponents() -> None:
    tiny = pa.array([PyDecimal("1E-18")], pa.decimal128(20, 18))
    assert partition_texts(tiny, "p") == [text_of(tiny[0])] == ["0.000000000000000001"]


@pytest.mark.parametrize("number", ["3.4028235e38", "3" * 39, "-" + "3" * 39])
def test_a_decimal_bound_beyond_its_type_is_no_other_number(number: str) -> None:
    """Arrow's cast does not notice digits beyond 128 bits, and a bound of any number at all would lose files."""
    column = Column(("d",), ("d",), Decimal(38, 0))
    stats = pa.array([f'{{"minValues":{{"d":{number}}},"maxValues":{{"d":{number}}}}}'])
    known = ranges_from_json(stats, [column]).column(column)
    assert known is not None
    assert known.min is not None
    assert known.max is not None
    assert known.min.to_pylist() == known.max.to_pylist() == [None]

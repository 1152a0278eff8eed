from __future__ import annotations

import datetime as dt
import decimal
import math

import pyarrow as pa
import pytest

from lazydelta.errors import CorruptLogError
from lazydelta.protocol.schema import Array, DataType, Decimal, Primitive
from lazydelta.protocol.values import partition_value

UTC = dt.UTC
ALL = [
    *map(Primitive, ("string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date")),
    Primitive("timestamp"),
    Primitive("timestamp_ntz"),
    Decimal(10, 2),
]


def value(text: str | None, data_type: DataType) -> object:
    scalar = partition_value(text, data_type, column="p", path="f.parquet")
    assert scalar.type == data_type.to_arrow()
    scalar.validate(full=True)
    return scalar.as_py()


@pytest.mark.parametrize("data_type", ALL, ids=str)
@pytest.mark.parametrize("text", [None, ""])
def test_absent_and_empty_text_are_null_for_every_type(text: str | None, data_type: DataType) -> None:
    assert value(text, data_type) is None


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("string", "a b/ü=\U0001f600", "a b/ü=\U0001f600"),
        ("string", "null", "null"),
        ("long", "-9223372036854775808", -(2**63)),
        ("integer", "2147483647", 2**31 - 1),
        ("short", "-32768", -(2**15)),
        ("byte", "+7", 7),
        ("float", "0.5", 0.5),
        ("float", "-Infinity", -math.inf),
        ("double", "1.7976931348623157E308", 1.7976931348623157e308),
        ("double", "3", 3.0),
        ("boolean", "true", True),
        ("boolean", "False", False),
        ("binary", "\u0001\u0002é", b"\x01\x02\xc3\xa9"),
        ("date", "1970-01-01", dt.date(1970, 1, 1)),
        ("date", "2024-02-29", dt.date(2024, 2, 29)),
        ("date", "1969-12-31", dt.date(1969, 12, 31)),
        ("date", "0001-01-01", dt.date(1, 1, 1)),
        ("date", "9999-12-31", dt.date(9999, 12, 31)),
        ("timestamp", "2021-09-08 11:11:11", dt.datetime(2021, 9, 8, 11, 11, 11, tzinfo=UTC)),
        ("timestamp", "2020-01-01 08:09:10.001", dt.datetime(2020, 1, 1, 8, 9, 10, 1000, tzinfo=UTC)),
        ("timestamp", "1969-12-31T23:59:59.999999Z", dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ("timestamp", "2021-09-08T11:11:11+02:30", dt.datetime(2021, 9, 8, 8, 41, 11, tzinfo=UTC)),
        ("timestamp", "2021-09-08T11:11:11-0100", dt.datetime(2021, 9, 8, 12, 11, 11, tzinfo=UTC)),
        ("timestamp_ntz", "2013-07-05 17:01:00.123456", dt.datetime(2013, 7, 5, 17, 1, 0, 123456)),  # noqa: DTZ001
        ("timestamp_ntz", "2013-07-05", dt.datetime(2013, 7, 5)),  # noqa: DTZ001 - a widened date
    ],
)
def test_text_takes_the_type_of_its_column(name: str, text: str, expected: object) -> None:
    assert value(text, Primitive(name)) == expected


def test_nan_is_a_double() -> None:
    assert math.isnan(value("NaN", Primitive("double")))  # type: ignore[arg-type]


def test_a_date_beyond_the_year_9999_is_read() -> None:
    scalar = partition_value("+10000-01-01", Primitive("date"), column="p", path="f")
    assert scalar.cast(pa.int32()).as_py() == (dt.date(9999, 12, 31) - dt.date(1970, 1, 1)).days + 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12.5", "12.50"), ("-0.01", "-0.01"), ("0E-18", "0.00"), ("99999999.99", "99999999.99"), ("1E2", "100.00")],
)
def test_a_decimal_takes_the_scale_of_its_column(text: str, expected: str) -> None:
    assert value(text, Decimal(10, 2)) == decimal.Decimal(expected)


@pytest.mark.parametrize(
    ("data_type", "text"),
    [
        (Primitive("byte"), "128"),
        (Primitive("long"), "9223372036854775808"),
        (Primitive("long"), "1.0"),
        (Primitive("integer"), " 1"),
        (Primitive("integer"), "1_000"),
        (Primitive("integer"), "\u0663"),
        (Primitive("float"), "1e40"),
        (Primitive("double"), "0x1p3"),
        (Primitive("boolean"), "1"),
        (Primitive("date"), "2023-02-29"),
        (Primitive("date"), "2023-13-01"),
        (Primitive("date"), "2023-01-01 00:00:00"),
        (Primitive("timestamp"), "yesterday"),
        (Primitive("timestamp"), "2023-01-01 24:00:00"),
        (Primitive("timestamp"), "2023-01-01 00:00:00 CET"),
        (Primitive("timestamp_ntz"), "2023-01-01T00:00:00+01:00"),
        (Decimal(10, 2), "1.234"),
        (Decimal(10, 2), "100000000.00"),
        (Decimal(10, 2), "1E999"),
        (Decimal(10, 2), "NaN"),
        (Primitive("void"), "1"),
        (Primitive("string"), "\ud800"),
        (Array(Primitive("string"), contains_null=True), "[]"),
    ],
    ids=lambda each: ascii(str(each)),
)
def test_text_of_another_type_is_an_error_that_names_column_value_and_file(data_type: DataType, text: str) -> None:
    with pytest.raises(CorruptLogError) as caught:
        value(text, data_type)
    assert repr(text) in str(caught.value)
    assert "'p'" in str(caught.value)
    assert caught.value.path == "f.parquet"

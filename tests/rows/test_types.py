from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from lazydelta.errors import DataFileError
from tests.rows.files import column, rows, schema_of, write

if TYPE_CHECKING:
    from pathlib import Path

    from lazydelta.storage import Store

UTC = dt.UTC
D = decimal.Decimal


@pytest.mark.parametrize(
    ("stored", "values", "wanted", "expected"),
    [
        (pa.int8(), [1, -128], "short", [1, -128]),
        (pa.int8(), [1], "long", [1]),
        (pa.int16(), [1], "integer", [1]),
        (pa.int32(), [2**31 - 1], "long", [2**31 - 1]),
        (pa.int32(), [2**31 - 1], "double", [float(2**31 - 1)]),
        (pa.float32(), [0.1], "double", [0.10000000149011612]),
        (pa.int32(), [-(2**31)], "decimal(12,2)", [D("-2147483648.00")]),
        (pa.int8(), [7], "decimal(10,0)", [D(7)]),
        (pa.int64(), [2**63 - 1], "decimal(20,0)", [D(2**63 - 1)]),
        (pa.int8(), [-128, 127], "decimal(4,1)", [D("-128.0"), D("127.0")]),
        (pa.int16(), [-(2**15), None], "decimal(6,1)", [D("-32768.0"), None]),
        (pa.int32(), [2**31 - 1], "decimal(11,1)", [D("2147483647.0")]),
        (pa.int64(), [-(2**63), 2**63 - 1], "decimal(20,1)", [D("-9223372036854775808.0"), D("9223372036854775807.0")]),
        (pa.int64(), [2**63 - 1], "decimal(38,19)", [D("9223372036854775807") + D("0E-19")]),
        (pa.decimal128(5, 2), [D("1.25")], "decimal(10,4)", [D("1.2500")]),
        (pa.decimal128(5, 2), [D("-9.99")], "decimal(38,2)", [D("-9.99")]),
        (pa.date32(), [dt.date(2024, 2, 29)], "timestamp_ntz", [dt.datetime(2024, 2, 29)]),  # noqa: DTZ001
        (pa.null(), [None], "string", [None]),
        (pa.uint8(), [255], "short", [255]),
        (pa.uint16(), [2**16 - 1], "integer", [2**16 - 1]),
        (pa.uint32(), [2**32 - 1], "long", [2**32 - 1]),
        (pa.int32(), [127, -128], "byte", [127, -128]),
        (pa.int32(), [2**15 - 1], "short", [2**15 - 1]),
        (pa.large_string(), ["x"], "string", ["x"]),
        (pa.string_view(), ["x"], "string", ["x"]),
        (pa.binary(), [b"\xc3\xa9"], "string", ["é"]),
        (pa.string(), ["é"], "binary", [b"\xc3\xa9"]),
        (pa.binary(2), [b"ab"], "binary", [b"ab"]),
        (pa.dictionary(pa.int8(), pa.string()), ["x", "y", "x", None], "string", ["x", "y", "x", None]),
        (pa.dictionary(pa.int8(), pa.int32()), [1, 2], "long", [1, 2]),
        (pa.date64(), [dt.date(2024, 2, 29)], "date", [dt.date(2024, 2, 29)]),
        (pa.timestamp("ms", tz="UTC"), [1], "timestamp", [dt.datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC)]),
        (pa.timestamp("us", tz="Asia/Tokyo"), [0], "timestamp", [dt.datetime(1970, 1, 1, tzinfo=UTC)]),
        (pa.timestamp("us"), [0], "timestamp", [dt.datetime(1970, 1, 1, tzinfo=UTC)]),
        (pa.timestamp("ms"), [-1], "timestamp_ntz", [dt.datetime(1969, 12, 31, 23, 59, 59, 999000)]),  # noqa: DTZ001
        (pa.int64(), [1, 2], "void", [None, None]),
    ],
    ids=str,
)
def test_values_of_a_narrower_or_other_layout_take_the_tables_type(
    store: Store, tmp_path: Path, stored: pa.DataType, values: list[object], wanted: str, expected: list[object]
) -> None:
    file = write(tmp_path, pa.table({"a": pa.array(values, stored)}))
    assert [each["a"] for each in rows(store, schema_of(column("a", wanted)), file)] == expected


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (pa.int64(), "integer"),
        (pa.int64(), "double"),
        (pa.int16(), "byte"),
        (pa.uint64(), "long"),
        (pa.float64(), "float"),
        (pa.float64(), "long"),
        (pa.int32(), "string"),
        (pa.string(), "integer"),
        (pa.bool_(), "integer"),
        (pa.int16(), "decimal(4,0)"),
        (pa.int32(), "decimal(11,9)"),
        (pa.int64(), "decimal(18,0)"),
        (pa.int64(), "decimal(38,20)"),
        (pa.decimal128(10, 2), "decimal(10,4)"),
        (pa.decimal128(10, 2), "decimal(9,2)"),
        (pa.decimal128(10, 2), "double"),
        (pa.date32(), "timestamp"),
        (pa.timestamp("us", tz="UTC"), "timestamp_ntz"),
        (pa.timestamp("us"), "date"),
        (pa.int64(), "timestamp"),
        (pa.time64("us"), "long"),
    ],
    ids=str,
)
def test_a_type_that_is_no_widening_is_an_error_that_names_both_types(
    store: Store, tmp_path: Path, stored: pa.DataType, wanted: str
) -> None:
    file = write(tmp_path, pa.table({"a": pa.nulls(3, stored)}))
    with pytest.raises(DataFileError) as caught:
        rows(store, schema_of(column("a", wanted)), file)
    for part in ("'a'", "part-0.parquet", str(stored), wanted):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("stored", "value", "wanted"),
    [(pa.int32(), 128, "byte"), (pa.int32(), 1000, "decimal(4,1)"), (pa.binary(), b"\xff", "string")],
    ids=["too large for a byte", "too large for a byte's decimal", "not UTF-8"],
)
def test_a_value_that_does_not_fit_is_an_error_and_never_changed(
    store: Store, tmp_path: Path, stored: pa.DataType, value: object, wanted: str
) -> None:
    file = write(tmp_path, pa.table({"a": pa.array([value], stored)}), store_schema=False)
    with pytest.raises(DataFileError, match=r"part-0\.parquet has values that do not fit"):
        rows(store, schema_of(column("a", wanted)), file)


@pytest.mark.parametrize("keep_arrow_schema", [True, False])
def test_int96_timestamps_are_utc_microseconds_for_any_year(
    store: Store,
    tmp_path: Path,
    keep_arrow_schema: bool,  # noqa: FBT001
) -> None:
    """Nanoseconds would end in the year 2262."""
    timestamps = [dt.datetime(1677, 1, 1, tzinfo=UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]
    timestamps.append(dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC))
    table = pa.table({"a": pa.array(timestamps, pa.timestamp("us", tz="UTC"))})
    file = write(tmp_path, table, use_deprecated_int96_timestamps=True, store_schema=keep_arrow_schema)
    assert [each["a"] for each in rows(store, schema_of(column("a", "timestamp")), file)] == timestamps


def test_nanoseconds_are_rounded_down_on_both_sides_of_1970(store: Store, tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([-1, -1000, 1999], pa.timestamp("ns", tz="UTC"))})
    file = write(tmp_path, table)
    epoch = dt.datetime(1970, 1, 1, tzinfo=UTC)
    expected = [epoch + dt.timedelta(microseconds=each) for each in (-1, -1, 1)]
    assert [each["a"] for each in rows(store, schema_of(column("a", "timestamp")), file)] == expected

"""Where ranges come from: JSON statistics, typed statistics, partition values."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lazydelta.errors import PredicateError
from lazydelta.predicates import may_match, parse_predicate
from lazydelta.protocol.schema import TableSchema
from lazydelta.stats import (
    ColumnRange,
    Ranges,
    combine,
    partition_ranges,
    partition_ranges_from_parsed,
    ranges_from_json,
    ranges_from_parsed,
)
from tests.predicates import worlds

SCHEMA = worlds.schema()
MAP = pa.map_(pa.string(), pa.string())


def bounds(known: Ranges, column: str) -> tuple[Any, Any, Any]:
    found = known.column(SCHEMA.column(column))
    assert found is not None
    lists = [None if each is None else each.to_pylist() for each in (found.min, found.max, found.null_count)]
    return lists[0], lists[1], lists[2]


@pytest.mark.parametrize(
    ("column", "logged", "read"),
    [
        ("i", "5", 5),
        ("i", "1.5", None),
        ("i", "1.0", None),
        ("i", "true", None),
        ("i", str(2**63), None),
        ("i", str(2**63 - 1), 2**63 - 1),
        ("i", "9" * 5000, None),
        ("tiny", "200", None),
        ("s", '"é\\n"', "é\n"),
        ("s", "5", None),
        ("d", '"2026-02-08"', dt.date(2026, 2, 8)),
        ("d", '"2026-02-31"', None),
        ("t", '"2026-02-08T12:00:00.000Z"', dt.datetime(2026, 2, 8, 12, tzinfo=dt.UTC)),
        ("t", '"2026-02-08T12:00:00.000-08:00"', dt.datetime(2026, 2, 8, 20, tzinfo=dt.UTC)),
        ("t", '"2026-02-08 12:00:00"', dt.datetime(2026, 2, 8, 12, tzinfo=dt.UTC)),
        ("t", '"soon"', None),
        ("ntz", '"2026-02-08T12:00:00.000"', dt.datetime(2026, 2, 8, 12)),  # noqa: DTZ001
        ("f", "5", 5.0),
        ("f", '"Infinity"', math.inf),
        ("f", '"NaN"', None),
        ("f", "1e999", None),
        ("single", "1e39", None),
        ("single", "0.5", 0.5),
        ("m", "1.5", Decimal("1.50")),
        ("m", "1e99999999999", None),
        ("m", "99999999.99", None),
        ("b", "false", False),
        ("b", "0", None),
    ],
)
def test_a_value_of_the_wrong_kind_is_missing_and_costs_no_other(column: str, logged: str, read: object) -> None:
    good = f'{{"numRecords": 3, "nullCount": {{"{column}": 1}}}}'
    text = f'{{"numRecords": 2, "minValues": {{"{column}": {logged}}}, "nullCount": {{"{column}": 0}}}}'
    known = ranges_from_json(pa.array([good, text, None]), [SCHEMA.column(column)])
    assert known.num_records is not None
    assert known.num_records.to_pylist() == [3, 2, None]
    low, high, nulls = bounds(known, column)
    assert low == [None, read, None]
    assert high == [None, None, None]
    assert nulls == [1, 0, None]


def test_half_a_character_makes_its_document_unreadable_and_no_other() -> None:
    texts = ['{"numRecords": 1, "minValues": {"s": "a"}}', '{"numRecords": 2, "minValues": {"s": "\\ud83d"}}']
    known = ranges_from_json(pa.array(texts), [SCHEMA.column("s")])
    assert known.num_records is not None
    assert known.num_records.to_pylist() == [1, None]
    assert bounds(known, "s")[0] == ["a", None]


def test_digits_beyond_the_scale_round_outwards() -> None:
    text = '{"minValues": {"m": 1.005}, "maxValues": {"m": 1.005}}'
    low, high, _ = bounds(ranges_from_json(pa.array([text]), [SCHEMA.column("m")]), "m")
    assert (str(low[0]), str(high[0])) == ("1.00", "1.01")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_chunks_slices_and_wide_offsets_read_alike(kind: pa.DataType) -> None:
    texts = [json.dumps({"numRecords": each, "minValues": {"i": each}}) for each in range(10)]
    array = pa.array(texts, kind)
    chunked = pa.chunked_array([array[2:4], array[4:4], array[4:9]])
    for stats in (array[2:9], chunked):
        known = ranges_from_json(stats, [SCHEMA.column("i")])
        assert bounds(known, "i")[0] == list(range(2, 9))
    assert ranges_from_json(array[:0], [SCHEMA.column("i")]).num_rows == 0


def test_odd_column_names_are_found() -> None:
    names = ['quo"te', "back\\slash", "new\nline", "dot.ted", "über", ""]
    fields = [worlds._field(name, "long") for name in names]
    schema = TableSchema.parse(json.dumps({"type": "struct", "fields": fields}))
    text = json.dumps({"minValues": {name: index for index, name in enumerate(names)}})
    columns = list(schema.leaves())
    known = ranges_from_json(pa.array([text]), columns)
    lows = [known.columns[column.physical_path].min for column in columns]
    assert [None if low is None else low.to_pylist() for low in lows] == [[each] for each in range(6)]


def test_documents_that_run_into_one_another_are_not_taken_for_rows() -> None:
    texts = [
        '{"minValues": {"i": 1}} {"minValues": {"i": 2}}',
        "",
        '{"minValues": {"i": 3}}',
        '{"minValues":',
        '{"i": 4}}',
    ]
    low, _, _ = bounds(ranges_from_json(pa.array(texts), [SCHEMA.column("i")]), "i")
    assert low == [None, None, 3, None, None]


def test_typed_statistics_read_like_json() -> None:
    rows = [
        {
            "numRecords": 3,
            "minValues": {"i": 1, "n": {"i": 4}},
            "maxValues": {"i": 2, "n": None},
            "nullCount": {"i": 0},
        },
        None,
    ]
    kind = pa.struct(
        [
            ("numRecords", pa.int64()),
            ("minValues", pa.struct([("i", pa.int32()), ("n", pa.struct([("i", pa.int64())]))])),
            ("maxValues", pa.struct([("i", pa.int64()), ("n", pa.struct([("i", pa.int64())]))])),
            ("nullCount", pa.struct([("i", pa.int64())])),
        ]
    )
    known = ranges_from_parsed(pa.array(rows, kind), [SCHEMA.column("i"), SCHEMA.column("n.i"), SCHEMA.column("s")])
    assert known.num_records is not None
    assert known.num_records.to_pylist() == [3, None]
    assert bounds(known, "i") == ([1, None], [2, None], [0, None])
    assert bounds(known, "n.i") == ([4, None], [None, None], None)
    assert known.column(SCHEMA.column("s")) is None


@pytest.mark.parametrize("timestamp", [-1_500, -1, 0, 1, 1_999])
def test_nanoseconds_in_typed_statistics_round_outwards(timestamp: int) -> None:
    kind = pa.struct([(name, pa.struct([("t", pa.timestamp("ns", "UTC"))])) for name in ("minValues", "maxValues")])
    scalar = pa.scalar(timestamp, pa.timestamp("ns", "UTC"))
    known = ranges_from_parsed(
        pa.array([{"minValues": {"t": scalar}, "maxValues": {"t": scalar}}], kind), [SCHEMA.column("t")]
    )
    found = known.column(SCHEMA.column("t"))
    assert found is not None
    assert found.min is not None
    assert found.max is not None
    low, high = found.min.cast(pa.int64()).to_pylist()[0], found.max.cast(pa.int64()).to_pylist()[0]
    assert low * 1000 <= timestamp <= high * 1000


@pytest.mark.parametrize(
    ("column", "text", "read"),
    [
        ("p", "5", 5),
        ("p", "+5", 5),
        ("p", "0x1F", None),
        ("p", "5.0", None),
        ("p", "99999999999", None),
        ("q", "x y", "x y"),
        ("r", "2026-02-08", dt.date(2026, 2, 8)),
        ("r", "2026-2-8", dt.date(2026, 2, 8)),
        ("u", "2026-02-08 12:00:00", dt.datetime(2026, 2, 8, 12, tzinfo=dt.UTC)),
        ("u", "2026-02-08T12:00:00.123456Z", dt.datetime(2026, 2, 8, 12, 0, 0, 123456, tzinfo=dt.UTC)),
        ("u", "noon", None),
        ("v", "1.5", Decimal("1.500")),
        ("v", "1.0005", None),
    ],
)
def test_partition_texts_become_typed_values_or_unknown(column: str, text: str, read: object) -> None:
    maps = pa.array([[("other", "1"), (column, text)], [(column, "")], [(column, None)], [], None], MAP)
    known = partition_ranges(maps, [SCHEMA.column(column)])
    found = known.column(SCHEMA.column(column))
    assert found is not None
    assert found.min is not None
    assert found.all_null is not None
    assert found.min.to_pylist() == [read, None, None, None, None]
    assert found.all_null.to_pylist() == [False, True, True, False, False]


def test_partition_maps_read_alike_sliced_chunked_and_dictionary_encoded() -> None:
    plain = pa.array([[("p", str(each)), ("q", "x")] for each in range(6)], MAP)
    encoded = pa.MapArray.from_arrays(plain.offsets, plain.keys, plain.items.dictionary_encode())
    for maps in (plain[1:4], pa.chunked_array([plain[1:2], plain[2:4]]), encoded[1:4]):
        found = partition_ranges(maps, [SCHEMA.column("p")]).column(SCHEMA.column("p"))
        assert found is not None
        assert found.min is not None
        assert found.min.to_pylist() == [1, 2, 3]


def test_a_partition_key_given_twice_is_read_once() -> None:
    maps = pa.array([[("p", "1"), ("p", "2")], [("q", "x")]], MAP)
    found = partition_ranges(maps, [SCHEMA.column("p")]).column(SCHEMA.column("p"))
    assert found is not None
    assert found.min is not None
    assert found.min.to_pylist() == [2, None]


def test_typed_partition_values_know_null_from_absent() -> None:
    kind = pa.struct([("p", pa.int32()), ("q", pa.string())])
    parsed = pa.array([{"p": 1, "q": ""}, {"p": None, "q": "x"}, None], kind)
    known = partition_ranges_from_parsed(parsed, [SCHEMA.column("p"), SCHEMA.column("q"), SCHEMA.column("r")])
    for condition, kept in {
        "p = 1": [True, False, True],
        "p IS NULL": [False, True, True],
        "q IS NULL": [True, False, True],
        "r = '2026-02-08'": [True, True, True],
    }.items():
        predicate = parse_predicate(condition, SCHEMA)
        assert predicate is not None
        assert may_match(predicate, known).to_pylist() == kept, condition


def test_sources_fill_each_others_gaps() -> None:
    first = Ranges(2, pa.array([1, None]), columns={("i",): ColumnRange(pa.array([1, None]), None)})
    second = Ranges(2, pa.array([7, 8]), columns={("i",): ColumnRange(pa.array([9, 9]), pa.array([9, 9]))})
    known = combine([first, second])
    assert known.num_records is not None
    assert known.num_records.to_pylist() == [1, 8]
    assert bounds(known, "i") == ([1, 9], [9, 9], None)
    with pytest.raises(PredicateError, match="different files"):
        combine([first, Ranges(3)])

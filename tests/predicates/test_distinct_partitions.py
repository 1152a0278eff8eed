"""A predicate on partition values, decided once for each combination of them, says what it says row by row."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from lazydelta.predicates import DistinctPartitions, Predicate, may_match, parse_predicate, partition_columns
from lazydelta.predicates import evaluate as module
from lazydelta.stats import Ranges, partition_ranges
from tests.predicates import worlds

SCHEMA = worlds.schema()
MAP = pa.map_(pa.string(), pa.string())
TEXTS: dict[str, list[str | None]] = {
    "p": ["-1", "0", "1", "7", "", None, "1.5", "x"],
    "q": ["a", "ab", "é", "😀", "", None],
    "r": ["2026-02-07", "2026-02-08", "", None, "soon"],
    "u": ["2026-02-08 12:00:00", "2026-02-08T12:00:00.123456Z", None, "noon"],
    "v": ["1.500", "2", "0.0005", None],
}


def random_maps(rng: random.Random, count: int) -> pa.MapArray:
    """Partition values of some files: few distinct ones, of which a column or a whole map may be missing."""
    columns = rng.sample(list(TEXTS), rng.randint(1, 5))
    texts = {name: rng.sample(TEXTS[name], rng.randint(1, 3)) for name in columns}
    damage = rng.choice([0, 0, 0.02])
    rows: list[Any] = []
    for _ in range(count):
        row = [(name, rng.choice(texts[name])) for name in columns if rng.random() >= damage]
        rows.append(None if rng.random() < damage else row)
    return pa.array(rows, MAP)


def as_codes(maps: pa.MapArray) -> pa.MapArray:
    return pa.MapArray.from_arrays(maps.offsets, maps.keys.dictionary_encode(), maps.items.dictionary_encode())


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.one_in(5)
def test_distinct_values_decide_as_rows_do(seed: int) -> None:
    rng = random.Random(seed)
    node = worlds.predicate(rng, [*TEXTS, "i"])
    predicate = parse_predicate(worlds.to_json(node), SCHEMA)
    assert predicate is not None
    columns = partition_columns(predicate)
    distinct = DistinctPartitions(predicate, columns)
    for _ in range(12):
        maps = random_maps(rng, rng.choice([1, 40, 400]))
        start = rng.randint(0, len(maps) // 4)
        expected = may_match(predicate, partition_ranges(maps, columns)).to_pylist()
        assert distinct.may_match(maps).to_pylist() == expected
        assert distinct.may_match(maps.slice(start)).to_pylist() == expected[start:]
        if maps.null_count == 0:  # `from_arrays` knows no null maps
            assert distinct.may_match(as_codes(maps)).to_pylist() == expected
            assert distinct.may_match(as_codes(maps).slice(start)).to_pylist() == expected[start:]


def test_what_was_decided_is_not_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(predicate: Predicate, ranges: Ranges) -> pa.BooleanArray:
        asked.append(ranges.num_rows)
        return may_match(predicate, ranges)

    monkeypatch.setattr(module, "may_match", counted)
    predicate = parse_predicate("p = 3 OR q = 'x'", SCHEMA)
    assert predicate is not None
    distinct = DistinctPartitions(predicate, partition_columns(predicate))
    for start in (0, 0, 5):
        rows = [[("p", str(start + each % 10)), ("q", "y")] for each in range(1_000)]
        kept = distinct.may_match(pa.array(rows, MAP))
        assert kept.true_count == (100 if start == 0 else 0)
    assert asked == [10, 5]


def test_many_values_are_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_REMEMBERED", 20)
    predicate = parse_predicate("p >= 30", SCHEMA)
    assert predicate is not None
    distinct = DistinctPartitions(predicate, partition_columns(predicate))
    for start in range(0, 60, 6):
        rows = [[("p", str(start + each % 12))] for each in range(120)]
        expected = [start + each % 12 >= 30 for each in range(120)]
        assert distinct.may_match(pa.array(rows, MAP)).to_pylist() == expected
        assert len(distinct._decided) <= 20 + 12

"""JSON statistics read many at a time: the same as one by one, and bounds first the same as all at once."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest

from lazydelta.predicates import Predicate, bounded_columns, counts_matter, may_match, parse_predicate, stats_columns
from lazydelta.stats import ranges_from_json
from tests.predicates import worlds

SCHEMA = worlds.schema()
STATS = [*worlds.TYPES, "n.i"]
# Texts made of these often end inside a string, hold two objects or close what the text before has left open.
HEADS = ['{"x":"', '{"x":"', '{"x":', '{","x":1', '{"minValues":{"i":7}', '{"a":1', '{"', "{", ""]
MIDDLES = ['"', ',"x":"', "}", "{", '{"', "\\", "\n", " ", "é", ",", ":", '{"minValues":{"i":8}}', "{}"]
TAILS = ["}", "}", "}", '"}', "}}", ""]


def lows(texts: list[str | None], column: str = "i") -> list[Any]:
    found = ranges_from_json(pa.array(texts, pa.string()), [SCHEMA.column(column)]).column(SCHEMA.column(column))
    assert found is not None
    assert found.min is not None
    low: list[Any] = found.min.to_pylist()
    return low


def random_text(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return json.dumps({"minValues": {"i": rng.randint(0, 9)}}, separators=rng.choice([None, (",", ":")]))
    return rng.choice(HEADS) + "".join(rng.choices(MIDDLES, k=rng.randint(0, 3))) + rng.choice(TAILS)


def plain(text: str) -> int | None:
    """Read a text alone, with another parser."""
    try:
        document = json.loads(text)
    except ValueError:
        return None
    section = document.get("minValues") if isinstance(document, dict) else None
    return section.get("i") if isinstance(section, dict) else None


def predicates(rng: random.Random, count: int) -> list[Predicate]:
    nodes = [worlds.predicate(rng, rng.sample(STATS, 3)) for _ in range(count)]
    parsed = [parse_predicate(worlds.to_json(node), SCHEMA) for node in nodes]
    return [each for each in parsed if each is not None]


def logged(rng: random.Random, count: int) -> list[str | None]:
    """Statistics as logged, some of them turned upside down, emptied or damaged."""
    texts = [worlds.logged(rng, worlds.rows(rng, rng.randint(1, 5))) for _ in range(count)]
    for index, text in enumerate(texts):
        kind = rng.randint(0, 9)
        if text is None or kind > 3:
            continue
        document = json.loads(text, parse_float=str)
        if kind == 0:
            document["minValues"], document["maxValues"] = document.get("maxValues"), document.get("minValues")
        elif kind == 1:
            document["numRecords"] = rng.choice([0, "1", None])
        elif kind == 2:
            document["nullCount"] = rng.choice([None, {}, [], dict.fromkeys(STATS, document.get("numRecords"))])
        texts[index] = json.dumps(document)[: -1 if kind == 3 else None]
    return texts


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.one_in(2)
def test_texts_are_told_apart_whatever_is_in_them(seed: int) -> None:
    rng = random.Random(seed)
    read = 0
    for _ in range(3_000):
        texts = [random_text(rng) for _ in range(rng.randint(2, 4))]
        expected = [plain(text) for text in texts]
        read += sum(each is not None for each in expected)
        assert lows([*texts]) == expected, texts
    assert read > 1_000


@pytest.mark.parametrize(
    "texts",
    [
        ['{"minValues":{"i":1},"x":"}', '{"}', '{"minValues":{"i":2}}{"minValues":{"i":3}}'],
        ['{"minValues":{"i":1},"x":"}', '{"a":"}', '{"minValues":{"i":2}}{"minValues":{"i":3}}'],
        ['{"minValues":{"i":1},"x":"}', '{","y":1}', '{"minValues":{"i":2}}{"minValues":{"i":3}}'],
        ['{"minValues":{"i":1},"x":"}', '{ a","y":1}', '{"minValues":{"i":2}}{"minValues":{"i":3}}'],
        ['{"minValues":', '{"i":1}}', '{"minValues":{"i":2}}{"minValues":{"i":3}}'],
        ['{"minValues":{"i":1},"x":"\\}', '{"a":"}', '{"minValues":{"i":2}}{"minValues":{"i":3}}'],
    ],
)
def test_what_one_text_leaves_open_the_next_does_not_close(texts: list[str]) -> None:
    assert lows([*texts, '{"minValues":{"i":4}}']) == [None, None, None, 4]


@pytest.mark.parametrize("odd", ["", "{}", "nonsense", '{"minValues":{"i":1.5}}', '{"minValues":null}', None])
def test_an_odd_text_among_thousands_costs_no_other(odd: str | None) -> None:
    texts: list[str | None] = [json.dumps({"minValues": {"i": each}}, separators=(",", ":")) for each in range(3_000)]
    places = [0, 1_023, 1_024, 1_700, 2_999]
    for place in places:
        texts[place] = odd
    assert lows(texts) == [None if each in places else each for each in range(3_000)]


def test_only_bounds_are_the_same_bounds_and_no_counts() -> None:
    texts = logged(random.Random(1), 500)
    columns = [SCHEMA.column(name) for name in STATS]
    everything = ranges_from_json(pa.array(texts, pa.string()), columns)
    bounds = ranges_from_json(pa.array(texts, pa.string()), columns, only_bounds=True)
    assert (bounds.num_records, bounds.tight_bounds) == (None, None)
    for column in columns:
        known, less = everything.column(column), bounds.column(column)
        assert known is not None
        assert less is not None
        assert less.null_count is None
        assert (less.min, less.max) == (known.min, known.max)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.one_in(4)
def test_what_the_bounds_alone_rule_out_is_ruled_out_with_counts_as_well(seed: int) -> None:
    rng = random.Random(seed)
    stats = pa.array(logged(rng, 80), pa.string())
    by_bounds = 0
    for predicate in predicates(rng, 60):
        at_once = may_match(predicate, ranges_from_json(stats, stats_columns(predicate)))
        bounds = ranges_from_json(stats, bounded_columns(predicate), only_bounds=True)
        first = may_match(predicate, bounds)
        left = stats.filter(first)
        second = may_match(predicate, ranges_from_json(left, stats_columns(predicate)))
        assert stats.filter(at_once).to_pylist() == left.filter(second).to_pylist(), str(predicate)
        by_bounds += len(first) - first.true_count
    assert by_bounds > 300


@pytest.mark.parametrize("seed", range(10))
def test_where_all_bounds_are_known_counts_rule_out_nothing_more(seed: int) -> None:
    rng = random.Random(seed)
    stats = pa.array(logged(rng, 200), pa.string())
    decided = 0
    for predicate in predicates(rng, 60):
        if counts_matter(predicate):
            continue
        ranges = ranges_from_json(stats, bounded_columns(predicate), only_bounds=True)
        known = [ranges.column(column) for column in bounded_columns(predicate)]
        arrays = [(each.min, each.max) for each in known if each is not None]
        assert len(arrays) == len(known)
        rows = [
            all(any(bound is not None and bound[row].is_valid for bound in bounds) for bounds in arrays)
            for row in range(len(stats))
        ]
        texts = stats.filter(pa.array(rows))
        by_bounds = may_match(predicate, ranges_from_json(texts, bounded_columns(predicate), only_bounds=True))
        with_counts = may_match(predicate, ranges_from_json(texts, stats_columns(predicate)))
        assert by_bounds.to_pylist() == with_counts.to_pylist(), str(predicate)
        decided += len(texts)
    assert decided > 300


def test_nonsense_in_one_file_says_nothing_about_another() -> None:
    texts = ['{"minValues":{"i":9},"maxValues":{"i":1}}', '{"maxValues":{"i":1}}', '{"minValues":{"i":9}}']
    known = ranges_from_json(pa.array(texts), [SCHEMA.column("i")])
    kept = {}
    for condition in ("i > 5", "i < 5"):
        predicate = parse_predicate(condition, SCHEMA)
        assert predicate is not None
        kept[condition] = may_match(predicate, known).to_pylist()
    assert kept == {"i > 5": [True, False, True], "i < 5": [True, True, False]}

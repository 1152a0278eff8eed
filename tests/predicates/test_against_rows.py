"""Pruning held against the rows themselves, over random files, statistics and predicates."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from lazydelta.predicates import (
    NanOrder,
    all_match,
    may_match,
    parse_predicate,
    partition_columns,
    stats_columns,
    to_arrow_expression,
)
from lazydelta.predicates.tree import Predicate
from lazydelta.stats import Ranges, combine, partition_ranges, ranges_from_json
from tests.predicates import worlds

SCHEMA = worlds.schema()
COLUMNS = [*worlds.TYPES, *worlds.PARTITIONS, "n.i"]
MAP = pa.map_(pa.string(), pa.string())


def ranges(files: list[list[worlds.Row]], stats: list[str | None], predicate: Predicate) -> Ranges:
    values = [[(name, worlds.partition_text(file[0][name])) for name in worlds.PARTITIONS] for file in files]
    return combine(
        [
            partition_ranges(pa.array(values, MAP), partition_columns(predicate)),
            ranges_from_json(pa.array(stats, pa.string()), stats_columns(predicate)),
        ]
    )


def world(seed: int, count: int = 60) -> tuple[random.Random, list[list[worlds.Row]], list[str | None]]:
    rng = random.Random(seed)
    files = [worlds.rows(rng, rng.randint(1, 5)) for _ in range(count)]
    return rng, files, [worlds.logged(rng, file) for file in files]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.one_in(4)
def test_a_pruned_file_has_no_matching_row_and_a_proven_one_no_other(seed: int) -> None:
    rng, files, stats = world(seed)
    pruned = proven = 0
    for _ in range(60):
        node = worlds.predicate(rng, rng.sample(COLUMNS, 3))
        predicate = parse_predicate(worlds.to_json(node), SCHEMA)
        assert predicate is not None
        known = ranges(files, stats, predicate)
        may, every = may_match(predicate, known).to_pylist(), all_match(predicate, known).to_pylist()
        for file, text, some, proof in zip(files, stats, may, every, strict=True):
            truths = [worlds.judge(node, row) is True for row in file]
            assert some or not any(truths), (node, str(predicate), text, file)
            assert not proof or all(truths), (node, str(predicate), text, file)
        pruned += may.count(False)
        proven += every.count(True)
    assert pruned > 200
    assert proven > 20


@pytest.mark.parametrize("column", COLUMNS)
def test_single_conditions_prune_soundly_for_every_type(column: str) -> None:
    rng, files, stats = world(COLUMNS.index(column), 120)
    for _ in range(120):
        node = worlds.predicate(rng, [column], depth=1)
        predicate = parse_predicate(worlds.to_json(node), SCHEMA)
        assert predicate is not None
        known = ranges(files, stats, predicate)
        may, every = may_match(predicate, known).to_pylist(), all_match(predicate, known).to_pylist()
        for file, text, some, proof in zip(files, stats, may, every, strict=True):
            truths = [worlds.judge(node, row) is True for row in file]
            assert some or not any(truths), (node, str(predicate), text, file)
            assert not proof or all(truths), (node, str(predicate), text, file)


@pytest.mark.parametrize("seed", range(25))
def test_row_filters_keep_exactly_the_rows_that_pass(seed: int) -> None:
    rng = random.Random(seed)
    file = worlds.rows(rng, 40) + worlds.rows(rng, 40)
    table = worlds.to_table(file, SCHEMA).append_column("row", pa.array(range(len(file))))
    for _ in range(40):
        node = worlds.predicate(rng, rng.sample(COLUMNS, 3))
        predicate = parse_predicate(worlds.to_json(node), SCHEMA)
        assert predicate is not None
        kept = table.filter(to_arrow_expression(predicate, SCHEMA))["row"].to_pylist()
        assert kept == [index for index, row in enumerate(file) if worlds.judge(node, row) is True], (
            node,
            str(predicate),
        )


@pytest.mark.parametrize("seed", range(20))
def test_the_input_forms_of_one_predicate_give_one_tree(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(30):
        node = worlds.predicate(rng, COLUMNS)
        from_json = parse_predicate(worlds.to_json(node), SCHEMA)
        # The same but for NaN, which SQL has as the largest value unless it is told otherwise.
        from_sql = parse_predicate(worlds.to_sql(node), SCHEMA, nan=NanOrder.UNORDERED)
        assert from_sql == from_json, worlds.to_sql(node)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.one_in(4)
def test_pyarrow_expressions_prune_like_the_other_forms_or_less(seed: int) -> None:
    rng, files, stats = world(seed, 30)
    same = 0
    for _ in range(30):
        node = worlds.predicate(rng, rng.sample(COLUMNS, 2), depth=2)
        try:
            expression = worlds.to_expression(node)
        except (pa.ArrowException, OverflowError):
            continue  # 2**70 has no Arrow scalar.
        predicate, twin = parse_predicate(expression, SCHEMA), parse_predicate(worlds.to_json(node), SCHEMA)
        assert predicate is not None
        assert twin is not None
        known = ranges(files, stats, twin)
        mine, other = may_match(predicate, known).to_pylist(), may_match(twin, known).to_pylist()
        assert all(a or not b for a, b in zip(mine, other, strict=True)), (node, str(predicate))
        same += mine == other
    assert same > 15

"""The input forms: what is taken, what it means, and what is refused with which words."""

from __future__ import annotations

import datetime as dt
import json
import math
import subprocess
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lazydelta.errors import PredicateError, UnknownColumnError
from lazydelta.predicates import (
    NanOrder,
    parse_predicate,
    partition_columns,
    referenced_columns,
    stats_columns,
    to_arrow_expression,
)
from lazydelta.predicates.tree import And, Compare, Constant, Opaque, WithExpression
from tests.predicates import worlds

SCHEMA = worlds.schema()


def shown(where: Any) -> str:
    return str(parse_predicate(where, SCHEMA))


@pytest.mark.parametrize("where", [None, [], {}, ()])
def test_nothing_asked_is_no_predicate(where: Any) -> None:
    assert parse_predicate(where, SCHEMA) is None


def test_a_predicate_is_returned_as_it_is() -> None:
    predicate = parse_predicate("i = 1", SCHEMA)
    assert parse_predicate(predicate, SCHEMA) is predicate


@pytest.mark.parametrize(
    "where",
    [
        "i >= 1 AND i < 3 AND s = 'a'",
        [("i", ">=", 1), ("i", "<", 3), ("s", "=", "a")],
        [[("i", ">=", 1), ("i", "<", 3), ("s", "==", "a")]],
        {"i": {">=": 1, "<": 3}, "s": "a"},
        '{"i": {">=": 1, "<": 3}, "s": "a"}',
        '[["i", ">=", 1], ["i", "<", 3], ["s", "=", "a"]]',
        {"and": [{"i": {">=": 1}}, {"i": {"<": 3}}, {"s": {"=": "a"}}]},
        {"not": {"or": [{"i": {"<": 1}}, {"i": {">=": 3}}, {"s": {"!=": "a"}}]}},
        (pc.field("i") >= 1) & (pc.field("i") < 3) & (pc.field("s") == "a"),
        "NOT (i < 1 OR 3 <= i OR s <> 'a')",
        "1 <= `i` and \"i\" < 3 and 'a' = S",
    ],
)
def test_all_forms_say_the_same(where: Any) -> None:
    assert shown(where) == "(i >= 1 AND i < 3 AND s = 'a')"


def test_a_list_of_lists_is_an_or_of_ands() -> None:
    assert shown([[("i", "=", 1)], [("i", "=", 2), ("s", "in", ["b", "a"])]]) == (
        "(i = 1 OR (i = 2 AND s IN ('a', 'b')))"
    )


@pytest.mark.parametrize(
    ("where", "meaning"),
    [
        ("i < 1.5", "i <= 1"),
        ("i <= 1.5", "i <= 1"),
        ("i > 1.5", "i >= 2"),
        ("i = 1.5", "FALSE"),
        ("i != 1.5", "i IS NOT NULL"),
        ("NOT (i = 1.5)", "i IS NOT NULL"),
        ("i IN (1, 1.5, NULL)", "i = 1"),
        ("i NOT IN (1, NULL)", "NULL"),
        ("i NOT IN (1, 2)", "i NOT IN (1, 2)"),
        ("i NOT IN (2.5)", "i IS NOT NULL"),
        (f"i < {2**70}", f"i <= {2**63 - 1}"),
        (f"i > {2**70}", "FALSE"),
        ("i > 1e999999999", "FALSE"),
        ("i > -1e-999999999", "i >= 0"),
        ("huge = -1234567890123456789012345678901234.5678", "huge = -1234567890123456789012345678901234.5678"),
        ("tiny = 300", "FALSE"),
        ("tiny <= 300", "tiny <= 127"),
        ("i = NULL", "NULL"),
        ("NOT (i = NULL)", "NULL"),
        ("i BETWEEN 1 AND 3", "(i >= 1 AND i <= 3)"),
        ("i NOT BETWEEN 1 AND 3", "(i < 1 OR i > 3)"),
        ("i > -5", "i > -5"),
        ("i = CAST('5' AS INT)", "i = 5"),
        ("i = '5'", "i = 5"),
        ("m = 1.005", "FALSE"),
        ("m < 1.005", "m <= 1.00"),
        ("m = 1.5", "m = 1.50"),
        ("d = '2026-02-08'", "d = DATE '2026-02-08'"),
        ("d > TIMESTAMP '2026-02-08 12:00:00'", "d >= DATE '2026-02-09'"),
        ("d = '2026-02-08 12:00'", "d = DATE '2026-02-08'"),
        ("d >= '2026-02-08T12:00:00Z'", "d >= DATE '2026-02-08'"),
        ("d < '2026-02-08 23:00:00-05:00'", "d < DATE '2026-02-08'"),
        ("d IN ('2026-02-08 12:00', '2026-02-09')", "d IN (DATE '2026-02-08', DATE '2026-02-09')"),
        (
            "date(t) = '2026-02-08 12:00'",
            "(t >= TIMESTAMP '2026-02-08 00:00:00+00:00' AND t < TIMESTAMP '2026-02-09 00:00:00+00:00')",
        ),
        ("d = to_date('2026-02-08')", "d = DATE '2026-02-08'"),
        ("t >= '2026-02-08T12:00:00+02:00'", "t >= TIMESTAMP '2026-02-08 10:00:00+00:00'"),
        ("ntz < '2026-02-08 12:00:00.123456'", "ntz < TIMESTAMP '2026-02-08 12:00:00.123456'"),
        ("t = '2026-02-08 12:00:00.1234567'", "FALSE"),
        ("b", "b = True"),
        ("NOT b", "b != True"),
        ("b IS NOT TRUE", "(b != True OR b IS NULL)"),
        ("i <=> 5", "i = 5"),
        ("NOT (i <=> 5)", "(i != 5 OR i IS NULL)"),
        ("i <=> NULL", "i IS NULL"),
        ("f < 3 AND NOT (f < 1)", "(f < 3.0 AND f >= 1.0)"),
        ({"f": {"<": 3}, "not": {"f": {"<": 1}}}, "(f < 3.0 AND NOT (f < 1.0))"),
        ("NOT (f = 1)", "f != 1.0"),
        ("single = 0.1", "FALSE"),
        ("s LIKE 'ab%'", "s LIKE 'ab%'"),
        ("s NOT LIKE 'ab%'", "s NOT LIKE 'ab%'"),
        ("s LIKE 'ab'", "s = 'ab'"),
        (r"s LIKE 'a\_b%'", r"s LIKE 'a\_b%'"),
        ("s LIKE 'a/%b%' ESCAPE '/'", r"s LIKE 'a\%b%'"),
        ("s LIKE '%'", "s IS NOT NULL"),
        ("s = 'it''s'", "s = 'it''s'"),
        ("n.i = 1", "n.i = 1"),
        ("`n`.`i` IS NOT NULL", "n.i IS NOT NULL"),
        ("n IS NULL", "n IS NULL"),
        ("TRUE", "TRUE"),
        ("1 = 1", "TRUE"),
        ("1 > 2 OR i = 1", "i = 1"),
        ({"i": None}, "i IS NULL"),
        ({"not": {"i": None}}, "i IS NOT NULL"),
        ({"i": {"!=": None}}, "i IS NOT NULL"),
        ({"i": {"is null": False}}, "i IS NOT NULL"),
        ({"i": {"between": [1, 3]}}, "(i >= 1 AND i <= 3)"),
        ({"s": {"not like": "a%"}}, "s NOT LIKE 'a%'"),
        ({"i": {"not": {">": 3}}}, "i <= 3"),
        ([("i", "=", None)], "FALSE"),
        ([("i", "is null")], "i IS NULL"),
        ([("i", "is not", None)], "i IS NOT NULL"),
        ([("i", "not in", {1})], "(i != 1 OR i IS NULL)"),
        ([("i", "not in", [1, None])], "i != 1"),
        ([("i", "not in", [None])], "i IS NOT NULL"),
        ([("i", "in", [1, None])], "(i = 1 OR i IS NULL)"),
        ([("i", "in", [None])], "i IS NULL"),
        ({"i": {"not in": [1]}}, "i != 1"),
        ([("f", "in", [1.5, float("nan")])], "(f = 1.5 OR f = 'NaN')"),
        ([("f", "not in", [1.5, float("nan")])], "((f != 1.5 AND f != 'NaN') OR f IS NULL)"),
        ([("q", "=", 3)], "q = '3'"),
        ([("q", "in", [3, True, dt.date(2026, 2, 8)])], "q IN ('2026-02-08', '3', 'true')"),
        ([("q", "!=", 1.5)], "q != '1.5'"),
        ([("i", "in", [])], "FALSE"),
        ([("i", "not in", [])], "TRUE"),
        ([("d", "=", dt.date(2026, 2, 8))], "d = DATE '2026-02-08'"),
        ([("t", "=", dt.datetime(2026, 2, 8))], "t = TIMESTAMP '2026-02-08 00:00:00+00:00'"),  # noqa: DTZ001 - naive is UTC
        (
            [("t", ">", np.datetime64("2026-02-08T00:00:00.000000001"))],
            "t >= TIMESTAMP '2026-02-08 00:00:00.000001+00:00'",
        ),
        ([("t", ">", pd.Timestamp("2026-02-08", tz="UTC"))], "t > TIMESTAMP '2026-02-08 00:00:00+00:00'"),
        ([("i", "=", np.int32(3))], "i = 3"),
        ([("m", "=", 1.1)], "m = 1.10"),
        ([("f", ">", Decimal("0.1"))], "f > 0.1"),
        ([("b", "=", "false")], "b = False"),
    ],
)
def test_a_predicate_means_what_sql_says(where: Any, meaning: str) -> None:
    assert shown(where) == meaning


@pytest.mark.parametrize(
    ("where", "complaint"),
    [
        ("i = 'five'", "'five' cannot be compared with column 'i' of type long"),
        ([("d", "=", "yesterday")], "'yesterday' cannot be compared with column 'd' of type date"),
        ([("d", "=", "2026-02-30")], "'2026-02-30' cannot be compared"),
        ([("s", "=", 5)], "5 cannot be compared with column 's' of type string"),
        ([("i", "=", True)], "True cannot be compared with column 'i'"),
        ([("t", "=", 5)], "5 cannot be compared with column 't' of type timestamp"),
        ([("b", "=", 1)], "1 cannot be compared with column 'b'"),
        ([("m", "=", object())], "of type decimal(9,2)"),
        ([("s", "=", "\ud800")], "cannot be compared with column 's'"),
        ([("n", "=", 5)], "Column 'n' of type struct<i:long> cannot be compared"),
        ("i LIKE 'a%'", "LIKE needs a string column"),
        ("i =", "is not valid SQL at line 1"),
        ("i = 1 foo", "near 'foo'"),
        ("(i = 1", "is not valid SQL"),
        ("i = 'open", "is not valid SQL"),
        ("i = 1; DROP TABLE x", "is not valid SQL"),
        ("SELECT 1", "is not valid SQL"),
        ("   ", "empty"),
        ("i IN (SELECT i FROM x)", "subquery"),
        ("i = :p", "parameter"),
        ("i", "is used as a condition"),
        ("d = DATE 'soon'", "'soon' is not a date"),
        ("{", "is not"),
        ({"i": {}}, "has no operator"),
        ({"i": {"~": 1}}, "operator '~'"),
        ({"i": [1, 2]}, "cannot equal the list"),
        ({"and": [1]}, "where a predicate should be"),
        ({5: 1}, "where a column's name should be"),
        ([("i", "in", 5)], "takes a list"),
        ([("i", "in", "abc")], "takes a list"),
        ([("i", "~", 5)], "operator '~'"),
        ([("i", "=")], "has no value"),
        ([[]], "list of filters"),
        ([5], "list of filters"),
        (5, "cannot be a int"),
        ("(" * 5000 + "i = 1" + ")" * 5000, "nested too deeply"),
        ("NOT " * 20000 + "i = 1", "nested too deeply"),
        ('{"not":' * 300 + '{"i":1}' + "}" * 300, "levels deep"),
        ('{"not":' * 100_000 + '{"i":1}' + "}" * 100_000, "is not"),
    ],
)
def test_what_cannot_be_understood_is_refused_by_name(where: Any, complaint: str) -> None:
    with pytest.raises(PredicateError) as caught:
        parse_predicate(where, SCHEMA)
    assert complaint in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    "where",
    [
        "nope = 1",
        "i = 1 OR upper(nope) = 'A'",
        "i = nope",
        "n.nope = 1",
        "i.x = 1",
        [("nope", "=", 1)],
        {"nope": 1},
        pc.field("nope") == 1,
        pc.field("n", "nope") == 1,
        (pc.field("i") == 1) & (pc.utf8_upper(pc.field("nope")) == "A"),
    ],
)
def test_an_unknown_column_is_an_error_wherever_it_stands(where: Any) -> None:
    with pytest.raises(UnknownColumnError, match=r"no column '(i\.x|n\.nope|nope)'"):
        parse_predicate(where, SCHEMA)


def test_long_chains_are_no_deep_trees() -> None:
    either = parse_predicate(" OR ".join(f"i = {each}" for each in range(5000)), SCHEMA)
    assert either is not None
    assert len(referenced_columns(either)) == 1
    expression = pc.field("i") == 0
    for each in range(1, 3000):
        expression |= pc.field("i") == each
    assert shown(expression) == shown(" OR ".join(f"i = {each}" for each in range(3000)))


@pytest.mark.parametrize(
    "where", ["upper(s) = 'A'", "i + 1 = 2", "s RLIKE 'a'", "CASE WHEN b THEN TRUE END", "i % 2 = 0"]
)
def test_what_has_no_translation_is_opaque_and_cannot_filter_rows(where: str) -> None:
    predicate = parse_predicate(where, SCHEMA)
    assert isinstance(predicate, Opaque)
    assert predicate.columns
    with pytest.raises(PredicateError, match="Rows cannot be filtered"):
        to_arrow_expression(predicate, SCHEMA)


def test_a_pattern_prunes_by_its_prefix_and_filters_by_the_whole() -> None:
    predicate = parse_predicate("s LIKE 'ab_d%'", SCHEMA)
    assert isinstance(predicate, And)
    assert str(predicate.parts[0]) == "s LIKE 'ab%'"
    table = pa.table({"s": ["abcd", "abd", "abxdz", None, "xabcd"]})
    assert table.filter(to_arrow_expression(predicate, SCHEMA))["s"].to_pylist() == ["abcd", "abxdz"]
    opposite = parse_predicate("NOT s LIKE 'ab_d%'", SCHEMA)
    assert opposite is not None
    assert table.filter(to_arrow_expression(opposite, SCHEMA))["s"].to_pylist() == ["abd", "xabcd"]


def test_columns_compared_with_each_other_filter_rows_and_prune_nothing() -> None:
    predicate = parse_predicate("i < tiny", SCHEMA)
    assert isinstance(predicate, Opaque)
    table = pa.table({"i": [1, 5, None], "tiny": [2, 2, 2]})
    assert table.filter(to_arrow_expression(predicate, SCHEMA)).num_rows == 1


@pytest.mark.parametrize(
    ("expression", "meaning"),
    [
        (pc.field("i") >= 1.5, "i >= 2"),
        (pc.scalar(3) > pc.field("i"), "i < 3"),
        (pc.field("n", "i") == 3, "n.i = 3"),
        (~(pc.field("i") < 3), "i >= 3"),
        (pc.field("i").is_valid(), "i IS NOT NULL"),
        (~pc.field("i").is_null(), "i IS NOT NULL"),
        (pc.field("b"), "b = True"),
        (pc.starts_with(pc.field("s"), "ab"), "s LIKE 'ab%'"),
        (pc.match_like(pc.field("s"), "ab%"), "s LIKE 'ab%'"),
        (pc.field("i").isin([1, 2]), "i IN (1, 2)"),
        (pc.field("i").isin([1, None]), "(i = 1 OR i IS NULL)"),
        (~pc.field("i").isin([1, 2]), "(i NOT IN (1, 2) OR i IS NULL)"),
        (~pc.field("i").isin([1, None]), "i != 1"),
        (pc.field("i") == pa.scalar(None, pa.int64()), "NULL"),
        (pc.field("t") > pa.scalar(1, pa.timestamp("ns", "UTC")), "t >= TIMESTAMP '1970-01-01 00:00:00.000001+00:00'"),
        (pc.field("d") == pa.scalar(dt.date(2026, 2, 8)), "d = DATE '2026-02-08'"),
        (pc.field("m") == Decimal("1.5"), "m = 1.50"),
        (pc.scalar(value=True), "TRUE"),
    ],
)
def test_pyarrow_expressions_are_translated_with_their_own_meaning(expression: pc.Expression, meaning: str) -> None:
    assert shown(expression) == meaning


@pytest.mark.parametrize(
    "expression",
    [
        pc.field("i").cast(pa.float64()) > 1,
        pc.field("i") + 1 > 3,
        pc.field("i") > float(2**60),
        pc.field("big") == 1.5,
        pc.field("f").isin([float("nan")]),
        pc.field("f").is_null(nan_is_null=True),
        pc.starts_with(pc.field("s"), "a", ignore_case=True),
        pc.field(0) > 1,
    ],
)
def test_other_expressions_prune_nothing_and_filter_by_themselves(expression: pc.Expression) -> None:
    predicate = parse_predicate(expression, SCHEMA)
    assert predicate is not None
    assert referenced_columns(predicate) == ()
    assert to_arrow_expression(predicate, SCHEMA).equals(expression)


def test_an_expression_translated_in_part_prunes_by_that_part_and_filters_by_the_whole() -> None:
    expression = (pc.field("i") > 3) & (pc.utf8_upper(pc.field("s")) == "A")
    predicate = parse_predicate(expression, SCHEMA)
    assert isinstance(predicate, WithExpression)
    assert [column.name for column in referenced_columns(predicate)] == ["i"]
    assert to_arrow_expression(predicate, SCHEMA).equals(expression)


def test_an_engine_says_that_nan_is_largest_in_the_expressions_that_it_hands_over() -> None:
    rows = pa.table({"f": [1.5, 9.0, float("nan"), None], "i": [1, 1, 1, 1]})
    for expression, kept in (
        (pc.field("f") > 5, 2),
        (pc.field("f") >= pa.scalar(float("nan")), 1),
        (~(pc.field("f") <= 5), 2),
        (~(pc.field("f") > 5), 1),
        ((pc.field("f") > 5) & (pc.field("i") == 1), 2),
    ):
        predicate = parse_predicate(expression, SCHEMA, nan=NanOrder.LARGEST)
        assert predicate is not None
        assert rows.filter(to_arrow_expression(predicate, SCHEMA)).num_rows == kept, str(expression)


def test_what_pyarrow_has_to_evaluate_is_written_anew_for_an_engine_with_another_nan() -> None:
    upper = pc.utf8_upper(pc.field("s")) == "A"
    floats = parse_predicate((pc.field("f") > 3) & upper, SCHEMA, nan=NanOrder.LARGEST)
    assert floats is not None
    rows = pa.table({"f": [math.nan, 4.0, 4.0, 2.0, None], "s": ["a", "A", "b", "a", "a"]})
    kept = rows.filter(to_arrow_expression(floats, SCHEMA))
    assert repr(kept["f"].to_pylist()) == "[nan, 4.0]"
    # The options of a function cannot be read back.
    unknown = pc.match_substring(pc.field("s"), "a", ignore_case=True)
    floats = parse_predicate((pc.field("f") > 3) & unknown, SCHEMA, nan=NanOrder.LARGEST)
    assert floats is not None
    with pytest.raises(PredicateError, match="Rows cannot be filtered"):
        to_arrow_expression(floats, SCHEMA)
    others = parse_predicate((pc.field("i") > 3) & unknown, SCHEMA, nan=NanOrder.LARGEST)
    assert isinstance(others, WithExpression)


def test_referenced_columns_are_told_apart_by_where_their_values_are() -> None:
    predicate = parse_predicate("p = 1 AND i > 2 AND (n.i = 3 OR p = 2) AND upper(s) = 'A'", SCHEMA)
    assert [column.name for column in partition_columns(predicate)] == ["p"]
    assert [column.name for column in stats_columns(predicate)] == ["i", "n.i"]


def test_values_take_the_type_of_the_column() -> None:
    for name, item in (
        ("tiny", 1),
        ("d", "2026-02-08"),
        ("t", "2026-02-08"),
        ("huge", 1),
        ("single", 1.5),
        ("b", True),
    ):
        predicate = parse_predicate([(name, "=", item)], SCHEMA)
        assert isinstance(predicate, Compare)
        assert predicate.value.type == SCHEMA.column(name).type.to_arrow()


def test_constants_simplify_the_tree() -> None:
    assert parse_predicate("i = 1 AND FALSE", SCHEMA) == Constant(value=False)
    assert shown("i = 1 AND TRUE") == "i = 1"


def test_partition_predicates_import_neither_pandas_nor_sqlglot() -> None:
    program = """
import sys
import pyarrow as pa
from lazydelta.protocol.schema import TableSchema
from lazydelta.predicates import may_match, parse_predicate
from lazydelta.stats import partition_ranges, ranges_from_json, combine
from lazydelta.runtime.arrays import typed_array
schema = TableSchema.parse(sys.argv[1], partition_columns=("p", "d"))
keys = typed_array(["p", "d"] * 3, pa.string())
items = typed_array(["1", "2026-02-08", "2", "2026-02-09", "", ""], pa.string())
maps = pa.MapArray.from_arrays(typed_array([0, 2, 4, 6], pa.int32()), keys, items)
stats = typed_array(['{"numRecords":1,"minValues":{"i":1},"maxValues":{"i":2}}', "{}", None], pa.string())
for where in ({"p": 1, "d": "2026-02-08"}, [("p", "in", [1, 7]), ("d", "<", "2026-02-09"), ("i", "<", 9)]):
    predicate = parse_predicate(where, schema)
    known = [partition_ranges(maps, [schema.column("p"), schema.column("d")])]
    known.append(ranges_from_json(stats, [schema.column("i")]))
    assert may_match(predicate, combine(known)).true_count == 1
print(sorted({"pandas", "sqlglot", "substrait", "duckdb"} & set(sys.modules)))
"""
    fields = [worlds._field(name, kind) for name, kind in (("i", "long"), ("p", "integer"), ("d", "date"))]
    text = json.dumps({"type": "struct", "fields": fields})
    done = subprocess.run([sys.executable, "-c", program, text], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.strip() == "[]"

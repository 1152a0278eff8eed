"""The small parser of SQL text reads what the large one reads, and leaves the rest to it."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from lazydelta.errors import PredicateError
from lazydelta.predicates import parse_predicate
from lazydelta.predicates.sql.plain_sql import parse_plain
from lazydelta.predicates.sql.sqlglot_sql import parse_foreign
from lazydelta.predicates.sql.syntax import Syntax
from lazydelta.predicates.sql.translation import Translator, quote_timestamps
from lazydelta.predicates.tree import NanOrder
from tests.predicates import sql_corpus, worlds

SCHEMA = worlds.schema()
NOW = 1_770_546_600_123_456_789  # 2026-02-08 10:30:00.123456789
TEXTS = 5_000


def meaning(tree: Syntax) -> object:
    """Return the predicate that a tree of syntax becomes, or the complaint."""
    try:
        return Translator(SCHEMA, now=NOW, nan=NanOrder.LARGEST).predicate(tree)
    except PredicateError as error:
        return str(error)


def test_both_parsers_agree_on_five_thousand_texts() -> None:
    rng = random.Random(13)
    texts: set[str] = set()
    while len(texts) < TEXTS:
        texts.add(quote_timestamps(sql_corpus.condition(rng, depth=rng.choice([0, 0, 1, 1, 2]))))
    for text in sorted(texts):
        small = parse_plain(text)
        assert small is not None, text
        assert meaning(small) == meaning(parse_foreign(text)), text


@pytest.mark.parametrize(
    "text",
    [
        "upper(s) = 'A'",
        "i % 2 = 0",
        "i / 2 = 1",
        "s RLIKE 'a'",
        "CASE WHEN b THEN TRUE END",
        "i = 1 -- a remark",
        "i = 1 /* a remark */",
        "i::int = 3",
        "s = 'a' 'b'",
        "s = r'raw'",
        "i = 1L",
        "i BETWEEN SYMMETRIC 1 AND 2",
        "i = 1 = 2",
        "i IN (SELECT 1)",
        "i =",
        "i = 1 foo",
        "(i = 1",
        "i = 'open",
        "s ILIKE 'a'",
        "i = :p",
        "i + 1",
        "'text'",
        "5",
        "year(t)",
        "i = 1 AND 7",
        "country ~~~ 3",
        "s =~ 'a'",
        "i =! 3",
        "CAST(s AS DECIMAL(9, 2)) = 1",
        "n.*",
        "t > INTERVAL '1:30' HOUR TO MINUTE",
        "(" * 300 + "i = 1" + ")" * 300,
    ],
)
def test_what_it_does_not_know_is_left_to_the_large_parser(text: str) -> None:
    assert parse_plain(text) is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s ~~~ 3", "line 1, column 3: there is no operator '~~~'"),
        ("i = 1 AND s ~~ 'a'", "line 1, column 13: there is no operator '~~'"),
        ("i = 1\n AND s =~ 'a'", "line 2, column 8: there is no operator '=~'"),
        ("i =! 3", "line 1, column 3: there is no operator '=!'"),
        ("i ? 3", "line 1, column 3: there is no operator '?'"),
        ("i + 1", "not a condition at line 1, column 1: 'i + 1' is neither true nor false"),
        ("b AND i * 2", "not a condition at line 1, column 7"),
        ("'text'", "is neither true nor false"),
        ("b OR CAST(i AS BIGINT)", "is neither true nor false"),
        ("s foo 3", "near 'foo'"),
    ],
)
def test_text_that_is_no_predicate_is_an_error_that_names_the_position(text: str, place: str) -> None:
    with pytest.raises(PredicateError) as caught:
        parse_predicate(text, SCHEMA)
    assert place in str(caught.value)


def test_slips_of_the_finger_are_read_alike_or_refused_in_our_words() -> None:
    rng = random.Random(7)
    for _ in range(1_500):
        text = sql_corpus.condition(rng, depth=1)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(text) + 1)
            slip = rng.choice(
                [*"'()=<>!~.,-+*\"`%_1a é:;?[]{}|&^\\\n", " AND ", " NOT ", "NULL", "interval ", "::", "--"]
            )
            text = (text[:at] + slip + text[at:] if rng.random() < 0.5 else text[:at] + text[at + 1 :]) or "x"
        text = quote_timestamps(text)
        small = parse_plain(text)
        try:
            large = meaning(parse_foreign(text))
        except PredicateError:
            assert small is None, text
        else:
            assert small is None or meaning(small) == large, text


def test_operators_in_quotes_are_nobodys_business() -> None:
    assert str(parse_predicate("s = 'a ~~~ b' AND upper(s) = '=~'", SCHEMA)) == "(s = 'a ~~~ b' AND upper(s) = '=~')"


def test_sql_that_people_write_loads_no_large_parser() -> None:
    program = """
import sys
from lazydelta.protocol.schema import TableSchema
from lazydelta.predicates import parse_predicate
schema = TableSchema.parse(sys.argv[1])
for text in sys.argv[2:]:
    parse_predicate(text, schema)
print(sorted({"pandas", "sqlglot", "duckdb"} & set(sys.modules)))
"""
    fields = [worlds._field(name, kind) for name, kind in (("i", "long"), ("hour", "string"), ("ts", "timestamp"))]
    schema = json.dumps({"type": "struct", "fields": fields})
    texts = [
        "hour = '2026021022' AND i BETWEEN 1 AND 5",
        "ts > current_timestamp - interval 1 hour OR NOT (hour LIKE '2026%' AND i IN (1, 2, NULL))",
        "date(ts) = '2026-02-08' AND i IS NOT NULL AND date_trunc('hour', ts) >= ago(2h)",
    ]
    command = [sys.executable, "-c", program, schema, *texts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.strip() == "[]"

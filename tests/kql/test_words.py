"""Words of the language that are also names, and layouts of a text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lazydelta.kql import query

WORDS = [
    "count",
    "kind",
    "from",
    "to",
    "step",
    "where",
    "project",
    "let",
    "print",
    "range",
    "asc",
    "with",
    "hint",
    "table",
]


def rows(text: str, **tables: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = query(text, tables).read_all().to_pylist()
    return found


@pytest.mark.parametrize("word", WORDS)
def test_a_keyword_may_be_a_column(word: str) -> None:
    table = pa.table({word: [1, 2, 3]})
    assert rows(f"T | where ['{word}'] > 1 | summarize {word} = max(['{word}'])", T=table) == [{word: 3}]
    assert rows(f"T | extend {word} = ['{word}'] * 2 | project ['{word}'] | top 1 by ['{word}']", T=table) == [
        {word: 6}
    ]


def test_names_differ_by_case() -> None:
    table = pa.table({"a": [1], "A": [2], "ä": [3]})
    assert rows("T | project x = a + 10 * A, ['ä']", T=table) == [{"x": 21, "ä": 3}]
    assert rows("T | summarize a = max(A), A = max(a)", T=table) == [{"a": 2, "A": 1}]


def test_odd_names_are_bracketed() -> None:
    table = pa.table({"a b": [1], "it's": [2], 'q"q': [3], "x.y": [4], "": [5]})
    text = "['odd table'] | project ['a b'], [\"it's\"], ['q\"q'], ['x.y'] | where ['x.y'] == 4 and [\"it's\"] == 2"
    assert rows(text, **{"odd table": table}) == [{"a b": 1, "it's": 2, 'q"q': 3, "x.y": 4}]


def test_comments_blank_lines_and_carriage_returns_are_no_part_of_a_query() -> None:
    text = "// first\r\nlet x = 1; // one\r\n\r\nprint y = x // the end\r\n| extend z = 'a // b'\t;\n"
    assert rows(text) == [{"y": 1, "z": "a // b"}]


def test_hints_are_read_and_ignored() -> None:
    table = pa.table({"a": [1, 1, 2]})
    assert len(rows("T | summarize hint.strategy=shuffle hint.num_partitions = 8 count() by a", T=table)) == 2
    assert len(rows("T | join hint.strategy=broadcast kind=inner T on a", T=table)) == 5
    assert len(rows("union hint.concurrency=2 T, T", T=table)) == 6


def test_texts_keep_every_character() -> None:
    assert rows(
        r"""print a = 'it\'s', b = "tab\there", c = @'back\slash', d = 'é\u00e9\x41\101', e = '%_', f = 'a\\b'"""
    ) == [{"a": "it's", "b": "tab\there", "c": "back\\slash", "d": "éé" + "AA", "e": "%_", "f": "a\\b"}]
    table = pa.table({"s": ["a\x00b", "a'b", "a\nb", None]})
    assert rows("T | where s == 'a\\x00b' | project n = strlen(s)", T=table) == [{"n": 3}]
    assert rows("T | where s == \"a'b\" or s == 'a\\nb' | count", T=table) == [{"Count": 2}]


def test_precedence_is_that_of_the_documentation() -> None:
    text = (
        "print a = 5 - 3 - 1, b = 2 + 3 * 4, c = 10 / 3 * 3, d = -2 - -3, e = true or false and false, f = 1 + 1 == 2"
    )
    assert rows(text) == [{"a": 1, "b": 14, "c": 9, "d": 1, "e": True, "f": True}]

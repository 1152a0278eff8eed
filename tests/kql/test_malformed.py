"""What is wrong is shown where it is wrong, whatever the text."""

from __future__ import annotations

import random

import pytest

from lazydelta import DeltaTable
from lazydelta.errors import KqlError
from lazydelta.kql.execution.query import run
from tests.kql.documented import CASES
from tests.kql.malformed import MALFORMED, Malformed

SOUP = """
Telemetry Devices n i device_id timestamp value info | | | where project extend summarize by join on union lookup
take top sort order asc desc nulls first distinct count getschema let = ; , ( ) [ ] { } == != =~ !~ < <= > >= + -
* / % . .. and or not in !in in~ between has contains !startswith_cs matches regex has_any dynamic datetime(
2026-01-01 1h 5 1.5 'text' "text" @'x' true null ago( now() count() avg( bin( iff( $left $right . range from to
step print datatable external_table('Telemetry') toscalar( view : long string ['odd_name'] // ``` ' " # ~ ! é
"""
WORDS = [*SOUP.split(), "\n", "\\"]


@pytest.mark.parametrize("wrong", MALFORMED, ids=lambda wrong: wrong.text[:70] or "empty")
def test_an_error_has_the_line_and_column_of_what_is_wrong(wrong: Malformed, tables: dict[str, DeltaTable]) -> None:
    with pytest.raises(KqlError) as caught:
        run(wrong.text, tables)
    error = caught.value
    assert (error.line, error.column) == (wrong.line, wrong.column), error
    assert wrong.word in str(error)
    assert f"line {wrong.line}, column {wrong.column}" in str(error)
    assert error.excerpt is not None
    shown, caret = error.excerpt.split("\n")
    assert caret.index("^") == wrong.column - 1
    assert shown == (wrong.text.split("\n")[wrong.line - 1] if wrong.text else "")


def test_there_are_a_hundred_malformed_texts() -> None:
    assert len(MALFORMED) >= 100


def test_a_caret_is_shown_in_tracebacks() -> None:
    with pytest.raises(KqlError) as caught:
        run("print x +", {})
    assert caught.value.__notes__ == ["print x +\n         ^"]


def test_a_long_line_is_cut_around_the_place() -> None:
    text = "print " + "1 + " * 100 + "nothing" + " + 1" * 100
    with pytest.raises(KqlError) as caught:
        run(text, {})
    shown, caret = str(caught.value.excerpt).split("\n")
    assert len(shown) < 120
    assert shown[caret.index("^") :].startswith("nothing")


def _refused_or_run(text: str, tables: dict[str, DeltaTable]) -> bool:
    """Run a text to its end; anything but rows and an error of ours is a failure."""
    try:
        with run(text, tables) as result:
            for _ in result:
                pass
    except KqlError as error:
        assert error.line is None or error.line >= 1  # noqa: PT017 - most texts of the soup are refused
        return True
    return False


def test_a_soup_of_tokens_gives_an_error_of_ours_and_nothing_else(tables: dict[str, DeltaTable]) -> None:
    choose = random.Random(5000)
    refused = 0
    for _ in range(5000):
        words = choose.choices(WORDS, k=choose.randrange(1, 25))
        refused += _refused_or_run(choose.choice(["", " "]).join(words), tables)
    assert refused > 4500


def test_queries_with_a_few_characters_changed_give_rows_or_an_error_of_ours(tables: dict[str, DeltaTable]) -> None:
    choose = random.Random(1500)
    for _ in range(1500):
        text = list(choose.choice(CASES).query)
        for _ in range(choose.randrange(1, 4)):
            place = choose.randrange(len(text))
            change = choose.randrange(3)
            text[place : place + (change > 0)] = [] if change == 2 else choose.choice("()[]{}|,;.='\"\\0aé\n%*-")
        _refused_or_run("".join(text), tables)


@pytest.mark.parametrize("deep", ["(" * 3000 + "1" + ")" * 3000, "-" * 5000 + "1", "not(" * 2000 + "true" + ")" * 2000])
def test_deep_nesting_is_an_error_or_a_value(deep: str) -> None:
    _refused_or_run(f"print x = {deep}", {})


def test_long_chains_are_no_deep_nesting() -> None:
    chain = " or ".join(f"x == {number}" for number in range(1000))
    assert run(f"range x from 1 to 10 step 1 | where {chain} | count", {}).read_all().to_pylist() == [{"Count": 10}]


def test_a_text_of_a_megabyte_is_refused() -> None:
    with pytest.raises(KqlError, match="characters"):
        run("print '" + "x" * (1 << 20) + "'", {})
